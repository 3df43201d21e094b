package cuda

import (
	"math"
	"math/rand/v2"
	"testing"
)

// patterns are bits of float32 values with every sign, exponent and upper fraction, on both sides of every tie and on it: zeros,
// denormal, the largest finite and infinite values and NaNs among them.
func patterns() (all []uint32) {
	rng := rand.New(rand.NewPCG(3, 4))
	for upper := range uint32(1 << 16) {
		for _, lower := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, rng.Uint32() & 0xffff} {
			all = append(all, upper<<16|lower)
		}
	}
	return all
}

func isNaN(value uint32) bool { return value&0x7fffffff > 0x7f800000 }

// A value comes back from its halves bit for bit, and its weight is PyTorch's cast, but for ties that the cast takes down: those
// go away from zero. A NaN stays one in both.
func TestSplitKeepsEveryBit(t *testing.T) {
	for _, value := range patterns() {
		weight, low := split(value)
		back, cast := join(weight, low), bfloat16(math.Float32frombits(value))
		switch {
		case isNaN(value):
			if !isNaN(back) || !isNaN(uint32(weight)<<16) || back>>31 != value>>31 {
				t.Fatalf("NaN %#08x has weight %#04x and comes back as %#08x", value, weight, back)
			}
		case back != value:
			t.Fatalf("%#08x is split into %#04x and %#04x, which are %#08x", value, weight, low, back)
		case value&0x1ffff == 0x8000: // a tie, and the neighbour below is even
			if weight != cast+1 {
				t.Fatalf("the tie %#08x has weight %#04x, away from zero is %#04x", value, weight, cast+1)
			}
		case weight != cast:
			t.Fatalf("%#08x has weight %#04x, PyTorch's cast is %#04x", value, weight, cast)
		}
	}
}
