package gpt

import (
	"github.com/snugml/snug/internal/philox"
)

// Initial fills dst with the values, from number from on, that parameter number index of a model starts with, as nanoGPT draws
// them: normal(0, 0.02), residual projections normal(0, 0.02/sqrt(2 n_layer)), biases 0, layernorm weights 1.
//
// A value depends on seed, index and its place alone, so parts can be drawn in any order, on any thread. A part starts at a
// multiple of drawRun.
func (s Spec) Initial(dst []float32, from, index int, seed uint64) {
	switch {
	case s.One:
		for i := range dst {
			dst[i] = 1
		}
	case s.Std == 0:
		clear(dst)
	default:
		normals(dst, from, s.Std, index, philox.Key(seed))
	}
}

// initDomain keeps initialisation's counters apart from dropout's, whose last word is the high half of a sample's index.
const initDomain = 0x696e6974

// drawRun is the values that one small generator draws.
const drawRun = 4096

// normals fills dst with normal(0, std). The counter seeds a small generator for each run of drawRun values: a block of Philox
// for every four would take longer than reading a model from disk.
func normals(dst []float32, from int, std float64, index int, key [2]uint32) {
	if from%drawRun != 0 {
		panic("gpt: a part of a parameter starts inside a run")
	}
	for i := from / drawRun; len(dst) > 0; i++ {
		w := philox.Block([4]uint32{uint32(i), uint32(index), uint32(i >> 32), initDomain}, key)
		z := ziggurat{state: uint64(w[0])<<32 | uint64(w[1])}
		n := min(drawRun, len(dst))
		z.fill(dst[:n], std)
		dst = dst[n:]
	}
}
