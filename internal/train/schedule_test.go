package train

import (
	"math"
	"testing"

	"github.com/snugml/snug/internal/config"
)

// The values are those of nanoGPT's get_lr (3adf61e) under Python.
func TestLearningRateIsNanoGPTs(t *testing.T) {
	c := config.Default()
	for it, want := range map[int]float64{0: 6e-4 / 2001, 1999: 6e-4 * 2000 / 2001, 2000: 6e-4, 301000: 3.3e-4, 600000: 6e-5, 600001: 6e-5} {
		if got := LearningRate(&c, it); !(math.Abs(got-want) <= 1e-15) {
			t.Errorf("iteration %d: %v, want %v", it, got, want)
		}
	}
	c.DecayLr = false
	if got := LearningRate(&c, 5); got != 6e-4 {
		t.Errorf("without decay: %v", got)
	}
	c.DecayLr, c.WarmupIters, c.LrDecayIters = true, 10, 10
	if got := LearningRate(&c, 10); got != 6e-4 {
		t.Errorf("a cosine of no length: %v", got)
	}
}
