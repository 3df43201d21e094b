package train

import (
	"slices"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

var gpt2 = gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}

// Of steps that are predicted to be nearly as fast as the fastest, the smallest comes first; the others by their cost.
func TestTheSmallestOfTheFastestComesFirst(t *testing.T) {
	of := func(cost float64, size units.Bytes) Candidate {
		return Candidate{Cost: cost, Layout: &program.Layout{Size: size}}
	}
	for name, c := range map[string]struct{ list, want []Candidate }{
		"one":                      {[]Candidate{of(1, 5)}, []Candidate{of(1, 5)}},
		"a tie":                    {[]Candidate{of(1, 5), of(1, 3)}, []Candidate{of(1, 3), of(1, 5)}},
		"a near one":               {[]Candidate{of(1.02, 1), of(1, 9), of(1.004, 5)}, []Candidate{of(1.004, 5), of(1, 9), of(1.02, 1)}},
		"near, but larger":         {[]Candidate{of(1.004, 9), of(1, 5)}, []Candidate{of(1, 5), of(1.004, 9)}},
		"smaller, but not as fast": {[]Candidate{of(1.006, 1), of(1, 5)}, []Candidate{of(1, 5), of(1.006, 1)}},
	} {
		got := ranked(c.list)
		same := slices.EqualFunc(got, c.want, func(a, b Candidate) bool { return a.Cost == b.Cost && a.Layout.Size == b.Layout.Size })
		if !same {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Micro-batches divide the effective batch where it has divisors, and are nearly equal parts where it has none.
func TestMicroBatches(t *testing.T) {
	for _, c := range []struct {
		batch, tokens int
		want          []int
	}{
		{512, 65536, []int{64, 32, 16, 8, 4, 2, 1}},
		{512, 105472, []int{64, 32, 16, 8, 4, 2, 1}}, // 103 at once would leave a rest of 100
		{480, 65536, []int{60, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1}},
		{12, 8192, []int{6, 4, 3, 2, 1}},
		{13, 8192, []int{7, 5, 4, 3, 2, 1}},
		{64, 1 << 20, []int{64, 32, 16, 8, 4, 2, 1}},
		{1, 1, []int{1}},
	} {
		s := searcher{model: gpt2, shape: gpt.Shape{Batch: c.batch}, costs: Costs{Tokens: c.tokens}}
		if got := s.microBatches(0); !slices.Equal(got, c.want) {
			t.Errorf("%d sequences, %d tokens at once: %v, want %v", c.batch, c.tokens, got, c.want)
		}
	}
}

// A level that costs more for what it saves than the levels beside it is left out.
func TestLevelsAreWorthTheirPrice(t *testing.T) {
	const none, gelu, ln, attention, block = gpt.RecomputeNone, gpt.RecomputeGelu, gpt.RecomputeLn, gpt.RecomputeAttention, gpt.RecomputeBlock
	for name, c := range map[string]struct {
		costs [5]float64
		asked string
		want  []gpt.Recompute
	}{
		"CPU":                {CPUCosts.Recompute, "auto", []gpt.Recompute{none, gelu, ln, attention, block}},
		"GPU":                {GPUCosts(132).Recompute, "auto", []gpt.Recompute{none, gelu, ln, block}},
		"everything is dear": {[5]float64{0, 0.3, 0.3, 0.3, 0.3}, "auto", []gpt.Recompute{none, block}},
		"asked for":          {CPUCosts.Recompute, "ln", []gpt.Recompute{ln}},
	} {
		s := searcher{costs: Costs{Recompute: c.costs}}
		if err := s.setLevels(c.asked); err != nil || !slices.Equal(s.levels, c.want) {
			t.Errorf("%s: %v, want %v (%v)", name, s.levels, c.want, err)
		}
	}
}

// 124M in 11.15 GiB of arena at an effective batch of 512: 32 at once with GELU again in some layers, not 25 with a rest of 12,
// whichever of the overheads found so far is taken.
func TestChoosesEvenMicroBatches(t *testing.T) {
	c := settings(func(c *config.Config) { c.BatchSize, c.GradientAccumulationSteps = 16, 32 })
	for _, overhead := range []float64{1100, 1240, 1770} {
		costs := GPUCosts(132)
		costs.Tokens, costs.Overhead = int(65536*overhead/1100), overhead
		for limit, want := range map[units.Bytes]int{11418 * units.MiB: 32, 0: 64} {
			step, _, err := Choose(gpt2, c, DTypes(trace.BFloat16), costs, nil, limit)
			if err != nil || step.Policy.MicroBatch != want {
				t.Errorf("overhead %g, limit %v: %d at once, want %d (%v)", overhead, limit, step.Policy.MicroBatch, want, err)
			}
		}
	}
}

// Where memory is short enough for whole layers to be computed again, fewer logits at once spare some of that.
func TestFewerLogitsForLessRecompute(t *testing.T) {
	large := gpt.Model{NLayer: 36, NHead: 20, NEmbd: 1280, BlockSize: 1024, VocabSize: 50304}
	cost := func(chunk int) float64 {
		c := settings(func(c *config.Config) {
			c.BatchSize, c.GradientAccumulationSteps, c.MicroBatch, c.LossChunk = 16, 1, 16, chunk
		})
		found, err := Candidates(large, c, DTypes(trace.BFloat16), GPUCosts(132), nil, 15770*units.MiB)
		if err != nil {
			t.Fatal(err)
		}
		return found[0].Cost
	}
	if chosen, most := cost(0), cost(8192); !(chosen < most) {
		t.Errorf("cost %.4f with the chunk chosen, %.4f with 8,192 tokens", chosen, most)
	}
}

// A search that finds no room for a large micro-batch does not try it with thousands of chunks.
func TestChunksAreWorthTheirLaunches(t *testing.T) {
	s := searcher{model: gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}, dtypes: DTypes(trace.BFloat16), costs: GPUCosts(132)}
	for _, tokens := range []int{1024, 1 << 16, 1 << 20} {
		most, fewest := s.lossChunk(tokens)
		if chunks := (tokens + fewest - 1) / fewest; chunks > mostChunks || fewest < leastChunk || fewest > most {
			t.Errorf("%d tokens: chunks of %d to %d tokens, up to %d of them", tokens, fewest, most, chunks)
		}
	}
}

// A pass of an evaluation is as wide as has room in what training takes: not a byte more is taken, all passes are equal, and none
// is wider than pays or where wider ones do not.
func TestEvaluationFillsTrainingsMemory(t *testing.T) {
	char := gpt.Model{NLayer: 6, NHead: 6, NEmbd: 384, BlockSize: 256, VocabSize: 65, Dropout: 0.2}
	scratch := func(op *program.Op) units.Bytes { return 32 * units.MiB }
	thin := char // its one layer keeps nothing but its input: training needs hardly more than evaluation
	thin.NLayer = 1
	wordy := char // 65,536 tokens' logits are a gibibyte
	wordy.NLayer, wordy.VocabSize = 3, 8000
	for name, c := range map[string]struct {
		model         gpt.Model
		batch, iters  int
		costs         Costs
		recompute     string
		micro, atOnce int
		chunks        int // of an evaluation's logits
	}{
		"nanoGPT's character example": {char, 64, 200, GPUCosts(132), "auto", 64, 512, 1},
		"what pays is less":           {char, 64, 200, GPUCosts(28), "auto", 32, 100, 1}, // 27,803 tokens are 108 sequences
		"a short evaluation":          {char, 64, 3, GPUCosts(132), "auto", 64, 192, 1},
		"one batch":                   {char, 64, 1, GPUCosts(132), "auto", 64, 64, 1},
		"no evaluation":               {char, 64, 0, GPUCosts(132), "auto", 64, 0, 0},
		"no divisor":                  {char, 67, 1, GPUCosts(132), "auto", 67, 67, 1},
		"little room":                 {thin, 64, 200, GPUCosts(132), "block", 64, 160, 1},
		"many logits":                 {wordy, 64, 200, GPUCosts(132), "auto", 64, 512, 8},
		"the CPU":                     {char, 64, 200, CPUCosts, "auto", 8, 8, 1},
	} {
		cfg := settings(func(s *config.Config) {
			s.BatchSize, s.GradientAccumulationSteps, s.EvalIters, s.Recompute = c.batch, 1, c.iters, c.recompute
		})
		choose := func(costs Costs) (*gpt.Step, *program.Layout) {
			step, layout, err := Choose(c.model, cfg, DTypes(trace.BFloat16), costs, scratch, 0)
			if err != nil {
				t.Fatal(err)
			}
			return step, layout
		}
		step, layout := choose(c.costs)
		if p := step.Policy; p.MicroBatch != c.micro || p.EvalBatch != c.atOnce {
			t.Errorf("%s: %d sequences at once, %d in an evaluation, want %d and %d", name, p.MicroBatch, p.EvalBatch, c.micro, c.atOnce)
		}
		narrow := c.costs
		narrow.Eval = 0
		if _, without := choose(narrow); layout.Size != without.Size {
			t.Errorf("%s: %v, and %v where evaluation is as wide as training", name, layout.Size, without.Size)
		}
		chunks, each := 0, 0
		for _, op := range step.Sections[max(0, step.Eval)].Ops {
			if op.Code == program.Loss {
				chunks, each = chunks+1, max(each, op.Attrs.N)
			}
		}
		if step.Eval >= 0 && chunks != c.chunks {
			t.Errorf("%s: an evaluation's logits in %d parts of %d tokens, want %d", name, chunks, each, c.chunks)
		}
		if step.EvalRest >= 0 && step.Policy.EvalBatch > step.Policy.MicroBatch {
			t.Errorf("%s: a rest of %d sequences", name, step.Sections[step.EvalRest].B)
		}
	}
}

// Costs are measured where they could change the plan, and only there.
func TestCostsAreMeasuredWhereTheyMatter(t *testing.T) {
	char := gpt.Model{NLayer: 6, NHead: 6, NEmbd: 384, BlockSize: 256, VocabSize: 65}
	for name, c := range map[string]struct {
		model    gpt.Model
		batch    int
		sms      int
		limit    units.Bytes
		measures bool
	}{
		"all at once, with room for it":        {char, 64, 132, 0, false},
		"just enough room":                     {char, 64, 132, 1400 * units.MiB, false},
		"too little room for all at once":      {char, 64, 132, units.GiB, true},
		"so many tokens that fewer do as well": {char, 32, 8, 0, true},
		"more than fill the card":              {gpt2, 512, 132, 0, true},
	} {
		measured := Costs{Tokens: 1, Eval: 1, Overhead: 1}
		d := Device{Exec: &paper{}, DTypes: DTypes(trace.BFloat16), Costs: GPUCosts(c.sms), Limit: c.limit, calibrate: func(gpt.Model) Costs { return measured }}
		cfg := settings(func(s *config.Config) { s.BatchSize, s.GradientAccumulationSteps = c.batch, 1 })
		if got := d.CostsOf(c.model, cfg) == measured; got != c.measures {
			t.Errorf("%s: measured %v, want %v", name, got, c.measures)
		}
	}
}
