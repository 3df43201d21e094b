package cpu

import (
	"math"
	"unsafe"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
)

// Attention of one head runs over blocks of queries. A block's scores are a strip (block, keys so far), never T x T; all its
// products go through the same packed panels as the linear layers, in a thread's own part of the scratch.

// head is the shape of one head's work and where its buffers lie in a thread's scratch.
type head struct {
	*binding
	g                 *kernel.Gemm
	T, C, HS          int
	rows              int // queries in a block: whole panels of A
	keys, wide        int // T and HS in whole panels of B: the strips' and the outputs' row length
	size              int // bytes of one thread's scratch
	q, do             int // packed as A, (rows, HS)
	key, value        int // packed as B: key (T columns, HS); value forward (HS columns, T), backward (T columns, HS)
	kAcross           int // backward: packed as B, (HS columns, T)
	qAcross, doAcross int // backward: packed as B, (HS columns, rows)
	p                 int // packed as A: a strip (rows, T), or a transposed one (T, rows)
	s, ds             int // strips of float32 (rows, keys)
	out               int // float32 (rows, wide)
	dk, dv            int // backward: float32 (T in whole panels of A, wide)
	stat              int // float32 (rows): sums
}

// newHead lays out the buffers; backward needs more of them.
func newHead(x *Executor, op *program.Op, backward bool) *head {
	g := x.gemm
	h := &head{g: g, T: op.Attrs.T, C: op.Attrs.C, HS: op.Attrs.C / op.Attrs.NH}
	h.rows = ceil(64, g.MR) * g.MR
	h.keys, h.wide = ceil(h.T, g.NR)*g.NR, ceil(h.HS, g.NR)*g.NR
	whole := ceil(h.T, g.MR) * g.MR
	take := func(bytes int) int {
		at := h.size
		h.size += align(bytes)
		return at
	}
	longest := max(h.rows*g.Padded(h.T), whole*g.Padded(h.rows))
	h.q, h.key = take(h.rows*g.Padded(h.HS)*g.Bytes), take(h.keys*g.Padded(h.HS)*g.Bytes)
	h.value = take(max(h.wide*g.Padded(h.T), h.keys*g.Padded(h.HS)) * g.Bytes)
	h.p = take(longest * g.Bytes)
	h.s, h.out, h.stat = take(4*h.rows*h.keys), take(4*h.rows*h.wide), take(4*h.rows)
	if backward {
		h.do = take(h.rows * g.Padded(h.HS) * g.Bytes)
		h.kAcross = take(h.wide * g.Padded(h.T) * g.Bytes)
		h.qAcross, h.doAcross = take(h.wide*g.Padded(h.rows)*g.Bytes), take(h.wide*g.Padded(h.rows)*g.Bytes)
		h.ds = take(4 * h.rows * h.keys)
		h.dk, h.dv = take(4*whole*h.wide), take(4*whole*h.wide)
	}
	return h
}

func attentionForwardScratch(x *Executor, op *program.Op) int {
	return newHead(x, op, false).size * x.pool.threads
}

func attentionBackwardScratch(x *Executor, op *program.Op) int {
	return newHead(x, op, true).size * x.pool.threads
}

// bind gives h the op's data.
func (h *head) bind(b *binding) *head {
	h.binding = b
	return h
}

// local is worker's part of the scratch.
func (h *head) local(worker int) []byte { return h.scratch()[worker*h.size:][:h.size] }

// packA and packB pack all panels of an operand of n rows (columns) and k elements of K.
func (h *head) packA(dst []byte, o operand, n, k int) {
	size := h.g.PanelA(k)
	for i := 0; i*h.g.MR < n; i++ {
		h.g.PackA(dst[i*size:][:size], o.data[i*h.g.MR*o.outer:], o.outer, o.inner, min(h.g.MR, n-i*h.g.MR), k)
	}
}

func (h *head) packB(dst []byte, o operand, n, k int) {
	size := h.g.PanelB(k)
	for i := 0; i*h.g.NR < n; i++ {
		h.g.PackB(dst[i*size:][:size], o.data[i*h.g.NR*o.outer:], o.outer, o.inner, min(h.g.NR, n-i*h.g.NR), k)
	}
}

// multiply is C = A B (or C +=) over panels, the first k elements of K of panels that hold ka and kb of them. C's rows
// and columns are whole panels, ld apart. Of the tiles of row panel i the first cols(i) are computed.
func (h *head) multiply(c []float32, ld int, a []byte, ka int, b []byte, kb, m int, cols func(i int) int, k int, add bool) {
	sizeA, sizeB := h.g.PanelA(ka), h.g.PanelB(kb)
	for i := 0; i*h.g.MR < m; i++ {
		block := kernel.Block{A: ptr(a[i*sizeA:]), B: ptr(b), C: unsafe.Pointer(&c[i*h.g.MR*ld]), LDC: uintptr(4 * ld),
			BStep: uintptr(sizeB), CStep: uintptr(4 * h.g.NR), K: uintptr(h.g.Padded(k) / h.g.KR), Count: uintptr(cols(i))}
		if add {
			block.Init, block.LDInit, block.InitStep = block.C, block.LDC, block.CStep
		}
		h.g.Multiply(block)
	}
}

// part is q (0), k (1) or v (2) of sequence b's head n in qkv (B,T,3C), from its row t on.
func (h *head) part(qkv []float32, b, n, which, t int) []float32 {
	return qkv[(b*h.T+t)*3*h.C+which*h.C+n*h.HS:]
}

func attentionForward(b *binding) []phase {
	h := newHead(b.Executor, b.Op, false).bind(b)
	heads, blocks := b.Attrs.B*b.Attrs.NH, ceil(h.T, h.rows)
	parts := 1 // few heads for many threads: share a head's blocks, each part packs its keys and values again
	if heads < 4*b.pool.threads && b.pool.threads > 1 {
		parts = min(blocks, ceil(4*b.pool.threads, heads))
	}
	out, lse, qkv := b.f(0), b.f(1), b.f(2)
	return []phase{{heads * parts, func(i, worker int) {
		part, b, n := i%parts, i/parts/h.Attrs.NH, i/parts%h.Attrs.NH
		h.forward(h.local(worker), out, lse, qkv, b, n, part, parts)
	}}}
}

// forward is head n of sequence b: the blocks part, part+parts, …
func (h *head) forward(m []byte, out, lse, qkv []float32, b, n, part, parts int) {
	g, scale := h.g, float32(1/math.Sqrt(float64(h.HS)))
	h.packB(m[h.key:], operand{h.part(qkv, b, n, 1, 0), 3 * h.C, 1}, h.T, h.HS)
	h.packB(m[h.value:], operand{h.part(qkv, b, n, 2, 0), 1, 3 * h.C}, h.HS, h.T)
	s, o, sums := asFloats(m[h.s:], h.rows*h.keys), asFloats(m[h.out:], h.rows*h.wide), asFloats(m[h.stat:], h.rows)
	for from := part * h.rows; from < h.T; from += parts * h.rows {
		count := min(h.rows, h.T-from)
		seen := from + count // the keys that the block's last query sees
		h.packA(m[h.q:], operand{h.part(qkv, b, n, 0, from), 3 * h.C, 1}, count, h.HS)
		h.multiply(s, h.keys, m[h.q:], h.HS, m[h.key:], h.HS, count, func(i int) int { return ceil(min(from+(i+1)*g.MR, seen), g.NR) }, h.HS, false)
		for r := range count {
			t := from + r
			row := s[r*h.keys:][:seen]
			peak := scale * h.k.Max(row[:t+1])
			sums[r] = h.k.ExpSum(row[:t+1], row[:t+1], scale, peak)
			lse[(b*h.Attrs.NH+n)*h.T+t] = peak + float32(math.Log(float64(sums[r])))
			h.drop(row[:t+1], row[:t+1], b, probabilities(n*h.T+t, h.T))
			clear(row[t+1:])
		}
		h.packA(m[h.p:], operand{s, h.keys, 1}, count, seen)
		h.multiply(o, h.wide, m[h.p:], seen, m[h.value:], h.T, count, func(int) int { return h.wide / g.NR }, seen, false)
		for r := range count {
			row := o[r*h.wide:][:h.HS]
			h.k.Scale(row, 1/sums[r])
			copy(out[(b*h.T+from+r)*h.C+n*h.HS:], row)
		}
	}
}

func attentionBackward(b *binding) []phase {
	h := newHead(b.Executor, b.Op, true).bind(b)
	dqkv, dout, qkv, out, lse := b.f(0), b.f(2), b.f(3), b.f(4), b.f(5)
	return []phase{{b.Attrs.B * b.Attrs.NH, func(i, worker int) {
		h.backward(h.local(worker), dqkv, dout, qkv, out, lse, i/h.Attrs.NH, i%h.Attrs.NH)
	}}}
}

// backward is head n of sequence b. Keys' and values' gradients grow over the blocks of queries, in order.
func (h *head) backward(m []byte, dqkv, dout, qkv, out, lse []float32, b, n int) {
	g := h.g
	h.packB(m[h.key:], operand{h.part(qkv, b, n, 1, 0), 3 * h.C, 1}, h.T, h.HS)
	h.packB(m[h.value:], operand{h.part(qkv, b, n, 2, 0), 3 * h.C, 1}, h.T, h.HS)
	h.packB(m[h.kAcross:], operand{h.part(qkv, b, n, 1, 0), 1, 3 * h.C}, h.HS, h.T)
	whole := ceil(h.T, g.MR) * g.MR
	dk, dv := asFloats(m[h.dk:], whole*h.wide), asFloats(m[h.dv:], whole*h.wide)
	clear(dk)
	clear(dv)
	p, ds, dq := asFloats(m[h.s:], h.rows*h.keys), asFloats(m[h.ds:], h.rows*h.keys), asFloats(m[h.out:], h.rows*h.wide)
	all := func(int) int { return h.wide / g.NR }
	for from := 0; from < h.T; from += h.rows {
		count := min(h.rows, h.T-from)
		seen := from + count
		q, do := operand{h.part(qkv, b, n, 0, from), 3 * h.C, 1}, operand{dout[(b*h.T+from)*h.C+n*h.HS:], h.C, 1}
		h.packA(m[h.q:], q, count, h.HS)
		h.packA(m[h.do:], do, count, h.HS)
		h.packB(m[h.qAcross:], operand{q.data, 1, q.outer}, h.HS, count)
		h.packB(m[h.doAcross:], operand{do.data, 1, do.outer}, h.HS, count)
		causal := func(i int) int { return ceil(min(from+(i+1)*g.MR, seen), g.NR) }
		h.multiply(p, h.keys, m[h.q:], h.HS, m[h.key:], h.HS, count, causal, h.HS, false)
		h.multiply(ds, h.keys, m[h.do:], h.HS, m[h.value:], h.HS, count, causal, h.HS, false)
		for r := range count {
			h.scores(p[r*h.keys:][:seen], ds[r*h.keys:][:seen], dout, out, lse, b, n, from+r)
		}
		h.packA(m[h.p:], operand{ds, h.keys, 1}, count, seen)
		h.multiply(dq, h.wide, m[h.p:], seen, m[h.kAcross:], h.T, count, all, seen, false)
		h.scatter(dqkv, dq, b, n, 0, from, count)
		h.packA(m[h.p:], operand{ds, 1, h.keys}, seen, count)
		h.multiply(dk, h.wide, m[h.p:], count, m[h.qAcross:], count, seen, all, count, true)
		h.packA(m[h.p:], operand{p, 1, h.keys}, seen, count)
		h.multiply(dv, h.wide, m[h.p:], count, m[h.doAcross:], count, seen, all, count, true)
	}
	h.scatter(dqkv, dk, b, n, 1, 0, h.T)
	h.scatter(dqkv, dv, b, n, 2, 0, h.T)
}

// scores turns query t's scores into probabilities as dropout left them, and ds from the probabilities' gradient into the scores'.
func (h *head) scores(p, ds, dout, out, lse []float32, b, n, t int) {
	at, scale := (b*h.T+t)*h.C+n*h.HS, float32(1/math.Sqrt(float64(h.HS)))
	d := h.k.Dot(dout[at:][:h.HS], out[at:][:h.HS])
	h.drop(ds[:t+1], ds[:t+1], b, probabilities(n*h.T+t, h.T))
	h.k.AttentionScores(p[:t+1], ds[:t+1], scale, lse[(b*h.Attrs.NH+n)*h.T+t], d)
	h.drop(p[:t+1], p[:t+1], b, probabilities(n*h.T+t, h.T))
	clear(p[t+1:])
	clear(ds[t+1:])
}

// scatter writes count rows of x (rows,wide) to dqkv from row t on.
func (h *head) scatter(dqkv, x []float32, b, n, which, t, count int) {
	for r := range count {
		copy(h.part(dqkv, b, n, which, t+r)[:h.HS], x[r*h.wide:])
	}
}

func attentionCachedScratch(x *Executor, op *program.Op) int { return 4 * op.Attrs.T * x.pool.threads }

// attentionCached keeps keys as (T,C) and values as (C,T), so that both sums of a row are dots over what lies together.
func attentionCached(b *binding) []phase {
	out, keys, values, qkv := b.f(0), b.f(1), b.f(2), b.f(3)
	N, T, C, NH := b.Attrs.N, b.Attrs.T, b.Attrs.C, b.Attrs.NH
	HS := C / NH
	scale := float32(1 / math.Sqrt(float64(HS)))
	store := rowwise(N, 2*C, func(n int) {
		row, at := qkv[n*3*C:][:3*C], b.step.Pos+n
		copy(keys[at*C:][:C], row[C:2*C])
		for i, v := range row[2*C:] {
			values[i*T+at] = v
		}
	})
	attend := phase{N * NH, func(i, worker int) {
		n, h := i/NH, i%NH
		q := qkv[n*3*C+h*HS:][:HS]
		s := asFloats(b.scratch()[4*worker*T:], T)[:b.step.Pos+n+1]
		for k := range s {
			s[k] = b.k.Dot(q, keys[k*C+h*HS:][:HS])
		}
		sum := b.k.ExpSum(s, s, scale, scale*b.k.Max(s))
		for j := range HS {
			out[n*C+h*HS+j] = b.k.Dot(s, values[(h*HS+j)*T:][:len(s)]) / sum
		}
	}}
	return append(store, attend)
}
