package cpu

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestDropoutKeepsItsShare(t *testing.T) {
	const n = 100_000
	for _, p := range []float64{0, 0.1, 0.5} {
		d := Dropout{P: p, Seed: 1337, Site: 3, Sample: 42}
		dropped, sum := 0, 0.0
		for i := range n {
			s := d.Scale(i%7, i/7)
			if s == 0 {
				dropped++
			}
			sum += s
		}
		sigma := math.Sqrt(p * (1 - p) / n)
		if got := float64(dropped) / n; !(math.Abs(got-p) <= 4*sigma) {
			t.Errorf("p=%g: dropped %g", p, got)
		}
		if mean := sum / n; !(math.Abs(mean-1) <= 5*sigma/(1-p)) {
			t.Errorf("p=%g: mean scale %g, want 1", p, mean)
		}
	}
}

// A target of -1 is ignored: no loss, no gradient; the others' gradients sum to zero over the vocabulary.
func TestLossIgnoresMinusOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const n, V = 3, 17
	logits, losses, targets := normal(rng, n*V), ones(n), []int32{5, -1, 16}
	Loss(losses, logits, targets, n, V, 1, true)
	for i, target := range targets {
		var sum, size float64
		for _, v := range logits[i*V:][:V] {
			sum += v
			size += math.Abs(v)
		}
		if target < 0 && (losses[i] != 0 || size != 0) {
			t.Errorf("row %d is ignored: loss %g, |gradient| %g, want 0", i, losses[i], size)
		}
		if target >= 0 && (!(losses[i] > 0) || !(math.Abs(sum) < 1e-12) || !(size > 0.1)) {
			t.Errorf("row %d: loss %g, gradient sums to %g (|gradient| %g)", i, losses[i], sum, size)
		}
	}
}

// One AdamW step by hand, as torch.optim.AdamW computes it in float64.
func TestAdamW(t *testing.T) {
	param, m, v, grad := []float64{1, -2}, []float64{0.1, 0}, []float64{0.01, 0.02}, []float64{3, 4}
	norm := GlobalNorm(grad)
	if norm != 5 {
		t.Fatalf("GlobalNorm = %g, want 5", norm)
	}
	h := AdamWParams{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1, T: 3}
	var want []float64
	for i := range param {
		g := grad[i] * 1 / (5 + 1e-6)
		mi, vi := 0.9*m[i]+0.1*g, 0.95*v[i]+0.05*g*g
		mhat, vhat := mi/(1-0.9*0.9*0.9), vi/(1-0.95*0.95*0.95)
		want = append(want, param[i]*(1-0.01*0.1)-0.01*mhat/(math.Sqrt(vhat)+1e-8))
	}
	AdamW(param, m, v, grad, norm, h)
	for i := range want {
		if !(math.Abs(param[i]-want[i]) <= 1e-14) {
			t.Errorf("param %d = %.17g, want %.17g", i, param[i], want[i])
		}
	}
}
