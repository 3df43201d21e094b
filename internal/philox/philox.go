// Package philox owns random numbers by counter: initialisation, data order and dropout draw from it.
//
// A number is a pure function of key and counter, so it is the same whatever the split into micro-batches, the
// threads or the moment of a resume. It keeps no state.
package philox

import (
	"math"
	"math/bits"
)

const (
	rounds = 10
	w0, w1 = 0x9E3779B9, 0xBB67AE85 // what a round adds to the key: golden ratio and sqrt(3)-1
)

// Block is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// four random words that are a pure function of counter and key.
func Block(counter [4]uint32, key [2]uint32) [4]uint32 {
	const m0, m1 = 0xD2511F53, 0xCD9E8D57 // the multipliers
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range rounds {
		hi0, lo0 := bits.Mul32(m0, c0)
		hi1, lo1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Key is a seed as Block takes it.
func Key(seed uint64) [2]uint32 { return [2]uint32{uint32(seed), uint32(seed >> 32)} }

// Rounds are the keys of Block's rounds, for those who draw many blocks with one key.
func Rounds(key [2]uint32) (keys [rounds][2]uint32) {
	for i := range keys {
		keys[i] = key
		key[0] += w0
		key[1] += w1
	}
	return keys
}

// Drop is how dropout of probability p reads a block's eight Halves: one below limit is dropped, and scale keeps the mean of
// the others, 1/(1-p) for p in steps of 2^-16.
func Drop(p float64) (limit uint32, scale float64) {
	n := min(math.Round(p*(1<<16)), 1<<16-1)
	return uint32(n) << 16, 1 / (1 - n/(1<<16))
}

// Half is the 16 bits i (0 to 7) of a block at the top of a word: the lower half of word i/2 for an even i, the upper for an
// odd one, whose own lower half is left below it.
func Half(block [4]uint32, i int) uint32 { return block[i/2] << (16 * (1 - i%2)) }
