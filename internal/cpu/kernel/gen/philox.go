package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// philox fills dst with dropout's scales: word j of counter (group+i, c1, c2, c3) decides about element 4i+j.
//
// A lane is a counter; a vector holds one word of each. At the end the words of four counters are transposed inside each
// 128-bit part, so the lanes are given their counters in the order that makes the parts come out in sequence.
func (g *gen) philox() {
	g.text("scales", "(dst *[256]float32, group, c1, c2, c3, k0, k1, limit uint32, kept float32)",
		"dst[4i+j] = 0 where word j of Philox4x32-10 of (group+i, c1, c2, c3) is below limit, else kept")
	parts := g.lanes / 4
	order := GLOBL("order"+g.suffix, 8|16)
	for i := range g.lanes {
		DATA(4*i, U32(i%4*parts+i/4))
	}
	dst, left := Load(Param("dst"), GP64()), GP64()
	group := g.integer("group")
	VPADDD(order, group, group)
	limit, kept := g.integer("limit"), g.broadcast("kept")
	MOVQ(U32(256/(4*g.lanes)), left)
	if g.wide { // the odd lanes
		m, k := GP32(), K()
		MOVL(U32(0xaaaa), m)
		KMOVW(m, k)
		g.mask = k
	}

	Label("block")
	c := [4]reg.VecVirtual{g.vec(), g.integer("c1"), g.integer("c2"), g.integer("c3")}
	g.move(group, c[0])
	k0, k1 := g.integer("k0"), g.integer("k1")
	for range 10 {
		hi0, lo0 := g.mulhilo(c[0], 0xD2511F53)
		hi1, lo1 := g.mulhilo(c[2], 0xCD9E8D57)
		g.xor(c[1], hi1)
		g.xor(k0, hi1)
		g.xor(c[3], hi0)
		g.xor(k1, hi0)
		c = [4]reg.VecVirtual{hi1, lo1, hi0, lo0}
		VPADDD(g.kbits(0x9E3779B9), k0, k0)
		VPADDD(g.kbits(0xBB67AE85), k1, k1)
	}
	for j := range c {
		g.choose(c[j], limit, kept)
	}
	u0, u1, v0, v1 := g.vec(), g.vec(), g.vec(), g.vec()
	VUNPCKLPS(c[1], c[0], u0)
	VUNPCKHPS(c[1], c[0], u1)
	VUNPCKLPS(c[3], c[2], v0)
	VUNPCKHPS(c[3], c[2], v1)
	for j, pair := range [][2]reg.VecVirtual{{u0, v0}, {u1, v1}} {
		t := g.vec()
		VUNPCKLPD(pair[1], pair[0], t)
		VMOVUPS(t, Mem{Base: dst, Disp: 2 * j * g.bytes()})
		VUNPCKHPD(pair[1], pair[0], t)
		VMOVUPS(t, Mem{Base: dst, Disp: (2*j + 1) * g.bytes()})
	}
	VPADDD(g.kbits(uint32(g.lanes)), group, group)
	ADDQ(U32(4*g.bytes()), dst)
	DECQ(left)
	JNZ(LabelRef("block"))
	g.end()
}

// integer is a vector of a uint32 parameter.
func (g *gen) integer(name string) reg.VecVirtual {
	m, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.vec()
	VBROADCASTSS(m.Addr, v) // moves bits
	return v
}

func (g *gen) move(from, to reg.VecVirtual) {
	if g.wide {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// xor is b ^= a.
func (g *gen) xor(a, b reg.VecVirtual) {
	if g.wide {
		VPXORD(a, b, b)
	} else {
		VPXOR(a, b, b)
	}
}

// mulhilo is the high and the low words of x*m. VPMULUDQ multiplies the even lanes, so the odd ones are moved there and back.
func (g *gen) mulhilo(x reg.VecVirtual, m uint32) (hi, lo reg.VecVirtual) {
	hi, lo = g.vec(), g.vec()
	even, odd := g.vec(), g.vec()
	VPSRLQ(U8(32), x, odd)
	VPMULUDQ(g.kbits(m), x, even)
	VPMULUDQ(g.kbits(m), odd, odd)
	VPSRLQ(U8(32), even, hi)
	VPSLLQ(U8(32), odd, lo)
	if g.wide {
		VPBLENDMD(odd, hi, g.mask, hi)
		VPBLENDMD(lo, even, g.mask, lo)
		return hi, lo
	}
	VPBLENDD(U8(0xaa), odd, hi, hi)
	VPBLENDD(U8(0xaa), lo, even, lo)
	return hi, lo
}

// choose turns words into scales: kept where the word is at least limit, as unsigned numbers.
func (g *gen) choose(w, limit, kept reg.VecVirtual) {
	if g.wide {
		k := K()
		VPCMPUD(U8(5), limit, w, k) // not less than
		VMOVUPS_Z(kept, k, w)
		return
	}
	m := g.vec()
	VPMAXUD(limit, w, m)
	VPCMPEQD(m, w, w) // max(w, limit) == w
	VANDPS(kept, w, w)
}
