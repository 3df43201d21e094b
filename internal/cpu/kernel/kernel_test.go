package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// lengths reach every path: shorter than a vector, whole vectors, unrolled loops, and what is left after each.
var lengths = []int{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129, 1000}

func random(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// guarded is a copy of x inside NaNs: a kernel that reads beyond the end spoils its result, one that writes there is seen.
func guarded(x []float32) (inside []float32, intact func() bool) {
	const margin = 32
	all := make([]float32, len(x)+2*margin)
	for i := range all {
		all[i] = float32(math.NaN())
	}
	copy(all[margin:], x)
	return all[margin:][:len(x):len(x)], func() bool {
		for i, v := range all {
			if outside := i < margin || i >= margin+len(x); outside && v == v {
				return false
			}
		}
		return true
	}
}

// call is a kernel under test: it computes over its arguments in place and returns what else it found.
type call struct {
	name string
	args int
	run  func(s *Set, a [][]float32) []float32
}

var calls = []call{
	{"gelu forward", 2, func(s *Set, a [][]float32) []float32 { s.GeluForward(a[0], a[1]); return nil }},
	{"gelu forward in place", 1, func(s *Set, a [][]float32) []float32 { s.GeluForward(a[0], a[0]); return nil }},
	{"gelu backward", 2, func(s *Set, a [][]float32) []float32 { s.GeluBackward(a[0], a[0], a[1]); return nil }},
	{"add", 3, func(s *Set, a [][]float32) []float32 { s.Add(a[0], a[1], a[2]); return nil }},
	{"scale", 1, func(s *Set, a [][]float32) []float32 { s.Scale(a[0], 0.7); return nil }},
	{"sum", 1, func(s *Set, a [][]float32) []float32 { return []float32{s.Sum(a[0])} }},
	{"sum of squares", 1, func(s *Set, a [][]float32) []float32 { return []float32{s.SumSquares(a[0], 0.3)} }},
	{"dot", 2, func(s *Set, a [][]float32) []float32 { return []float32{s.Dot(a[0], a[1])} }},
	{"max", 1, func(s *Set, a [][]float32) []float32 { return []float32{s.Max(a[0])} }},
	{"max of negatives", 1, func(s *Set, a [][]float32) []float32 {
		for i := range a[0] {
			a[0][i] = -1 - float32(math.Abs(float64(a[0][i])))
		}
		return []float32{s.Max(a[0])}
	}},
	{"exp sum", 2, func(s *Set, a [][]float32) []float32 { return []float32{s.ExpSum(a[0], a[1], 0.8, 0.5)} }},
	{"sum exp", 1, func(s *Set, a [][]float32) []float32 { return []float32{s.ExpSum(nil, a[0], 0.8, 0.5)} }},
	{"normalize", 3, func(s *Set, a [][]float32) []float32 { s.Normalize(a[0], a[1], a[2], nil, 0.1, 1.3); return nil }},
	{"normalize bias", 4, func(s *Set, a [][]float32) []float32 { s.Normalize(a[0], a[1], a[2], a[3], 0.1, 1.3); return nil }},
	{"normalize sums", 3, func(s *Set, a [][]float32) []float32 {
		g, gx := s.NormalizeSums(a[0], a[1], a[2], 0.1, 1.3)
		return []float32{g, gx}
	}},
	{"normalize backward", 6, func(s *Set, a [][]float32) []float32 {
		s.NormalizeBackward(a[0], a[1], a[2], a[3], a[4], a[5], Norm{Mean: 0.1, Rstd: 1.3, G: 0.2, GX: -0.4})
		return nil
	}},
	{"normalize backward add", 6, func(s *Set, a [][]float32) []float32 {
		s.NormalizeBackward(a[0], a[1], a[2], a[3], a[4], a[5], Norm{Mean: 0.1, Rstd: 1.3, G: 0.2, GX: -0.4, Accumulate: true})
		return nil
	}},
	{"attention scores", 2, func(s *Set, a [][]float32) []float32 { s.AttentionScores(a[0], a[1], 0.125, 0.6, -0.2); return nil }},
	{"adamw", 4, func(s *Set, a [][]float32) []float32 {
		for i, v := range a[2] {
			a[2][i] = v * v
		}
		s.AdamW(a[0], a[1], a[2], a[3], AdamW{Clip: 0.5, Beta1: 0.9, OneBeta1: 0.1, Beta2: 0.95, OneBeta2: 0.05, Decay: 0.999, Step: 0.01, InvCorrection: 1.5, Eps: 1e-8})
		return nil
	}},
}

// The streaming kernels are the others, on aligned slices of every length.
func TestStreamingKernels(t *testing.T) {
	h := AdamW{Clip: 0.5, Beta1: 0.9, OneBeta1: 0.1, Beta2: 0.95, OneBeta2: 0.05, Decay: 0.999, Step: 0.01, InvCorrection: 1.5, Eps: 1e-8}
	for _, set := range All() {
		for _, n := range lengths {
			rng := rand.New(rand.NewPCG(uint64(n), 3))
			var want, got [4][]float32
			for i := range want {
				want[i] = random(rng, n)
				if i == 2 {
					for j, v := range want[i] {
						want[i][j] = v * v
					}
				}
				got[i] = alignedCopy(want[i])
			}
			set.AdamW(want[0], want[1], want[2], want[3], h)
			set.AdamWStream(got[0], got[1], got[2], got[3], h)
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("%s, n=%d: argument %d differs", set.Name, n, i)
				}
			}
			set.ClearStream(got[0])
			if !slices.Equal(got[0], make([]float32, n)) {
				t.Fatalf("%s, n=%d: not cleared: %v", set.Name, n, got[0])
			}
		}
	}
}

// AdamW lets faded moments go to zero, and leaves the processor's treatment of denormal numbers as it was.
func TestAdamWFlushesDenormals(t *testing.T) {
	tiny := math.Float32frombits(1000)
	for _, set := range native() {
		param, m, v, grad := []float32{1}, []float32{tiny}, []float32{tiny}, []float32{0}
		set.AdamW(param, m, v, grad, AdamW{Clip: 1, Beta1: 0.9, OneBeta1: 0.1, Beta2: 0.95, OneBeta2: 0.05, Decay: 1, Step: 0.01, InvCorrection: 1, Eps: 1e-8})
		if m[0] != 0 || v[0] != 0 || param[0] != 1 {
			t.Errorf("%s: m %g, v %g, param %g, want 0, 0, 1", set.Name, m[0], v[0], param[0])
		}
		if half := tiny / 2; half == 0 {
			t.Errorf("%s: denormal numbers are zero after AdamW", set.Name)
		}
	}
}

// alignedCopy is a copy of x that starts at a multiple of 64 bytes.
func alignedCopy(x []float32) []float32 {
	room := make([]float32, len(x)+16)
	for uintptr(unsafe.Pointer(&room[0]))%64 != 0 {
		room = room[1:]
	}
	return append(room[:0:len(x)], x...)
}

// Every kernel of every set is plain Go's, at every length, and touches nothing beyond its slices.
func TestKernelsAgainstPlainGo(t *testing.T) {
	plain := Plain()
	for _, set := range native() {
		for _, c := range calls {
			for _, n := range lengths {
				rng := rand.New(rand.NewPCG(uint64(n), 2))
				want, got := make([][]float32, c.args), make([][]float32, c.args)
				intact := make([]func() bool, c.args)
				for i := range want {
					want[i] = random(rng, n)
					got[i], intact[i] = guarded(want[i])
				}
				wantMore, gotMore := c.run(plain, want), c.run(set, got)
				name := fmt.Sprintf("%s, %s, n=%d", set.Name, c.name, n)
				for i := range want {
					if !intact[i]() {
						t.Fatalf("%s: writes beyond argument %d", name, i)
					}
					close32(t, fmt.Sprintf("%s, argument %d", name, i), got[i], want[i], 1)
				}
				close32(t, name+", result", gotMore, wantMore, float64(n))
			}
		}
	}
}

// close32 fails unless got is want within a few units of float32's precision, times terms for a sum of so many.
func close32(t *testing.T, name string, got, want []float32, terms float64) {
	t.Helper()
	for i := range want {
		tol := 8 * (1.0 / (1 << 24)) * (math.Abs(float64(want[i])) + terms)
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tol) {
			t.Fatalf("%s: element %d is %g, want %g", name, i, got[i], want[i])
		}
	}
}

func TestScalesAgainstPlainGo(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, set := range native() {
		for range 50 {
			counter, key := [4]uint32{rng.Uint32(), rng.Uint32(), rng.Uint32(), rng.Uint32()}, [2]uint32{rng.Uint32(), rng.Uint32()}
			var got, want [256]float32
			limit := rng.Uint32() &^ 0xffff
			set.Scales(&got, counter, key, limit, 1.25)
			Plain().Scales(&want, counter, key, limit, 1.25)
			if got != want {
				t.Fatalf("%s: counter %x, key %x: %v, want %v", set.Name, counter, key, got, want)
			}
		}
	}
}

// worst is the largest relative error of f over x against math's function in float64.
func worst(x, got []float32, want func(float64) float64) (at, relative float64) {
	for i, v := range x {
		w := want(float64(v))
		if e := math.Abs(float64(got[i])-w) / math.Abs(w); !(e <= relative) {
			at, relative = float64(v), e
		}
	}
	return at, relative
}

func sweep(from, to float64, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(from + (to-from)*float64(i)/float64(n-1))
	}
	return x
}

const ulp = 1.0 / (1 << 23)

func TestExpAccuracy(t *testing.T) {
	x := sweep(-86.5, 88.2, 300_001)
	out := make([]float32, len(x))
	for _, s := range native() {
		s.ExpSum(out, x, 1, 0)
		at, e := worst(x, out, math.Exp)
		t.Logf("%s: exp is off by %.2f ulp at %g", s.Name, e/ulp, at)
		if !(e <= 1.5*ulp) {
			t.Errorf("%s: exp(%g) is off by %.3g, %.2f ulp", s.Name, at, e, e/ulp)
		}
		s.ExpSum(out[:3], []float32{-1000, float32(math.Inf(-1)), float32(math.NaN())}, 1, 0)
		if !(out[0] >= 0 && out[0] < 3e-38) || !(out[1] >= 0 && out[1] < 3e-38) || out[2] == out[2] {
			t.Errorf("%s: exp of -1000, -Inf, NaN is %g", s.Name, out[:3])
		}
	}
}

// GELU keeps its relative precision far into the left tail, where 1 + erf(x/sqrt 2) has none left.
func TestGeluAccuracy(t *testing.T) {
	x := sweep(-12, 12, 300_002) // an even number of points: 0 is not among them
	out, up := make([]float32, len(x)), make([]float32, len(x))
	gelu := func(v float64) float64 { return v * 0.5 * math.Erfc(-v/math.Sqrt2) }
	slope := func(v float64) float64 {
		return 0.5*math.Erfc(-v/math.Sqrt2) + v*math.Exp(-0.5*v*v)/math.Sqrt(2*math.Pi)
	}
	for _, s := range native() {
		s.GeluForward(out, x)
		at, e := worst(x, out, gelu)
		t.Logf("%s: gelu is off by %.2f ulp at %g", s.Name, e/ulp, at)
		if !(e <= 4.5*ulp) {
			t.Errorf("%s: gelu(%g) is off by %.3g, %.2f ulp", s.Name, at, e, e/ulp)
		}
		for i := range up {
			up[i] = 1
		}
		s.GeluBackward(out, up, x)
		worstSlope := 0.0
		for i, v := range x {
			worstSlope = max(worstSlope, math.Abs(float64(out[i])-slope(float64(v))))
		}
		if !(worstSlope <= 2*ulp) {
			t.Errorf("%s: gelu' is off by %.3g", s.Name, worstSlope)
		}
		s.GeluForward(out[:3], []float32{0, 40, -40})
		if out[0] != 0 || out[1] != 40 || !(math.Abs(float64(out[2])) < 1e-35) {
			t.Errorf("%s: gelu of 0, 40, -40 is %g", s.Name, out[:3])
		}
	}
}

func BenchmarkKernels(b *testing.B) {
	const n = 8192
	rng := rand.New(rand.NewPCG(1, 2))
	for _, s := range All() {
		for _, c := range calls {
			b.Run(s.Name+"/"+c.name, func(b *testing.B) {
				args := make([][]float32, c.args)
				for i := range args {
					args[i] = random(rng, n)
				}
				b.SetBytes(int64(4 * n * c.args))
				for b.Loop() {
					c.run(s, args)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/elem")
			})
		}
	}
}
