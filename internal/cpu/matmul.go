package cpu

// MatmulForward is a linear layer: out = inp weight^T + bias.
//
// out (N,OC); inp (N,C); weight (OC,C); bias (OC) or nil.
func MatmulForward[F Float](out, inp, weight, bias []F, N, C, OC int) {
	for n := range N {
		x := inp[n*C:][:C]
		for o := range OC {
			var sum F
			for c, w := range weight[o*C:][:C] {
				sum += x[c] * w
			}
			if bias != nil {
				sum += bias[o]
			}
			out[n*OC+o] = sum
		}
	}
}

// MatmulGeluForward is pre = inp weight^T + bias, out = gelu(pre): MatmulForward and GeluForward in one.
//
// out, pre (N,OC); inp (N,C); weight (OC,C); bias (OC) or nil.
func MatmulGeluForward[F Float](out, pre, inp, weight, bias []F, N, C, OC int) {
	MatmulForward(pre, inp, weight, bias, N, C, OC)
	GeluForward(out, pre)
}

// MatmulBackwardInput is dinp = dout weight.
//
// dinp (N,C) is written, or added to with accumulate; dout (N,OC); weight (OC,C).
func MatmulBackwardInput[F Float](dinp, dout, weight []F, N, C, OC int, accumulate bool) {
	for n := range N {
		dx := dinp[n*C:][:C]
		if !accumulate {
			clear(dx)
		}
		for o, dy := range dout[n*OC:][:OC] {
			for c, w := range weight[o*C:][:C] {
				dx[c] += dy * w
			}
		}
	}
}

// MatmulBackwardWeight is dweight += dout^T inp.
//
// dweight (OC,C); dout (N,OC); inp (N,C).
func MatmulBackwardWeight[F Float](dweight, dout, inp []F, N, C, OC int) {
	for n := range N {
		x := inp[n*C:][:C]
		for o, dy := range dout[n*OC:][:OC] {
			dw := dweight[o*C:][:C]
			for c, v := range x {
				dw[c] += dy * v
			}
		}
	}
}

// BiasBackward is dbias += the sum of dout over the tokens.
//
// dbias (OC); dout (N,OC).
func BiasBackward[F Float](dbias, dout []F, N, OC int) {
	for n := range N {
		for o, dy := range dout[n*OC:][:OC] {
			dbias[o] += dy
		}
	}
}
