package gpt

import (
	"math"
	"slices"
	"testing"
)

// The draws follow the normal distribution: the largest distance of the two distribution functions (Kolmogorov and
// Smirnov) stays under what chance gives once in a thousand runs, and the tail beyond the last layer has its share.
func TestZigguratIsNormal(t *testing.T) {
	const n = 1 << 20
	draws := make([]float32, n)
	z := ziggurat{state: 1337}
	z.fill(draws, 1)
	slices.Sort(draws)
	worst, tail := 0.0, 0
	for i, x := range draws {
		p := 0.5 * math.Erfc(-float64(x)/math.Sqrt2)
		worst = max(worst, math.Abs(p-float64(i)/n), math.Abs(p-float64(i+1)/n))
		if math.Abs(float64(x)) > rightmost {
			tail++
		}
	}
	if !(worst*math.Sqrt(n) <= 1.95) {
		t.Errorf("distance %.2g, at most %.2g", worst, 1.95/math.Sqrt(n))
	}
	if want := n * math.Erfc(rightmost/math.Sqrt2); !(math.Abs(float64(tail)-want) <= 5*math.Sqrt(want)) {
		t.Errorf("%d draws in the tail, want about %.0f", tail, want)
	}
	sum := 0.0
	for _, x := range draws {
		sum += float64(x)
	}
	if mean := sum / n; !(math.Abs(mean) <= 4/math.Sqrt(n)) {
		t.Errorf("mean %g", mean)
	}
}
