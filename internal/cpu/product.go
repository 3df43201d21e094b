package cpu

import (
	"math"
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
// K is cut into runs; C carries the sum from one run to the next. For each run every panel of both factors is packed
// once, by all threads, into memory that they share; the factor with more panels in chunks, so that this memory stays
// small. Then the tiles are computed in pieces: a group of the larger factor's panels, which stays in a core's L2
// cache, times some panels of the smaller. How K is cut depends on the shape alone, so every element's sum has the same
// order on any number of threads.
type product struct {
	g       *kernel.Gemm
	M, N, K int
	a, b    operand
	c       []float32 // (M,N), row i at c[i*ldc]
	ldc     int
	bias    []float32 // (N) or nil: what the sums start from
	add     bool      // the sums start from C
	// done, where not nil, is called once for every part of C when its sums are complete, while it is still near the core.
	done func(row, rows, col, cols int)
}

// chunkBytes is the packed panels of the larger factor at once.
const chunkBytes = 8 << 20

// cut says how a product is cut. The factor with fewer panels stays for a whole run of K, the other one flows through.
type cut struct {
	stayA        bool // A stays, B flows
	kc           int  // run of K; the last one may be shorter
	stay, flow   int  // panels
	stayR, flowR int  // rows (columns) of a panel
	chunk        int  // flowing panels packed at once
	group        int  // flowing panels of a piece, at most
	flowAt       int  // where in the scratch the flowing panels lie, after the staying ones
	tileAt       int  // where each thread's edge tile lies
	tile         int  // bytes of it
}

func (p *product) cut() cut {
	m, n := ceil(p.M, p.g.MR), ceil(p.N, p.g.NR)
	c := cut{stay: n, flow: m, stayR: p.g.NR, flowR: p.g.MR}
	if p.M <= p.N {
		c = cut{stayA: true, stay: m, flow: n, stayR: p.g.MR, flowR: p.g.NR}
	}
	c.kc = p.g.Padded(ceil(p.K, ceil(p.K, p.g.KC)))
	panel := c.flowR * c.kc * p.g.Bytes
	c.chunk = even(c.flow, chunkBytes/panel)
	c.group = even(c.chunk, p.g.Group/panel)
	c.flowAt = align(c.stay * c.stayR * c.kc * p.g.Bytes)
	c.tileAt = c.flowAt + align(c.chunk*panel)
	c.tile = align(4 * p.g.MR * p.g.NR)
	return c
}

// pieces cuts the tiles of a chunk into about eight pieces a thread, about as high as wide: group flowing panels times the
// staying ones' parts.
func (c *cut) pieces(chunk, threads int) (group, parts int) {
	want := float64(8 * threads)
	groups := int(math.Round(math.Sqrt(want * float64(chunk*c.flowR) / float64(c.stay*c.stayR))))
	group = min(c.group, even(chunk, ceil(chunk, max(groups, 1))))
	return group, min(max(int(want)/ceil(chunk, group), 1), c.stay)
}

// even is the size of the parts when n is cut into as few parts of at most most as possible, all about as large.
func even(n, most int) int { return ceil(n, ceil(n, max(most, 1))) }

// scratch is the bytes that phases needs on a number of threads.
func (p *product) scratch(threads int) int {
	c := p.cut()
	return c.tileAt + threads*c.tile
}

// phases cuts the product into work for a pool. scratch holds p.scratch(threads) bytes.
func (p *product) phases(scratch []byte, threads int) []phase {
	c := p.cut()
	var list []phase
	for k := 0; k < p.K; k += c.kc {
		kn := min(c.kc, p.K-k)
		for at := 0; at < c.flow; at += c.chunk {
			chunk := min(c.chunk, c.flow-at)
			first := c.stay // the run's first chunk packs the staying panels too
			if at > 0 {
				first = 0
			}
			group, parts := c.pieces(chunk, threads)
			groups := ceil(chunk, group)
			list = append(list,
				p.packing(&c, scratch, at, first, chunk, k, kn),
				phase{groups * parts, func(i, worker int) {
					from, part := i/parts*group, i%parts
					t := piece{p, &c, scratch, scratch[c.tileAt+worker*c.tile:], at, k, kn}
					for s := part * c.stay / parts; s < (part+1)*c.stay/parts; s++ {
						t.row(s, from, min(from+group, chunk))
					}
					if p.done != nil && k+kn == p.K {
						t.finish(part*c.stay/parts, (part+1)*c.stay/parts, from, min(from+group, chunk))
					}
				}})
		}
	}
	return list
}

// packing packs the first stay panels of the staying factor and chunk panels from number at on of the flowing one,
// for kn elements of K from k.
func (p *product) packing(c *cut, scratch []byte, at, stay, chunk, k, kn int) phase {
	a := panels{p.g.PackA, p.a, p.M, p.g.MR, p.g.Bytes, p.g.Padded(kn), scratch[c.flowAt:], at, chunk}
	b := panels{p.g.PackB, p.b, p.N, p.g.NR, p.g.Bytes, p.g.Padded(kn), scratch, 0, stay}
	if c.stayA {
		a.dst, a.first, a.count, b.dst, b.first, b.count = b.dst, b.first, b.count, a.dst, a.first, a.count
	}
	pieces := a.pieces()
	return phase{pieces + b.pieces(), func(i, _ int) {
		if i < pieces {
			a.pack(i, k, kn)
		} else {
			b.pack(i-pieces, k, kn)
		}
	}}
}

// panels are the panels of one factor that are packed together.
type panels struct {
	f            func(dst []byte, src []float32, outer, inner, n, k int)
	o            operand
	limit        int // rows (columns) of the factor
	r, bytes     int // rows (columns) of a panel, packed bytes an element
	padded       int // elements of K in a panel
	dst          []byte
	first, count int
}

// packRows is the elements of K in a piece of packing where the factor lies across K: whole rows are read in order.
const packRows = 32

// pieces is one a panel where the factor lies along K, otherwise one a slice of K over all panels.
func (p *panels) pieces() int {
	if p.count == 0 || p.o.inner == 1 {
		return p.count
	}
	return ceil(p.padded, packRows)
}

// pack does piece i, of the kn elements of K from k on.
func (p *panels) pack(i, k, kn int) {
	if p.o.inner == 1 {
		p.panel(i, k, 0, kn)
		return
	}
	for j := range p.count {
		p.panel(j, k, i*packRows, min((i+1)*packRows, kn))
	}
}

// panel packs elements [from,to) of the run of K that starts at k, of panel i.
func (p *panels) panel(i, k, from, to int) {
	at := (p.first + i) * p.r
	dst := p.dst[(i*p.padded+from)*p.r*p.bytes:]
	p.f(dst, p.o.data[at*p.o.outer+(k+from)*p.o.inner:], p.o.outer, p.o.inner, min(p.r, p.limit-at), to-from)
}

// piece computes tiles of one run of K and one chunk.
type piece struct {
	*product
	c             *cut
	scratch, tile []byte
	at, k, kn     int // the chunk's first panel, and the run
}

// row computes the tiles of staying panel s with the chunk's panels [from,to).
func (t *piece) row(s, from, to int) {
	stayLimit, flowLimit := t.N, t.M
	if t.c.stayA {
		stayLimit, flowLimit = t.M, t.N
	}
	whole := to // the first tile that reaches over an edge
	if (t.at+to)*t.c.flowR > flowLimit {
		whole = to - 1
	}
	if (s+1)*t.c.stayR > stayLimit {
		whole = from
	}
	if whole > from {
		b := t.block(s, from)
		b.Count = uintptr(whole - from)
		t.g.Multiply(b)
	}
	for j := whole; j < to; j++ {
		t.edge(s, j)
	}
}

// block describes the tile of staying panel s and the chunk's panel j, and those that follow along the flowing factor.
func (t *piece) block(s, j int) kernel.Block {
	stay := ptr(t.scratch[s*t.c.stayR*t.g.Padded(t.kn)*t.g.Bytes:])
	size := t.c.flowR * t.g.Padded(t.kn) * t.g.Bytes
	flow := ptr(t.scratch[t.c.flowAt+j*size:])
	row, col := t.origin(s, j)
	b := kernel.Block{C: unsafe.Pointer(&t.product.c[row*t.ldc+col]), LDC: uintptr(4 * t.ldc), K: uintptr(t.g.Padded(t.kn) / t.g.KR), Count: 1}
	if t.c.stayA {
		b.A, b.B, b.BStep, b.CStep = stay, flow, uintptr(size), uintptr(4*t.g.NR)
	} else {
		b.A, b.B, b.AStep, b.CStep = flow, stay, uintptr(size), uintptr(4*t.g.MR*t.ldc)
	}
	switch {
	case t.add || t.k > 0:
		b.Init, b.LDInit, b.InitStep = b.C, b.LDC, b.CStep
	case t.bias != nil:
		b.Init = unsafe.Pointer(&t.bias[col])
		if t.c.stayA {
			b.InitStep = b.CStep
		}
	}
	return b
}

// origin is the first row and column of a tile.
func (t *piece) origin(s, j int) (row, col int) {
	if t.c.stayA {
		return s * t.g.MR, (t.at + j) * t.g.NR
	}
	return (t.at + j) * t.g.MR, s * t.g.NR
}

// finish tells done about the tiles of staying panels [s,sEnd) and the chunk's panels [j,jEnd).
func (t *piece) finish(s, sEnd, j, jEnd int) {
	row, col := t.origin(s, j)
	rowEnd, colEnd := t.origin(sEnd, jEnd)
	t.done(row, min(rowEnd, t.M)-row, col, min(colEnd, t.N)-col)
}

// edge computes one tile that reaches over the edge of C: in a whole tile of its own, from which the inside is copied.
func (t *piece) edge(s, j int) {
	b := t.block(s, j)
	row, col := t.origin(s, j)
	rows, cols := min(t.g.MR, t.M-row), min(t.g.NR, t.N-col)
	tile := asFloats(t.tile, t.g.MR*t.g.NR)
	if b.Init != nil {
		ld := int(b.LDInit / 4)
		from := unsafe.Slice((*float32)(b.Init), (rows-1)*ld+cols)
		for r := range rows {
			copy(tile[r*t.g.NR:][:cols], from[r*ld:])
		}
		b.Init, b.LDInit = unsafe.Pointer(&tile[0]), uintptr(4*t.g.NR)
	}
	b.C, b.LDC = unsafe.Pointer(&tile[0]), uintptr(4*t.g.NR)
	t.g.Multiply(b)
	for r := range rows {
		copy(t.product.c[(row+r)*t.ldc+col:][:cols], tile[r*t.g.NR:])
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
