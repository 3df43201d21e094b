package gpt

import (
	"math"
	"runtime"
	"sync"

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

// normals fills dst with normal(0, std), by all processors.
func normals(dst []float32, std float64, index int, key [2]uint32) {
	const piece = 1 << 16 // a multiple of 4: one block of Philox gives four values
	var next sync.Mutex
	at := 0
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), (len(dst)+piece-1)/piece) {
		workers.Go(func() {
			for {
				next.Lock()
				from := at
				at += piece
				next.Unlock()
				if from >= len(dst) {
					return
				}
				to := min(from+piece, len(dst))
				for i := from; i < to; i += 4 {
					words := philox.Block([4]uint32{uint32(i / 4), uint32(index), uint32(i / 4 >> 32), initDomain}, key)
					for j := i; j < min(i+4, to); j++ {
						dst[j] = float32(std * normal(words[j-i], j, index, key))
					}
				}
			}
		})
	}
	workers.Wait()
}

// The ziggurat of Marsaglia and Tsang ("The ziggurat method for generating random variables", 2000): 128 strips of
// equal area under exp(-x*x/2). Strip i reaches from the axis to x[i]; the part up to x[i+1] lies wholly under the curve.
const (
	strips = 128
	tail   = 3.442619855899      // where the tail begins
	area   = 9.91256303526217e-3 // of each strip
)

var ziggurat = func() (x [strips + 1]float64) {
	x[0] = area / math.Exp(-0.5*tail*tail) // the lowest strip's rectangle has the tail's area too
	x[1] = tail
	for i := 2; i < strips; i++ {
		x[i] = math.Sqrt(-2 * math.Log(area/x[i-1]+math.Exp(-0.5*x[i-1]*x[i-1])))
	}
	return x
}()

// normal turns a random word into a standard normal number: 7 bits choose the strip, 25 the signed place in it.
// One word in eighty misses; further words then come from element elem's own counters.
func normal(word uint32, elem, index int, key [2]uint32) float64 {
	for try := uint32(1); ; try++ {
		strip := word % strips
		x := float64(int32(word)>>7) * (1.0 / (1 << 24)) * ziggurat[strip]
		if math.Abs(x) < ziggurat[strip+1] {
			return x
		}
		more := philox.Block([4]uint32{uint32(elem), uint32(index), uint32(elem>>32)<<16 | try, initDomain + 1}, key)
		if strip == 0 {
			return math.Copysign(tailNormal(more, elem, index, key), x)
		}
		low, high := math.Exp(-0.5*ziggurat[strip]*ziggurat[strip]), math.Exp(-0.5*ziggurat[strip+1]*ziggurat[strip+1])
		if low+unit(more[0])*(high-low) < math.Exp(-0.5*x*x) {
			return x
		}
		word = more[1]
	}
}

// tailNormal draws from the tail beyond the lowest strip (Marsaglia 1964).
func tailNormal(words [4]uint32, elem, index int, key [2]uint32) float64 {
	for try := uint32(1); ; try++ {
		x, y := -math.Log(unit(words[2]))/tail, -math.Log(unit(words[3]))
		if 2*y > x*x {
			return tail + x
		}
		words = philox.Block([4]uint32{uint32(elem), uint32(index), uint32(elem>>32)<<16 | try, initDomain + 2}, key)
	}
}

// unit maps a word into the open interval (0, 1).
func unit(w uint32) float64 { return (float64(w) + 0.5) * (1.0 / (1 << 32)) }
