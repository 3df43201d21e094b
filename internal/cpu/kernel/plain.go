package kernel

import "math"

// Plain is the set in plain Go: the definition of the others, and what runs on processors that have none of them.
func Plain() *Set {
	return &Set{
		Name:        "go",
		GeluForward: geluForward, GeluBackward: geluBackward,
		Add: add, Scale: scl,
		Sum: sum, SumSquares: sumSquares, Dot: dot, Max: maximum,
		ExpSum:    expSum,
		Normalize: normalize, NormalizeSums: normalizeSums, NormalizeBackward: normalizeBackward,
		AttentionScores: attentionScores,
		AdamW:           adamW, AdamWStream: adamW, ClearStream: func(x []float32) { clear(x) },
		F32: plainGemm(),
	}
}

func geluForward(out, pre []float32) {
	for i, v := range pre {
		x := float64(v)
		out[i] = float32(x * 0.5 * math.Erfc(-x/math.Sqrt2))
	}
}

func geluBackward(dpre, dout, pre []float32) {
	for i, v := range pre {
		x := float64(v)
		cdf, pdf := 0.5*math.Erfc(-x/math.Sqrt2), math.Exp(-0.5*x*x)/math.Sqrt(2*math.Pi)
		dpre[i] = float32(float64(dout[i]) * (cdf + x*pdf))
	}
}

func add(out, a, b []float32) {
	a, b = a[:len(out)], b[:len(out)]
	for i := range out {
		out[i] = a[i] + b[i]
	}
}

func scl(x []float32, s float32) {
	for i := range x {
		x[i] *= s
	}
}

// lanes is how many partial sums a reduction keeps: their order does not depend on the call's length.
const lanes = 8

func fold(s *[lanes]float32) float32 {
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

func sum(x []float32) float32 {
	var s [lanes]float32
	for i, v := range x {
		s[i%lanes] += v
	}
	return fold(&s)
}

func sumSquares(x []float32, mean float32) float32 {
	var s [lanes]float32
	for i, v := range x {
		s[i%lanes] += (v - mean) * (v - mean)
	}
	return fold(&s)
}

func dot(x, y []float32) float32 {
	y = y[:len(x)]
	var s [lanes]float32
	for i, v := range x {
		s[i%lanes] += v * y[i]
	}
	return fold(&s)
}

func maximum(x []float32) float32 {
	m := x[0]
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

func expSum(out, x []float32, scale, shift float32) float32 {
	var s [lanes]float32
	for i, v := range x {
		e := float32(math.Exp(float64(scale*v - shift)))
		if out != nil {
			out[i] = e
		}
		s[i%lanes] += e
	}
	return fold(&s)
}

func normalize(out, x, weight, bias []float32, mean, rstd float32) {
	x, weight = x[:len(out)], weight[:len(out)]
	for i := range out {
		out[i] = (x[i] - mean) * rstd * weight[i]
	}
	if bias != nil {
		add(out, out, bias)
	}
}

func normalizeSums(dy, x, weight []float32, mean, rstd float32) (g, gx float32) {
	x, weight = x[:len(dy)], weight[:len(dy)]
	var s, sx [lanes]float32
	for i, v := range dy {
		v *= weight[i]
		s[i%lanes] += v
		sx[i%lanes] += v * ((x[i] - mean) * rstd)
	}
	return fold(&s), fold(&sx)
}

func normalizeBackward(dx, dw, db, dy, x, weight []float32, n Norm) {
	dw, db, dy, x, weight = dw[:len(dx)], db[:len(dx)], dy[:len(dx)], x[:len(dx)], weight[:len(dx)]
	for i := range dx {
		xhat := (x[i] - n.Mean) * n.Rstd
		v := n.Rstd * (dy[i]*weight[i] - n.G - xhat*n.GX)
		if n.Accumulate {
			v += dx[i]
		}
		dw[i] += dy[i] * xhat
		db[i] += dy[i]
		dx[i] = v
	}
}

func attentionScores(p, dp []float32, scale, lse, d float32) {
	dp = dp[:len(p)]
	for i, s := range p {
		e := float32(math.Exp(float64(scale*s - lse)))
		p[i] = e
		dp[i] = e * (dp[i] - d) * scale
	}
}

func adamW(param, m, v, grad []float32, h AdamW) {
	m, v, grad = m[:len(param)], v[:len(param)], grad[:len(param)]
	for i := range param {
		g := grad[i] * h.Clip
		mi := h.Beta1*m[i] + h.OneBeta1*g
		vi := h.Beta2*v[i] + h.OneBeta2*g*g
		m[i], v[i] = mi, vi
		param[i] = h.Decay*param[i] - h.Step*mi/(float32(math.Sqrt(float64(vi)))*h.InvCorrection+h.Eps)
	}
}
