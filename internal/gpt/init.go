package gpt

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/snugml/snug/internal/philox"
)

// Initial fills dst with the values that parameter number index of a model starts with, as nanoGPT draws them:
// normal(0, 0.02), residual projections normal(0, 0.02/sqrt(2 n_layer)), biases 0, layernorm weights 1.
//
// A value depends on seed, index and its place alone, never on the threads.
func (s Spec) Initial(dst []float32, index int, seed uint64) {
	switch {
	case s.One:
		for i := range dst {
			dst[i] = 1
		}
	case s.Std == 0:
		clear(dst)
	default:
		normals(dst, s.Std, index, philox.Key(seed))
	}
}

// initDomain keeps initialisation's counters apart from dropout's, whose last word is the high half of a sample's index.
const initDomain = 0x696e6974

// normals fills dst with normal(0, std), by all processors. The counter seeds a small generator for each run of
// 4,096 values: a block of Philox for every four would take longer than reading a model from disk.
func normals(dst []float32, std float64, index int, key [2]uint32) {
	const run = 4096
	runs := (len(dst) + run - 1) / run
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), runs) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < runs; i = int(next.Add(1)) - 1 {
				w := philox.Block([4]uint32{uint32(i), uint32(index), uint32(i >> 32), initDomain}, key)
				z := ziggurat{state: uint64(w[0])<<32 | uint64(w[1])}
				z.fill(dst[i*run:min((i+1)*run, len(dst))], std)
			}
		})
	}
	workers.Wait()
}
