package gpt

import (
	"math"
	"testing"

	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// reference runs a placed program with cpu's plain functions, in float32 or float64. One element stands for four bytes
// of the arena, so that a wrong offset or lifetime shows as a wrong number; the arena starts as NaN.
type reference[F cpu.Float] struct {
	*Step
	layout *program.Layout
	arena  []F
	ints   map[program.ID][]int32
}

func newReference[F cpu.Float](t *testing.T, s *Step) *reference[F] {
	t.Helper()
	r := &reference[F]{Step: s, layout: s.Place(), ints: map[program.ID][]int32{}}
	r.arena = make([]F, r.layout.Size/4)
	for i := range r.arena {
		r.arena[i] = F(math.NaN())
	}
	for i, tensor := range s.Tensors {
		switch tensor.DType {
		case trace.Int32:
			r.ints[program.ID(i)] = make([]int32, tensor.Len())
		case trace.Float32:
		default:
			t.Fatalf("%s is %s: the reference has no such type", tensor.Name, tensor.DType)
		}
	}
	return r
}

func (r *reference[F]) tensor(id program.ID) []F {
	return r.arena[r.layout.Offset[id]/4:][:r.Tensors[id].Len()]
}

func (r *reference[F]) run(section int, s program.Step) {
	for i := range r.Sections[section].Ops {
		r.op(&r.Sections[section].Ops[i], s)
	}
}

func (r *reference[F]) op(op *program.Op, s program.Step) {
	f := func(i int) []F {
		if a := op.Args[i]; !a.None() {
			return r.tensor(a.ID)[a.Offset:][:a.Len]
		}
		return nil
	}
	n := func(i int) []int32 { a := op.Args[i]; return r.ints[a.ID][a.Offset:][:a.Len] }
	a := op.Attrs
	for i, arg := range op.Args {
		if op.Param(i).Access == program.Add && !arg.None() && !op.Reads(i) {
			clear(f(i))
		}
	}
	d := cpu.Dropout{P: a.Dropout, Seed: s.Seed, Site: uint32(a.Site), Sample: s.Sample}
	switch op.Code {
	case program.EncoderForward:
		cpu.EncoderForward(f(0), n(1), f(2), f(3), a.B, a.T, a.C, d)
	case program.EncoderBackward:
		cpu.EncoderBackward(f(0), f(1), f(2), n(3), a.B, a.T, a.C, d)
	case program.LayernormForward:
		cpu.LayernormForward(f(0), f(1), f(2), f(3), f(4), f(5), a.N, a.C)
	case program.LayernormBackward:
		cpu.LayernormBackward(f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), a.N, a.C, a.Accumulate)
	case program.ResidualLayernormForward:
		cpu.ResidualLayernormForward(f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7), a.B, a.T, a.C, d)
	case program.DropoutBackward:
		cpu.DropoutBackward(f(0), f(1), a.B, a.T*a.C, d)
	case program.MatmulForward:
		cpu.MatmulForward(f(0), f(1), f(2), f(3), a.N, a.C, a.OC)
	case program.MatmulGeluForward:
		pre := f(1)
		if pre == nil {
			pre = make([]F, a.N*a.OC)
		}
		cpu.MatmulGeluForward(f(0), pre, f(2), f(3), f(4), a.N, a.C, a.OC)
	case program.MatmulBackwardInput:
		cpu.MatmulBackwardInput(f(0), f(1), f(2), a.N, a.C, a.OC, a.Accumulate)
	case program.MatmulBackwardWeight:
		cpu.MatmulBackwardWeight(f(0), f(1), f(2), a.N, a.C, a.OC)
	case program.BiasBackward:
		cpu.BiasBackward(f(0), f(1), a.N, a.OC)
	case program.GeluForward:
		cpu.GeluForward(f(0), f(1))
	case program.GeluBackward:
		cpu.GeluBackward(f(0), f(1), f(2))
	case program.AttentionForward:
		cpu.AttentionForward(f(0), f(1), f(2), a.B, a.T, a.C, a.NH, d)
	case program.AttentionBackward:
		cpu.AttentionBackward(f(0), f(2), f(3), f(4), f(5), a.B, a.T, a.C, a.NH, d)
	case program.Loss:
		cpu.Loss(f(0), f(1), n(2), a.N, a.V, a.Scale*s.LossScale, !a.NoGrad)
	case program.LossSum:
		for _, v := range f(1) {
			f(0)[0] += v
		}
	case program.GlobalNorm:
		var grads [][]F
		for i := range op.Args[1:] {
			grads = append(grads, f(1+i))
		}
		f(0)[0] = cpu.GlobalNorm(grads...)
	case program.AdamW:
		for i := 1; i < len(op.Args); i += 5 {
			cpu.AdamW(f(i), f(i+2), f(i+3), f(i+4), f(0)[0], cpu.AdamWParams{LR: s.LR, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps,
				WeightDecay: a.WeightDecay, GradClip: a.GradClip, T: s.T})
		}
	case program.Zero:
		clear(f(0))
	default:
		panic("reference: no " + op.Code.String())
	}
}

// gradients runs begin and every micro-batch of x, y (Batch, T), and leaves gradients and LossSum.
func (r *reference[F]) gradients(x, y []int32, s program.Step) {
	r.run(r.Begin, s)
	T, first := r.Model.BlockSize, s.Sample
	for at := 0; at < r.Shape.Batch; {
		section := r.Next(at)
		n := r.Sections[section].B
		copy(r.ints[r.Idx], x[at*T:(at+n)*T])
		copy(r.ints[r.Targets], y[at*T:(at+n)*T])
		s.Sample = first + uint64(at)
		r.run(section, s)
		at += n
	}
}

// loss is the mean over the effective batch that the sections left in LossSum.
func (r *reference[F]) loss() float64 {
	return float64(r.tensor(r.LossSum)[0]) / float64(r.Shape.Batch*r.Model.BlockSize)
}
