package cpu

import "math"

// GeluForward is nn.GELU(), the exact one: out = x * Phi(x), Phi(x) = (1 + erf(x/sqrt 2)) / 2.
func GeluForward[F Float](out, pre []F) {
	for i, v := range pre {
		x := float64(v)
		out[i] = F(x * normalCDF(x))
	}
}

// GeluBackward is dpre = dout * (Phi(x) + x*phi(x)), phi(x) = exp(-x*x/2) / sqrt(2 pi). dpre may be dout.
func GeluBackward[F Float](dpre, dout, pre []F) {
	for i, v := range pre {
		x := float64(v)
		dpre[i] = F(float64(dout[i]) * (normalCDF(x) + x*normalPDF(x)))
	}
}

// normalCDF is Phi. Erfc keeps its relative precision in the left tail, where 1 + erf cancels.
func normalCDF(x float64) float64 { return 0.5 * math.Erfc(-x/math.Sqrt2) }

func normalPDF(x float64) float64 { return math.Exp(-0.5*x*x) / math.Sqrt(2*math.Pi) }
