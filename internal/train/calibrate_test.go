package train

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// paper is an executor that computes nothing: each op takes the time that a card on paper would, which needs `fill` rows
// more than there are to keep busy.
type paper struct {
	program.Executor
	layout *program.Layout
	clock  time.Time
	fill   float64
	loads  int
}

func (p *paper) Scratch(*program.Op) units.Bytes    { return 0 }
func (p *paper) Load(l *program.Layout) error       { p.layout = l; p.loads++; return nil }
func (p *paper) SetInts(program.ID, []int32) error  { return nil }
func (p *paper) Floats(program.ID, []float32) error { return nil }
func (p *paper) now() time.Time                     { return p.clock }
func (p *paper) Run(section int, _ program.Step) error {
	for i := range p.layout.Sections[section].Ops {
		p.clock = p.clock.Add(time.Duration(p.seconds(&p.layout.Sections[section].Ops[i]) * 1e9))
	}
	return nil
}

// seconds of an op: 20 TFLOP/s for products, 300 GB/s for everything else.
func (p *paper) seconds(op *program.Op) float64 {
	a := &op.Attrs
	rows := float64(a.N) + p.fill
	switch op.Code {
	case program.MatmulForward, program.MatmulGeluForward, program.MatmulBackwardInput, program.MatmulBackwardWeight:
		return 2 * rows * float64(a.C) * float64(a.OC) / 20e12
	case program.AttentionForward, program.AttentionBackward:
		products := map[program.Code]float64{program.AttentionForward: 2, program.AttentionBackward: 5}[op.Code]
		return products * rows * float64(a.T) * float64(a.C) / 20e12
	}
	bytes := 0
	for _, arg := range op.Args {
		bytes += 2 * arg.Len
	}
	return float64(bytes) / 300e9 * rows / max(1, float64(a.N))
}

// What is measured on two layers says what a policy costs the whole model.
func TestCalibrationFindsTheDevicesCosts(t *testing.T) {
	m := gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}
	card := &paper{fill: 300}
	dtypes := DTypes(trace.BFloat16)
	prior := GPUCosts(28)
	costs, err := (&calibrator{card, m, dtypes, 0, card.now}).Calibrate(prior)
	if err != nil {
		t.Fatal(err)
	}
	if !(math.Abs(costs.Overhead-card.fill) <= 0.05*card.fill) {
		t.Errorf("overhead %.0f tokens, the card's is %.0f", costs.Overhead, card.fill)
	}
	whole := func(micro int, level gpt.Recompute) float64 { // seconds a sequence
		p := dtypes
		p.MicroBatch, p.Recompute = micro, gpt.Uniform(level)
		step, err := gpt.Build(m, gpt.Shape{Batch: micro}, p)
		if err != nil {
			t.Fatal(err)
		}
		card.layout = &program.Layout{Program: step.Program}
		began := card.clock
		if err := card.Run(step.First, program.Step{}); err != nil {
			t.Fatal(err)
		}
		return card.clock.Sub(began).Seconds() / float64(micro)
	}
	cost := func(micro int, level gpt.Recompute) float64 {
		s := searcher{model: m, shape: gpt.Shape{Batch: micro}, costs: costs}
		return s.cost(gpt.Policy{MicroBatch: micro, LossChunk: micro * m.BlockSize, Recompute: gpt.Uniform(level)})
	}
	for level := gpt.RecomputeNone; level <= gpt.RecomputeBlock; level++ {
		for _, micro := range []int{1, 4, 16} {
			took := whole(micro, level) / whole(16, gpt.RecomputeNone)
			says := cost(micro, level) / cost(16, gpt.RecomputeNone)
			// the head, which recomputes nothing, is a fifth of this model
			if !(math.Abs(says-took) <= 0.06*took) {
				t.Errorf("%d sequences, recompute %v: the costs say %.3f, it takes %.3f", micro, level, says, took)
			}
		}
	}
}

// A clock that stands still, or a card that is disturbed, moves the costs no further than a factor of 4.
func TestCalibrationKeepsItsHead(t *testing.T) {
	m := gpt.Model{NLayer: 2, NHead: 2, NEmbd: 32, BlockSize: 64, VocabSize: 65}
	prior := GPUCosts(28)
	for name, fill := range map[string]float64{"no overhead": 0, "all overhead": 1e12} {
		card := &paper{fill: fill}
		costs, err := (&calibrator{card, m, DTypes(trace.BFloat16), 0, card.now}).Calibrate(prior)
		if err != nil {
			t.Fatal(err)
		}
		if !(costs.Overhead >= prior.Overhead/4 && costs.Overhead <= 4*prior.Overhead) {
			t.Errorf("%s: overhead %g, expected %g", name, costs.Overhead, prior.Overhead)
		}
		for level := 1; level < len(costs.Recompute); level++ {
			if r := costs.Recompute[level]; !(r >= costs.Recompute[level-1] && r <= 4*prior.Recompute[level]) {
				t.Errorf("%s: recompute costs %v, expected about %v", name, costs.Recompute, prior.Recompute)
			}
		}
	}
	still := &paper{}
	costs, err := (&calibrator{still, m, DTypes(trace.BFloat16), 0, func() time.Time { return time.Time{} }}).Calibrate(prior)
	if err != nil || math.IsNaN(costs.Overhead) || costs.Overhead <= 0 {
		t.Errorf("a clock that stands still: %+v, %v", costs, err)
	}
}

// The second run measures nothing; a broken file, another model or no folder does.
func TestCostsAreRemembered(t *testing.T) {
	m := gpt.Model{NLayer: 2, NHead: 2, NEmbd: 32, BlockSize: 64, VocabSize: 65}
	f := costFileIn(filepath.Join(t.TempDir(), "snug"), "Paper 3060", true)
	if name := filepath.Base(string(f)); !strings.Contains(name, cuda.Kernels()) {
		t.Errorf("the file is %q: costs of kernels other than %s would be taken", name, cuda.Kernels())
	}
	card := &paper{fill: 100}
	again := func(f costFile, m gpt.Model) (Costs, bool) {
		before := card.loads
		costs := f.calibrated(&calibrator{card, m, DTypes(trace.BFloat16), 0, card.now}, GPUCosts(28))
		return costs, card.loads > before
	}
	first, measured := again(f, m)
	if !measured {
		t.Error("nothing was known and nothing measured")
	}
	if second, measured := again(f, m); measured || second != first {
		t.Errorf("measured again: %v; %+v, then %+v", measured, first, second)
	}
	wider := m
	wider.NEmbd = 64
	if _, measured := again(f, wider); !measured {
		t.Error("another width was taken for the same")
	}
	for _, broken := range []string{"", "{", "null", `{"x":1}`} {
		if err := os.WriteFile(string(f), []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		if costs, measured := again(f, m); !measured || costs != first {
			t.Errorf("a file of %q: measured %v, %+v", broken, measured, costs)
		}
	}
	if _, measured := again("", m); !measured {
		t.Error("without a folder nothing is known")
	}
	tight := &calibrator{card, m, DTypes(trace.BFloat16), 1, card.now}
	if costs := costFile("").calibrated(tight, GPUCosts(28)); costs != GPUCosts(28) {
		t.Errorf("where the layers do not fit the costs are as expected, not %+v", costs)
	}
}
