//go:build linux

package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// graphModel drops out everywhere, so that the seed and the sample's number are arguments of most of its launches.
var graphModel = gpt.Model{NLayer: 2, NHead: 2, NEmbd: 64, BlockSize: 48, VocabSize: 72, Bias: true, Dropout: 0.2}

// Five iterations of three sections each, queued ahead of the device, with another learning rate, another loss scale and
// other samples every time, an evaluation and a snapshot between them: the bits of plain launches.
func TestGraphsChangeNoBit(t *testing.T) {
	for _, o := range []Options{{}, {OwnBlas: true}} {
		t.Run(fmt.Sprintf("stand-in,own=%v", o.OwnBlas), func(t *testing.T) {
			graphsChangeNoBit(t, standIn(t, o), trace.Float32)
		})
		t.Run(fmt.Sprintf("GPU,own=%v", o.OwnBlas), func(t *testing.T) {
			e := openTest(t, o)
			for _, dtype := range testDTypes {
				graphsChangeNoBit(t, e, dtype)
			}
		})
	}
}

func graphsChangeNoBit(t *testing.T, e *Executor, dtype trace.DType) {
	t.Helper()
	e.plain = true
	want := fiveIterations(t, e, dtype)
	if n := e.Graphs(); n != 0 {
		t.Errorf("%s: %d graphs, none were wanted", dtype, n)
	}
	e.plain = false
	got := fiveIterations(t, e, dtype)
	if n := e.Graphs(); n < 5 { // the first micro-batch, later ones, the rest, the update, the evaluation
		t.Errorf("%s: %d graphs, want at least 5", dtype, n)
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: number %d of %d is %v with graphs, %v without", dtype, i, len(want), got[i], want[i])
		}
	}
}

// fiveIterations trains from nanoGPT's weights and returns every loss and norm, a snapshot's parameters and the last ones.
func fiveIterations(t *testing.T, e *Executor, dtype trace.DType) (numbers []float32) {
	t.Helper()
	m := graphModel
	step, err := gpt.Build(m, gpt.Shape{Batch: 7, EvalBatch: 4, Adam: gpt.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}},
		gpt.Policy{MicroBatch: 2, EvalBatch: 4, LossChunk: 40, Weight: dtype, Activation: dtype, Gradient: trace.Float32, Recompute: []gpt.Recompute{gpt.RecomputeBlock, gpt.RecomputeNone}})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, Executor: e, step: step}
	step.AddScratch(e.Scratch)
	r.must(e.Load(step.Place()))
	r.initial()
	var ids []program.ID
	var shot, last [][]float32
	for _, p := range step.Params {
		ids = append(ids, p.Value())
		shot, last = append(shot, make([]float32, p.Len())), append(last, make([]float32, p.Len()))
	}
	var read [5][2]float32
	for it := range read {
		at := program.Step{Seed: 5, LossScale: float64(1 + it%2)}
		r.must(e.Run(step.Begin, at))
		for done, section := 0, step.First; done < 7; section = step.Train {
			if done == 6 {
				section = step.TrainRest
			}
			at.Sample = uint64(7*it + done)
			r.tokens(section, it+done)
			r.must(e.Run(section, at))
			done += step.Sections[section].B
		}
		r.must(e.Run(step.Update, program.Step{LR: 1e-3 * float64(it+1), T: it + 1, LossScale: at.LossScale}))
		wait, err := e.Later(read[it][:], step.LossSum, step.Norm)
		r.must(err)
		if it == 3 {
			copied, err := e.Snapshot(ids, shot)
			r.must(err)
			r.must(copied())
		}
		if it == 2 || it == 4 {
			r.tokens(step.Eval, it)
			r.must(e.Run(step.Eval, program.Step{LossScale: 1}))
		}
		r.must(wait())
		numbers = append(numbers, read[it][:]...)
	}
	for i, id := range ids {
		r.must(e.Floats(id, last[i]))
		numbers = append(append(numbers, shot[i]...), last[i]...)
	}
	return append(numbers, float32(r.value(step.LossSum)))
}

// tokens writes a section's sequences, which differ from n to n.
func (r *run) tokens(section, n int) {
	r.t.Helper()
	tokens := make([]int32, r.step.Sections[section].B*r.step.Model.BlockSize)
	for i := range tokens {
		tokens[i] = int32((i*7 + n*n) % r.step.Model.VocabSize)
	}
	idx, targets := r.step.Inputs(section)
	r.must(r.SetInts(idx, tokens))
	r.must(r.SetInts(targets, tokens))
}

// Where a section cannot be a graph, or ops are watched one by one, they are launched one by one, and nothing fails.
func TestPlainLaunchesWhereGraphsCannotBe(t *testing.T) {
	train := func(t *testing.T, e *Executor) { fiveIterations(t, e, trace.Float32) }
	timed := func(t *testing.T, e *Executor) {
		if _, err := e.Time(func() error { train(t, e); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		o       Options
		refusal int32
		run     func(t *testing.T, e *Executor)
	}{
		{"the driver refuses", Options{}, 801, train},
		{"not wanted", Options{Plain: true}, 0, train},
		{"every launch is waited for", Options{Sync: true}, 0, train},
		{"ops are timed", Options{}, 0, timed},
		{"rows are generated", Options{}, 0, func(t *testing.T, e *Executor) { generateRows(t, e, 4) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver := cudatest.StandIn(t)
			driver.RefuseGraphs(c.refusal)
			d, err := Open(c.o)
			if err != nil {
				t.Fatal(err)
			}
			e := NewExecutor(d)
			c.run(t, e)
			if n := e.Graphs(); n != 0 || driver.Replays() != 0 {
				t.Errorf("%d graphs, %d replays, want none", n, driver.Replays())
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// generateRows runs the pass over one row at n positions: its attention's shared memory grows from row to row.
func generateRows(t *testing.T, e *Executor, n int) {
	t.Helper()
	g, err := gpt.BuildGeneration(graphModel, trace.Float32, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	g.AddScratch(e.Scratch)
	if err := e.Load(g.Place()); err != nil {
		t.Fatal(err)
	}
	for pos := range n {
		if err := e.Run(g.Passes[0].Body, program.Step{Pos: pos}); err != nil {
			t.Fatal(err)
		}
	}
}

// Graphs take no more of the card than was set aside for them: what finds no room stays with plain launches.
func TestGraphsKeepTheirRoom(t *testing.T) {
	e := standIn(t, Options{})
	m := gpt.Model{NLayer: 120, NHead: 1, NEmbd: 8, BlockSize: 8, VocabSize: 16}
	step, err := gpt.Build(m, gpt.Shape{Batch: 1, EvalBatch: 1}, gpt.Policy{MicroBatch: 1, EvalBatch: 1, LossChunk: 8,
		Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32, Recompute: gpt.Uniform(gpt.RecomputeBlock)})
	if err != nil {
		t.Fatal(err)
	}
	step.AddScratch(e.Scratch)
	for range 2 { // a second load finds all of the room again
		if err := e.Load(step.Place()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for _, section := range []int{step.Eval, step.First, step.Update} {
				if err := e.Run(section, program.Step{T: 1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		free, total, err := e.Memory()
		if graphs := total - free - e.Taken(); err != nil || graphs <= 0 || graphs > graphRoom {
			t.Errorf("graphs took %v (%v), %v was set aside", graphs, err, graphRoom)
		}
		if n := e.Graphs(); n != 2 { // the evaluation and the update; a training section is too large
			t.Errorf("%d graphs, want 2", n)
		}
	}
}
