package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/cpu/kernel"
)

// factor is a random (n,k) operand, laid out along k, or along n when across.
func factor(rng *rand.Rand, n, k int, across bool) operand {
	x := make([]float32, n*k)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	if across {
		return operand{x, 1, n}
	}
	return operand{x, k, 1}
}

func (o operand) at(i, k int) float64 { return float64(o.data[i*o.outer+k*o.inner]) }

func runProduct(p *product, threads int) {
	pool := newPool(threads)
	defer pool.close()
	scratch := make([]byte, p.scratch(threads)+256)
	for i := range scratch {
		scratch[i] = 0xff // NaN: nothing may be read that was not packed
	}
	pool.walk(p.phases(aligned(scratch), threads))
}

// Every kernel, layout and edge: against float64, within the error that the factors' precision allows.
func TestProduct(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	shapes := [][3]int{{1, 1, 1}, {33, 65, 31}, {70, 5, 130}, {3, 100, 600}, {64, 64, 64}, {129, 97, 257}}
	for _, g := range gemms() {
		for _, s := range shapes {
			for layout := range 4 {
				M, N, K := s[0], s[1], s[2]
				p := &product{g: g, M: M, N: N, K: K, ldc: N,
					a: factor(rng, M, K, layout&1 != 0), b: factor(rng, N, K, layout&2 != 0), c: make([]float32, M*N)}
				for mode := range 3 {
					name := fmt.Sprintf("%s %dx%dx%d layout %d mode %d", g.Name, M, N, K, layout, mode)
					p.add, p.bias = mode == 1, nil
					if mode == 2 {
						p.bias = factor(rng, 1, N, false).data
					}
					before := factor(rng, M, N, false).data
					p.c = slices.Clone(before)
					runProduct(p, 1)
					checkProduct(t, name, p, before)
					want := p.c
					p.c = slices.Clone(before)
					runProduct(p, 3)
					if !slices.Equal(p.c, want) {
						t.Errorf("%s: 3 threads give other bits than 1", name)
					}
				}
			}
		}
	}
}

func checkProduct(t *testing.T, name string, p *product, before []float32) {
	t.Helper()
	for i := range p.M {
		for j := range p.N {
			want, size := 0.0, 1.0
			if p.add {
				want = float64(before[i*p.N+j])
			} else if p.bias != nil {
				want = float64(p.bias[j])
			}
			for k := range p.K {
				want += p.a.at(i, k) * p.b.at(j, k)
				size += math.Abs(p.a.at(i, k) * p.b.at(j, k))
			}
			if got := float64(p.c[i*p.ldc+j]); !(math.Abs(got-want) <= epsilon(p.g)*size) {
				t.Fatalf("%s: element (%d,%d) is %g, want %g", name, i, j, got, want)
			}
		}
	}
}

// epsilon is how far a sum may be off, in parts of the sum of its terms' sizes.
func epsilon(g *kernel.Gemm) float64 {
	if g.Bytes == 2 {
		return 1.0 / 128 // two factors of 8 bits
	}
	return 1.0 / (1 << 21)
}

// gemms are all the products this processor can run.
func gemms() (list []*kernel.Gemm) {
	for _, s := range kernel.All() {
		list = append(list, s.F32)
		if s.BF16 != nil {
			list = append(list, s.BF16)
		}
	}
	return list
}

// rootMeanSquareError is a product's error against float64, in parts of the result's own root mean square.
func rootMeanSquareError(p *product) float64 {
	var err, size float64
	for i := range p.M {
		for j := range p.N {
			want := 0.0
			for k := range p.K {
				want += p.a.at(i, k) * p.b.at(j, k)
			}
			d := float64(p.c[i*p.ldc+j]) - want
			err += d * d
			size += want * want
		}
	}
	return math.Sqrt(err / size)
}

// Every product that serves float32 is as accurate as a float32 loop: on numbers around zero, and on positive ones,
// where a bias would add up. Run with -v for the errors; docs/performance.md records them.
func TestF32ProductsAreAsAccurateAsFloat32(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, K := range []int{64, 768, 3072} {
		for _, positive := range []bool{false, true} {
			const M, N = 48, 40
			p := &product{M: M, N: N, K: K, ldc: N, a: factor(rng, M, K, false), b: factor(rng, N, K, false), c: make([]float32, M*N)}
			if positive {
				for _, x := range [][]float32{p.a.data, p.b.data} {
					for i := range x {
						x[i] = float32(math.Abs(float64(x[i])))
					}
				}
			}
			MatmulForward(p.c, p.a.data, p.b.data, nil, M, K, N)
			loop := rootMeanSquareError(p)
			t.Logf("K=%d positive=%v float32 loop: %.2e", K, positive, loop)
			for _, set := range kernel.All() {
				p.g = set.F32
				runProduct(p, 1)
				e := rootMeanSquareError(p)
				t.Logf("K=%d positive=%v %s: %.2e", K, positive, p.g.Name, e)
				if !(e <= 1.2*loop) {
					t.Errorf("K=%d positive=%v %s: error %.2e, a float32 loop's is %.2e", K, positive, p.g.Name, e, loop)
				}
			}
		}
	}
}

// A NaN in a factor, whatever its bits, reaches every sum it belongs to, and no other.
func TestProductKeepsNaN(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	const M, N, K = 35, 37, 70
	for _, g := range gemms() {
		for _, bits := range []uint32{0x7fc00000, 0xffffffff, 0x7f800001} {
			for layout := range 4 {
				p := &product{g: g, M: M, N: N, K: K, ldc: N, a: factor(rng, M, K, layout&1 != 0), b: factor(rng, N, K, layout&2 != 0), c: make([]float32, M*N)}
				p.a.data[33*p.a.outer+40*p.a.inner] = math.Float32frombits(bits)
				runProduct(p, 1)
				for i, v := range p.c {
					if isNaN := v != v; isNaN != (i/N == 33) {
						t.Fatalf("%s layout %d: NaN %x in row 33, but element (%d,%d) is %g", g.Name, layout, bits, i/N, i%N, v)
					}
				}
			}
		}
	}
}
