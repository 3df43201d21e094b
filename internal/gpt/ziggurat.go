package gpt

import "math"

// ziggurat draws normal numbers after Marsaglia and Tsang (The Ziggurat Method, 2000): 128 layers of equal area under
// exp(-x*x/2), so that 98 of 100 draws take one table and one multiplication. Its bits are splitmix64's.
type ziggurat struct{ state uint64 }

const (
	layers    = 128
	rightmost = 3.442619855899 // where the base layer's rectangle ends
	area      = 9.91256303526217e-3
)

// layer is one rectangle: a draw of 31 bits below inner lies under the curve for sure; scale turns it into x; top is the
// curve's height there.
type layer struct {
	inner      uint32
	scale, top float64
}

var zigguratLayers = func() (l [layers]layer) {
	height := func(x float64) float64 { return math.Exp(-x * x / 2) }
	const full = 1 << 31
	x := rightmost
	base := area / height(x) // the base layer as wide as if the tail were a rectangle too
	l[0] = layer{uint32(x / base * full), base / full, 1}
	l[layers-1].scale, l[layers-1].top = x/full, height(x)
	for i := layers - 2; i >= 1; i-- {
		inside := math.Sqrt(-2 * math.Log(area/x+height(x)))
		l[i+1].inner = uint32(inside / x * full)
		l[i].scale, l[i].top = inside/full, height(inside)
		x = inside
	}
	return l
}()

func (z *ziggurat) bits() uint64 {
	z.state += 0x9e3779b97f4a7c15
	x := z.state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// uniform is in (0, 1].
func (z *ziggurat) uniform() float64 { return float64(z.bits()>>11+1) / (1 << 53) }

// fill writes normal(0, std) to dst. The sign comes with the draw: a branch on it would be guessed wrong every other time.
func (z *ziggurat) fill(dst []float32, std float64) {
	for i := range dst {
		r := z.bits()
		l := &zigguratLayers[r%layers]
		u := int64(int32(r >> 32))
		x := float64(u) * l.scale
		if sign := u >> 63; uint32((u^sign)-sign) >= l.inner {
			x = math.Copysign(z.edge(int(r%layers), math.Abs(x)), x)
		}
		dst[i] = float32(x * std)
	}
}

// edge decides a draw that fell beside the curve's inner rectangle: in the wedge, in the tail, or drawn again.
func (z *ziggurat) edge(i int, x float64) float64 {
	for {
		if i == 0 { // the tail beyond rightmost, by Marsaglia's exact method
			for {
				a, b := -math.Log(z.uniform())/rightmost, -math.Log(z.uniform())
				if b+b >= a*a {
					return rightmost + a
				}
			}
		}
		above := zigguratLayers[i-1].top
		if below := zigguratLayers[i].top; below+z.uniform()*(above-below) < math.Exp(-x*x/2) {
			return x
		}
		r := z.bits()
		i = int(r % layers)
		u := uint32(r >> 33)
		if x = float64(u) * zigguratLayers[i].scale; u < zigguratLayers[i].inner {
			return x
		}
	}
}
