package cpu

import "math"

// LayernormForward normalises each row: out = (inp - mean) * rstd * weight + bias.
//
// out, inp (N,C); mean, rstd (N); weight (C); bias (C) or nil. rstd = 1/sqrt(var + 1e-5), var the biased variance.
func LayernormForward[F Float](out, mean, rstd, inp, weight, bias []F, N, C int) {
	for n := range N {
		x, o := inp[n*C:][:C], out[n*C:][:C]
		var m F
		for _, v := range x {
			m += v
		}
		m /= F(C)
		var variance F
		for _, v := range x {
			variance += (v - m) * (v - m)
		}
		variance /= F(C)
		r := F(1 / math.Sqrt(float64(variance)+layernormEps))
		for c, v := range x {
			o[c] = (v - m) * r * weight[c]
			if bias != nil {
				o[c] += bias[c]
			}
		}
		mean[n], rstd[n] = m, r
	}
}

// LayernormBackward is the gradient of LayernormForward. With xhat = (inp-mean)*rstd and g = dout*weight:
//
//	dinp = rstd * (g - mean(g) - xhat*mean(g*xhat)),  dweight += sum_n dout*xhat,  dbias += sum_n dout
//
// dinp, dout, inp (N,C); weight, dweight (C); dbias (C) or nil; mean, rstd (N). dinp is written, or added to with accumulate.
func LayernormBackward[F Float](dinp, dweight, dbias, dout, inp, weight, mean, rstd []F, N, C int, accumulate bool) {
	for n := range N {
		x, dy, dx := inp[n*C:][:C], dout[n*C:][:C], dinp[n*C:][:C]
		var sumG, sumGX F
		for c := range C {
			xhat := (x[c] - mean[n]) * rstd[n]
			g := dy[c] * weight[c]
			sumG += g
			sumGX += g * xhat
		}
		meanG, meanGX := sumG/F(C), sumGX/F(C)
		for c := range C {
			xhat := (x[c] - mean[n]) * rstd[n]
			dweight[c] += dy[c] * xhat
			if dbias != nil {
				dbias[c] += dy[c]
			}
			v := rstd[n] * (dy[c]*weight[c] - meanG - xhat*meanGX)
			if accumulate {
				v += dx[c]
			}
			dx[c] = v
		}
	}
}
