package train

import (
	"errors"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

var small = gpt.Model{NLayer: 6, NHead: 4, NEmbd: 64, BlockSize: 64, VocabSize: 1000}

func settings(change func(*config.Config)) *config.Config {
	c := config.Default()
	c.BatchSize, c.GradientAccumulationSteps, c.EvalIters = 12, 4, 3
	if change != nil {
		change(&c)
	}
	return &c
}

// Less memory never gives a faster plan, every plan fits its limit, and below the least there is none.
func TestChooseFitsEveryLimit(t *testing.T) {
	c := settings(nil)
	_, free, err := Choose(small, c, DTypes(trace.Float32), CPUCosts, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	before, fits := 0.0, 0
	for limit := free.Size; limit > 0; limit -= free.Size / 40 {
		found, err := Candidates(small, c, DTypes(trace.Float32), CPUCosts, nil, limit)
		var fit *FitError
		if errors.As(err, &fit) {
			if fit.Need <= limit {
				t.Errorf("limit %v: refused, though it says that %v are enough", limit, fit.Need)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		fits++
		best := found[0].Cost
		for _, cand := range found {
			best = min(best, cand.Cost)
			if cand.Layout.Size > limit {
				t.Errorf("limit %v: %d sequences at once take %v", limit, cand.Step.Policy.MicroBatch, cand.Layout.Size)
			}
		}
		if best < before-1e-12 {
			t.Errorf("limit %v: cost %v, with more memory it was %v", limit, best, before)
		}
		if found[0].Cost > nearlyAsFast*best {
			t.Errorf("limit %v: chose cost %v, %v fits too", limit, found[0].Cost, best)
		}
		before = best
	}
	if fits < 10 {
		t.Errorf("only %d of 40 limits fit", fits)
	}
}

// What a refusal names as enough is enough, also where the logits are most of the memory.
func TestNeedIsEnough(t *testing.T) {
	wide := gpt.Model{NLayer: 2, NHead: 2, NEmbd: 16, BlockSize: 512, VocabSize: 20000}
	for name, c := range map[string]*config.Config{
		"chunk chosen": settings(nil),
		"chunk given":  settings(func(c *config.Config) { c.LossChunk = 200 }),
	} {
		var fit *FitError
		if _, _, err := Choose(wide, c, DTypes(trace.Float32), CPUCosts, nil, 1); !errors.As(err, &fit) {
			t.Fatalf("%s, one byte: %v", name, err)
		}
		if _, layout, err := Choose(wide, c, DTypes(trace.Float32), CPUCosts, nil, fit.Need); err != nil || layout.Size > fit.Need {
			t.Errorf("%s: %v were said to be enough: %v", name, fit.Need, err)
		}
	}
}

func TestChooseTakesWhatIsGiven(t *testing.T) {
	c := settings(func(c *config.Config) { c.MicroBatch, c.Recompute, c.LossChunk = 5, "ln", 100 })
	step, _, err := Choose(small, c, DTypes(trace.Float32), CPUCosts, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := step.Policy
	if p.MicroBatch != 5 || p.LossChunk != 100 || p.Recompute[0] != gpt.RecomputeLn || p.Recompute[5] != gpt.RecomputeLn {
		t.Errorf("micro_batch=5, recompute=ln, loss_chunk=100 gave %+v", p)
	}
	if got := step.Sections[step.TrainRest].B; got != 48%5 {
		t.Errorf("the last micro-batch has %d sequences, want %d", got, 48%5)
	}
}

func TestFitErrorSaysBothNumbers(t *testing.T) {
	_, _, err := Choose(small, settings(nil), DTypes(trace.Float32), CPUCosts, nil, 1*units.MiB)
	var fit *FitError
	if !errors.As(err, &fit) || fit.Limit != units.MiB || fit.Need <= units.MiB {
		t.Errorf("1 MiB: %v", err)
	}
}

// A card with few multiprocessors is filled by few tokens: under the same limit it takes smaller micro-batches and recomputes less.
func TestSmallCardsAreFilledSooner(t *testing.T) {
	m := gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}
	c := settings(func(c *config.Config) { c.BatchSize, c.GradientAccumulationSteps = 64, 1 })
	choose := func(multiprocessors int) (micro, recompute int) {
		step, _, err := Choose(m, c, DTypes(trace.BFloat16), GPUCosts(multiprocessors), nil, 5*units.GiB)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range step.Policy.Recompute {
			recompute += int(level)
		}
		return step.Policy.MicroBatch, recompute
	}
	largeMicro, largeRecompute := choose(132)
	smallMicro, smallRecompute := choose(28)
	if smallMicro >= largeMicro || smallRecompute >= largeRecompute {
		t.Errorf("28 multiprocessors: %d sequences at once and recompute %d; 132: %d and %d", smallMicro, smallRecompute, largeMicro, largeRecompute)
	}
}

// Gradients in 16 bits are looked at where one micro-batch is all and the run stores 16 bits, or taken as they are asked for.
func TestGradientTypes(t *testing.T) {
	const auto, bf16 = "auto", trace.BFloat16
	for name, c := range map[string]struct {
		dtype    trace.DType
		micro    int
		gradient string
		want     trace.DType // of the fastest; empty: an error
		err      string
	}{
		"sums":                     {bf16, 12, auto, trace.Float32, ""},
		"one micro-batch":          {bf16, 48, auto, bf16, ""},
		"one micro-batch, float16": {trace.Float16, 48, auto, trace.Float16, ""},
		"one on the CPU":           {trace.Float32, 48, auto, trace.Float32, ""},
		"float32 asked for":        {bf16, 48, "float32", trace.Float32, ""},
		"16 bits asked for":        {bf16, 0, "bfloat16", bf16, ""},
		"16 bits of sums":          {bf16, 12, "bfloat16", "", "12 of 48 sequences at once"},
		"other 16 bits":            {bf16, 0, "float16", "", "this run stores bfloat16"},
		"16 bits on the CPU":       {trace.Float32, 0, "bfloat16", "", "this run stores float32"},
	} {
		cfg := settings(func(s *config.Config) { s.MicroBatch, s.GradientDType = c.micro, c.gradient })
		step, _, err := Choose(small, cfg, DTypes(c.dtype), GPUCosts(28), nil, 0)
		switch {
		case c.want == "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: %v, want %q", name, err, c.err)
		case c.want != "" && (err != nil || step.Policy.Gradient != c.want):
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// 774M in 16 GiB: what smaller gradients leave is spent on recomputing less.
func TestSmallerGradientsRecomputeLess(t *testing.T) {
	m := gpt.Model{NLayer: 36, NHead: 20, NEmbd: 1280, BlockSize: 1024, VocabSize: 50304}
	choose := func(gradient string) (kept int, cost float64) {
		c := settings(func(c *config.Config) { c.BatchSize, c.GradientAccumulationSteps, c.GradientDType = 16, 1, gradient })
		found, err := Candidates(m, c, DTypes(trace.BFloat16), GPUCosts(132), nil, 15770*units.MiB)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range found[0].Step.Policy.Recompute {
			if level < gpt.RecomputeBlock {
				kept++
			}
		}
		return kept, found[0].Cost
	}
	half, halfCost := choose("auto")
	float, floatCost := choose("float32")
	if half <= float || !(halfCost < 0.99*floatCost) {
		t.Errorf("with 16-bit gradients %d layers keep more than their input at cost %.4f, with float32 %d at %.4f", half, halfCost, float, floatCost)
	}
}
