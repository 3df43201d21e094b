package cuda

import (
	"math"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// matmul is one product of the program in row-major terms: D (M,N) = A B, summed over K.
type matmul struct {
	layout     string // "nt": A (M,K), B (N,K); "nn": B (K,N); "tn": A (K,M), B (K,N)
	d, a, b    Pointer
	bias       Pointer
	M, N, K    int
	in, out    trace.DType
	accumulate bool
	workspace  Pointer
	space      units.Bytes
}

// sizes are those of a matmul op's product.
func sizes(op *program.Op) (layout string, M, N, K int) {
	at := &op.Attrs
	switch op.Code {
	case program.MatmulBackwardInput:
		return "nn", at.N, at.C, at.OC
	case program.MatmulBackwardWeight:
		return "tn", at.OC, at.C, at.N
	}
	return "nt", at.N, at.OC, at.C
}

// matmulOf reads the product of a matmul op.
func (e *Executor) matmulOf(op *program.Op) matmul {
	x := op.Args
	var m matmul
	switch op.Code {
	case program.MatmulForward:
		m = matmul{d: e.ptr(x[0]), a: e.ptr(x[1]), b: e.ptr(x[2]), bias: e.ptr(x[3])}
	case program.MatmulGeluForward:
		d := x[1] // before GELU, or in the place of GELU's result where that is not kept
		if d.None() {
			d = x[0]
		}
		m = matmul{d: e.ptr(d), a: e.ptr(x[2]), b: e.ptr(x[3]), bias: e.ptr(x[4])}
	case program.MatmulBackwardInput:
		m = matmul{d: e.ptr(x[0]), a: e.ptr(x[1]), b: e.ptr(x[2]), accumulate: op.Attrs.Accumulate}
	case program.MatmulBackwardWeight:
		m = matmul{d: e.ptr(x[0]), a: e.ptr(x[1]), b: e.ptr(x[2]), accumulate: !op.Attrs.Overwrite}
	}
	m.layout, m.M, m.N, m.K = sizes(op)
	m.in, m.out = e.dtype(x[0]), e.dtype(x[0])
	if op.Code == program.MatmulBackwardWeight {
		m.in = e.dtype(x[1])
	}
	m.workspace, m.space = e.scratchPtr(op)
	return m
}

// aligned says that every row of every operand starts at a multiple of 16 bytes.
func (m *matmul) aligned() bool {
	per := int(16 / m.in.Size())
	inner := []int{m.K, m.K, m.N} // the dimension that lies together, of A, B and D
	switch m.layout {
	case "nn":
		inner[1] = m.N
	case "tn":
		inner[0], inner[1] = m.M, m.N
	}
	for _, n := range inner {
		if n%per != 0 {
			return false
		}
	}
	return (m.a|m.b|m.d|m.bias)%16 == 0
}

// blasProduct is m in cuBLASLt's column-major terms, where D^T = B^T A^T.
func (m *matmul) blasProduct() product {
	return product{m: m.N, n: m.M, k: m.K, transA: m.layout == "nt", transB: m.layout == "tn",
		in: m.in, out: m.out, bias: m.bias != 0, accumulate: m.accumulate, align: 16}
}

// viaBlas says that the library multiplies m: where rows are not aligned, only if it was found to be faster.
func (d *Device) viaBlas(m *matmul) bool {
	return d.blas != nil && (m.aligned() || d.blas.crooked[m.blasProduct()])
}

// prepareProduct finds m's fastest algorithm; it spoils the operands.
func (e *Executor) prepareProduct(op *program.Op) error {
	m := e.matmulOf(op)
	if e.blas != nil && !m.aligned() {
		return e.prepareCrooked(&m)
	}
	if !e.viaBlas(&m) {
		return nil
	}
	_, err := e.plan(m.blasProduct(), m.b, m.a, m.d, m.bias, m.workspace, m.space)
	return err
}

// prepareCrooked finds who multiplies m, whose rows are not aligned, in less time: the library or snug's own kernel, which is
// asked for first and serves alone where nothing may be timed.
func (e *Executor) prepareCrooked(m *matmul) error {
	p := m.blasProduct()
	if _, known := e.blas.crooked[p]; known || e.blas.hasty || m.in == trace.Float32 || (m.a|m.b|m.d|m.bias)%16 != 0 || e.blas.memory.isOwn(p) {
		return nil
	}
	remembered := e.blas.memory.find(p) != nil
	if _, err := e.plan(p, m.b, m.a, m.d, m.bias, m.workspace, m.space); err != nil {
		return nil // the library takes no such rows
	}
	if !remembered {
		theirs, err := e.measure(3, math.Inf(1), func() error { return e.multiply(p, m.b, m.a, m.d, m.bias, m.workspace, m.space) })
		if err != nil {
			return err
		}
		ours, err := e.measure(3, math.Inf(1), func() error { return e.own(m) })
		if err != nil {
			return err
		}
		if ours < theirs {
			e.blas.memory.add(p, own)
			e.blas.crooked[p] = false
			return nil
		}
	}
	e.blas.crooked[p] = true
	return nil
}

// productScratch is the workspace of a product: the library's, or that of snug's own split sums.
func (t Target) productScratch(op *program.Op) units.Bytes {
	if t.Blas {
		return t.workspace()
	}
	_, M, N, K := sizes(op)
	switch {
	case t.Major == 9:
		return hopperScratch(M, N, K, hopperCard/2)
	case op.Code == program.MatmulBackwardWeight:
		if n := splits(M, N, K); n > 1 {
			return units.Bytes(int64(n) * int64(M) * int64(N) * 4)
		}
	}
	return 0
}

// splits is how many blocks share the sum over K of a tn product, so that the last wave of 128x256 tiles on a large card
// (132 multiprocessors) is not nearly empty; each split costs a write and a read of D.
func splits(M, N, K int) int {
	const card, price = 132, 0.02
	tiles, best, least := ceil(M, 128)*ceil(N, 256), 1, math.Inf(1)
	for n := 1; n <= 8 && (n == 1 || K/n >= 512); n++ {
		if cost := float64(ceil(tiles*n, card))/float64(n) + price*float64(n); cost < least {
			best, least = n, cost
		}
	}
	return best
}

func (e *Executor) matmulForward(op *program.Op, s program.Step) error {
	return e.multiplyOp(op)
}

func (e *Executor) matmulGeluForward(op *program.Op, s program.Step) error {
	if err := e.multiplyOp(op); err != nil {
		return err
	}
	pre := op.Args[1]
	if pre.None() {
		pre = op.Args[0]
	}
	return e.gelu(op.Args[0], e.ptr(pre))
}

func (e *Executor) matmulBackwardInput(op *program.Op, s program.Step) error { return e.multiplyOp(op) }

func (e *Executor) matmulBackwardWeight(op *program.Op, s program.Step) error {
	return e.multiplyOp(op)
}

func (e *Executor) multiplyOp(op *program.Op) error {
	m := e.matmulOf(op)
	if e.viaBlas(&m) {
		return e.multiply(m.blasProduct(), m.b, m.a, m.d, m.bias, m.workspace, m.space)
	}
	return e.own(&m)
}

// ownTile is one of matmul.cu's instances.
type ownTile struct {
	name                    string
	bm, bn, threads, shared int
}

var (
	wideTile   = ownTile{"wide", 128, 256, 256, 4 * (128 + 256) * 32 * 2}
	squareTile = ownTile{"square", 128, 128, 128, 4 * (128 + 128) * 32 * 2}
	smallTile  = ownTile{"small", 64, 64, 128, 3 * (64 + 64) * 32 * 2}
)

// tile chooses the instance: the widest whose blocks fill the card, the small one where rows are not aligned.
func (d *Device) tile(m *matmul) ownTile {
	switch blocks := func(t ownTile) int { return ceil(m.M, t.bm) * ceil(m.N, t.bn) }; {
	case !m.aligned():
		return smallTile
	case m.layout != "tn" && blocks(wideTile) >= d.Multiprocessors:
		return wideTile
	default:
		return squareTile
	}
}

// own multiplies with snug's own kernels.
func (e *Executor) own(m *matmul) error {
	switch {
	case m.in == trace.Float32:
		return e.ownFloat32(m)
	case e.onHopper(m):
		return e.ownHopper(m)
	}
	return e.ownMMA(m)
}

// ownMMA multiplies 16-bit operands with matmul.cu's tensor-core kernels, which every card takes.
func (e *Executor) ownMMA(m *matmul) error {
	unit := "matmul." + elements[m.in].suffix
	t := e.tile(m)
	parts, dst, accumulate := 1, m.d, m.accumulate
	n := splits(m.M, m.N, m.K)
	if t == smallTile { // rows that are not aligned come element by element: as many blocks share them as the card holds
		most := int(m.space / units.Bytes(4*m.M*m.N))
		n = max(n, min(most, m.K/256, 4*e.Multiprocessors/(ceil(m.M, t.bm)*ceil(m.N, t.bn))))
	}
	if m.layout == "tn" && n > 1 && m.space >= units.Bytes(int64(n)*int64(m.M)*int64(m.N)*4) {
		parts, dst, accumulate = n, m.workspace, false
	}
	per := ceil(ceil(m.K, parts), 64) * 64
	parts = ceil(m.K, per)
	out, sum := dst, Pointer(0)
	if m.out == trace.Float32 || dst != m.d {
		out, sum = 0, dst
	}
	e.with().add(uint64(out), uint64(m.bias), uint64(sum), uint64(m.a), uint64(m.b), uint64(m.M)|uint64(m.N)<<32,
		uint64(m.K)|uint64(per)<<32, uint64(flag(accumulate)))
	grid := dim{x: ceil(m.M, t.bm) * ceil(m.N, t.bn), y: 1, z: parts}
	if err := e.launch(unit, "matmul_"+m.layout+"_"+t.name, grid, t.threads, t.shared); err != nil {
		return err
	}
	if dst == m.d {
		return nil
	}
	out, sum = m.d, 0
	if m.out == trace.Float32 {
		out, sum = 0, m.d
	}
	all := m.M * m.N
	e.with().ptr(out, sum, m.workspace).int(all, parts, flag(m.accumulate))
	return e.launch(unit, "matmul_reduce", dim{x: min(ceil(all, threads), 4096)}, threads, 0)
}

// ownFloat32 multiplies fp32 operands without tensor cores.
func (e *Executor) ownFloat32(m *matmul) error {
	am, ak, bn, bk := m.K, 1, m.K, 1
	switch m.layout {
	case "nn":
		bn, bk = 1, m.N
	case "tn":
		am, ak, bn, bk = 1, m.M, 1, m.N
	}
	e.with().ptr(m.d, m.bias, m.a, m.b).int(m.M, m.N, m.K, am, ak, bn, bk, flag(m.accumulate))
	return e.launch("matmul_f32.f32", "matmul_f32", dim{ceil(m.N, 64), ceil(m.M, 64), 1}, 256, 0)
}
