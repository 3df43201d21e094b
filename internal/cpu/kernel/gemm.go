package kernel

import "unsafe"

// Gemm multiplies packed panels. A product C (M,N) += A (M,K) B (K,N) is cut into panels of MR rows of A and NR columns of
// B; a panel holds its rows (or columns) for a run of K, in the order the kernel reads them. Rows, columns and K beyond
// the matrix are zeros in the panel, so the kernel always computes whole MR x NR tiles.
type Gemm struct {
	Name   string
	MR, NR int // both at most 32
	KR     int // K is padded to a multiple of KR
	Bytes  int // packed bytes an element
	KC     int // the longest run of K worth packing at once: what keeps a panel near the core
	Group  int // bytes of panels that should stay in the L2 cache of the processors this is for

	// PackA and PackB write one panel of n <= MR (NR) rows (columns) and k elements of K.
	// Element (i,k) is src[i*outer + k*inner]; one of outer and inner is 1.
	PackA, PackB func(dst []byte, src []float32, outer, inner, n, k int)
	// Multiply computes Block.Count tiles.
	Multiply func(Block)
}

// Block is a row or a column of tiles: tile i multiplies the panels at A + i*AStep and B + i*BStep into C + i*CStep.
// A tile starts from Init (zero where nil; bias with LDInit 0; C itself to accumulate). Steps and LD are in bytes.
type Block struct {
	A, B, C, Init                 unsafe.Pointer
	LDC, LDInit                   uintptr
	AStep, BStep, CStep, InitStep uintptr
	K                             uintptr // in units of KR
	Count                         uintptr
}

// Padded is k rounded up to KR.
func (g *Gemm) Padded(k int) int { return (k + g.KR - 1) / g.KR * g.KR }

// PanelA and PanelB are the bytes of a panel for a run of k.
func (g *Gemm) PanelA(k int) int { return g.MR * g.Padded(k) * g.Bytes }
func (g *Gemm) PanelB(k int) int { return g.NR * g.Padded(k) * g.Bytes }

// plainGemm is the product in plain Go: a panel holds its MR (NR) elements of one k side by side.
func plainGemm() *Gemm {
	const r = 4
	pack := func(dst []byte, src []float32, outer, inner, n, k int) { packF32(dst, src, outer, inner, n, k, r) }
	return &Gemm{Name: "go", MR: r, NR: r, KR: 1, Bytes: 4, KC: 256, Group: 128 << 10, PackA: pack, PackB: pack, Multiply: multiplyPlain}
}

// packF32 writes a panel of width r: dst[k*r+i] = src[i*outer + k*inner].
func packF32(dst []byte, src []float32, outer, inner, n, k, r int) {
	out := floats(dst, k*r)
	if n < r {
		clear(out)
	}
	if outer == 1 {
		for j := range k {
			copy(out[j*r:][:n], src[j*inner:])
		}
		return
	}
	i := 0
	for ; i+4 <= n; i += 4 { // four rows at once: a line of dst is touched once for all of them
		r0, r1, r2, r3 := src[i*outer:][:k], src[(i+1)*outer:][:k], src[(i+2)*outer:][:k], src[(i+3)*outer:][:k]
		for j, v := range r0 {
			o := out[j*r+i:][:4]
			o[0], o[1], o[2], o[3] = v, r1[j], r2[j], r3[j]
		}
	}
	for ; i < n; i++ {
		for j, v := range src[i*outer:][:k] {
			out[j*r+i] = v
		}
	}
}

func multiplyPlain(b Block) {
	const r = 4
	for t := range b.Count {
		a := unsafe.Slice((*[r]float32)(unsafe.Add(b.A, t*b.AStep)), b.K)
		bp := unsafe.Slice((*[r]float32)(unsafe.Add(b.B, t*b.BStep)), b.K)
		var c00, c01, c02, c03, c10, c11, c12, c13, c20, c21, c22, c23, c30, c31, c32, c33 float32
		for k := range a {
			x, y := &a[k], &bp[k]
			x0, x1, x2, x3, y0, y1, y2, y3 := x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]
			c00, c01, c02, c03 = c00+x0*y0, c01+x0*y1, c02+x0*y2, c03+x0*y3
			c10, c11, c12, c13 = c10+x1*y0, c11+x1*y1, c12+x1*y2, c13+x1*y3
			c20, c21, c22, c23 = c20+x2*y0, c21+x2*y1, c22+x2*y2, c23+x2*y3
			c30, c31, c32, c33 = c30+x3*y0, c31+x3*y1, c32+x3*y2, c33+x3*y3
		}
		tile := [r][r]float32{{c00, c01, c02, c03}, {c10, c11, c12, c13}, {c20, c21, c22, c23}, {c30, c31, c32, c33}}
		for i := range uintptr(r) {
			c := (*[r]float32)(unsafe.Add(b.C, t*b.CStep+i*b.LDC))
			if b.Init != nil {
				from := (*[r]float32)(unsafe.Add(b.Init, t*b.InitStep+i*b.LDInit))
				for j := range c {
					c[j] = from[j] + tile[i][j]
				}
				continue
			}
			*c = tile[i]
		}
	}
}

// floats is the first n float32 of b.
func floats(b []byte, n int) []float32 {
	_ = b[:4*n]
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}
