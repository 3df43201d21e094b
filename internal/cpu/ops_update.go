package cpu

import (
	"math"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
)

func loss(b *binding) []phase {
	losses, logits, targets := b.f(0), b.f(1), b.i32(2)
	V := b.Attrs.V
	return []phase{{b.Attrs.N, func(n, _ int) {
		row, target := logits[n*V:][:V], int(targets[n])
		losses[n] = 0
		if target < 0 {
			if !b.Attrs.NoGrad {
				clear(row)
			}
			return
		}
		peak, at, out := b.k.Max(row), row[target], row
		if b.Attrs.NoGrad {
			out = nil
		}
		sum := float64(b.k.ExpSum(out, row, 1, peak))
		losses[n] = float32(math.Log(sum)) - (at - peak)
		if b.Attrs.NoGrad {
			return
		}
		scale := b.Attrs.Scale * lossScale(b.step)
		b.k.Scale(row, float32(scale/sum))
		row[target] -= float32(scale)
	}}}
}

// lossScale is 1 where the step has none.
func lossScale(s program.Step) float64 {
	if s.LossScale == 0 {
		return 1
	}
	return s.LossScale
}

func lossSum(b *binding) []phase {
	sum, losses := b.f(0), b.f(1)
	return []phase{{1, func(_, _ int) {
		total := 0.0
		for _, l := range losses {
			total += float64(l)
		}
		sum[0] += float32(total)
	}}}
}

// normPiece is the elements of a partial sum of squares in globalNorm: fixed, so that the sum's order is.
const normPiece = 1 << 15

func globalNormScratch(_ *Executor, op *program.Op) int {
	n := 0
	for _, a := range op.Args[1:] {
		n += ceil(a.Len, normPiece)
	}
	return 4 * n
}

func globalNorm(b *binding) []phase {
	norm := b.f(0)
	var pieces [][]float32
	for i := range b.Args[1:] {
		g := b.f(i + 1)
		for at := 0; at < len(g); at += normPiece {
			pieces = append(pieces, g[at:min(at+normPiece, len(g))])
		}
	}
	part := asFloats(b.scratch(), len(pieces))
	return []phase{
		{len(pieces), func(i, _ int) { part[i] = b.k.SumSquares(pieces[i], 0) }},
		{1, func(_, _ int) {
			total := 0.0
			for _, s := range part {
				total += float64(s)
			}
			norm[0] = float32(math.Sqrt(total) / lossScale(b.step))
		}},
	}
}

func adamW(b *binding) []phase {
	norm := b.f(0)
	var pieces []func(h kernel.AdamW)
	for i := 1; i < len(b.Args); i += 5 {
		param, m, v, grad := b.f(i), b.f(i+2), b.f(i+3), b.f(i+4)
		update := b.k.AdamW
		if b.streams(param, m, v) {
			update = b.k.AdamWStream
		}
		for from := 0; from < len(param); from += share {
			to := min(from+share, len(param))
			pieces = append(pieces, func(h kernel.AdamW) { update(param[from:to], m[from:to], v[from:to], grad[from:to], h) })
		}
	}
	return []phase{{len(pieces), func(i, _ int) {
		size := float64(norm[0])
		if math.IsNaN(size) || math.IsInf(size, 0) {
			return // a norm that is not finite leaves everything as it was
		}
		pieces[i](b.adamW(size))
	}}}
}

// adamW is the step's numbers, rounded to float32 once.
func (b *binding) adamW(norm float64) kernel.AdamW {
	a, t := &b.Attrs, float64(b.step.T)
	return kernel.AdamW{
		Clip:          float32(ClipScale(a.GradClip, norm) / lossScale(b.step)),
		Beta1:         float32(a.Beta1),
		OneBeta1:      float32(1 - a.Beta1),
		Beta2:         float32(a.Beta2),
		OneBeta2:      float32(1 - a.Beta2),
		Decay:         float32(1 - b.step.LR*a.WeightDecay),
		Step:          float32(b.step.LR / (1 - math.Pow(a.Beta1, t))),
		InvCorrection: float32(1 / math.Sqrt(1-math.Pow(a.Beta2, t))),
		Eps:           float32(a.Eps),
	}
}
