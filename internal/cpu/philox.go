package cpu

import "math/bits"

// Philox is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// four random words that are a pure function of counter and key.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // the multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // the key schedule: golden ratio and sqrt(3)-1
	)
	c, k0, k1 := counter, key[0], key[1]
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, c[0])
		hi1, lo1 := bits.Mul32(m1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0}
		k0 += w0
		k1 += w1
	}
	return c
}

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
	words := Philox(d.counter(b, elem/4), d.key())
	if words[elem%4] < d.threshold() {
		return 0
	}
	return 1 / (1 - d.P)
}

func (d Dropout) counter(b, group int) [4]uint32 {
	sample := d.Sample + uint64(b)
	return [4]uint32{uint32(group), d.Site, uint32(sample), uint32(sample >> 32)}
}

func (d Dropout) key() [2]uint32 { return [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)} }

// threshold is floor(P * 2^32), at most 2^32-1.
func (d Dropout) threshold() uint32 { return uint32(min(d.P*(1<<32), 1<<32-1)) }
