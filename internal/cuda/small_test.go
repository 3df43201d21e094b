package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// One small step, an evaluation and some generated rows, in every dtype and with every kernel: little enough for
// compute-sanitizer, which slows a kernel down a thousandfold (`run sanitize` of the GPU bundle).
func TestSmallStep(t *testing.T) {
	m := gpt.Model{NLayer: 2, NHead: 2, NEmbd: 64, BlockSize: 48, VocabSize: 72, Bias: true, Dropout: 0.1}
	for _, o := range []Options{{}, {OwnBlas: true}, {Generic: true, OwnBlas: true}} {
		for _, dtype := range testDTypes {
			t.Run(fmt.Sprintf("generic=%v,own=%v,%s", o.Generic, o.OwnBlas, dtype), func(t *testing.T) {
				e := openTest(t, o)
				smallStep(t, e, m, dtype, 2, trace.Float32)
				smallStep(t, e, m, dtype, 3, dtype)
				if err := generateAll(e, m, dtype); err != nil {
					t.Error(err)
				}
				if o.OwnBlas && dtype != trace.Float32 {
					if err := e.on(func() error { return smallProducts(t, e, dtype) }); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

func smallStep(t *testing.T, e *Executor, m gpt.Model, dtype trace.DType, micro int, gradient trace.DType) {
	t.Helper()
	step, err := gpt.Build(m, gpt.Shape{Batch: 3, EvalBatch: 2, Adam: gpt.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}},
		gpt.Policy{MicroBatch: micro, EvalBatch: 2, LossChunk: 40, Weight: dtype, Activation: dtype, Gradient: gradient, Recompute: []gpt.Recompute{gpt.RecomputeBlock, gpt.RecomputeGelu}})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, Executor: e, step: step}
	step.AddScratch(e.Scratch)
	r.must(e.Load(step.Place()))
	r.initial()
	tokens := make([]int32, micro*m.BlockSize)
	for i := range tokens {
		tokens[i] = int32(i * 7 % m.VocabSize)
	}
	r.must(e.SetInts(step.Idx, tokens))
	for i := range tokens {
		tokens[i] = (tokens[i] + 5) % int32(m.VocabSize) // not the token itself, which tied weights favour
	}
	r.must(e.SetInts(step.Targets, tokens))
	at := program.Step{Seed: 1, LR: 1e-3, T: 1, LossScale: 1}
	for _, section := range []int{step.BeginEval, step.Eval, step.Begin, step.First, step.TrainRest, step.Update} {
		if section >= 0 {
			r.must(e.Run(section, at))
		}
	}
	if norm, loss := r.value(step.Norm), r.value(step.LossSum)/float64(3*m.BlockSize); !(norm > 0) || !(math.Abs(loss-math.Log(float64(m.VocabSize))) < 0.5) {
		t.Errorf("loss %g, norm %g after one step from random weights", loss, norm)
	}
}
