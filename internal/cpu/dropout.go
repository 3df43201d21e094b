package cpu

import (
	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/philox"
)

// Dropout says which elements of a tensor are dropped. Nothing is stored: forward and backward ask the same counter.
//
// An element is dropped when its 16 random bits, Half elem%8 of the block of counter elem/8, are below philox.Drop's limit.
// The zero value drops nothing.
type Dropout struct {
	P      float64
	Seed   uint64
	Site   uint32 // 0 embedding, then 1+3l attention, 2+3l attention's residual, 3+3l the MLP's residual of layer l
	Sample uint64 // the global index of the micro-batch's first sequence in training; sequence b has Sample+b
}

// Scale is what element elem of sequence b is multiplied by: 0 or 1/(1-P).
func (d Dropout) Scale(b, elem int) float64 {
	if d.P == 0 {
		return 1
	}
	limit, scale := philox.Drop(d.P)
	if philox.Half(philox.Block(d.counter(b, elem/8), philox.Key(d.Seed)), elem%8) < limit {
		return 0
	}
	return scale
}

func (d Dropout) counter(b, group int) [4]uint32 {
	sample := d.Sample + uint64(b)
	return [4]uint32{uint32(group), d.Site, uint32(sample), uint32(sample >> 32)}
}

// probabilities is the element at which a row of attention's probabilities starts: T of them for each query of each head, and
// each row starts a counter of its own, so that a tile of the matrix is whole counters.
func probabilities(row, T int) int { return row * ((T + 7) &^ 7) }

// scales walks over the scales of some elements, up to 256 at a time:
//
//	for s := b.scales(sequence, elem, n); s.next(b.k); {
//		for i, v := range s.part() { out[s.at+i] = x[s.at+i] * v }
//	}
type scales struct {
	Dropout
	sequence  int
	elem, end int // the elements that are left
	start     int // the first one of all
	at        int // where the current part starts, from start
	from, to  int // the current part in buf
	buf       [256]float32
}

func (d Dropout) scales(sequence, elem, n int) scales {
	return scales{Dropout: d, sequence: sequence, elem: elem, start: elem, end: elem + n}
}

func (s *scales) next(k *kernel.Set) bool {
	if s.elem >= s.end {
		return false
	}
	group := s.elem / 8
	limit, scale := philox.Drop(s.P)
	k.Scales(&s.buf, s.counter(s.sequence, group), philox.Key(s.Seed), limit, float32(scale))
	s.at, s.from = s.elem-s.start, s.elem-8*group
	s.to = min(len(s.buf), s.end-8*group)
	s.elem = 8*group + s.to
	return true
}

func (s *scales) part() []float32 { return s.buf[s.from:s.to] }
