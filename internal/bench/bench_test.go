//go:build linux

package bench

import (
	"math"
	"testing"

	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/trace"
)

// With graphs and without, a bench times every iteration, passes of an evaluation and every op, and ends in the same loss.
func TestRun(t *testing.T) {
	var losses []float64
	for _, plain := range []bool{true, false} {
		cudatest.StandIn(t)
		d, err := cuda.Open(cuda.Options{Plain: plain})
		if err != nil {
			t.Fatal(err)
		}
		e := cuda.NewExecutor(d)
		m := gpt.Model{NLayer: 2, NHead: 2, NEmbd: 32, BlockSize: 16, VocabSize: 40, Dropout: 0.1}
		step, err := gpt.Build(m, gpt.Shape{Batch: 5, EvalBatch: 6, Adam: gpt.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}},
			gpt.Policy{MicroBatch: 2, EvalBatch: 3, LossChunk: 16, Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32, Recompute: gpt.Uniform(gpt.RecomputeNone)})
		if err != nil {
			t.Fatal(err)
		}
		step.AddScratch(e.Scratch)
		r, err := Run(e, step, step.Place(), 3, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Iters) != 3 || len(r.Ops) == 0 || r.Eval == 0 || r.First == 0 || math.IsNaN(r.Loss) {
			t.Errorf("plain %v: %+v", plain, r)
		}
		if (r.Graphs > 0) == plain {
			t.Errorf("plain %v: %d graphs", plain, r.Graphs)
		}
		losses = append(losses, r.Loss)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if losses[0] != losses[1] {
		t.Errorf("loss %v without graphs, %v with", losses[0], losses[1])
	}
}
