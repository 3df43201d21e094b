package gpt

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/bundle"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/program"
)

// runner drives a step on the CPU executor as the training loop does.
type runner struct {
	*Step
	exec *cpu.Executor
	t    testing.TB
}

func newRunner(t testing.TB, s *Step, o cpu.Options) *runner {
	t.Helper()
	r := &runner{s, cpu.New(o), t}
	t.Cleanup(func() { r.do(r.exec.Close()) })
	s.AddScratch(r.exec.Scratch)
	l := s.Place()
	r.do(r.exec.Load(l))
	if got := r.exec.Taken(); got != l.Size {
		t.Fatalf("planned %d bytes, taken %d", l.Size, got)
	}
	r.do(r.exec.Run(s.Init, program.Step{}))
	return r
}

func (r *runner) do(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *runner) floats(id program.ID) []float32 {
	v := make([]float32, r.Tensors[id].Len())
	r.do(r.exec.Floats(id, v))
	return v
}

// iterate is one iteration over x, y (Batch, T).
func (r *runner) iterate(x, y []int32, s program.Step) (loss, norm float64) {
	r.do(r.exec.Run(r.Begin, s))
	T, first := r.Model.BlockSize, s.Sample
	for at := 0; at < r.Shape.Batch; {
		section := r.Next(at)
		n := r.Sections[section].B
		r.do(r.exec.SetInts(r.Idx, x[at*T:(at+n)*T]))
		r.do(r.exec.SetInts(r.Targets, y[at*T:(at+n)*T]))
		s.Sample = first + uint64(at)
		r.do(r.exec.Run(section, s))
		at += n
	}
	r.do(r.exec.Run(r.Update, s))
	return float64(r.floats(r.LossSum)[0]) / float64(r.Shape.Batch*T), float64(r.floats(r.Norm)[0])
}

// The fast kernels follow PyTorch for twenty steps, as closely as PyTorch's own float32 follows its float64.
func TestExecutorAgainstPyTorch(t *testing.T) {
	paths, _ := filepath.Glob("testdata/bundle_*.safetensors")
	for _, path := range paths {
		b, err := bundle.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := b.Config
			m := Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias}
			s, err := Build(m, Shape{Batch: c.BatchSize * c.GradientAccumulationSteps,
				Adam: Adam{Beta1: c.Beta1, Beta2: c.Beta2, Eps: 1e-8, WeightDecay: c.WeightDecay, GradClip: c.GradClip}}, inFloat32(2))
			if err != nil {
				t.Fatal(err)
			}
			r := newRunner(t, s, cpu.Options{})
			for _, p := range s.Params {
				r.do(r.exec.SetFloats(p.Weight, b.Param[p.Name]))
			}
			for it := range c.Steps {
				var x, y []int32
				for k := range c.GradientAccumulationSteps {
					mx, my := b.Batch(it, k)
					x, y = append(x, mx...), append(y, my...)
				}
				loss, norm := r.iterate(x, y, program.Step{LR: b.Lr[it], T: it + 1, LossScale: 1})
				// Float32's own drift from float64, as PyTorch shows it, with some room.
				within(t, fmt.Sprintf("loss of step %d", it), loss, b.Loss[it], 1e-6+8*math.Abs(b.LossF32[it]-b.Loss[it]))
				within(t, fmt.Sprintf("norm of step %d", it), norm, b.Norm[it], 1e-5+8*math.Abs(b.NormF32[it]-b.Norm[it]))
				if it == 0 {
					for _, p := range s.Params {
						near(t, p.Name+" gradient", r.floats(p.Grad), b.Grad[p.Name], 2e-6)
					}
				}
			}
			for _, p := range s.Params {
				got, want := r.floats(p.Weight), b.Final[p.Name]
				if strings.HasSuffix(p.Name, "c_attn.bias") {
					// Softmax does not see a shift of all keys: their bias has no gradient but rounding, which AdamW blows up.
					C := m.NEmbd
					got, want = slices.Concat(got[:C], got[2*C:]), slices.Concat(want[:C], want[2*C:])
				}
				near(t, p.Name+" after the last step", got, want, 1e-4)
			}
		})
	}
}

// near compares relative to the largest value of the tensor.
func near(t *testing.T, what string, got, want []float32, tol float64) {
	t.Helper()
	scale := 0.0
	for _, v := range want {
		scale = max(scale, math.Abs(float64(v)))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tol*scale) {
			t.Errorf("%s[%d] is %v, PyTorch's %v", what, i, got[i], want[i])
			return
		}
	}
}

// A few steps end in the same bits for any number of threads and any recompute level, dropout on.
func TestExecutorIsBitEqual(t *testing.T) {
	m := Model{NLayer: 2, NHead: 3, NEmbd: 48, BlockSize: 33, VocabSize: 70, Bias: true, Dropout: 0.1}
	const batch = 7
	run := func(p Policy, o cpu.Options) (values [][]float32, losses []float64) {
		s := small(t, m, batch, p)
		r := newRunner(t, s, o)
		for i, p := range s.Params {
			v := make([]float32, p.Len())
			p.Initial(v, 0, i, 1)
			r.do(r.exec.SetFloats(p.Weight, v))
		}
		for it := range 3 {
			rng := rand.New(rand.NewPCG(2, uint64(it)))
			x, y := tokens(rng, m, batch)
			loss, norm := r.iterate(x, y, program.Step{Seed: 3, Sample: uint64(it * batch), LR: 1e-2, T: it + 1, LossScale: 1})
			losses = append(losses, loss, norm)
		}
		for _, p := range s.Params {
			values = append(values, r.floats(p.Weight))
		}
		return values, losses
	}
	for _, bf16 := range []bool{false, true} {
		want, wantLosses := run(inFloat32(3), cpu.Options{Threads: 1, BF16: bf16})
		for _, threads := range []int{2, 3} {
			for _, rec := range [][]Recompute{{RecomputeNone}, {RecomputeGelu}, {RecomputeLn}, {RecomputeAttention}, {RecomputeBlock}, {RecomputeBlock, RecomputeNone}} {
				p := inFloat32(3)
				p.Recompute = rec
				got, losses := run(p, cpu.Options{Threads: threads, BF16: bf16})
				name := fmt.Sprintf("bf16 %v, %d threads, recompute %v", bf16, threads, rec)
				if !slices.Equal(losses, wantLosses) {
					t.Errorf("%s: losses and norms %v, want %v", name, losses, wantLosses)
				}
				for i := range got {
					if !slices.Equal(got[i], want[i]) {
						t.Errorf("%s: parameter %d has other bits", name, i)
					}
				}
			}
		}
		// Another split, or loss chunk, changes sums' order, not more.
		tol := map[bool]float64{false: 1e-5, true: 2e-3}[bf16]
		for _, micro := range []int{1, 2, 7} {
			p := inFloat32(micro)
			p.LossChunk = 20
			_, losses := run(p, cpu.Options{Threads: 2, BF16: bf16})
			for i := range losses {
				if !(math.Abs(losses[i]-wantLosses[i]) <= tol*wantLosses[i]) {
					t.Errorf("bf16 %v, micro-batch %d: losses and norms %v, want %v", bf16, micro, losses, wantLosses)
				}
			}
		}
	}
}

// BenchmarkStep is a training step of 124M parameters, B=4, T=256: tok/s is the figure beside PyTorch's.
func BenchmarkStep(b *testing.B) {
	models := map[string]Model{
		"124M B=4 T=256": {NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 256, VocabSize: 50304},
		"char B=12 T=64": {NLayer: 4, NHead: 4, NEmbd: 128, BlockSize: 64, VocabSize: 65},
	}
	for name, batch := range map[string]int{"124M B=4 T=256": 4, "char B=12 T=64": 12} {
		for _, bf16 := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s bf16=%v", name, bf16), func(b *testing.B) {
				m := models[name]
				p := inFloat32(batch)
				s, err := Build(m, Shape{Batch: batch, Adam: testAdam}, p)
				if err != nil {
					b.Fatal(err)
				}
				r := newRunner(b, s, cpu.Options{BF16: bf16})
				for i, p := range s.Params {
					v := make([]float32, p.Len())
					p.Initial(v, 0, i, 1)
					r.do(r.exec.SetFloats(p.Weight, v))
				}
				x, y := tokens(rand.New(rand.NewPCG(1, 1)), m, batch)
				b.ReportAllocs()
				b.ResetTimer()
				for it := range b.N {
					r.iterate(x, y, program.Step{LR: 1e-4, T: it + 1, LossScale: 1})
				}
				b.ReportMetric(float64(b.N*batch*m.BlockSize)/b.Elapsed().Seconds(), "tok/s")
			})
		}
	}
}

// An evaluation that takes more sequences at once than training sums up the same losses, from tokens of its own that have room
// among its temporaries: what training takes stays as it is.
func TestWideEvaluationPasses(t *testing.T) {
	m := Model{NLayer: 2, NHead: 2, NEmbd: 16, BlockSize: 8, VocabSize: 11, Dropout: 0.3}
	const all = 6
	x, y := tokens(rand.New(rand.NewPCG(1, 2)), m, all)
	evaluate := func(at int) (loss float64, s *Step) {
		p := inFloat32(2)
		p.EvalBatch, p.LossChunk = at, 7
		s, err := Build(m, Shape{Batch: 2, EvalBatch: all, Adam: testAdam}, p)
		if err != nil {
			t.Fatal(err)
		}
		r := newRunner(t, s, cpu.Options{})
		for i, param := range s.Params {
			r.do(r.exec.Fill(param.Weight, func(dst []float32, from int) { param.Initial(dst, from, i, 1) }))
		}
		r.do(r.exec.Run(s.BeginEval, program.Step{}))
		for done := 0; done < all; {
			section := s.Eval
			if all-done < at {
				section = s.EvalRest
			}
			n := s.Sections[section].B
			idx, targets := s.Inputs(section)
			r.do(r.exec.SetInts(idx, x[done*m.BlockSize:(done+n)*m.BlockSize]))
			r.do(r.exec.SetInts(targets, y[done*m.BlockSize:(done+n)*m.BlockSize]))
			r.do(r.exec.Run(section, program.Step{LossScale: 1}))
			done += n
		}
		return float64(r.floats(s.LossSum)[0]) / float64(all*m.BlockSize), s
	}
	want, narrow := evaluate(2)
	for _, at := range []int{1, 4, 6} {
		got, s := evaluate(at)
		within(t, fmt.Sprintf("%d sequences at once", at), got, want, 1e-6)
		if a, b := s.Tensors[s.Idx].Bytes, narrow.Tensors[narrow.Idx].Bytes; a != b {
			t.Errorf("%d sequences at once: training's tokens take %v, %v with 2", at, a, b)
		}
		for _, section := range []int{s.First, s.Eval} {
			idx, targets := s.Inputs(section)
			if own := idx != s.Idx && targets != s.Targets; own != (section == s.Eval && at > 2) {
				t.Errorf("%d sequences at once: section %s has tokens of its own: %v", at, s.Sections[section].Name, own)
			}
		}
	}
}
