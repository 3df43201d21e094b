package cpu

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// benchShapes are the linear layers of GPT-2 124M at 1,024 tokens and of nanoGPT's CPU character example at 768.
var benchShapes = []struct {
	name     string
	N, C, OC int
}{
	{"124M/c_attn", 1024, 768, 2304},
	{"124M/c_proj", 1024, 768, 768},
	{"124M/c_fc", 1024, 768, 3072},
	{"124M/mlp", 1024, 3072, 768},
	{"124M/head", 1024, 768, 50304},
	{"char/c_attn", 768, 128, 384},
	{"char/c_fc", 768, 128, 512},
	{"char/mlp", 768, 512, 128},
	{"char/head", 768, 128, 65},
}

// BenchmarkMatmul reports GFLOP/s of the clock, and of a core's own time, which neighbours on the machine do not change.
func BenchmarkMatmul(b *testing.B) {
	for _, set := range kernel.All() {
		for _, bf16 := range []bool{false, true} {
			if set.Name == "go" || bf16 && set.BF16 == nil {
				continue
			}
			x := New(Options{Kernels: set, BF16: bf16})
			for _, s := range benchShapes {
				at := program.Attrs{N: s.N, C: s.C, OC: s.OC}
				in, w, out := arg{n: s.N * s.C}, arg{n: s.OC * s.C}, arg{n: s.N * s.OC}
				for _, c := range []opcase{
					{code: program.MatmulForward, attrs: at, args: []arg{out, in, w, {}}},
					{code: program.MatmulBackwardInput, attrs: at, args: []arg{in, out, w}},
					{code: program.MatmulBackwardWeight, attrs: at, args: []arg{w, out, in}},
				} {
					b.Run(fmt.Sprintf("%s/%s/%v", x.gemm.Name, s.name, c.code), func(b *testing.B) {
						benchOp(b, x, c, 2*float64(s.N)*float64(s.C)*float64(s.OC))
					})
				}
			}
			x.Close()
		}
	}
}

// BenchmarkOps is every other op, at the width of 124M (a vocabulary of 4,096) and of the character example.
func BenchmarkOps(b *testing.B) {
	x := New(Options{})
	defer x.Close()
	for _, s := range []struct {
		name string
		at   program.Attrs
	}{
		{"124M", program.Attrs{B: 4, T: 256, C: 768, NH: 12, OC: 3072, V: 4096}},
		{"char", program.Attrs{B: 12, T: 64, C: 128, NH: 4, OC: 512, V: 65}},
	} {
		at := s.at
		at.N, at.Scale, at.Beta1, at.Beta2, at.Eps = at.B*at.T, 1e-3, 0.9, 0.95, 1e-8
		cases := append(tokenCases(rand.New(rand.NewPCG(3, 4)), at), layerCases(at)...)
		for _, c := range append(cases, updateCases(at)...) {
			b.Run(fmt.Sprintf("%s/%v", s.name, c.code), func(b *testing.B) { benchOp(b, x, c, 0) })
		}
	}
}

// benchOp runs an op alone and reports what it does a second, or without flops what it takes.
func benchOp(b *testing.B, x *Executor, c opcase, flops float64) {
	c.load(b, x, rand.New(rand.NewPCG(1, 2)))
	if err := x.Run(0, testStep); err != nil {
		b.Fatal(err)
	}
	cpu := cpuSeconds()
	for b.Loop() {
		if err := x.Run(0, testStep); err != nil {
			b.Fatal(err)
		}
	}
	cpu = cpuSeconds() - cpu
	if flops > 0 {
		b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		b.ReportMetric(flops*float64(b.N)/cpu/1e9, "GFLOP/core-s")
	} else {
		b.ReportMetric(cpu/float64(b.N)*1e6, "core-µs/op")
	}
	runtime.GC() // the last op's arena
}

// BenchmarkStep is a whole training step, forward, backward and update: nanoGPT's 124M at B=4, T=256, and its CPU character example.
func BenchmarkStep(b *testing.B) {
	for _, c := range []struct {
		name  string
		model gpt.Model
		batch int
	}{
		{"124M", gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 256, VocabSize: 50304}, 4},
		{"char", gpt.Model{NLayer: 4, NHead: 4, NEmbd: 128, BlockSize: 64, VocabSize: 65}, 12},
	} {
		for _, bf16 := range []bool{false, true} {
			x := New(Options{BF16: bf16})
			b.Run(fmt.Sprintf("%s/%s", c.name, x.gemm.Name), func(b *testing.B) { benchStep(b, x, c.model, c.batch) })
			x.Close()
		}
	}
}

func benchStep(b *testing.B, x *Executor, m gpt.Model, batch int) {
	adam := gpt.Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}
	policy := gpt.Policy{MicroBatch: batch, EvalBatch: batch, Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32}
	step, err := gpt.Build(m, gpt.Shape{Batch: batch, Adam: adam}, policy)
	if err != nil {
		b.Fatal(err)
	}
	step.AddScratch(x.Scratch)
	if err := x.Load(step.Place()); err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range step.Params {
		w := make([]float32, step.Tensors[p.Weight].Len())
		for i := range w {
			w[i] = 0.02 * float32(rng.NormFloat64())
		}
		if err := x.SetFloats(p.Weight, w); err != nil {
			b.Fatal(err)
		}
	}
	tokens := make([]int32, batch*m.BlockSize)
	for i := range tokens {
		tokens[i] = int32(rng.IntN(m.VocabSize))
	}
	if err := errors.Join(x.SetInts(step.Idx, tokens), x.SetInts(step.Targets, tokens), x.Run(step.Init, program.Step{})); err != nil {
		b.Fatal(err)
	}
	t := 0
	one := func() {
		t++
		s := program.Step{Seed: 1, Sample: uint64(t * batch), LR: 1e-4, T: t, LossScale: 1}
		if err := errors.Join(x.Run(step.Begin, s), x.Run(step.First, s), x.Run(step.Update, s)); err != nil {
			b.Fatal(err)
		}
	}
	one() // touches the memory
	cpu := cpuSeconds()
	for b.Loop() {
		one()
	}
	cpu = cpuSeconds() - cpu
	b.ReportMetric(float64(len(tokens)*b.N)/b.Elapsed().Seconds(), "tok/s")
	if cpu > 0 {
		b.ReportMetric(float64(len(tokens)*b.N)/cpu, "tok/core-s")
	}
}
