package train

import (
	"math"

	"github.com/snugml/snug/internal/config"
)

// LearningRate is nanoGPT's get_lr (train.py, 3adf61e): linear warm-up, then a cosine from learning_rate to min_lr.
func LearningRate(c *config.Config, it int) float64 {
	switch {
	case !c.DecayLr:
		return c.LearningRate
	case it < c.WarmupIters:
		return c.LearningRate * float64(it+1) / float64(c.WarmupIters+1)
	case it > c.LrDecayIters:
		return c.MinLr
	case c.LrDecayIters == c.WarmupIters:
		return c.LearningRate // the cosine has no length: it stands at its start
	}
	ratio := float64(it-c.WarmupIters) / float64(c.LrDecayIters-c.WarmupIters)
	return c.MinLr + 0.5*(1+math.Cos(math.Pi*ratio))*(c.LearningRate-c.MinLr)
}
