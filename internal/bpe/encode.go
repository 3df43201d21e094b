package bpe

import "encoding/binary"

// Encoder encodes text with scratch memory and a cache of its own: one goroutine at a time.
type Encoder struct {
	vocab *Vocab
	cache []cached
	short [scanLimit]uint16 // tokens of a piece, and
	joins [scanLimit]uint16 // what each joins to with the next
	long  longPiece
}

// NewEncoder returns an encoder. Its cache takes 1 MiB.
func (v *Vocab) NewEncoder() *Encoder {
	return &Encoder{vocab: v, cache: make([]cached, 1<<cacheBits)}
}

const (
	cacheBits   = 15
	cachedBytes = 15 // longest piece kept
	cachedIDs   = 7  // most tokens kept
)

// cached is one piece of text and its tokens. lo and hi are the piece's bytes, padded with zeros, and its length in the
// last byte, so two words identify it. A later piece with the same hash takes the place of an earlier one.
type cached struct {
	lo, hi uint64
	n      uint16
	ids    [cachedIDs]uint16
}

// Append appends the tokens of text to dst.
func (e *Encoder) Append(dst []uint16, text []byte) []uint16 {
	classes := e.vocab.classes
	for i := 0; i < len(text); {
		end := classes.next(text, i)
		if end-i > cachedBytes {
			dst = e.piece(dst, text[i:end])
			i = end
			continue
		}
		lo, hi := words(text, i, end)
		c := &e.cache[slot(lo, hi)]
		if c.lo != lo || c.hi != hi {
			from := len(dst)
			dst = e.piece(dst, text[i:end])
			i = end
			if ids := dst[from:]; len(ids) <= cachedIDs {
				c.lo, c.hi, c.n = lo, hi, uint16(len(ids))
				copy(c.ids[:], ids)
			}
			continue
		}
		if c.n == 1 {
			dst = append(dst, c.ids[0])
		} else {
			dst = append(dst, c.ids[:c.n]...)
		}
		i = end
	}
	return dst
}

// words packs text[i:end], at most cachedBytes long, into two words.
func words(text []byte, i, end int) (lo, hi uint64) {
	n := end - i
	if i+16 <= len(text) {
		lo, hi = binary.LittleEndian.Uint64(text[i:]), binary.LittleEndian.Uint64(text[i+8:])
		if n < 8 {
			lo, hi = lo&(1<<(8*uint(n))-1), 0
		} else {
			hi &= 1<<(8*uint(n-8)) - 1
		}
	} else {
		var b [16]byte
		copy(b[:], text[i:end])
		lo, hi = binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	}
	return lo, hi | uint64(n)<<56
}

func slot(lo, hi uint64) uint64 {
	const m1, m2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := lo*m1 ^ hi*m2
	return (h ^ h>>29) * m1 >> (64 - cacheBits)
}

// piece appends the tokens of one piece: itself if it is a token, else what merging its bytes leaves.
func (e *Encoder) piece(dst []uint16, piece []byte) []uint16 {
	if id, ok := e.vocab.ids[string(piece)]; ok {
		return append(dst, id)
	}
	if len(piece) <= scanLimit {
		return e.merge(dst, piece)
	}
	return e.long.merge(dst, piece, e.vocab)
}

// scanLimit is the longest piece for which looking at every pair again after each merge is the fastest way.
const scanLimit = 48

// merge joins the neighbours with the lowest rank, the leftmost first, until none join. A token's number is its rank.
func (e *Encoder) merge(dst []uint16, piece []byte) []uint16 {
	ids, joins := e.short[:len(piece)], e.joins[:len(piece)]
	for i, b := range piece {
		ids[i] = e.vocab.bytes[b]
	}
	pairs := &e.vocab.pairs
	joins[len(joins)-1] = noPair
	for i := range len(ids) - 1 {
		joins[i] = pairs.join(ids[i], ids[i+1])
	}
	for {
		best, at := uint16(noPair), 0
		for i, rank := range joins {
			if rank < best {
				best, at = rank, i
			}
		}
		if best == noPair {
			return append(dst, ids...)
		}
		ids[at] = best
		copy(ids[at+1:], ids[at+2:])
		copy(joins[at+1:], joins[at+2:])
		ids, joins = ids[:len(ids)-1], joins[:len(joins)-1]
		joins[at] = noPair
		if at+1 < len(ids) {
			joins[at] = pairs.join(ids[at], ids[at+1])
		}
		if at > 0 {
			joins[at-1] = pairs.join(ids[at-1], ids[at])
		}
	}
}

// longPiece merges a piece of n bytes in n log n steps: tokens in a list linked by index, pairs in a heap.
type longPiece struct {
	ids        []uint16
	joins      []uint16
	prev, next []int32
	heap       []uint64 // rank<<32 | index: the lowest rank first, and of those the leftmost
}

func (p *longPiece) merge(dst []uint16, piece []byte, v *Vocab) []uint16 {
	p.reset(piece, v)
	for len(p.heap) > 0 {
		top := p.pop()
		rank, at := uint16(top>>32), int32(uint32(top))
		if p.joins[at] != rank {
			continue // one side has joined something else since
		}
		gone := p.next[at]
		p.ids[at] = rank
		p.joins[gone] = noPair
		p.next[at] = p.next[gone]
		if p.next[at] < int32(len(p.ids)) {
			p.prev[p.next[at]] = at
		}
		p.consider(at, v)
		if at > 0 {
			p.consider(p.prev[at], v)
		}
	}
	for i := int32(0); i < int32(len(p.ids)); i = p.next[i] {
		dst = append(dst, p.ids[i])
	}
	return dst
}

func (p *longPiece) reset(piece []byte, v *Vocab) {
	p.ids, p.joins, p.prev, p.next, p.heap = p.ids[:0], p.joins[:0], p.prev[:0], p.next[:0], p.heap[:0]
	for i, b := range piece {
		p.ids = append(p.ids, v.bytes[b])
		p.joins = append(p.joins, noPair)
		p.prev = append(p.prev, int32(i)-1)
		p.next = append(p.next, int32(i)+1)
	}
	for i := range len(piece) - 1 {
		p.consider(int32(i), v)
	}
}

// consider looks up what the token at index i joins to with the next, and queues it.
func (p *longPiece) consider(i int32, v *Vocab) {
	p.joins[i] = noPair
	if n := p.next[i]; n < int32(len(p.ids)) {
		p.joins[i] = v.pairs.join(p.ids[i], p.ids[n])
	}
	if p.joins[i] != noPair {
		p.push(uint64(p.joins[i])<<32 | uint64(i))
	}
}

func (p *longPiece) push(x uint64) {
	h := append(p.heap, x)
	i := len(h) - 1
	for i > 0 && h[(i-1)/2] > x {
		h[i] = h[(i-1)/2]
		i = (i - 1) / 2
	}
	h[i] = x
	p.heap = h
}

func (p *longPiece) pop() uint64 {
	h := p.heap
	top, x := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	p.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= x {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = x
	return top
}
