package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// philox fills dst with dropout's scales: half j of the block of counter (group+i, c1, c2, c3) decides about element 8i+j,
// the lower half of word j/2 for an even j, the upper for an odd one.
//
// A lane is a counter; a vector holds one word of each. At the end the halves of four counters are transposed inside each
// 128-bit part, first those of words 0 and 1, then those of 2 and 3, and a counter's two parts are put side by side. With
// four parts two counters share a vector: lanes are given their counters in the order that makes these neighbours.
func (g *gen) philox() {
	g.text("scales", "(dst *[256]float32, group, c1, c2, c3, k0, k1, limit uint32, kept float32)",
		"dst[8i+j] = 0 where half j of Philox4x32-10 of (group+i, c1, c2, c3) is below limit, a multiple of 2^16, else kept")
	parts := g.lanes / 4
	order := GLOBL("order"+g.suffix, 8|16)
	for i := range g.lanes {
		part, lane := i/4, i%4
		DATA(4*i, U32((part/(parts/2)*4+lane)*(parts/2)+part%(parts/2)))
	}
	dst, left := Load(Param("dst"), GP64()), GP64()
	group := g.integer("group")
	VPADDD(order, group, group)
	limit, kept := g.integer("limit"), g.broadcast("kept")
	MOVQ(U32(256/(8*g.lanes)), left)
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
	var first, last [4]reg.VecVirtual // the halves of word j of the first two counters of a part, and of the last two
	for j := range c {
		lower := g.vec()
		VPSLLD(U8(16), c[j], lower)
		g.choose(lower, limit, kept)
		g.choose(c[j], limit, kept)
		first[j], last[j] = g.vec(), c[j]
		VUNPCKLPS(c[j], lower, first[j])
		VUNPCKHPS(c[j], lower, last[j])
	}
	unpack := []func(ops ...Op){VUNPCKLPD, VUNPCKHPD}
	for i, half := range [][4]reg.VecVirtual{first, last} {
		for j, half64 := range unpack {
			front, back := g.vec(), g.vec()
			half64(half[1], half[0], front)
			half64(half[3], half[2], back)
			g.interleave(front, back, dst, 2*i+j)
		}
	}
	VPADDD(g.kbits(uint32(g.lanes)), group, group)
	ADDQ(U32(8*g.bytes()), dst)
	DECQ(left)
	JNZ(LabelRef("block"))
	g.end()
}

// interleave stores the 128-bit parts of front and back in turn: lane's counters, of the first half of the parts and of the second.
func (g *gen) interleave(front, back reg.VecVirtual, dst reg.Register, lane int) {
	for i := range 2 {
		t := g.vec()
		if g.wide {
			VSHUFF64X2(U8([]uint8{0x44, 0xee}[i]), back, front, t) // f f b b
			VSHUFF64X2(U8(0xd8), t, t, t)                          // f b f b
		} else {
			VPERM2F128(U8([]uint8{0x20, 0x31}[i]), back, front, t)
		}
		VMOVUPS(t, Mem{Base: dst, Disp: (4*i + lane) * g.bytes()})
	}
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
