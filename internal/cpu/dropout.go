package cpu

import "github.com/snugml/snug/internal/philox"

// Dropout says which elements of a tensor are dropped. Nothing is stored: forward and backward ask the same counter.
//
// An element is dropped when its random word is below floor(P * 2^32); kept elements are scaled by 1/(1-P).
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
	words := philox.Block(d.counter(b, elem/4), philox.Key(d.Seed))
	if words[elem%4] < d.threshold() {
		return 0
	}
	return 1 / (1 - d.P)
}

func (d Dropout) counter(b, group int) [4]uint32 {
	sample := d.Sample + uint64(b)
	return [4]uint32{uint32(group), d.Site, uint32(sample), uint32(sample >> 32)}
}

// threshold is floor(P * 2^32), at most 2^32-1.
func (d Dropout) threshold() uint32 { return uint32(min(d.P*(1<<32), 1<<32-1)) }

// mask calls f with the scale of n elements of sequence b from elem on, drawing four at a time.
func (d Dropout) mask(b, elem, n int, f func(i int, scale float32)) {
	kept, limit, key := float32(1/(1-d.P)), d.threshold(), philox.Key(d.Seed)
	var words [4]uint32
	for i := range n {
		e := elem + i
		if i == 0 || e%4 == 0 {
			words = philox.Block(d.counter(b, e/4), key)
		}
		scale := kept
		if words[e%4] < limit {
			scale = 0
		}
		f(i, scale)
	}
}
