package gpt

import (
	"math"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/program"
)

// A million values have the moments and the tails of a normal distribution.
func TestInitialIsNormal(t *testing.T) {
	const n, std = 1 << 20, 0.02
	x := make([]float32, n)
	Spec{Shape: []int{n}, Std: std}.Initial(x, 0, 3, 1337)
	var moments [5]float64
	beyond := map[float64]int{1: 0, 2: 0, 3: 0, 3.6: 0}
	for _, v := range x {
		z := float64(v) / std
		for k, p := 1, z; k <= 4; k, p = k+1, p*z {
			moments[k] += p / n
		}
		for limit := range beyond {
			if math.Abs(z) > limit {
				beyond[limit]++
			}
		}
	}
	// Standard errors of the moments of n normal numbers: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt n.
	for k, want := range map[int][2]float64{1: {0, 1}, 2: {1, math.Sqrt(2)}, 3: {0, math.Sqrt(15)}, 4: {3, math.Sqrt(96)}} {
		if diff := math.Abs(moments[k] - want[0]); !(diff <= 4*want[1]/math.Sqrt(n)) {
			t.Errorf("moment %d is %v, want %v", k, moments[k], want[0])
		}
	}
	for limit, got := range beyond {
		p := math.Erfc(limit / math.Sqrt2)
		if diff := math.Abs(float64(got) - n*p); !(diff <= 4*math.Sqrt(n*p)) {
			t.Errorf("%d of %d values lie beyond %g deviations, want about %.0f", got, n, limit, n*p)
		}
	}
}

// Parts of a parameter are what drawing all of it gives, in any order; another parameter starts with other values.
func TestInitialIsDrawnInParts(t *testing.T) {
	a, b := make([]float32, 300_001), make([]float32, 300_001)
	spec := Spec{Shape: []int{len(a)}, Std: 1}
	spec.Initial(a, 0, 1, 7)
	for _, from := range []int{2 * program.FillPart, 4 * program.FillPart, 0, program.FillPart, 3 * program.FillPart} {
		spec.Initial(b[from:min(from+program.FillPart, len(b))], from, 1, 7)
	}
	if !slices.Equal(a, b) {
		t.Error("parts have other values than the whole")
	}
	spec.Initial(b, 0, 2, 7)
	if slices.Equal(a, b) {
		t.Error("two parameters start with the same values")
	}
}

func TestSpecsAreNanoGPTs(t *testing.T) {
	m := Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}
	if got := m.Params(true); got != 123_587_328 {
		t.Errorf("%d parameters, nanoGPT prints 123.59M", got)
	}
	m.Bias, m.VocabSize = true, 50257
	if got := m.Params(false); got != 124_439_808 {
		t.Errorf("%d parameters, GPT-2 has 124,439,808", got)
	}
	for _, s := range m.Specs() {
		if s.Name == "transformer.h.3.mlp.c_proj.weight" && math.Abs(s.Std-0.02/math.Sqrt(24)) > 1e-12 {
			t.Errorf("c_proj starts with deviation %v", s.Std)
		}
	}
}

func BenchmarkInitial(b *testing.B) {
	x := make([]float32, 1<<20)
	b.SetBytes(4 << 20)
	for range b.N {
		Spec{Shape: []int{len(x)}, Std: 0.02}.Initial(x, 0, 0, 1337)
	}
}
