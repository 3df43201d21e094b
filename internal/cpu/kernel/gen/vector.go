package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func (g *gen) elementwise() {
	g.text("add", "(out, a, b []float32)", "out = a + b")
	out, a, b, n := g.ptr("out"), g.ptr("a"), g.ptr("b"), Load(Param("out").Len(), GP64())
	g.each(n, 4, func(int) {
		v := g.get(a)
		w := g.get(b)
		VADDPS(w, v, v)
		g.put(v, out)
	})
	g.end()

	g.text("scl", "(x []float32, s float32)", "x *= s")
	x, n := g.ptr("x"), Load(Param("x").Len(), GP64())
	s := g.broadcast("s")
	g.each(n, 4, func(int) {
		v := g.get(x)
		VMULPS(s, v, v)
		g.put(v, x)
	})
	g.end()
}

func (g *gen) reductions() {
	// reduce keeps four sums, so that an addition need not wait for the one before it.
	reduce := func(name, signature, doc, length string, body func() reg.VecVirtual, setup func()) {
		g.text(name, signature, doc)
		setup()
		n := Load(Param(length).Len(), GP64())
		acc := [4]reg.VecVirtual{g.zero(), g.zero(), g.zero(), g.zero()}
		g.each(n, 4, func(u int) { g.accumulate(body(), acc[u]) })
		VADDPS(acc[2], acc[0], acc[0])
		VADDPS(acc[3], acc[1], acc[1])
		VADDPS(acc[1], acc[0], acc[0])
		g.ret(g.fold(acc[0], VADDPS), "ret")
		g.end()
	}
	var x, y reg.Register
	var mean reg.VecVirtual
	reduce("sum", "(x []float32) (ret float32)", "the sum of x", "x",
		func() reg.VecVirtual { return g.get(x) },
		func() { x = g.ptr("x") })
	reduce("sumSquares", "(x []float32, mean float32) (ret float32)", "the sum of (x - mean)^2", "x",
		func() reg.VecVirtual {
			v := g.get(x)
			VSUBPS(mean, v, v)
			VMULPS(v, v, v)
			return v
		},
		func() { x, mean = g.ptr("x"), g.broadcast("mean") })
	reduce("dot", "(x, y []float32) (ret float32)", "the sum of x*y", "x",
		func() reg.VecVirtual {
			v := g.get(x)
			w := g.get(y)
			VMULPS(w, v, v)
			return v
		},
		func() { x, y = g.ptr("x"), g.ptr("y") })
	g.maximum()
}

// maximum starts every lane from the first element.
func (g *gen) maximum() {
	g.text("maximum", "(x []float32) (ret float32)", "the largest of x, which is not empty and has no NaN")
	x, n := g.ptr("x"), Load(Param("x").Len(), GP64())
	var acc [4]reg.VecVirtual
	for u := range acc {
		acc[u] = g.vec()
		VBROADCASTSS(Mem{Base: x}, acc[u])
	}
	g.each(n, 4, func(u int) {
		v := g.get(x)
		switch {
		case !g.tail:
			VMAXPS(v, acc[u], acc[u])
		case g.wide:
			VMAXPS(v, acc[u], g.mask, acc[u])
		default:
			VBLENDVPS(g.mask, v, acc[u], v)
			VMAXPS(v, acc[u], acc[u])
		}
	})
	VMAXPS(acc[2], acc[0], acc[0])
	VMAXPS(acc[3], acc[1], acc[1])
	VMAXPS(acc[1], acc[0], acc[0])
	g.ret(g.fold(acc[0], VMAXPS), "ret")
	g.end()
}

// exp is e^x in place of x, to about 1.5 units in the last place for x in [-86.6, 88.3]; x outside is taken to the nearest end,
// NaN stays NaN.
//
// With n = round(x / ln 2) and r = x - n ln 2, |r| <= ln 2 / 2: e^x = 2^n e^r, and e^r = 1 + r + r^2 q(r), q a minimax
// polynomial of degree 4 (error 3e-9). ln 2 is taken off in two parts, the first of which has few bits, so n times it is exact.
func (g *gen) exp(x reg.VecVirtual) {
	lo, hi := g.load(g.k(-86.6)), g.load(g.k(88.3))
	VMAXPS(x, lo, x) // a NaN in the first operand is returned
	VMINPS(x, hi, x)
	// Adding 1.5 * 2^23 leaves round(x/ln 2) in the low bits.
	magic := g.load(g.k(12582912))
	t := g.load(g.k(1.44269504))
	VFMADD213PS(magic, x, t)
	n := g.vec()
	VSUBPS(magic, t, n)
	VFNMADD231PS(g.k(0.693359375), n, x)
	VFMADD231PS(g.k(2.12194440e-4), n, x)
	q := g.poly(x, 0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.008368710055947304, 0.0013814610429108143)
	VMULPS(x, q, q)
	VFMADD213PS(x, x, q) // q = q*x + x
	VADDPS(g.k(1), q, q)
	if g.wide {
		VSCALEFPS(n, q, x)
		return
	}
	VPSLLD(U8(23), t, t) // the low bits of t are n: move them to the exponent, and bias it
	VPADDD(g.k(1), t, t)
	VMULPS(t, q, x)
}

// poly is c[0] + c[1] x + c[2] x^2 + …
func (g *gen) poly(x reg.VecVirtual, c ...float32) reg.VecVirtual {
	p := g.load(g.k(c[len(c)-1]))
	for i := len(c) - 2; i >= 0; i-- {
		VFMADD213PS(g.k(c[i]), x, p)
	}
	return p
}

// gauss is, for t = |x|: e = exp(-t^2/2), and tail = Phi(-t) = e * R(t), R(t) = y P(y) with y = 1/(1 + 0.35 t).
//
// P has degree 8 (error 3e-8 for t to 13.5). t^2 is rounded; what the rounding lost is given back to first order,
// because exp would magnify it by t^2/2.
func (g *gen) gauss(x reg.VecVirtual) (e, tail reg.VecVirtual) {
	t := g.vec()
	if g.wide {
		VPANDD(g.kbits(0x7fffffff), x, t)
	} else {
		VANDPS(g.kbits(0x7fffffff), x, t)
	}
	square, lost := g.vec(), g.vec()
	VMULPS(t, t, square)
	VMOVUPS(square, lost)
	VFMSUB231PS(t, t, lost) // lost = t*t - square
	e = g.vec()
	VMULPS(g.k(-0.5), square, e)
	g.exp(e)
	VMULPS(g.k(-0.5), lost, lost)
	VFMADD231PS(lost, e, e)

	one := g.load(g.k(1))
	y := g.load(g.k(0.35))
	VFMADD213PS(one, t, y)
	VDIVPS(y, one, y)
	tail = g.poly(y, 0.1396215707063675, 0.1398591250181198, 0.11985211074352264, 0.1054343655705452, -0.02294078655540943,
		0.15893493592739105, -0.25550976395606995, 0.1438748687505722, -0.029126424342393875)
	VMULPS(y, tail, tail)
	VMULPS(e, tail, tail)
	return e, tail
}

// phi is Phi(x) in place of Phi(-|x|): 1 - tail where x is positive.
func (g *gen) phi(x, tail reg.VecVirtual) {
	other := g.load(g.k(1))
	VSUBPS(tail, other, other)
	if g.wide {
		k := K()
		VPMOVD2M(x, k) // the sign bits
		VBLENDMPS(tail, other, k, tail)
		return
	}
	VBLENDVPS(x, tail, other, tail)
}

func (g *gen) gelu() {
	g.text("geluForward", "(out, pre []float32)", "out = pre * Phi(pre)")
	out, pre, n := g.ptr("out"), g.ptr("pre"), Load(Param("out").Len(), GP64())
	g.each(n, 1, func(int) {
		x := g.get(pre)
		_, p := g.gauss(x)
		g.phi(x, p)
		VMULPS(x, p, p)
		g.put(p, out)
	})
	g.end()

	g.text("geluBackward", "(dpre, dout, pre []float32)", "dpre = dout * (Phi(pre) + pre*phi(pre)), phi(x) = exp(-x*x/2)/sqrt(2 pi)")
	dpre, dout, pre, n := g.ptr("dpre"), g.ptr("dout"), g.ptr("pre"), Load(Param("dpre").Len(), GP64())
	g.each(n, 1, func(int) {
		x := g.get(pre)
		e, p := g.gauss(x)
		g.phi(x, p)
		VMULPS(g.k(0.3989422804), e, e)
		VFMADD231PS(x, e, p)
		d := g.get(dout)
		VMULPS(d, p, p)
		g.put(p, dpre)
	})
	g.end()
}

func (g *gen) exps() {
	body := func(name, signature, doc string, store bool) {
		g.text(name, signature, doc)
		var out reg.Register
		if store {
			out = g.ptr("out")
		}
		x, n := g.ptr("x"), Load(Param("x").Len(), GP64())
		scale, shift, acc := g.broadcast("scale"), g.broadcast("shift"), g.zero()
		g.each(n, 1, func(int) {
			v := g.get(x)
			VFMSUB213PS(shift, scale, v)
			g.exp(v)
			if store {
				g.put(v, out)
			}
			g.accumulate(v, acc)
		})
		g.ret(g.fold(acc, VADDPS), "ret")
		g.end()
	}
	body("expSum", "(out, x []float32, scale, shift float32) (ret float32)", "out = exp(scale*x - shift), and its sum", true)
	body("sumExp", "(x []float32, scale, shift float32) (ret float32)", "the sum of exp(scale*x - shift)", false)

	g.text("attentionScores", "(p, dp []float32, scale, lse, d float32)", "p = exp(scale*p - lse), dp = p*(dp - d)*scale")
	p, dp, n := g.ptr("p"), g.ptr("dp"), Load(Param("p").Len(), GP64())
	scale, lse, d := g.broadcast("scale"), g.broadcast("lse"), g.broadcast("d")
	g.each(n, 1, func(int) {
		v := g.get(p)
		VFMSUB213PS(lse, scale, v)
		g.exp(v)
		g.put(v, p)
		w := g.get(dp)
		VSUBPS(d, w, w)
		VMULPS(scale, w, w)
		VMULPS(v, w, w)
		g.put(w, dp)
	})
	g.end()
}

func (g *gen) norms() {
	for _, bias := range []bool{true, false} {
		name, signature, doc := "normalize", "(out, x, weight []float32, mean, rstd float32)", "out = (x - mean)*rstd*weight"
		if bias {
			name, signature, doc = "normalizeBias", "(out, x, weight, bias []float32, mean, rstd float32)", "out = (x - mean)*rstd*weight + bias"
		}
		g.text(name, signature, doc)
		out, x, weight, n := g.ptr("out"), g.ptr("x"), g.ptr("weight"), Load(Param("out").Len(), GP64())
		var b reg.Register
		if bias {
			b = g.ptr("bias")
		}
		mean, rstd := g.broadcast("mean"), g.broadcast("rstd")
		g.each(n, 2, func(int) {
			v := g.get(x)
			VSUBPS(mean, v, v)
			VMULPS(rstd, v, v)
			w := g.get(weight)
			if bias {
				c := g.get(b)
				VFMADD213PS(c, w, v)
			} else {
				VMULPS(w, v, v)
			}
			g.put(v, out)
		})
		g.end()
	}

	g.text("normalizeSums", "(dy, x, weight []float32, mean, rstd float32) (sumG, sumGX float32)", "sumG = sum(dy*weight), sumGX = sum(dy*weight*xhat), xhat = (x - mean)*rstd")
	dy, x, weight, n := g.ptr("dy"), g.ptr("x"), g.ptr("weight"), Load(Param("dy").Len(), GP64())
	mean, rstd := g.broadcast("mean"), g.broadcast("rstd")
	sums := [4]reg.VecVirtual{g.zero(), g.zero(), g.zero(), g.zero()}
	g.each(n, 2, func(u int) {
		v := g.get(dy)
		w := g.get(weight)
		VMULPS(w, v, v)
		h := g.get(x)
		VSUBPS(mean, h, h)
		VMULPS(rstd, h, h)
		VMULPS(v, h, h)
		g.accumulate(v, sums[u])
		g.accumulate(h, sums[2+u])
	})
	VADDPS(sums[1], sums[0], sums[0])
	VADDPS(sums[3], sums[2], sums[2])
	g.ret(g.fold(sums[0], VADDPS), "sumG")
	g.ret(g.fold(sums[2], VADDPS), "sumGX")
	g.end()

	for _, add := range []bool{false, true} {
		name := "normalizeBackward"
		if add {
			name = "normalizeBackwardAdd"
		}
		g.text(name, "(dx, dw, db, dy, x, weight []float32, mean, rstd, meanG, meanGX float32)",
			"dx (= or +=) rstd*(dy*weight - meanG - xhat*meanGX), dw += dy*xhat, db += dy")
		dx, dw, db, dy, x, weight, n := g.ptr("dx"), g.ptr("dw"), g.ptr("db"), g.ptr("dy"), g.ptr("x"), g.ptr("weight"), Load(Param("dx").Len(), GP64())
		mean, rstd, mg, mgx := g.broadcast("mean"), g.broadcast("rstd"), g.broadcast("meanG"), g.broadcast("meanGX")
		g.each(n, 1, func(int) {
			h := g.get(x)
			VSUBPS(mean, h, h)
			VMULPS(rstd, h, h)
			y := g.get(dy)
			w := g.get(dw)
			VFMADD231PS(y, h, w)
			g.put(w, dw)
			b := g.get(db)
			VADDPS(y, b, b)
			g.put(b, db)
			v := g.get(weight)
			VFMSUB213PS(mg, y, v)   // dy*weight - g
			VFNMADD231PS(mgx, h, v) // - xhat*gx
			if add {
				d := g.get(dx)
				VFMADD213PS(d, rstd, v)
			} else {
				VMULPS(rstd, v, v)
			}
			g.put(v, dx)
		})
		g.end()
	}
}

// adamw is one step of AdamW, storing with put. A step touches every parameter once, so what it writes is of no use in the
// caches when the model is larger than they are: then storing past them saves reading the lines first.
func (g *gen) adamw(name string, put func(v, base reg.Register)) {
	g.text(name, "(param, m, v, grad []float32, clip, beta1, oneBeta1, beta2, oneBeta2, decay, step, invCorrection, eps float32)",
		"one step of AdamW; see kernel.AdamW")
	param, m, v, grad, n := g.ptr("param"), g.ptr("m"), g.ptr("v"), g.ptr("grad"), Load(Param("param").Len(), GP64())
	clip, b1, o1, b2, o2 := g.broadcast("clip"), g.broadcast("beta1"), g.broadcast("oneBeta1"), g.broadcast("beta2"), g.broadcast("oneBeta2")
	decay, step, inv, eps := g.broadcast("decay"), g.broadcast("step"), g.broadcast("invCorrection"), g.broadcast("eps")
	restore := g.flushDenormals()
	g.each(n, 1, func(int) {
		gr := g.get(grad)
		VMULPS(clip, gr, gr)
		mi := g.get(m)
		VMULPS(b1, mi, mi)
		VFMADD231PS(gr, o1, mi)
		put(mi, m)
		VMULPS(gr, gr, gr)
		VMULPS(o2, gr, gr)
		vi := g.get(v)
		VFMADD213PS(gr, b2, vi)
		put(vi, v)
		VSQRTPS(vi, vi)
		VFMADD213PS(eps, inv, vi)
		VMULPS(step, mi, mi)
		VDIVPS(vi, mi, mi)
		p := g.get(param)
		VFMSUB213PS(mi, decay, p)
		put(p, param)
	})
	SFENCE()
	restore()
	g.end()
}

// flushDenormals makes arithmetic take and give zero for denormal numbers, until restore: m and v of a token that does not
// come again fade through them for hundreds of steps, and each would cost a hundred cycles.
func (g *gen) flushDenormals() (restore func()) {
	state, keep, r := AllocLocal(8), GP32(), GP32()
	STMXCSR(state)
	MOVL(state, keep)
	MOVL(keep, r)
	ORL(U32(1<<15|1<<6), r) // flush to zero, denormals are zeros
	MOVL(r, state)
	LDMXCSR(state)
	return func() {
		MOVL(keep, state)
		LDMXCSR(state)
	}
}

// clear zeroes past the caches; x is aligned.
func (g *gen) clear() {
	g.text("clearStream", "(x []float32)", "x = 0, stored past the caches")
	x, n := g.ptr("x"), Load(Param("x").Len(), GP64())
	zero := g.zero()
	g.each(n, 4, func(int) { g.stream(zero, x) })
	SFENCE()
	g.end()
}

// kbits is a vector of one constant, by its bits.
func (g *gen) kbits(b uint32) Mem { return g.k(float32frombits(b)) }
