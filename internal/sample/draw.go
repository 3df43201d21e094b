package sample

import (
	"errors"
	"math"

	"github.com/snugml/snug/internal/philox"
)

// drawer turns logits into a token.
type drawer struct {
	o     Options
	key   [2]uint32
	probs []float64
	order []float32 // scratch of the search for the k-th largest
}

func newDrawer(vocab int, o Options) drawer {
	if o.Vocabulary > 0 {
		vocab = min(vocab, o.Vocabulary)
	}
	return drawer{o: o, key: philox.Key(o.Seed), probs: make([]float64, vocab), order: make([]float32, vocab)}
}

// next draws token number i of sample n: logits/temperature, all below the k-th largest left out, softmax, one draw.
// The draw is by counter, so sample n is the same whatever was drawn before it.
func (d *drawer) next(logits []float32, n, i int) (uint16, error) {
	logits = logits[:len(d.probs)]
	best := 0
	for id, v := range logits {
		if v != v || v > math.MaxFloat32 {
			return 0, errors.New("sample: the model's logits are not finite: its training diverged; sample from an earlier checkpoint")
		}
		if v > logits[best] {
			best = id
		}
	}
	if d.o.Temperature == 0 {
		return uint16(best), nil
	}
	least := float32(math.Inf(-1))
	if k := d.o.TopK; k > 0 && k < len(logits) {
		copy(d.order, logits)
		least = largest(d.order, k)
	}
	sum := 0.0
	for id, v := range logits {
		d.probs[id] = 0
		if v >= least {
			d.probs[id] = math.Exp(float64(v-logits[best]) / d.o.Temperature)
			sum += d.probs[id]
		}
	}
	at := d.uniform(n, i) * sum
	last := best
	for id, p := range d.probs {
		if p == 0 {
			continue
		}
		if at -= p; at < 0 {
			return uint16(id), nil
		}
		last = id
	}
	return uint16(last), nil // rounding left at a hair above zero
}

// drawStream tells these numbers from those of initialisation, data and dropout, which use other fourth words.
const drawStream = 0x73616d70 // "samp"

// uniform is a number in [0, 1) with 53 random bits.
func (d *drawer) uniform(n, i int) float64 {
	b := philox.Block([4]uint32{uint32(i), uint32(n), uint32(uint64(n) >> 32), drawStream}, d.key)
	return float64((uint64(b[0])<<32|uint64(b[1]))>>11) / (1 << 53)
}

// largest is the k-th largest of v, 1 <= k <= len(v). It reorders v: Hoare's selection, with the middle as pivot.
func largest(v []float32, k int) float32 {
	lo, hi := 0, len(v)-1
	for lo < hi {
		pivot := v[(lo+hi)/2]
		i, j := lo, hi
		for i <= j {
			for v[i] > pivot {
				i++
			}
			for v[j] < pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		switch {
		case k-1 <= j:
			hi = j
		case k-1 >= i:
			lo = i
		default:
			return v[k-1]
		}
	}
	return v[k-1]
}
