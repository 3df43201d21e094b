package gpt

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/bundle"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

var odd = Model{NLayer: 2, NHead: 3, NEmbd: 12, BlockSize: 7, VocabSize: 19, Bias: true, Dropout: 0.2}

// small returns a step of the odd model, built under p.
func small(t *testing.T, m Model, batch int, p Policy) *Step {
	t.Helper()
	s, err := Build(m, Shape{Batch: batch, EvalBatch: batch, Adam: testAdam}, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// inFloat32 is the policy that keeps everything, in fp32.
func inFloat32(microBatch int) Policy {
	return Policy{MicroBatch: microBatch, EvalBatch: microBatch, Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32}
}

func tokens(rng *rand.Rand, m Model, batch int) (x, y []int32) {
	for range batch * m.BlockSize {
		x, y = append(x, int32(rng.IntN(m.VocabSize))), append(y, int32(rng.IntN(m.VocabSize)))
	}
	return x, y
}

// randomize gives every parameter values large enough that each term of the gradient matters.
func randomize[F cpu.Float](r *reference[F], rng *rand.Rand) {
	for _, p := range r.Params {
		for i := range r.tensor(p.Weight) {
			r.tensor(p.Weight)[i] = F(0.3 * rng.NormFloat64())
			if p.One {
				r.tensor(p.Weight)[i]++
			}
		}
	}
}

// The gradient of the whole model is the slope of its loss: central differences in float64, dropout on, every
// recompute level, a micro-batch with a remainder, a loss chunk that divides nothing.
func TestGradientsAgainstCentralDifferences(t *testing.T) {
	const batch, h = 3, 1e-5
	for _, bias := range []bool{true, false} {
		for level := range recomputeLevels {
			t.Run(fmt.Sprintf("bias %v recompute %v", bias, level), func(t *testing.T) {
				m, p := odd, inFloat32(2)
				m.Bias, p.Recompute, p.LossChunk = bias, Uniform(level), 5
				r := newReference[float64](t, small(t, m, batch, p))
				rng := rand.New(rand.NewPCG(1, uint64(level)))
				randomize(r, rng)
				x, y := tokens(rng, m, batch)
				s := program.Step{Seed: 7, Sample: 40, LossScale: 1}
				r.gradients(x, y, s)
				var grads [][]float64
				for _, param := range r.Params {
					grads = append(grads, slices.Clone(r.tensor(param.Grad)))
				}
				for k, param := range r.Params {
					grad, w := grads[k], r.tensor(param.Weight)
					for range 4 {
						i := rng.IntN(len(w))
						keep := w[i]
						w[i] = keep + h
						r.gradients(x, y, s)
						up := r.loss()
						w[i] = keep - h
						r.gradients(x, y, s)
						down := r.loss()
						w[i] = keep
						if want := (up - down) / (2 * h); !(math.Abs(grad[i]-want) <= 1e-8*(1+math.Abs(want))) {
							t.Errorf("%s[%d]: gradient %.10g, central difference %.10g", param.Name, i, grad[i], want)
						}
					}
				}
			})
		}
	}
}

// What PyTorch computes: logits through the loss, every gradient, and twenty AdamW steps.
func TestAgainstPyTorch(t *testing.T) {
	paths, err := filepath.Glob("testdata/bundle_*.safetensors")
	if err != nil || len(paths) < 4 {
		t.Fatalf("%d bundles (%v), want 4", len(paths), err)
	}
	for _, path := range paths {
		b, err := bundle.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, micro := range []int{1, 2, b.Config.BatchSize * b.Config.GradientAccumulationSteps} {
			t.Run(fmt.Sprintf("%s micro-batch %d", filepath.Base(path), micro), func(t *testing.T) { againstBundle(t, b, micro) })
		}
	}
}

func againstBundle(t *testing.T, b *bundle.Bundle, micro int) {
	c := b.Config
	m := Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias}
	shape := Shape{Batch: c.BatchSize * c.GradientAccumulationSteps,
		Adam: Adam{Beta1: c.Beta1, Beta2: c.Beta2, Eps: 1e-8, WeightDecay: c.WeightDecay, GradClip: c.GradClip}}
	p := inFloat32(micro)
	p.LossChunk = 10
	step, err := Build(m, shape, p)
	if err != nil {
		t.Fatal(err)
	}
	r := newReference[float64](t, step)
	for _, param := range r.Params {
		if len(b.Param[param.Name]) != param.Len() {
			t.Fatalf("%s: PyTorch has %d values, snug %d", param.Name, len(b.Param[param.Name]), param.Len())
		}
		for i, v := range b.Param[param.Name] {
			r.tensor(param.Weight)[i] = float64(v)
		}
	}
	r.run(r.Init, program.Step{})
	for it := range c.Steps {
		var x, y []int32
		for k := range c.GradientAccumulationSteps {
			mx, my := b.Batch(it, k)
			x, y = append(x, mx...), append(y, my...)
		}
		s := program.Step{LR: b.Lr[it], T: it + 1, LossScale: 1}
		r.gradients(x, y, s)
		within(t, fmt.Sprintf("loss of step %d", it), r.loss(), b.Loss[it], 1e-9)
		if it == 0 {
			for _, param := range r.Params {
				all(t, param.Name+" gradient", r.tensor(param.Grad), b.Grad[param.Name])
			}
		}
		r.run(r.Update, s)
		within(t, fmt.Sprintf("norm of step %d", it), r.tensor(r.Norm)[0], b.Norm[it], 1e-8)
	}
	for _, param := range r.Params {
		all(t, param.Name+" after the last step", r.tensor(param.Weight), b.Final[param.Name])
	}
}

func within(t *testing.T, what string, got, want, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol*(1+math.Abs(want))) {
		t.Errorf("%s is %.12g, PyTorch's %.12g", what, got, want)
	}
}

// all compares with values that were rounded to float32.
func all(t *testing.T, what string, got []float64, want []float32) {
	t.Helper()
	scale := 0.0
	for _, v := range want {
		scale = max(scale, math.Abs(float64(v)))
	}
	for i := range got {
		if !(math.Abs(got[i]-float64(want[i])) <= 1.2e-7*scale) {
			t.Errorf("%s[%d] is %.9g, PyTorch's %.9g", what, i, got[i], want[i])
			return
		}
	}
}

func TestSplitAndRecomputeGiveTheSameGradients(t *testing.T) {
	const batch = 5
	rng := rand.New(rand.NewPCG(3, 4))
	x, y := tokens(rng, odd, batch)
	run := func(p Policy) (grads [][]float32, loss float64) {
		r := newReference[float32](t, small(t, odd, batch, p))
		randomize(r, rand.New(rand.NewPCG(5, 6)))
		r.gradients(x, y, program.Step{Seed: 1, Sample: 1000, LossScale: 1})
		for _, p := range r.Params {
			grads = append(grads, slices.Clone(r.tensor(p.Grad)))
		}
		return grads, r.loss()
	}
	for micro := 1; micro <= batch; micro++ {
		want, wantLoss := run(inFloat32(micro))
		for level := RecomputeGelu; level < recomputeLevels; level++ {
			p := inFloat32(micro)
			p.Recompute = []Recompute{level, level - 1}
			got, loss := run(p)
			if loss != wantLoss {
				t.Errorf("micro-batch %d: recompute %v gives loss %v, none gives %v", micro, level, loss, wantLoss)
			}
			for i := range got {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("micro-batch %d: recompute %v changes a bit of gradient %d", micro, level, i)
				}
			}
		}
		whole, wholeLoss := run(inFloat32(batch))
		if !(math.Abs(wantLoss-wholeLoss) <= 1e-6*wholeLoss) {
			t.Errorf("micro-batch %d: loss %v, the whole batch gives %v", micro, wantLoss, wholeLoss)
		}
		for i := range whole {
			for j := range whole[i] {
				if !(math.Abs(float64(whole[i][j]-want[i][j])) <= 1e-5*(0.05+math.Abs(float64(whole[i][j])))) {
					t.Fatalf("micro-batch %d: gradient %d element %d is %v, the whole batch gives %v", micro, i, j, want[i][j], whole[i][j])
				}
			}
		}
	}
}

// Evaluation's loss is training's, dropout aside.
func TestEvalLossIsTrainingLoss(t *testing.T) {
	m := odd
	m.Dropout = 0
	r := newReference[float64](t, small(t, m, 4, inFloat32(4)))
	rng := rand.New(rand.NewPCG(8, 9))
	randomize(r, rng)
	x, y := tokens(rng, m, 4)
	r.gradients(x, y, program.Step{LossScale: 1})
	want := r.loss()
	r.run(r.BeginEval, program.Step{})
	r.run(r.Eval, program.Step{LossScale: 1})
	if got := r.loss(); got != want {
		t.Errorf("evaluation gives %v, training %v", got, want)
	}
}

func TestMoreRecomputeNeverTakesMore(t *testing.T) {
	wide := odd
	wide.NLayer = 4 // with fewer layers what one layer computes again outweighs what the others do not keep
	for _, m := range []Model{wide, {NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}} {
		for _, micro := range []int{1, 4, 16} {
			var before program.Layout
			for level := range recomputeLevels {
				p := inFloat32(micro)
				p.Recompute, p.LossChunk = Uniform(level), 256
				now := small(t, m, 16, p).Place()
				if level > 0 && now.Size > before.Size {
					t.Errorf("%d wide, micro-batch %d: recompute %v takes %v, %v took %v", m.NEmbd, micro, level, now.Size, level-1, before.Size)
				}
				before = *now
			}
		}
	}
}
