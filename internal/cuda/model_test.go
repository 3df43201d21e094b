package cuda

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/bundle"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// bundles are PyTorch's results: the committed ones, and those in SNUG_BUNDLES, longer curves of larger models.
func bundles(t *testing.T) map[string]*bundle.Bundle {
	t.Helper()
	found := map[string]*bundle.Bundle{}
	for _, dir := range []string{"../gpt/testdata", os.Getenv("SNUG_BUNDLES")} {
		paths, _ := filepath.Glob(filepath.Join(dir, "bundle_*.safetensors"))
		for _, path := range paths {
			b, err := bundle.Read(path)
			if err != nil {
				t.Fatal(err)
			}
			found[filepath.Base(path)] = b
		}
	}
	if len(found) == 0 {
		t.Fatal("no bundles")
	}
	return found
}

// stepOf builds the bundle's step under a dtype and a policy.
func stepOf(t *testing.T, b *bundle.Bundle, dtype trace.DType, p gpt.Policy) *gpt.Step {
	t.Helper()
	c := b.Config
	m := gpt.Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias}
	s := gpt.Shape{Batch: c.BatchSize * c.GradientAccumulationSteps,
		Adam: gpt.Adam{Beta1: c.Beta1, Beta2: c.Beta2, Eps: 1e-8, WeightDecay: c.WeightDecay, GradClip: c.GradClip}}
	p.Weight, p.Activation, p.MicroBatch = dtype, dtype, c.BatchSize
	p.Gradient = cmp.Or(p.Gradient, trace.Float32)
	step, err := gpt.Build(m, s, p)
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// run is a bundle's training on a device.
type run struct {
	t *testing.T
	*Executor
	step  *gpt.Step
	b     *bundle.Bundle
	scale float64
}

func (r *run) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// load places the step in a poisoned arena and sets the bundle's parameters.
func (r *run) load() {
	r.t.Helper()
	r.step.AddScratch(r.Scratch)
	r.must(r.Load(r.step.Place()))
	r.must(r.Poison())
	r.parameters(func(i int, p gpt.Param) []float32 { return r.b.Param[p.Name] })
	r.must(r.Run(r.step.Init, program.Step{}))
}

// initial sets nanoGPT's initial weights and zeroes the moments.
func (r *run) initial() {
	r.t.Helper()
	r.parameters(func(i int, p gpt.Param) []float32 {
		v := make([]float32, p.Len())
		p.Initial(v, 0, i, 1)
		return v
	})
	r.must(r.Run(r.step.Init, program.Step{}))
}

// parameters gives every parameter its values.
func (r *run) parameters(values func(i int, p gpt.Param) []float32) {
	r.t.Helper()
	for i, p := range r.step.Params {
		r.must(r.SetFloats(p.Value(), values(i, p)))
	}
	if r.step.Weights >= 0 {
		r.must(r.Run(r.step.Weights, program.Step{}))
	}
}

// gradient runs one iteration as far as its gradients, and returns the mean loss.
func (r *run) gradient(it int) float64 {
	r.t.Helper()
	c := r.b.Config
	at := program.Step{LossScale: r.scale}
	r.must(r.Run(r.step.Begin, at))
	for micro := range c.GradientAccumulationSteps {
		x, y := r.b.Batch(it, micro)
		r.must(r.SetInts(r.step.Idx, x))
		r.must(r.SetInts(r.step.Targets, y))
		r.must(r.Run(r.step.Next(micro*c.BatchSize), at))
	}
	return r.value(r.step.LossSum) / float64(c.BatchSize*c.GradientAccumulationSteps*c.BlockSize)
}

func (r *run) update(it int) (norm float64) {
	r.t.Helper()
	r.must(r.Run(r.step.Update, program.Step{LR: r.b.Lr[it], T: it + 1, LossScale: r.scale}))
	return r.value(r.step.Norm)
}

func (r *run) value(id program.ID) float64 {
	one := make([]float32, 1)
	r.must(r.Floats(id, one))
	return float64(one[0])
}

// relative is the distance of got from want, over want's length. NaN in got makes it NaN.
func relative(got []float32, want []float32) float64 {
	diff, norm := 0.0, 0.0
	for i, w := range want {
		d := float64(got[i]) - float64(w)
		diff, norm = diff+d*d, norm+float64(w)*float64(w)
	}
	return math.Sqrt(diff / max(norm, 1e-30))
}

// How far a run may be from PyTorch's in float64: gradients of the first step, each loss, the parameters at the end.
var allowed = map[trace.DType]struct{ grad, loss float64 }{
	trace.Float32:  {1e-4, 1e-4},
	trace.Float16:  {0.02, 0.01},
	trace.BFloat16: {0.1, 0.05},
}

// Training is PyTorch's: every gradient of the first step, the loss and the norm of every step.
// Over long curves the loss, smoothed over ten steps, stays within 0.01.
func TestModelAgainstPyTorch(t *testing.T) {
	for _, o := range []Options{{}, {Generic: true, OwnBlas: true}} {
		e := openTest(t, o)
		for name, b := range bundles(t) {
			for _, dtype := range testDTypes {
				t.Run(fmt.Sprintf("own=%v/%s/%s", o.OwnBlas, name, dtype), func(t *testing.T) {
					r := &run{t: t, Executor: e, b: b, step: stepOf(t, b, dtype, gpt.Policy{LossChunk: 37, Recompute: []gpt.Recompute{gpt.RecomputeNone}}), scale: 1}
					if dtype == trace.Float16 {
						r.scale = 1024
					}
					r.load()
					r.compare(dtype)
				})
			}
		}
	}
}

// Where a bundle's iteration is one micro-batch, gradients in 16 bits are as near to PyTorch's.
func TestHalfGradientsAgainstPyTorch(t *testing.T) {
	for _, o := range []Options{{}, {OwnBlas: true}, {Generic: true, OwnBlas: true}} {
		e := openTest(t, o)
		for name, b := range bundles(t) {
			if b.Config.GradientAccumulationSteps > 1 {
				continue
			}
			for _, dtype := range []trace.DType{trace.BFloat16, trace.Float16} {
				t.Run(fmt.Sprintf("generic=%v,own=%v/%s/%s", o.Generic, o.OwnBlas, name, dtype), func(t *testing.T) {
					r := &run{t: t, Executor: e, b: b, step: stepOf(t, b, dtype, gpt.Policy{LossChunk: 37, Gradient: dtype}), scale: 1}
					if dtype == trace.Float16 {
						r.scale = 1024
					}
					r.load()
					r.compare(dtype)
				})
			}
		}
	}
}

// A loss scale that takes float16 gradients beyond their range gives a norm that is no number and leaves every weight as it
// was, wherever gradients are stored; under a smaller scale the step is taken.
func TestOverflowLeavesTheWeights(t *testing.T) {
	e := openTest(t, Options{})
	for name, b := range bundles(t) {
		for _, gradient := range []trace.DType{trace.Float16, trace.Float32} {
			if b.Config.GradientAccumulationSteps > 1 {
				continue
			}
			r := &run{t: t, Executor: e, b: b, step: stepOf(t, b, trace.Float16, gpt.Policy{Gradient: gradient}), scale: 1 << 30}
			r.load()
			weights := func() (all [][]float32) {
				for _, p := range r.step.Params {
					v := make([]float32, p.Len())
					r.must(r.Floats(p.Value(), v))
					all = append(all, v)
				}
				return all
			}
			before := weights()
			r.gradient(0)
			if norm := r.update(0); !math.IsInf(norm, 0) && !math.IsNaN(norm) {
				t.Errorf("%s, gradients %s: the norm is %g under a scale of 2^30", name, gradient, norm)
			}
			for i, v := range weights() {
				if !slices.Equal(v, before[i]) {
					t.Errorf("%s, gradients %s: an overflow changed %s", name, gradient, r.step.Params[i].Name)
				}
			}
			r.scale = 1024
			r.gradient(0)
			if norm := r.update(0); !(math.Abs(norm-b.Norm[0]) <= 0.05*b.Norm[0]) || slices.Equal(weights()[0], before[0]) {
				t.Errorf("%s, gradients %s: norm %g under a scale of 1024, PyTorch's %g", name, gradient, norm, b.Norm[0])
			}
		}
	}
}

func (r *run) compare(dtype trace.DType) {
	tol, smooth := allowed[dtype], 0.0
	for it := range r.b.Config.Steps {
		loss := r.gradient(it)
		if it == 0 && r.b.Grad != nil {
			for _, p := range r.step.Params {
				got := make([]float32, p.Len())
				r.must(r.Floats(p.Grad, got))
				for i := range got {
					got[i] /= float32(r.scale)
				}
				if d := relative(got, r.b.Grad[p.Name]); !(d <= tol.grad) {
					r.t.Errorf("gradient of %s is %.3g from PyTorch's, allowed %.3g", p.Name, d, tol.grad)
				}
			}
		}
		norm := r.update(it)
		if d := math.Abs(loss - r.b.Loss[it]); !(d <= tol.loss) {
			r.t.Fatalf("step %d: loss %.6f, PyTorch's %.6f", it, loss, r.b.Loss[it])
		}
		if d := math.Abs(norm-r.b.Norm[it]) / r.b.Norm[it]; !(d <= 2*tol.grad) {
			r.t.Fatalf("step %d: norm %.6f, PyTorch's %.6f", it, norm, r.b.Norm[it])
		}
		smooth += loss - r.b.Loss[it]
		if it%10 == 9 {
			if !(math.Abs(smooth/10) <= 0.01) {
				r.t.Fatalf("steps %d to %d: the mean loss is %.4f from PyTorch's, allowed 0.01", it-9, it, smooth/10)
			}
			smooth = 0
		}
	}
}

// No recompute policy and no loss chunk's split of memory changes a bit of the gradients.
func TestRecomputeChangesNoBit(t *testing.T) {
	e := openTest(t, Options{})
	for name, b := range bundles(t) {
		var want [][]float32
		for _, level := range []gpt.Recompute{gpt.RecomputeNone, gpt.RecomputeGelu, gpt.RecomputeLn, gpt.RecomputeAttention, gpt.RecomputeBlock} {
			r := &run{t: t, Executor: e, b: b, step: stepOf(t, b, trace.BFloat16, gpt.Policy{LossChunk: 64, Recompute: gpt.Uniform(level)}), scale: 1}
			r.load()
			r.gradient(0)
			var got [][]float32
			for _, p := range r.step.Params {
				g := make([]float32, p.Len())
				r.must(r.Floats(p.Grad, g))
				got = append(got, g)
			}
			if want == nil {
				want = got
			}
			for i, p := range r.step.Params {
				for j := range got[i] {
					if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
						t.Errorf("%s, recompute %v: gradient of %s element %d is %g, without recompute %g", name, level, p.Name, j, got[i][j], want[i][j])
						break
					}
				}
			}
		}
	}
}
