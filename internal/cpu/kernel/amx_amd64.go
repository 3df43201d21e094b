package kernel

//go:noescape
func multiplyBF16(b Block)

//go:noescape
func multiplySplit(b Block)

//go:noescape
func rowsBF16(dst *byte, src *float32, stride uintptr)

//go:noescape
func rowsSplit(dst *byte, src *float32, stride uintptr)

//go:noescape
func pairsBF16(dst *byte, src *float32, stride uintptr)

//go:noescape
func pairsSplit(dst *byte, src *float32, stride uintptr)

//go:noescape
func transposeTile(t *byte)

// An AMX panel is 32 rows (or columns); its 32 elements of K are a group: for each part two tiles of 16 rows.
const (
	tileSide  = 16
	tileBytes = 1024
	groupK    = 32
)

// tiler packs tiles of one precision: how many bfloat16 parts an element has. Its calls are direct, so that nothing escapes.
type tiler struct{ parts int }

// rows and pairs pack a tile from 16 rows along K, or from 32 rows across it.
func (t tiler) rows(dst *byte, src *float32, stride uintptr) {
	if t.parts == 1 {
		rowsBF16(dst, src, stride)
	} else {
		rowsSplit(dst, src, stride)
	}
}

func (t tiler) pairs(dst *byte, src *float32, stride uintptr) {
	if t.parts == 1 {
		pairsBF16(dst, src, stride)
	} else {
		pairsSplit(dst, src, stride)
	}
}

// amxBF16 rounds both factors to bfloat16.
func amxBF16() *Gemm {
	t := tiler{1}
	return &Gemm{Name: "amx-bf16", MR: 32, NR: 32, KR: groupK, Bytes: 2, KC: 1024, Group: 640 << 10,
		PackA: t.packA, PackB: t.packB, Multiply: multiplyBF16}
}

// amxSplit is as accurate as float32: each factor is the exact sum of three bfloat16.
func amxSplit() *Gemm {
	t := tiler{3}
	return &Gemm{Name: "amx-split", MR: 32, NR: 32, KR: groupK, Bytes: 6, KC: 512, Group: 1 << 20,
		PackA: t.packA, PackB: t.packB, Multiply: multiplySplit}
}

func (t tiler) packA(dst []byte, src []float32, outer, inner, n, k int) {
	t.pack(dst, src, outer, inner, n, k, false)
}

func (t tiler) packB(dst []byte, src []float32, outer, inner, n, k int) {
	t.pack(dst, src, outer, inner, n, k, true)
}

// pack writes a panel, tile by tile. Rows along K come out in A's layout, rows across it in B's; the other is a transpose away.
func (t tiler) pack(dst []byte, src []float32, outer, inner, n, k int, b bool) {
	group := 2 * t.parts * tileBytes
	groups := (k + groupK - 1) / groupK
	_ = dst[:groups*group]
	along := inner == 1
	for g := range groups {
		for half := range 2 {
			at := dst[g*group+half*tileBytes:]
			i, j := half*tileSide, g*groupK
			t.tile(at, src, outer, inner, i, j, n, k, along)
			if along == b {
				for p := range t.parts {
					transposeTile(&at[2*p*tileBytes])
				}
			}
		}
	}
}

// tile writes the tile whose first element is (i,j). What reaches over n or k is copied into a whole one first.
func (t tiler) tile(dst []byte, src []float32, outer, inner, i, j, n, k int, along bool) {
	if i+tileSide <= n && j+groupK <= k {
		from := &src[i*outer+j*inner]
		if along {
			t.rows(&dst[0], from, uintptr(4*outer))
		} else {
			t.pairs(&dst[0], from, uintptr(4*inner))
		}
		return
	}
	rows, cols := min(tileSide, n-i), min(groupK, k-j)
	if rows <= 0 {
		for p := range t.parts {
			clear(dst[2*p*tileBytes:][:tileBytes])
		}
		return
	}
	var whole [tileSide * groupK]float32
	if along {
		for r := range rows {
			copy(whole[r*groupK:][:cols], src[(i+r)*outer+j:])
		}
		t.rows(&dst[0], &whole[0], 4*groupK)
		return
	}
	for c := range cols {
		copy(whole[c*tileSide:][:rows], src[i+(j+c)*inner:])
	}
	t.pairs(&dst[0], &whole[0], 4*tileSide)
}
