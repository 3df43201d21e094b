//go:build linux

package cuda

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// steps holds a parameter group twice, as float32 and in halves: the same values, moments and gradients.
type steps struct {
	*Executor
	t           *testing.T
	norm        program.ID
	whole, half [][4]program.ID // of each tensor its value, moments and gradient
	weights     []program.ID
}

// newSteps makes tensors of n elements each, every second one with bfloat16 gradients beside its halves.
func newSteps(t *testing.T, e *Executor, n ...int) *steps {
	t.Helper()
	s := &steps{Executor: e, t: t}
	p := &program.Program{}
	s.norm = p.Add(program.Persistent, trace.Optimizer, trace.Float32, "norm", 1)
	whole, half := []program.Arg{p.Whole(s.norm)}, []program.Arg{p.Whole(s.norm)}
	for i, n := range n {
		add := func(dtype trace.DType, name string) program.ID {
			return p.Add(program.Persistent, trace.Optimizer, dtype, name, n)
		}
		ids := [4]program.ID{add(trace.Float32, "param"), add(trace.Float32, "m"), add(trace.Float32, "v"), add(trace.Float32, "grad")}
		whole = append(whole, p.Whole(ids[0]), program.Absent, p.Whole(ids[1]), p.Whole(ids[2]), p.Whole(ids[3]))
		s.whole = append(s.whole, ids)
		weight := add(trace.BFloat16, "weight")
		low := p.AddMaster(trace.Optimizer, "low", weight)
		ids = [4]program.ID{low, add(trace.Float32, "half.m"), add(trace.Float32, "half.v"), add([]trace.DType{trace.Float32, trace.BFloat16}[i%2], "half.grad")}
		half = append(half, p.Whole(weight), p.Whole(low), p.Whole(ids[1]), p.Whole(ids[2]), p.Whole(ids[3]))
		s.half, s.weights = append(s.half, ids), append(s.weights, weight)
	}
	for _, args := range [][]program.Arg{whole, half} {
		p.Sections = append(p.Sections, program.Section{Ops: []program.Op{{Code: program.AdamW, Args: args, Scratch: program.Absent,
			Attrs: program.Attrs{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}}}})
	}
	p.AddScratch(e.Scratch)
	s.must(e.Load(p.Place()))
	s.must(e.Poison())
	return s
}

func (s *steps) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// set writes the same into tensor i both ways; what is 0 the value, 1 and 2 the moments, 3 the gradient.
func (s *steps) set(i, what int, values []float32) {
	s.t.Helper()
	s.must(s.SetFloats(s.whole[i][what], values))
	s.must(s.SetFloats(s.half[i][what], values))
}

func (s *steps) bits(id program.ID) []uint32 {
	s.t.Helper()
	n := s.layout.Tensors[id].Len()
	values, bits := make([]float32, n), make([]uint32, n)
	s.must(s.Floats(id, values))
	for i, x := range values {
		if bits[i] = math.Float32bits(x); isNaN(bits[i]) {
			bits[i] = 0x7fc00000
		}
	}
	return bits
}

// Steps of AdamW on halves are those on float32 bit for bit, in values and moments, from every kind of value; the weights are
// the values' halves; and a norm that is no number changes nothing.
func TestSplitStepsAreFloat32Steps(t *testing.T) { onBoth(t, splitStepsAreFloat32Steps) }

func splitStepsAreFloat32Steps(t *testing.T, e *Executor) {
	all := patterns()
	sizes := []int{len(all), 3*adamwPiece + 3, 2, 4*adamwPiece + 1, 1}
	s := newSteps(t, e, sizes...)
	rng := rand.New(rand.NewPCG(5, 6))
	for i, n := range sizes {
		values := make([]float32, n)
		for j := range values {
			values[j] = float32(0.02 * rng.NormFloat64())
			if i == 0 {
				values[j] = math.Float32frombits(all[j])
			}
		}
		s.set(i, 0, values)
		s.set(i, 1, make([]float32, n))
		s.set(i, 2, make([]float32, n))
	}
	for step := range 6 {
		for i, n := range sizes {
			grads := make([]float32, n)
			for j := range grads {
				grads[j] = math.Float32frombits(uint32(bfloat16(float32(rng.NormFloat64()))) << 16)
			}
			s.set(i, 3, grads)
		}
		norm, before := float32(step)/2, [][]uint32(nil)
		if step == 4 {
			norm = float32(math.Inf(1))
			for i := range sizes {
				before = append(before, s.bits(s.half[i][0]))
			}
		}
		s.must(s.SetFloats(s.norm, []float32{norm}))
		for section := range 2 {
			s.must(s.Run(section, program.Step{LR: 1e-3 * float64(step), T: step + 1, LossScale: 1}))
		}
		for i := range sizes {
			for what, name := range []string{"value", "m", "v"} {
				want, got := s.bits(s.whole[i][what]), s.bits(s.half[i][what])
				for j := range want {
					if got[j] != want[j] {
						t.Fatalf("step %d, tensor %d: %s of element %d is %#08x in halves, %#08x in float32", step, i, name, j, got[j], want[j])
					}
				}
			}
			values, weights := s.bits(s.half[i][0]), s.bits(s.weights[i])
			for j := range weights {
				if weight, _ := split(values[j]); weights[j] != uint32(weight)<<16 {
					t.Fatalf("step %d, tensor %d: element %d is %#08x, its weight %#08x", step, i, j, values[j], weights[j])
				}
			}
			if before != nil && !slices.Equal(before[i], values) {
				t.Errorf("tensor %d changed under a norm of %v", i, norm)
			}
		}
	}
}

// A master of another type than the parameter's kernel takes is refused before anything is launched.
func TestMasterOfAnotherType(t *testing.T) {
	e := standIn(t, Options{})
	p := &program.Program{}
	add := func(dtype trace.DType) program.Arg {
		return p.Whole(p.Add(program.Persistent, trace.Optimizer, dtype, string(dtype), 8))
	}
	p.Sections = []program.Section{{Ops: []program.Op{{Code: program.AdamW, Scratch: program.Absent,
		Args: []program.Arg{add(trace.Float32), add(trace.BFloat16), add(trace.Float32), add(trace.Float32), add(trace.Float32), add(trace.Float32)}}}}}
	p.AddScratch(e.Scratch)
	if err := e.Load(p.Place()); err == nil {
		t.Error("bfloat16 weights with a float32 master were loaded")
	}
}

func BenchmarkHalves(b *testing.B) {
	values, bytes := make([]float32, stageBytes/4), make([]byte, stageBytes)
	for i := range values {
		values[i] = float32(i) * 1e-5
	}
	for name, f := range map[string]func(){"split": func() { splitAll(bytes, values) }, "join": func() { joinAll(values, bytes) }} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(stageBytes)
			for range b.N {
				f()
			}
		})
	}
}
