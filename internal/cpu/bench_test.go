package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
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

// benchOp runs an op alone and reports what it does a second.
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
	b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	if cpu > 0 {
		b.ReportMetric(flops*float64(b.N)/cpu/1e9, "GFLOP/core-s")
	}
	runtime.GC() // the last op's arena
}
