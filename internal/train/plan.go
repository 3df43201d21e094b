package train

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Costs is what a device pays for a policy, relative to the fastest one.
type Costs struct {
	Tokens    int        // tokens at once beyond which more are not faster
	Eval      int        // the same of an evaluation's pass, which may be larger than a micro-batch; 0: it is a micro-batch
	Overhead  float64    // tokens' worth of work that a micro-batch costs beside its tokens
	Recompute [5]float64 // share of a layer's step that each recompute level adds
	Logits    units.Bytes
}

// CPUCosts: the levels' shares are their arithmetic over a layer's 72 C^2 a token (forward and backward); elementwise
// work counts a little. Beyond a few thousand tokens a micro-batch only leaves the caches, and so does a pass of an evaluation.
var CPUCosts = Costs{Tokens: 2048, Overhead: 24, Recompute: [5]float64{0, 0.01, 0.02, 0.12, 0.26}, Logits: 256 * units.MiB}

// GPUCosts are those of a GPU with a number of multiprocessors, 0 where that is unknown. They are measured on an H200, which
// has 132, with GPT-2 124M (docs/performance.md): micro-batches of 2,048 to 65,536 tokens follow 1 + 1100/tokens, and a layer
// that recomputes everything costs a fifth of its step. What a small micro-batch loses is multiprocessors without work, so
// both numbers of tokens go with how many there are. A pass of an evaluation is not calibrated, so that what is estimated is
// the same to the last bit whatever was measured.
func GPUCosts(multiprocessors int) Costs {
	const measured = 132
	share := 1.0
	if multiprocessors > 0 {
		share = float64(multiprocessors) / measured
	}
	return Costs{Tokens: max(8192, int(65536*share)), Eval: max(8192, int(131072*share)), Overhead: 1100 * share, Recompute: [5]float64{0, 0.008, 0.02, 0.11, 0.20}, Logits: units.GiB}
}

// FitError says that no policy fits the limit.
type FitError struct {
	Need, Limit units.Bytes
}

func (e *FitError) Error() string {
	return fmt.Sprintf("plan: the smallest way to run this step needs %v, the limit is %v: lower n_layer, n_embd or block_size, or raise --vram", e.Need, e.Limit)
}

// Shape is the work of an iteration and of an evaluation, as the settings have it.
func Shape(c *config.Config) gpt.Shape {
	return gpt.Shape{Batch: c.EffectiveBatch(), EvalBatch: c.EvalIters * c.BatchSize,
		Adam: gpt.Adam{Beta1: c.Beta1, Beta2: c.Beta2, Eps: 1e-8, WeightDecay: c.WeightDecay, GradClip: c.GradClip}}
}

// Candidate is a step that fits, and what it costs relative to one without overhead or recompute.
type Candidate struct {
	Cost   float64
	Step   *gpt.Step
	Layout *program.Layout
}

// Choose builds the fastest step that fits limit (0: no limit), with the workspace that scratch asks for, and places it.
func Choose(m gpt.Model, c *config.Config, dtypes gpt.Policy, costs Costs, scratch func(*program.Op) units.Bytes, limit units.Bytes) (*gpt.Step, *program.Layout, error) {
	found, err := Candidates(m, c, dtypes, costs, scratch, limit)
	if err != nil {
		return nil, nil, err
	}
	return found[0].Step, found[0].Layout, nil
}

// DTypes are what a step stores under a dtype: weights and activations in it, gradients in fp32 unless the planner finds that none is a sum.
// A CPU step stores Float32 whatever its matmuls round to.
func DTypes(dtype trace.DType) gpt.Policy {
	return gpt.Policy{Weight: dtype, Activation: dtype, Gradient: trace.Float32}
}
