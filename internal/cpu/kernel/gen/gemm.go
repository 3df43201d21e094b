package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func float32frombits(b uint32) float32 { return math.Float32frombits(b) }

// gemm is Gemm.Multiply on vectors: a tile of rows x two vectors of C stays in registers, A is broadcast element by element.
// 12 rows of AVX-512's 32 registers, 6 of AVX2's 16, leave room for two vectors of B and the broadcasts.
func (g *gen) gemm() {
	rows := 6
	if g.wide {
		rows = 12
	}
	g.text("multiply", "(a, b, c, init *byte, ldc, ldinit, aStep, bStep, cStep, initStep, k, count uintptr)", "Gemm.Multiply; see kernel.Block")
	load := func(name string) reg.Register { return Load(Param(name), GP64()) }
	a, b, c, start, count := load("a"), load("b"), load("c"), load("init"), load("count")
	acc := make([][2]reg.VecVirtual, rows)
	for i := range acc {
		acc[i] = [2]reg.VecVirtual{g.vec(), g.vec()}
	}
	pa, pb, left, row, ld := GP64(), GP64(), GP64(), GP64(), GP64()

	Label("tile")
	TESTQ(start, start)
	JZ(LabelRef("zero"))
	Load(Param("ldinit"), ld)
	MOVQ(start, row)
	for i := range acc {
		for j := range acc[i] {
			VMOVUPS(Mem{Base: row, Disp: j * g.bytes()}, acc[i][j])
		}
		ADDQ(ld, row)
	}
	JMP(LabelRef("run"))
	Label("zero")
	for i := range acc {
		for _, v := range acc[i] {
			if g.wide {
				VPXORD(v, v, v)
			} else {
				VXORPS(v, v, v)
			}
		}
	}
	Label("run")
	MOVQ(a, pa)
	MOVQ(b, pb)
	Load(Param("k"), left)
	b0, b1, x := g.vec(), g.vec(), g.vec()
	Label("loop")
	VMOVUPS(Mem{Base: pb}, b0)
	VMOVUPS(Mem{Base: pb, Disp: g.bytes()}, b1)
	for i := range acc {
		if g.wide {
			x = g.vec()
		}
		VBROADCASTSS(Mem{Base: pa, Disp: 4 * i}, x)
		VFMADD231PS(b0, x, acc[i][0])
		VFMADD231PS(b1, x, acc[i][1])
	}
	ADDQ(U32(4*rows), pa)
	ADDQ(U32(2*g.bytes()), pb)
	DECQ(left)
	JNZ(LabelRef("loop"))

	Load(Param("ldc"), ld)
	MOVQ(c, row)
	for i := range acc {
		for j := range acc[i] {
			VMOVUPS(acc[i][j], Mem{Base: row, Disp: j * g.bytes()})
		}
		ADDQ(ld, row)
	}
	for _, s := range []struct {
		p    reg.Register
		step string
	}{{a, "aStep"}, {b, "bStep"}, {c, "cStep"}} {
		Load(Param(s.step), ld)
		ADDQ(ld, s.p)
	}
	TESTQ(start, start)
	JZ(LabelRef("next"))
	Load(Param("initStep"), ld)
	ADDQ(ld, start)
	Label("next")
	DECQ(count)
	JNZ(LabelRef("tile"))
	g.end()
}
