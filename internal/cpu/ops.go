package cpu

import (
	"fmt"
	"math"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
)

// table says of each op which phases it is, and how many bytes of scratch they need (nil: none).
var table = [program.Codes]struct {
	bind    func(*binding) []phase
	scratch func(*Executor, *program.Op) int
	apart   bool // one phase, and ops of this kind never touch each other's tensors
}{
	program.EncoderForward:           {bind: encoderForward},
	program.EncoderBackward:          {bind: encoderBackward},
	program.LayernormForward:         {bind: layernormForward},
	program.LayernormBackward:        {bind: layernormBackward, scratch: layernormScratch},
	program.ResidualForward:          {bind: residualForward},
	program.ResidualLayernormForward: {bind: residualLayernormForward},
	program.DropoutBackward:          {bind: dropoutBackward},
	program.MatmulForward:            {bind: matmulForward, scratch: matmulScratch},
	program.MatmulGeluForward:        {bind: matmulGeluForward, scratch: matmulScratch},
	program.MatmulBackwardInput:      {bind: matmulBackwardInput, scratch: matmulScratch},
	program.MatmulBackwardWeight:     {bind: matmulBackwardWeight, scratch: matmulScratch},
	program.BiasBackward:             {bind: biasBackward, scratch: biasScratch},
	program.GeluForward:              {bind: geluForward},
	program.GeluBackward:             {bind: geluBackward},
	program.AttentionForward:         {bind: attentionForward, scratch: attentionForwardScratch},
	program.AttentionBackward:        {bind: attentionBackward, scratch: attentionBackwardScratch},
	program.AttentionCached:          {bind: attentionCached, scratch: attentionCachedScratch},
	program.Loss:                     {bind: loss},
	program.LossSum:                  {bind: lossSum},
	program.GlobalNorm:               {bind: globalNorm, scratch: globalNormScratch},
	program.AdamW:                    {bind: adamW, apart: true},
	program.Zero:                     {bind: zero, apart: true},
	program.Cast:                     {bind: cast},
}

// A share of elementwise work is about this many elements: enough to pay for its hand-over, small enough to share.
const share = 8192

// elementwise cuts n elements into pieces.
func elementwise(n int, do func(from, to int)) []phase {
	return []phase{{ceil(n, share), func(i, _ int) { do(i*share, min((i+1)*share, n)) }}}
}

// rowwise cuts N rows of C elements into pieces.
func rowwise(N, C int, do func(row int)) []phase {
	rows := max(share/C, 1)
	return []phase{{ceil(N, rows), func(i, _ int) {
		for n := i * rows; n < min((i+1)*rows, N); n++ {
			do(n)
		}
	}}}
}

func encoderForward(b *binding) []phase {
	out, idx, wte, wpe := b.f(0), b.i32(1), b.f(2), b.f(3)
	T, C, V := b.Attrs.T, b.Attrs.C, len(b.f(2))/b.Attrs.C
	check := phase{1, func(_, _ int) {
		for n, token := range idx {
			if token < 0 || int(token) >= V {
				b.err = fmt.Errorf("embed: token %d at position %d, the vocabulary has %d", token, n, V)
				clear(idx) // the rest of the section runs on tokens that exist; its result is not used
				return
			}
		}
	}}
	return append([]phase{check}, rowwise(b.Attrs.B*T, C, func(n int) {
		row := out[n*C:][:C]
		b.k.Add(row, wte[int(idx[n])*C:][:C], wpe[(b.step.Pos+n%T)*C:][:C])
		b.drop(row, row, n/T, n%T*C)
	})...)
}

// encoderBackward gives each piece some channels of all tokens, so that every sum runs in the tokens' order.
func encoderBackward(b *binding) []phase {
	dwte, dwpe, dout, idx := b.f(0), b.f(1), b.f(2), b.i32(3)
	B, T, C := b.Attrs.B, b.Attrs.T, b.Attrs.C
	const width = 32
	return []phase{{ceil(C, width), func(i, _ int) {
		c, end := i*width, min((i+1)*width, C)
		if b.Attrs.Overwrite {
			for t := range T {
				clear(dwpe[t*C+c : t*C+end])
			}
		}
		for n := range B * T {
			row := dout[n*C+c : n*C+end]
			token, pos := dwte[int(idx[n])*C+c:][:end-c], dwpe[n%T*C+c:][:end-c]
			if b.Attrs.Dropout > 0 {
				for s := b.dropout().scales(n/T, n%T*C+c, len(row)); s.next(b.k); {
					for i, scale := range s.part() {
						token[s.at+i] += row[s.at+i] * scale
						pos[s.at+i] += row[s.at+i] * scale
					}
				}
				continue
			}
			b.k.Add(token, token, row)
			b.k.Add(pos, pos, row)
		}
	}}}
}

// drop is out = x * mask for elements [elem, elem+len(x)) of a sequence; with nothing to drop it does nothing where out is x.
func (b *binding) drop(out, x []float32, sequence, elem int) {
	if b.Attrs.Dropout == 0 {
		if &out[0] != &x[0] {
			copy(out, x)
		}
		return
	}
	for s := b.dropout().scales(sequence, elem, len(x)); s.next(b.k); {
		o, v := out[s.at:], x[s.at:]
		for i, scale := range s.part() {
			o[i] = v[i] * scale
		}
	}
}

func layernormForward(b *binding) []phase {
	out, mean, rstd, inp, weight, bias := b.f(0), b.f(1), b.f(2), b.f(3), b.f(4), b.f(5)
	N, C := b.Attrs.N, b.Attrs.C
	return rowwise(N, C, func(n int) {
		mean[n], rstd[n] = b.normalize(out[n*C:][:C], inp[n*C:][:C], weight, bias)
	})
}

func (b *binding) normalize(out, x, weight, bias []float32) (mean, rstd float32) {
	mean = b.k.Sum(x) / float32(len(x))
	rstd = float32(1 / math.Sqrt(float64(b.k.SumSquares(x, mean))/float64(len(x))+layernormEps))
	b.k.Normalize(out, x, weight, bias, mean, rstd)
	return mean, rstd
}

func residualForward(b *binding) []phase {
	out, x, branch := b.f(0), b.f(1), b.f(2)
	T, C := b.Attrs.T, b.Attrs.C
	return rowwise(b.Attrs.B*T, C, func(n int) { b.residual(out[n*C:][:C], x[n*C:][:C], branch[n*C:][:C], n/T, n%T*C) })
}

// residual is out = a + dropout(branch) on a part of a sequence that starts at elem. out may be a or branch.
func (b *binding) residual(out, a, branch []float32, sequence, elem int) {
	if b.Attrs.Dropout == 0 {
		b.k.Add(out, a, branch)
		return
	}
	for s := b.dropout().scales(sequence, elem, len(out)); s.next(b.k); {
		o, v, w := out[s.at:], a[s.at:], branch[s.at:]
		for i, scale := range s.part() {
			o[i] = v[i] + w[i]*scale
		}
	}
}

func residualLayernormForward(b *binding) []phase {
	sum, out, mean, rstd, x, branch, weight, bias := b.f(0), b.f(1), b.f(2), b.f(3), b.f(4), b.f(5), b.f(6), b.f(7)
	T, C := b.Attrs.T, b.Attrs.C
	return rowwise(b.Attrs.B*T, C, func(n int) {
		row := sum[n*C:][:C]
		b.residual(row, x[n*C:][:C], branch[n*C:][:C], n/T, n%T*C)
		mean[n], rstd[n] = b.normalize(out[n*C:][:C], row, weight, bias)
	})
}

func dropoutBackward(b *binding) []phase {
	dinp, dout := b.f(0), b.f(1)
	T, C := b.Attrs.T, b.Attrs.C
	return rowwise(b.Attrs.B*T, C, func(n int) { b.drop(dinp[n*C:][:C], dout[n*C:][:C], n/T, n%T*C) })
}

// Sums over the tokens (layernorm's weight and bias, a linear layer's bias) are taken in two steps: over the tokens of a
// chunk, then over the chunks, both in order. The chunks depend on N alone.
func chunkRows(N int) int { return max(32, ceil(N, 64)) }

func layernormScratch(_ *Executor, op *program.Op) int {
	return 4 * 2 * op.Attrs.C * ceil(op.Attrs.N, chunkRows(op.Attrs.N))
}

func layernormBackward(b *binding) []phase {
	dinp, dweight, dbias, dout, inp, weight, mean, rstd := b.f(0), b.f(1), b.f(2), b.f(3), b.f(4), b.f(5), b.f(6), b.f(7)
	N, C, rows := b.Attrs.N, b.Attrs.C, chunkRows(b.Attrs.N)
	chunks := ceil(N, rows)
	part := asFloats(b.scratch(), 2*C*chunks) // (chunks, 2, C)
	norm := kernel.Norm{Accumulate: b.Attrs.Accumulate}
	first := phase{chunks, func(i, _ int) {
		dw, db, norm := part[2*i*C:][:C], part[(2*i+1)*C:][:C], norm
		clear(dw)
		clear(db)
		for n := i * rows; n < min((i+1)*rows, N); n++ {
			dy, x := dout[n*C:][:C], inp[n*C:][:C]
			g, gx := b.k.NormalizeSums(dy, x, weight, mean[n], rstd[n])
			norm.Mean, norm.Rstd, norm.G, norm.GX = mean[n], rstd[n], g/float32(C), gx/float32(C)
			b.k.NormalizeBackward(dinp[n*C:][:C], dw, db, dy, x, weight, norm)
		}
	}}
	return []phase{first, merge(b.fold(dweight, part, chunks, 2*C), b.fold(dbias, part[C:], chunks, 2*C))}
}

// fold is the second step: sum += the chunks' parts, which lie stride apart; with Overwrite, sum = their sum. A nil sum is no work.
func (b *binding) fold(sum, parts []float32, chunks, stride int) phase {
	const width = 256
	return phase{ceil(len(sum), width), func(i, _ int) {
		from, to := i*width, min((i+1)*width, len(sum))
		if b.Attrs.Overwrite {
			clear(sum[from:to])
		}
		for c := range chunks {
			b.k.Add(sum[from:to], sum[from:to], parts[c*stride+from:][:to-from])
		}
	}}
}

func biasScratch(_ *Executor, op *program.Op) int {
	return 4 * op.Attrs.OC * ceil(op.Attrs.N, chunkRows(op.Attrs.N))
}

func biasBackward(b *binding) []phase {
	dbias, dout := b.f(0), b.f(1)
	N, OC, rows := b.Attrs.N, b.Attrs.OC, chunkRows(b.Attrs.N)
	chunks := ceil(N, rows)
	part := asFloats(b.scratch(), OC*chunks)
	return []phase{{chunks, func(i, _ int) {
		db := part[i*OC:][:OC]
		clear(db)
		for n := i * rows; n < min((i+1)*rows, N); n++ {
			b.k.Add(db, db, dout[n*OC:][:OC])
		}
	}}, b.fold(dbias, part, chunks, OC)}
}

func geluForward(b *binding) []phase {
	out, pre := b.f(0), b.f(1)
	return elementwise(len(out), func(from, to int) { b.k.GeluForward(out[from:to], pre[from:to]) })
}

func geluBackward(b *binding) []phase {
	dpre, dout, pre := b.f(0), b.f(1), b.f(2)
	return elementwise(len(dpre), func(from, to int) { b.k.GeluBackward(dpre[from:to], dout[from:to], pre[from:to]) })
}

func zero(b *binding) []phase {
	t := b.f(0)
	const big = 16 * share // clearing is cheaper than the rest
	zero := func(x []float32) { clear(x) }
	if b.streams(t) && len(t) >= big {
		zero = b.k.ClearStream
	}
	return []phase{{ceil(len(t), big), func(i, _ int) { zero(t[i*big : min((i+1)*big, len(t))]) }}}
}

func cast(b *binding) []phase {
	dst, src := b.f(0), b.f(1)
	return elementwise(len(dst), func(from, to int) { copy(dst[from:to], src[from:to]) })
}
