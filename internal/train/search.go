package train

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"sort"

	"golang.org/x/sync/errgroup"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// nearlyAsFast is how much slower than the fastest a smaller step may be predicted and still be taken: less than predictions are off by.
const nearlyAsFast = 1.005

// Candidates are the steps that fit limit, one for each micro-batch and type of gradients worth a look. The first is the
// smallest of those that are nearly as fast as the fastest; the others follow, the fastest first. There is at least one, or a
// *FitError. micro_batch, recompute, loss_chunk and gradient_dtype are taken as they are where the settings give them.
// The first one's evaluation takes as many sequences at once as have room in what its training takes.
func Candidates(m gpt.Model, c *config.Config, dtypes gpt.Policy, costs Costs, scratch func(*program.Op) units.Bytes, limit units.Bytes) ([]Candidate, error) {
	s, err := newSearcher(m, c, dtypes, costs, scratch, limit)
	if err != nil {
		return nil, err
	}
	splits, err := s.splits(c)
	if err != nil {
		return nil, err
	}
	found, least := make([]*Candidate, len(splits)), make([]units.Bytes, len(splits))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, split := range splits {
		group.Go(func() (err error) { found[i], least[i], err = s.fastest(split); return err })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	list := make([]Candidate, 0, len(found))
	for _, cand := range found {
		if cand != nil {
			list = append(list, *cand)
		}
	}
	if len(list) == 0 {
		return nil, &FitError{Need: slices.Min(least), Limit: limit}
	}
	list = ranked(list)
	return list, s.widenEval(&list[0])
}

// widenEval gives c the largest pass of an evaluation that takes no byte more than c does: a divisor of the evaluation, so that
// all passes are equal, of more sequences than a micro-batch and at most costs.Eval tokens; with as many logits at once as the
// device's measure allows where these have room, else as many as training.
func (s *searcher) widenEval(c *Candidate) error {
	for n := min(s.shape.EvalBatch, s.costs.Eval/s.model.BlockSize); n > c.Step.Policy.EvalBatch; n-- {
		if s.shape.EvalBatch%n != 0 {
			continue
		}
		most, _ := s.lossChunk(n * s.model.BlockSize)
		for _, chunk := range []int{most, c.Step.Policy.LossChunk} {
			policy := c.Step.Policy
			policy.EvalBatch, policy.EvalChunk = n, chunk
			step, err := s.step(policy)
			if err != nil {
				return err
			}
			if step.Live() > c.Layout.Size {
				continue
			}
			if layout := step.Place(); layout.Size <= c.Layout.Size {
				c.Step, c.Layout = step, layout
				return nil
			}
		}
	}
	return nil
}

// ranked orders candidates as Candidates promises.
func ranked(list []Candidate) []Candidate {
	slices.SortStableFunc(list, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(a.Layout.Size, b.Layout.Size))
	})
	first := 0
	for i, c := range list {
		if c.Cost <= nearlyAsFast*list[0].Cost && c.Layout.Size < list[first].Layout.Size {
			first = i
		}
	}
	chosen := list[first]
	return slices.Insert(slices.Delete(list, first, first+1), 0, chosen)
}

type searcher struct {
	model   gpt.Model
	shape   gpt.Shape
	dtypes  gpt.Policy
	chunk   int // the settings' loss chunk; 0 leaves it to the search
	levels  []gpt.Recompute
	costs   Costs
	scratch func(*program.Op) units.Bytes
	limit   units.Bytes
}

func newSearcher(m gpt.Model, c *config.Config, dtypes gpt.Policy, costs Costs, scratch func(*program.Op) units.Bytes, limit units.Bytes) (*searcher, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	s := &searcher{model: m, shape: Shape(c), dtypes: dtypes, chunk: c.LossChunk, costs: costs, scratch: scratch, limit: limit}
	return s, s.setLevels(c.Recompute)
}

// settled says that no measurement of costs would change the plan: everything goes at once with nothing recomputed, and would
// even if a micro-batch cost as little as a measurement is believed to say.
func (d *Device) settled(m gpt.Model, c *config.Config) bool {
	cheap := d.Costs
	cheap.scale(cheap.Overhead / measuredWithin)
	s, err := newSearcher(m, c, d.DTypes, cheap, d.Exec.Scratch, d.Limit)
	if err != nil {
		return false
	}
	sizes := s.microBatches(c.MicroBatch)
	policy := func(micro int) gpt.Policy {
		chunk, _ := s.lossChunk(micro * m.BlockSize)
		return s.policy(split{micro, trace.Float32}, chunk, 0)
	}
	whole := policy(sizes[0])
	if whole.MicroBatch < s.shape.Batch || len(sizes) > 1 && s.cost(policy(sizes[1])) <= nearlyAsFast*s.cost(whole) {
		return false
	}
	step, err := s.step(whole)
	return err == nil && (s.limit == 0 || step.Place().Size <= s.limit)
}

// setLevels sets the recompute levels that a layer goes through as memory shrinks: the settings' one, or those of which none
// costs more for what it saves than a mix of the levels beside it.
func (s *searcher) setLevels(asked string) error {
	if asked != "auto" {
		level, err := gpt.ParseRecompute(asked)
		s.levels = []gpt.Recompute{level}
		return err
	}
	price := func(from, to gpt.Recompute) float64 {
		return (s.costs.Recompute[to] - s.costs.Recompute[from]) / float64(from.Kept()-to.Kept())
	}
	for level := gpt.RecomputeNone; level <= gpt.RecomputeBlock; level++ {
		for n := len(s.levels); n >= 2 && price(s.levels[n-2], s.levels[n-1]) > price(s.levels[n-1], level); n-- {
			s.levels = s.levels[:n-1]
		}
		s.levels = append(s.levels, level)
	}
	return nil
}

// split is a micro-batch and the type of the gradients that its products write.
type split struct {
	micro    int
	gradient trace.DType
}

// splits are the micro-batches worth a look, each with the types that gradients may have there: 16 bits only where one
// micro-batch is all, because only then is no gradient of a layer's matrix a sum.
func (s *searcher) splits(c *config.Config) (list []split, err error) {
	asked, half, whole := trace.DType(c.GradientDType), s.dtypes.Activation, s.shape.Batch
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

// microBatches are the sizes worth a look: from the largest that is still faster down to one, in steps of at least a fifth and
// about half at most, divisors of the effective batch where there are some. 12 sequences go as 6 and 6, never as 8 and 4.
func (s *searcher) microBatches(given int) (sizes []int) {
	batch := s.shape.Batch
	if given > 0 {
		return []int{min(given, batch)}
	}
	// below is the largest divisor from least to most; without one, the largest of equal parts, the last of which may be smaller.
	below := func(least, most int) int {
		for n := most; n >= max(1, least); n-- {
			if batch%n == 0 {
				return n
			}
		}
		parts := (batch + most - 1) / most
		return (batch + parts - 1) / parts
	}
	most := min(batch, max(1, (s.costs.Tokens+s.model.BlockSize-1)/s.model.BlockSize))
	for n := below((most+1)/2, most); ; n = below((n+1)/2, max(1, n*4/5)) {
		sizes = append(sizes, n)
		if n == 1 {
			return sizes
		}
	}
}

// fastest finds, for one split, the least recompute that fits, with as many logits at once as are worth the recompute that
// they cost. Where nothing fits, least is what the smallest step of the split takes.
func (s *searcher) fastest(sp split) (c *Candidate, least units.Bytes, err error) {
	last := (len(s.levels) - 1) * s.model.NLayer
	chunk, fewest := s.lossChunk(sp.micro * s.model.BlockSize)
	at, err := s.recompute(sp, chunk, last)
	for err == nil && at > 0 && chunk > fewest {
		fewer := max(fewest, (chunk+1)/2)
		var then int
		if then, err = s.recompute(sp, fewer, min(at, last)); err != nil {
			break
		}
		if at <= last && s.cost(s.policy(sp, fewer, then)) >= s.cost(s.policy(sp, chunk, at)) {
			break // fewer logits cost more than they spare
		}
		chunk, at = fewer, then
	}
	for at = min(at, last); err == nil; at++ {
		step, wrong := s.build(sp, chunk, at)
		if wrong != nil {
			return nil, 0, wrong
		}
		layout := step.Place()
		if s.limit == 0 || layout.Size <= s.limit {
			return &Candidate{s.cost(step.Policy), step, layout}, layout.Size, nil
		}
		if at == last {
			if chunk == fewest {
				return nil, layout.Size, nil
			}
			chunk, at = max(fewest, (chunk+1)/2), at-1
		}
	}
	return nil, 0, err
}

// recompute is how many single steps of recompute it takes with a loss chunk until the live bytes fit, which are what a placement
// takes or a little less: most where no less do, more than that where not even most does. Recompute grows by one level of
// one layer at a time, from the first layer on, and memory shrinks with it, so bisection finds the place.
func (s *searcher) recompute(sp split, chunk, most int) (at int, err error) {
	if s.limit == 0 {
		return 0, nil
	}
	at = sort.Search(most+1, func(at int) bool {
		if err != nil {
			return true
		}
		var step *gpt.Step
		step, err = s.build(sp, chunk, at)
		return err != nil || step.Live() <= s.limit
	})
	return at, err
}

// policy is that of a split in which at single steps of recompute have been made.
func (s *searcher) policy(sp split, chunk, at int) gpt.Policy {
	p := s.dtypes
	p.MicroBatch, p.EvalBatch, p.Gradient, p.LossChunk, p.Recompute = sp.micro, sp.micro, sp.gradient, chunk, s.mix(at)
	return p
}

// build is the step of that policy.
func (s *searcher) build(sp split, chunk, at int) (*gpt.Step, error) {
	return s.step(s.policy(sp, chunk, at))
}

// step builds a policy, with the workspace of its ops.
func (s *searcher) step(p gpt.Policy) (*gpt.Step, error) {
	step, err := gpt.Build(s.model, s.shape, p)
	if err == nil && s.scratch != nil {
		step.AddScratch(s.scratch)
	}
	return step, err
}

// mix gives each layer its level when at single steps have been made.
func (s *searcher) mix(at int) []gpt.Recompute {
	mixed := make([]gpt.Recompute, s.model.NLayer)
	for l := range mixed {
		k := at / s.model.NLayer
		if l < at%s.model.NLayer {
			k++
		}
		mixed[l] = s.levels[k]
	}
	return mixed
}

// leastChunk is the fewest tokens whose logits are worth a matmul, and mostChunks how many chunks of a micro-batch are worth
// their launches.
const leastChunk, mostChunks = 16, 256

// lossChunk is the most and the fewest tokens whose logits the search may hold at once: the settings', or from what keeps the
// logits under the device's measure, in equal chunks, down to leastChunk or mostChunks.
func (s *searcher) lossChunk(tokens int) (most, fewest int) {
	if s.chunk > 0 {
		return s.chunk, s.chunk
	}
	most = max(leastChunk, int(int64(s.costs.Logits)/(int64(s.model.VocabSize)*s.dtypes.Activation.Size())))
	chunks := (tokens + most - 1) / most
	most = (tokens + chunks - 1) / chunks
	return most, min(most, max(leastChunk, (tokens+mostChunks-1)/mostChunks))
}

// cost is the time of a step under a policy, relative to one whose every token costs the same: what a micro-batch and a loss chunk
// cost beside their tokens, in tokens, and what is recomputed.
func (s *searcher) cost(p gpt.Policy) float64 {
	again := 0.0
	for _, level := range p.Recompute {
		again += s.costs.Recompute[level] / float64(len(p.Recompute))
	}
	tokens, micro := s.shape.Batch*s.model.BlockSize, p.MicroBatch*s.model.BlockSize
	more := func(tokens int) int { return (tokens - 1) / p.LossChunk } // chunks beyond the first, which the micro-batch's overhead holds
	micros, chunks := tokens/micro, tokens/micro*more(micro)
	if rest := tokens % micro; rest > 0 {
		micros, chunks = micros+1, chunks+more(rest)
	}
	beside := s.costs.Overhead*float64(micros) + s.chunkTokens()*float64(chunks)
	return (1 + beside/float64(tokens)) * (1 + again)
}

// chunkTokens is what a loss chunk costs beside its tokens: the head's gradient is read and written once more, while a device
// could have done flopsPerByte of arithmetic a byte.
func (s *searcher) chunkTokens() float64 {
	const flopsPerByte = 125 // an H200's 500 TFLOP/s of a step over its 4 TB/s
	return 8 * float64(s.model.VocabSize) * float64(s.model.NEmbd) * flopsPerByte / s.model.FlopsPerToken()
}
