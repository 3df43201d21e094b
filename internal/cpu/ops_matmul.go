package cpu

import "github.com/snugml/snug/internal/program"

// products of the four matmul ops; data is bound later, the shape is enough for scratch.
func (x *Executor) product(op *program.Op) *product {
	N, C, OC := op.Attrs.N, op.Attrs.C, op.Attrs.OC
	p := &product{g: x.gemm, ldc: C}
	switch op.Code {
	case program.MatmulForward, program.MatmulGeluForward: // out (N,OC) = inp (N,C) weight^T (C,OC)
		p.M, p.N, p.K, p.ldc = N, OC, C, OC
		p.a, p.b = operand{outer: C, inner: 1}, operand{outer: C, inner: 1}
	case program.MatmulBackwardInput: // dinp (N,C) = dout (N,OC) weight (OC,C)
		p.M, p.N, p.K, p.add = N, C, OC, op.Attrs.Accumulate
		p.a, p.b = operand{outer: OC, inner: 1}, operand{outer: 1, inner: C}
	case program.MatmulBackwardWeight: // dweight (OC,C) += dout^T (OC,N) inp (N,C)
		p.M, p.N, p.K, p.add = OC, C, N, !op.Attrs.Overwrite
		p.a, p.b = operand{outer: 1, inner: OC}, operand{outer: 1, inner: C}
	}
	return p
}

func matmulScratch(x *Executor, op *program.Op) int {
	if fewRows(op) {
		return 0
	}
	return x.product(op).scratch(x.pool.threads)
}

// fewRows says that an op's rows are too few to pay for packing its weight: it is bound by reading the weight once.
func fewRows(op *program.Op) bool {
	const few = 4
	return op.Attrs.N <= few && (op.Code == program.MatmulForward || op.Code == program.MatmulGeluForward)
}

func matmulForward(b *binding) []phase {
	return b.matmul(b.f(0), b.f(1), b.f(2), b.f(3), nil)
}

func matmulBackwardInput(b *binding) []phase {
	return b.matmul(b.f(0), b.f(1), b.f(2), nil, nil)
}

func matmulBackwardWeight(b *binding) []phase {
	return b.matmul(b.f(0), b.f(1), b.f(2), nil, nil)
}

// matmulGeluForward writes pre, or out in its place where pre is absent, then applies GELU to each part as it is done.
func matmulGeluForward(b *binding) []phase {
	out, pre := b.f(0), b.f(1)
	if pre == nil {
		pre = out
	}
	OC := b.Attrs.OC
	return b.matmul(pre, b.f(2), b.f(3), b.f(4), func(row, rows, col, cols int) {
		for n := row; n < row+rows; n++ {
			b.k.GeluForward(out[n*OC+col:][:cols], pre[n*OC+col:][:cols])
		}
	})
}

func (b *binding) matmul(c, left, right, bias []float32, done func(row, rows, col, cols int)) []phase {
	if fewRows(b.Op) {
		return b.dots(c, left, right, bias, done)
	}
	p := b.product(b.Op)
	p.c, p.a.data, p.b.data, p.bias, p.done = c, left, right, bias, done
	return p.phases(b.scratch(), b.pool.threads)
}

// dots is out (N,OC) = inp (N,C) weight^T + bias over the weight's rows as they lie.
func (b *binding) dots(out, inp, weight, bias []float32, done func(row, rows, col, cols int)) []phase {
	N, C, OC := b.Attrs.N, b.Attrs.C, b.Attrs.OC
	const piece = 32 // rows of the weight
	return []phase{{ceil(OC, piece), func(i, _ int) {
		from, to := i*piece, min((i+1)*piece, OC)
		for o := from; o < to; o++ {
			row, start := weight[o*C:][:C], float32(0)
			if bias != nil {
				start = bias[o]
			}
			for n := range N {
				out[n*OC+o] = b.k.Dot(inp[n*C:][:C], row) + start
			}
		}
		if done != nil {
			done(0, N, from, to-from)
		}
	}}}
}
