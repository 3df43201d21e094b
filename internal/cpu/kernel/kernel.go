// Package kernel owns the innermost loops of the CPU executor: vector mathematics over slices, and matrix products over
// packed panels, each in several instruction sets behind one table of functions.
//
// It knows nothing of tensors, ops or threads. Every function is pure in its arguments, allocates nothing, and may be
// called from any goroutine. Plain Go is the definition; the assembly is tested against it.
//
// The AVX2 and AVX-512 code is generated (see gen, a module of its own so that its dependency stays out of ours);
// the AMX code is written by hand, its instructions spelled as bytes, because Go's assembler does not know them.
package kernel

// Set is the kernels of one instruction set. Slices of one call have the same length unless said otherwise;
// outputs may be the same slice as an input.
type Set struct {
	Name string

	GeluForward  func(out, pre []float32)        // out = pre * Phi(pre)
	GeluBackward func(dpre, dout, pre []float32) // dpre = dout * (Phi(pre) + pre*phi(pre))

	Add func(out, a, b []float32)       // out = a + b
	Mul func(out, a, b []float32)       // out = a * b
	FMA func(out, a, b, c []float32)    // out = a + b*c
	Scl func(x []float32, s float32)    // x *= s
	Axp func(y, x []float32, s float32) // y += s*x

	Sum        func(x []float32) float32
	SumSquares func(x []float32, mean float32) float32 // of x - mean
	Dot        func(x, y []float32) float32
	Max        func(x []float32) float32 // x is not empty

	// ExpSum is out = exp(scale*x - shift) and returns its sum; with a nil out it only returns it.
	ExpSum func(out, x []float32, scale, shift float32) float32

	// Normalize is layernorm's last step on a row: out = (x - mean) * rstd * weight + bias; bias may be nil.
	Normalize func(out, x, weight, bias []float32, mean, rstd float32)
	// NormalizeSums returns sum(dy*weight) and sum(dy*weight*xhat), xhat = (x - mean)*rstd.
	NormalizeSums func(dy, x, weight []float32, mean, rstd float32) (g, gx float32)
	// NormalizeBackward is dx (= or +=) rstd*(dy*weight - g - xhat*gx), dw += dy*xhat, db += dy.
	NormalizeBackward func(dx, dw, db, dy, x, weight []float32, n Norm)

	// AttentionScores is p = exp(scale*p - lse), dp = p*(dp - d)*scale: a row's probabilities and its scores' gradient.
	AttentionScores func(p, dp []float32, scale, lse, d float32)

	AdamW func(param, m, v, grad []float32, h AdamW)

	F32  *Gemm // products as accurate as float32's own
	BF16 *Gemm // factors rounded to bfloat16, sums in float32; nil where the processor has nothing for it
}

// Norm is a row's numbers in layernorm's backward.
type Norm struct {
	Mean, Rstd, G, GX float32
	Accumulate        float32 // 1 adds to dx, 0 overwrites it
}

// AdamW is the optimizer's numbers at one step: with g = Clip*grad,
//
//	m = Beta1*m + (1-Beta1)*g,  v = Beta2*v + (1-Beta2)*g*g,  param = Decay*param - Step*m/(sqrt(v)*InvCorrection + Eps)
type AdamW struct{ Clip, Beta1, OneBeta1, Beta2, OneBeta2, Decay, Step, InvCorrection, Eps float32 }

// All are the sets that this processor can run, plain Go first, the fastest last.
func All() []*Set { return append([]*Set{Plain()}, native()...) }

// Best is the fastest set that this processor can run.
func Best() *Set {
	all := All()
	return all[len(all)-1]
}
