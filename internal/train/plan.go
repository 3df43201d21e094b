package train

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Costs is what a device pays for a policy, relative to the fastest one.
type Costs struct {
	Tokens    int        // tokens at once beyond which more are not faster
	Overhead  float64    // tokens' worth of work that a micro-batch costs beside its tokens
	Recompute [5]float64 // share of a layer's step that each recompute level adds
	Logits    units.Bytes
}

// CPUCosts: the levels' shares are their arithmetic over a layer's 72 C^2 a token (forward and backward); elementwise
// work counts a little. Beyond a few thousand tokens a micro-batch only leaves the caches.
var CPUCosts = Costs{Tokens: 2048, Overhead: 24, Recompute: [5]float64{0, 0.01, 0.02, 0.12, 0.26}, Logits: 256 * units.MiB}

// GPUCosts are those of a GPU with a number of multiprocessors, 0 where that is unknown. They are measured on an H200, which
// has 132, with GPT-2 124M (docs/performance.md): micro-batches of 2,048 to 65,536 tokens follow 1 + 1100/tokens, and a layer
// that recomputes everything costs a fifth of its step. What a small micro-batch loses is multiprocessors without work, so
// both numbers of tokens go with how many there are.
func GPUCosts(multiprocessors int) Costs {
	const measured = 132
	share := 1.0
	if multiprocessors > 0 {
		share = float64(multiprocessors) / measured
	}
	return Costs{Tokens: max(8192, int(65536*share)), Overhead: 1100 * share, Recompute: [5]float64{0, 0.008, 0.02, 0.11, 0.20}, Logits: units.GiB}
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

// Candidates are the steps that fit limit, one for each micro-batch and type of gradients worth a look, the fastest first, of
// equals the smallest. There is at least one, or a *FitError. micro_batch, recompute, loss_chunk and gradient_dtype are
// taken as they are where the settings give them.
func Candidates(m gpt.Model, c *config.Config, dtypes gpt.Policy, costs Costs, scratch func(*program.Op) units.Bytes, limit units.Bytes) ([]Candidate, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	s := searcher{model: m, shape: Shape(c), base: dtypes, costs: costs, scratch: scratch, limit: limit}
	s.base.LossChunk = c.LossChunk
	levels := []gpt.Recompute{gpt.RecomputeNone, gpt.RecomputeGelu, gpt.RecomputeLn, gpt.RecomputeAttention, gpt.RecomputeBlock}
	if c.Recompute != "auto" {
		level, err := gpt.ParseRecompute(c.Recompute)
		if err != nil {
			return nil, err
		}
		levels = []gpt.Recompute{level}
	}
	splits, err := s.splits(c)
	if err != nil {
		return nil, err
	}
	var found []Candidate
	var need units.Bytes
	for _, split := range splits {
		s.base.Gradient = split.gradient
		cand, least, err := s.cheapest(split.micro, levels)
		if err != nil {
			return nil, err
		}
		if need == 0 || least < need {
			need = least
		}
		if cand != nil {
			found = append(found, *cand)
		}
	}
	if len(found) == 0 {
		return nil, &FitError{Need: need, Limit: limit}
	}
	slices.SortStableFunc(found, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Layout.Size, b.Layout.Size))
	})
	return found, nil
}

// split is a micro-batch and the type of the gradients that its products write.
type split struct {
	micro    int
	gradient trace.DType
}

// splits are the micro-batches worth a look, each with the types that gradients may have there: 16 bits only where one
// micro-batch is all, because only then is no gradient of a layer's matrix a sum.
func (s *searcher) splits(c *config.Config) (list []split, err error) {
	asked, half, whole := trace.DType(c.GradientDType), s.base.Activation, s.shape.Batch
	micros := s.microBatches(c.MicroBatch)
	switch {
	case asked == "auto" || asked == trace.Float32:
	case asked != half:
		return nil, fmt.Errorf("gradient_dtype %s: this run stores %s: choose float32 or auto", asked, half)
	case c.MicroBatch > 0 && c.MicroBatch < whole:
		return nil, fmt.Errorf("gradient_dtype %s: with %d of %d sequences at once gradients are sums: choose float32, or micro_batch %d", asked, c.MicroBatch, whole, whole)
	default:
		micros = []int{whole}
	}
	for _, micro := range micros {
		if micro == whole && half != trace.Float32 && asked != trace.Float32 {
			list = append(list, split{micro, half})
		}
		if asked == "auto" || asked == trace.Float32 {
			list = append(list, split{micro, trace.Float32})
		}
	}
	return list, nil
}

type searcher struct {
	model   gpt.Model
	shape   gpt.Shape
	base    gpt.Policy
	costs   Costs
	scratch func(*program.Op) units.Bytes
	limit   units.Bytes
}

// microBatches are the sizes worth a look: the largest that is still faster, and its halves.
func (s *searcher) microBatches(given int) []int {
	if given > 0 {
		return []int{min(given, s.shape.Batch)}
	}
	most := min(s.shape.Batch, max(1, (s.costs.Tokens+s.model.BlockSize-1)/s.model.BlockSize))
	// The same number of micro-batches with less to do in the last: 12 sequences go as 6 and 6, never as 8 and 4.
	parts := (s.shape.Batch + most - 1) / most
	most = (s.shape.Batch + parts - 1) / parts
	var sizes []int
	for n := most; n >= 1; n /= 2 {
		sizes = append(sizes, n)
	}
	return sizes
}

// cheapest finds, for one micro-batch, the least recompute that fits. Recompute grows by one level of one layer at a
// time, from the first layer on, and memory shrinks with it, so bisection finds the place. Where not even all of it
// fits, fewer logits at once may.
func (s *searcher) cheapest(micro int, levels []gpt.Recompute) (c *Candidate, least units.Bytes, err error) {
	last := (len(levels) - 1) * s.model.NLayer
	chunk := s.lossChunk(micro * s.model.BlockSize)
	build := func(at int) (*gpt.Step, error) { return s.build(micro, chunk, s.mix(levels, at)) }
	step, err := build(last)
	if err != nil {
		return nil, 0, err
	}
	least = step.Place().Size
	if s.limit > 0 && least > s.limit {
		if chunk, least, err = s.smallerChunk(micro, chunk, s.mix(levels, last)); err != nil || least > s.limit {
			return nil, least, err
		}
	}
	lo, hi := 0, last // hi fits
	for lo < hi {
		mid := (lo + hi) / 2
		if step, err = build(mid); err != nil {
			return nil, 0, err
		}
		if s.limit == 0 || step.Place().Size <= s.limit {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if step, err = build(hi); err != nil {
		return nil, 0, err
	}
	return &Candidate{s.cost(micro, step.Policy.Recompute), step, step.Place()}, least, nil
}

// mix gives each layer its level when at single steps have been made.
func (s *searcher) mix(levels []gpt.Recompute, at int) []gpt.Recompute {
	mixed := make([]gpt.Recompute, s.model.NLayer)
	for l := range mixed {
		k := at / s.model.NLayer
		if l < at%s.model.NLayer {
			k++
		}
		mixed[l] = levels[k]
	}
	return mixed
}

// smallerChunk halves the loss chunk until the step fits, and says what the step then takes. Where the least chunk does
// not fit either, or the settings give the chunk, it is that size that is above the limit.
func (s *searcher) smallerChunk(micro, chunk int, recompute []gpt.Recompute) (int, units.Bytes, error) {
	size := func(chunk int) (units.Bytes, error) {
		step, err := s.build(micro, chunk, recompute)
		if err != nil {
			return 0, err
		}
		return step.Place().Size, nil
	}
	floor := min(chunk, leastChunk)
	if s.base.LossChunk > 0 {
		floor = chunk
	}
	least, err := size(floor)
	if err != nil || least > s.limit {
		return floor, least, err
	}
	for chunk > floor {
		chunk = max(floor, chunk/2)
		if n, err := size(chunk); err != nil || n <= s.limit {
			return chunk, n, err
		}
	}
	return floor, least, nil
}

func (s *searcher) build(micro, chunk int, recompute []gpt.Recompute) (*gpt.Step, error) {
	p := s.base
	p.MicroBatch, p.EvalBatch, p.Recompute, p.LossChunk = micro, micro, recompute, chunk
	step, err := gpt.Build(s.model, s.shape, p)
	if err == nil && s.scratch != nil {
		step.AddScratch(s.scratch)
	}
	return step, err
}

// leastChunk is the fewest tokens whose logits are worth a matmul.
const leastChunk = 16

// lossChunk is the settings', or keeps the logits under the device's measure, and under a quarter of the limit, in equal chunks.
func (s *searcher) lossChunk(tokens int) int {
	if s.base.LossChunk > 0 {
		return s.base.LossChunk
	}
	bytes := s.costs.Logits
	if s.limit > 0 {
		bytes = min(bytes, s.limit/4)
	}
	most := max(leastChunk, int(int64(bytes)/(int64(s.model.VocabSize)*s.base.Activation.Size())))
	chunks := (tokens + most - 1) / most
	return (tokens + chunks - 1) / chunks
}

// cost is the time of a step under a policy, relative to one without overhead or recompute.
func (s *searcher) cost(micro int, recompute []gpt.Recompute) float64 {
	again := 0.0
	for _, level := range recompute {
		again += s.costs.Recompute[level] / float64(len(recompute))
	}
	return (1 + s.costs.Overhead/float64(micro*s.model.BlockSize)) * (1 + again)
}

// DTypes are what a step stores under a dtype: weights and activations in it, gradients in fp32 unless the planner finds that none is a sum.
// A CPU step stores Float32 whatever its matmuls round to.
func DTypes(dtype trace.DType) gpt.Policy {
	return gpt.Policy{Weight: dtype, Activation: dtype, Gradient: trace.Float32}
}
