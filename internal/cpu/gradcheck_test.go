package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// gradcase is one op under test: forward fills outs from ins; backward returns the gradient of sum(outs*up) for each of ins
// (nil: no gradient is defined for it).
type gradcase struct {
	name     string
	ins      [][]float64
	forward  func(ins [][]float64) (outs [][]float64)
	backward func(ins, outs, ups [][]float64) (dins [][]float64)
}

// check compares backward with central differences at every element of every input.
func (g gradcase) check(t *testing.T, rng *rand.Rand) {
	t.Helper()
	outs := g.forward(g.ins)
	ups := make([][]float64, len(outs))
	for i := range outs {
		ups[i] = normal(rng, len(outs[i]))
	}
	objective := func() (sum float64) {
		for i, out := range g.forward(g.ins) {
			sum += dot(out, ups[i])
		}
		return sum
	}
	dins := g.backward(g.ins, outs, ups)
	const h = 1e-5
	for i, in := range g.ins {
		for j := range in {
			keep := in[j]
			in[j] = keep + h
			up := objective()
			in[j] = keep - h
			down := objective()
			in[j] = keep
			want, got := (up-down)/(2*h), dins[i][j]
			if !(math.Abs(got-want) <= 1e-7*(1+math.Abs(want))) {
				t.Fatalf("%s: input %d element %d: gradient %.10g, central difference %.10g", g.name, i, j, got, want)
			}
		}
	}
}

func normal(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func zeros(n int) []float64 { return make([]float64, n) }

// bias returns b, or nil where the case has none.
func bias(b []float64, with bool) []float64 {
	if with {
		return b
	}
	return nil
}

func TestGradients(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const B, T, C, OC, NH, V = 2, 5, 9, 7, 3, 11
	const N = B * T
	var cases []gradcase
	for _, p := range []float64{0, 0.3} {
		d := Dropout{P: p, Seed: 7<<32 + 5, Site: 4, Sample: 1<<32 - 1}
		cases = append(cases, encoderCase(rng, B, T, C, V, d), residualCase(rng, B, T, C, d), attentionCase(rng, B, T, C, NH, d),
			residualLayernormCase(rng, B, T, C, d))
	}
	for _, with := range []bool{true, false} {
		cases = append(cases, layernormCase(rng, N, C, with), matmulCase(rng, N, C, OC, with), matmulGeluCase(rng, N, C, OC, with))
	}
	cases = append(cases, geluCase(rng, 33), lossCase(rng, N, V))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.check(t, rng) })
	}
}

func encoderCase(rng *rand.Rand, B, T, C, V int, d Dropout) gradcase {
	idx := make([]int32, B*T)
	for i := range idx {
		idx[i] = int32(rng.IntN(V / 2)) // repeats, and rows without a token
	}
	return gradcase{
		name: fmt.Sprintf("encoder p=%g", d.P),
		ins:  [][]float64{normal(rng, V*C), normal(rng, T*C)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(B * T * C)
			EncoderForward(out, idx, in[0], in[1], B, T, C, d)
			return [][]float64{out}
		},
		backward: func(in, _, up [][]float64) [][]float64 {
			dwte, dwpe := zeros(V*C), zeros(T*C)
			EncoderBackward(dwte, dwpe, up[0], idx, B, T, C, d)
			return [][]float64{dwte, dwpe}
		},
	}
}

func residualCase(rng *rand.Rand, B, T, C int, d Dropout) gradcase {
	return gradcase{
		name: fmt.Sprintf("residual p=%g", d.P),
		ins:  [][]float64{normal(rng, B*T*C), normal(rng, B*T*C)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(B * T * C)
			ResidualForward(out, in[0], in[1], B, T*C, d)
			return [][]float64{out}
		},
		backward: func(_, _, up [][]float64) [][]float64 {
			db := zeros(B * T * C)
			DropoutBackward(db, up[0], B, T*C, d)
			return [][]float64{up[0], db}
		},
	}
}

func residualLayernormCase(rng *rand.Rand, B, T, C int, d Dropout) gradcase {
	N := B * T
	mean, rstd := zeros(N), zeros(N)
	return gradcase{
		name: fmt.Sprintf("residual layernorm p=%g", d.P),
		ins:  [][]float64{normal(rng, N*C), normal(rng, N*C), normal(rng, C), normal(rng, C)},
		forward: func(in [][]float64) [][]float64 {
			sum, out := zeros(N*C), zeros(N*C)
			ResidualLayernormForward(sum, out, mean, rstd, in[0], in[1], in[2], in[3], B, T, C, d)
			return [][]float64{sum, out}
		},
		backward: func(in, out, up [][]float64) [][]float64 {
			da, db, dw, dbias := append(zeros(0), up[0]...), zeros(N*C), zeros(C), zeros(C)
			LayernormBackward(da, dw, dbias, up[1], out[0], in[2], mean, rstd, N, C, true)
			DropoutBackward(db, da, B, T*C, d)
			return [][]float64{da, db, dw, dbias}
		},
	}
}

func layernormCase(rng *rand.Rand, N, C int, with bool) gradcase {
	mean, rstd := zeros(N), zeros(N)
	return gradcase{
		name: fmt.Sprintf("layernorm bias=%v", with),
		ins:  [][]float64{normal(rng, N*C), normal(rng, C), normal(rng, C)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(N * C)
			LayernormForward(out, mean, rstd, in[0], in[1], bias(in[2], with), N, C)
			return [][]float64{out}
		},
		backward: func(in, _, up [][]float64) [][]float64 {
			dx, dw, db := normal(rng, N*C), zeros(C), zeros(C) // without accumulate what was in dx must not matter
			LayernormBackward(dx, dw, bias(db, with), up[0], in[0], in[1], mean, rstd, N, C, false)
			return [][]float64{dx, dw, db}
		},
	}
}

func matmulCase(rng *rand.Rand, N, C, OC int, with bool) gradcase {
	return gradcase{
		name: fmt.Sprintf("matmul bias=%v", with),
		ins:  [][]float64{normal(rng, N*C), normal(rng, OC*C), normal(rng, OC)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(N * OC)
			MatmulForward(out, in[0], in[1], bias(in[2], with), N, C, OC)
			return [][]float64{out}
		},
		backward: func(in, _, up [][]float64) [][]float64 { return matmulBackward(rng, in, up[0], N, C, OC, with) },
	}
}

func matmulBackward(rng *rand.Rand, in [][]float64, dout []float64, N, C, OC int, with bool) [][]float64 {
	dx, half, dw, db := normal(rng, N*C), zeros(N*C), zeros(OC*C), zeros(OC)
	MatmulBackwardInput(dx, dout, in[1], N, C, OC, false)
	for i := range half { // dinp in two halves: one written, one added
		half[i] = dx[i] / 2
	}
	halfOut := zeros(len(dout))
	axpy(halfOut, 0.5, dout)
	MatmulBackwardInput(half, halfOut, in[1], N, C, OC, true)
	MatmulBackwardWeight(dw, dout, in[0], N, C, OC)
	if with {
		BiasBackward(db, dout, N, OC)
	}
	return [][]float64{half, dw, db}
}

func matmulGeluCase(rng *rand.Rand, N, C, OC int, with bool) gradcase {
	pre := zeros(N * OC)
	return gradcase{
		name: fmt.Sprintf("matmul gelu bias=%v", with),
		ins:  [][]float64{normal(rng, N*C), normal(rng, OC*C), normal(rng, OC)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(N * OC)
			MatmulGeluForward(out, pre, in[0], in[1], bias(in[2], with), N, C, OC)
			return [][]float64{out}
		},
		backward: func(in, _, up [][]float64) [][]float64 {
			MatmulForward(pre, in[0], in[1], bias(in[2], with), N, C, OC)
			dpre := append(zeros(0), up[0]...)
			GeluBackward(dpre, dpre, pre)
			return matmulBackward(rng, in, dpre, N, C, OC, with)
		},
	}
}

func geluCase(rng *rand.Rand, n int) gradcase {
	return gradcase{
		name: "gelu",
		ins:  [][]float64{normal(rng, n)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(n)
			GeluForward(out, in[0])
			return [][]float64{out}
		},
		backward: func(in, _, up [][]float64) [][]float64 {
			dx := zeros(n)
			GeluBackward(dx, up[0], in[0])
			return [][]float64{dx}
		},
	}
}

func attentionCase(rng *rand.Rand, B, T, C, NH int, d Dropout) gradcase {
	lse := zeros(B * NH * T)
	return gradcase{
		name: fmt.Sprintf("attention p=%g", d.P),
		ins:  [][]float64{normal(rng, B*T*3*C)},
		forward: func(in [][]float64) [][]float64 {
			out := zeros(B * T * C)
			AttentionForward(out, lse, in[0], B, T, C, NH, d)
			return [][]float64{out}
		},
		backward: func(in, out, up [][]float64) [][]float64 {
			AttentionForward(out[0], lse, in[0], B, T, C, NH, d)
			dqkv := normal(rng, B*T*3*C)
			AttentionBackward(dqkv, up[0], in[0], out[0], lse, B, T, C, NH, d)
			return [][]float64{dqkv}
		},
	}
}

// lossCase takes the sum of the losses times scale, so that the upstream gradient is the one Loss has built in.
func lossCase(rng *rand.Rand, n, V int) gradcase {
	targets := make([]int32, n)
	for i := range targets {
		targets[i] = int32(rng.IntN(V+1)) - 1
	}
	targets[0] = -1
	const scale = 0.37
	return gradcase{
		name: "loss",
		ins:  [][]float64{normal(rng, n*V), {1}},
		forward: func(in [][]float64) [][]float64 {
			losses, logits := zeros(n), append(zeros(0), in[0]...)
			Loss(losses, logits, targets, n, V, scale, false)
			return [][]float64{{in[1][0] * scale * dot(losses, ones(n))}}
		},
		backward: func(in, out, up [][]float64) [][]float64 {
			losses, logits := zeros(n), append(zeros(0), in[0]...)
			Loss(losses, logits, targets, n, V, scale, true)
			for i := range logits {
				logits[i] *= up[0][0]
			}
			return [][]float64{logits, {up[0][0] * out[0][0]}}
		},
	}
}

func ones(n int) []float64 {
	x := zeros(n)
	for i := range x {
		x[i] = 1
	}
	return x
}
