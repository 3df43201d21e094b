// Command gen writes the AVX2 and AVX-512 kernels: one description of each, for vectors of 8 or 16 float32.
//
//	go run . -isa avx512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg kernel
package main

import (
	"flag"
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var isa = flag.String("isa", "avx512", "avx2 or avx512")

func main() {
	flag.Parse()
	g := &gen{wide: *isa == "avx512", suffix: "AVX512", lanes: 16, consts: map[uint32]Mem{}}
	if !g.wide {
		g.suffix, g.lanes = "AVX2", 8
	}
	g.elementwise()
	g.reductions()
	g.gelu()
	g.exps()
	g.norms()
	g.adamw("adamW", g.put)
	g.adamw("adamWStream", g.stream)
	g.clear()
	g.philox()
	g.gemm()
	Generate()
	writeSum()
}

// gen is the instruction set that is being written, and where in a loop it is.
type gen struct {
	wide   bool // AVX-512
	suffix string
	lanes  int
	consts map[uint32]Mem
	masks  *Mem // AVX2: eight times -1, eight times 0

	tail bool         // only the first lanes of a vector belong to the slice
	mask reg.Register // k register (AVX-512) or vector (AVX2) of those lanes
	at   reg.Register // byte offset of the vector
}

func (g *gen) bytes() int { return 4 * g.lanes }

func (g *gen) vec() reg.VecVirtual {
	if g.wide {
		return ZMM()
	}
	return YMM()
}

// k is a vector of one constant, in memory.
func (g *gen) k(v float32) Mem {
	bits := math.Float32bits(v)
	if m, ok := g.consts[bits]; ok {
		return m
	}
	m := GLOBL(fmt.Sprintf("c%08x%s", bits, g.suffix), 8|16) // RODATA|NOPTR
	for i := range g.lanes {
		DATA(4*i, U32(bits))
	}
	g.consts[bits] = m
	return m
}

// load is a register with what m holds.
func (g *gen) load(m Op) reg.VecVirtual {
	v := g.vec()
	VMOVUPS(m, v)
	return v
}

func (g *gen) zero() reg.VecVirtual {
	v := g.vec()
	if g.wide {
		VPXORD(v, v, v)
	} else {
		VXORPS(v, v, v)
	}
	return v
}

// broadcast is a vector of a float32 parameter.
func (g *gen) broadcast(name string) reg.VecVirtual {
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.vec()
	VBROADCASTSS(m.Addr, v)
	return v
}

// text starts a function.
func (g *gen) text(name, signature, doc string) {
	TEXT(name+g.suffix, 4, "func"+signature) // NOSPLIT
	Pragma("noescape")
	Doc(fmt.Sprintf("%s%s: %s.", name, g.suffix, doc))
}

// ptr is the base of a slice parameter.
func (g *gen) ptr(name string) reg.Register { return Load(Param(name).Base(), GP64()) }

// vector is the memory of the current vector of a slice.
func (g *gen) vector(base reg.Register) Mem { return Mem{Base: base, Index: g.at, Scale: 1} }

// get loads the current vector of a slice; lanes beyond its end are zero.
func (g *gen) get(base reg.Register) reg.VecVirtual {
	v := g.vec()
	switch {
	case !g.tail:
		VMOVUPS(g.vector(base), v)
	case g.wide:
		VMOVUPS_Z(g.vector(base), g.mask, v)
	default:
		VMASKMOVPS(g.vector(base), g.mask, v)
	}
	return v
}

// put stores the current vector of a slice.
func (g *gen) put(v reg.Register, base reg.Register) {
	switch {
	case !g.tail:
		VMOVUPS(v, g.vector(base))
	case g.wide:
		VMOVUPS(v, g.mask, g.vector(base))
	default:
		VMASKMOVPS(v, g.mask, g.vector(base))
	}
}

// stream stores the current vector past the caches, to an aligned address.
func (g *gen) stream(v reg.Register, base reg.Register) {
	if g.tail {
		g.put(v, base)
		return
	}
	VMOVNTPS(v, g.vector(base))
}

// accumulate is acc += v; lanes beyond the end add nothing.
func (g *gen) accumulate(v, acc reg.Register) {
	switch {
	case !g.tail:
		VADDPS(v, acc, acc)
	case g.wide:
		VADDPS(v, acc, g.mask, acc)
	default:
		VANDPS(g.mask, v, v)
		VADDPS(v, acc, acc)
	}
}

// each walks the slices of n elements: body once a vector, and once more for what is left. body(u) is told which of the
// unrolled copies it is.
func (g *gen) each(n reg.Register, unroll int, body func(u int)) {
	at := GP64()
	XORQ(at, at)
	g.at = at
	left := GP64()
	MOVQ(n, left)
	labels++
	id := labels
	if unroll > 1 {
		step := unroll * g.lanes
		Label(fmt.Sprintf("many%d", id))
		CMPQ(left, U32(step))
		JL(LabelRef(fmt.Sprintf("one%d", id)))
		for u := range unroll {
			body(u)
			ADDQ(U32(g.bytes()), at)
		}
		SUBQ(U32(step), left)
		JMP(LabelRef(fmt.Sprintf("many%d", id)))
	}
	Label(fmt.Sprintf("one%d", id))
	CMPQ(left, U32(g.lanes))
	JL(LabelRef(fmt.Sprintf("rest%d", id)))
	body(0)
	ADDQ(U32(g.bytes()), at)
	SUBQ(U32(g.lanes), left)
	JMP(LabelRef(fmt.Sprintf("one%d", id)))
	Label(fmt.Sprintf("rest%d", id))
	TESTQ(left, left)
	JZ(LabelRef(fmt.Sprintf("end%d", id)))
	g.setMask(left)
	g.tail = true
	body(0)
	g.tail = false
	Label(fmt.Sprintf("end%d", id))
}

var labels int

// setMask makes the mask of the first left lanes.
func (g *gen) setMask(left reg.Register) {
	if g.wide {
		m := GP64()
		MOVQ(U64(1<<16-1), m) // BZHI keeps the low left bits
		BZHIQ(left, m, m)
		k := K()
		KMOVW(m.As32(), k)
		g.mask = k
		return
	}
	if g.masks == nil {
		m := GLOBL("masks"+g.suffix, 8|16)
		for i := range 8 {
			DATA(4*i, U32(math.MaxUint32))
		}
		for i := range 8 {
			DATA(32+4*i, U32(0))
		}
		g.masks = &m
	}
	p, neg, m := GP64(), GP64(), YMM()
	LEAQ(*g.masks, p)
	MOVQ(left, neg)
	NEGQ(neg)
	VMOVUPS(Mem{Base: p, Index: neg, Scale: 4, Disp: 32}, m)
	g.mask = m
}

// fold is the sum (or with max the maximum) of v's lanes, in the low lane of the result.
func (g *gen) fold(v reg.VecVirtual, op func(...Op)) reg.VecVirtual {
	y, x, high := v.AsY(), v.AsX(), XMM()
	if g.wide {
		upper := YMM()
		VEXTRACTF64X4(U8(1), v, upper)
		op(upper, y, y)
	}
	VEXTRACTF128(U8(1), y, high)
	op(high, x, x)
	VPERMILPS(U8(0x4e), x, high)
	op(high, x, x)
	VPERMILPS(U8(0xb1), x, high)
	op(high, x, x)
	return v
}

// ret stores the low lane of v as result name.
func (g *gen) ret(v reg.VecVirtual, name string) { Store(v.AsX(), Return(name)) }

func (g *gen) end() {
	VZEROUPPER()
	RET()
}
