package cpu

import (
	"unsafe"

	"github.com/snugml/snug/internal/cpu/kernel"
)

// operand is a factor of a product: element (i,k), i along M or N, is data[i*outer + k*inner]. One stride is 1.
type operand struct {
	data         []float32
	outer, inner int
}

// product is C (M,N) = A (M,K) B (K,N), over packed panels.
//
// The factor with fewer rows (columns) stays: a block of it is packed once into memory that all threads share, small
// enough for the L2 cache. The other one streams: each piece of work packs one panel of it into its own memory and
// multiplies it with the whole block. K is cut into runs; C carries the sum from one run to the next. How K is cut
// depends on the shape alone, so every element's sum has the same order on any number of threads.
type product struct {
	g       *kernel.Gemm
	M, N, K int
	a, b    operand
	c       []float32 // (M,N), row i at c[i*ldc]
	ldc     int
	bias    []float32 // (N) or nil: what the sums start from
	add     bool      // the sums start from C
}

// l2 is the bytes of a packed block that the threads share: it should stay in a core's L2 cache.
const l2 = 3 << 19

// cut says how a product is cut.
type cut struct {
	stayA         bool // A stays, B streams
	kc            int  // run of K, the last one may be shorter
	block         int  // panels of the staying factor in a block
	stay, stream  int  // panels of the staying and the streaming factor
	stayR, flowR  int  // rows (columns) of their panels
	shared, local int  // bytes of the block, and of a thread's panel and edge tile
}

func (p *product) cut() cut {
	var c cut
	c.stayA = p.M <= p.N
	m, n := ceil(p.M, p.g.MR), ceil(p.N, p.g.NR)
	c.stay, c.stream, c.stayR, c.flowR = n, m, p.g.NR, p.g.MR
	if c.stayA {
		c.stay, c.stream, c.stayR, c.flowR = m, n, p.g.MR, p.g.NR
	}
	runs := ceil(p.K, p.g.KC)
	c.kc = p.g.Padded(ceil(p.K, runs))
	panel := c.stayR * c.kc * p.g.Bytes
	blocks := ceil(c.stay, max(l2/panel, 1))
	c.block = ceil(c.stay, blocks)
	c.shared = align(c.block * panel)
	c.local = align(c.flowR*c.kc*p.g.Bytes) + align(4*p.g.MR*p.g.NR)
	return c
}

// scratch is the bytes that phases needs on a number of threads.
func (p *product) scratch(threads int) int {
	c := p.cut()
	return c.shared + threads*c.local
}

// phases cuts the product into work for a pool. scratch holds p.scratch(threads) bytes.
func (p *product) phases(scratch []byte, threads int) []phase {
	c := p.cut()
	var list []phase
	for s := 0; s < c.stay; s += c.block {
		count := min(c.block, c.stay-s)
		// Few streaming panels for many threads: cut the block too, and let each part pack the panel again.
		parts := min(ceil(4*threads, c.stream), count)
		if threads == 1 {
			parts = 1
		}
		for k := 0; k < p.K; k += c.kc {
			kn := min(c.kc, p.K-k)
			list = append(list,
				phase{count, func(i, _ int) { p.packStay(&c, scratch, s, i, k, kn) }},
				phase{c.stream * parts, func(i, worker int) {
					first, last := i%parts*count/parts, (i%parts+1)*count/parts
					p.multiply(&c, scratch, c.shared+worker*c.local, s, first, last, i/parts, k, kn)
				}})
		}
	}
	return list
}

// packStay packs panel i of the block that starts at panel s, for kn elements from k.
func (p *product) packStay(c *cut, scratch []byte, s, i, k, kn int) {
	size := c.stayR * p.g.Padded(kn) * p.g.Bytes
	if c.stayA {
		pack(p.g.PackA, scratch[i*size:][:size], p.a, p.M, s+i, c.stayR, k, kn)
	} else {
		pack(p.g.PackB, scratch[i*size:][:size], p.b, p.N, s+i, c.stayR, k, kn)
	}
}

func pack(f func([]byte, []float32, int, int, int, int), dst []byte, o operand, limit, panel, r, k, kn int) {
	at := panel * r
	f(dst, o.data[at*o.outer+k*o.inner:], o.outer, o.inner, min(r, limit-at), kn)
}

// multiply packs panel j of the streaming factor and multiplies it with panels [first,last) of the block that starts at s.
func (p *product) multiply(c *cut, scratch []byte, local, s, first, last, j, k, kn int) {
	panel := scratch[local:]
	tile := scratch[local+align(c.flowR*c.kc*p.g.Bytes):]
	if c.stayA {
		pack(p.g.PackB, panel, p.b, p.N, j, c.flowR, k, kn)
	} else {
		pack(p.g.PackA, panel, p.a, p.M, j, c.flowR, k, kn)
	}
	size := c.stayR * p.g.Padded(kn) * p.g.Bytes
	limit := p.N
	if c.stayA {
		limit = p.M
	}
	flowLimit := p.M + p.N - limit
	whole := last // the first panel that is not whole
	if (s+last)*c.stayR > limit {
		whole = last - 1
	}
	if (j+1)*c.flowR > flowLimit {
		whole = first
	}
	if whole > first {
		b := p.block(c, scratch[first*size:], panel, size, s+first, j, k, kn)
		b.Count = uintptr(whole - first)
		p.g.Multiply(b)
	}
	for i := whole; i < last; i++ {
		p.edge(c, scratch[i*size:], panel, tile, size, s+i, j, k, kn)
	}
}

// block describes the tiles of staying panels from number i on, packed at stay, with streaming panel j, packed at flow.
func (p *product) block(c *cut, stay, flow []byte, size, i, j, k, kn int) kernel.Block {
	b := kernel.Block{LDC: uintptr(4 * p.ldc), K: uintptr(p.g.Padded(kn) / p.g.KR), Count: 1}
	row, col := j*p.g.MR, i*p.g.NR
	b.A, b.B, b.BStep, b.CStep = ptr(flow), ptr(stay), uintptr(size), uintptr(4*p.g.NR)
	if c.stayA {
		row, col = i*p.g.MR, j*p.g.NR
		b.A, b.B, b.AStep, b.BStep, b.CStep = ptr(stay), ptr(flow), uintptr(size), 0, uintptr(4*p.g.MR*p.ldc)
	}
	b.C = unsafe.Pointer(&p.c[row*p.ldc+col])
	switch {
	case p.add || k > 0:
		b.Init, b.LDInit, b.InitStep = b.C, b.LDC, b.CStep
	case p.bias != nil:
		b.Init, b.InitStep = unsafe.Pointer(&p.bias[col]), uintptr(4*p.g.NR)
		if c.stayA {
			b.InitStep = 0
		}
	}
	return b
}

// edge computes one tile that reaches over the edge of C: in a whole tile of its own, from which the inside is copied.
func (p *product) edge(c *cut, stay, flow, tile []byte, size, i, j, k, kn int) {
	b := p.block(c, stay, flow, size, i, j, k, kn)
	row, col := j*p.g.MR, i*p.g.NR
	if c.stayA {
		row, col = i*p.g.MR, j*p.g.NR
	}
	rows, cols := min(p.g.MR, p.M-row), min(p.g.NR, p.N-col)
	t := asFloats(tile, p.g.MR*p.g.NR)
	if b.Init != nil {
		ld := int(b.LDInit / 4)
		from := unsafe.Slice((*float32)(b.Init), (rows-1)*ld+cols)
		for r := range rows {
			copy(t[r*p.g.NR:][:cols], from[r*ld:])
		}
		b.Init, b.LDInit = unsafe.Pointer(&t[0]), uintptr(4*p.g.NR)
	}
	b.C, b.LDC = unsafe.Pointer(&t[0]), uintptr(4*p.g.NR)
	p.g.Multiply(b)
	for r := range rows {
		copy(p.c[(row+r)*p.ldc+col:][:cols], t[r*p.g.NR:])
	}
}

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// asFloats is the first n float32 of b.
func asFloats(b []byte, n int) []float32 {
	_ = b[:4*n]
	return unsafe.Slice((*float32)(ptr(b)), n)
}

func ceil(a, b int) int { return (a + b - 1) / b }

// align rounds bytes of scratch up to whole pairs of cache lines.
func align(n int) int { return (n + 127) &^ 127 }
