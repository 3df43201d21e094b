package cpu

// ResidualForward is out = a + dropout(b).
//
// out, a, b (B,elems): elems elements a sequence. out may be a or b.
func ResidualForward[F Float](out, a, b []F, B, elems int, d Dropout) {
	for s := range B {
		for e := range elems {
			i := s*elems + e
			out[i] = a[i] + b[i]*F(d.Scale(s, e))
		}
	}
}

// ResidualLayernormForward is sum = a + dropout(b), out = layernorm(sum): ResidualForward and LayernormForward in one.
//
// sum, out, a, b (B,T,C); mean, rstd (B,T); weight (C); bias (C) or nil.
func ResidualLayernormForward[F Float](sum, out, mean, rstd, a, b, weight, bias []F, B, T, C int, d Dropout) {
	ResidualForward(sum, a, b, B, T*C, d)
	LayernormForward(out, mean, rstd, sum, weight, bias, B*T, C)
}

// DropoutBackward is dinp = dout * mask, the mask drawn from the counter again.
//
// dinp, dout (B,elems). dinp may be dout.
func DropoutBackward[F Float](dinp, dout []F, B, elems int, d Dropout) {
	for s := range B {
		for e := range elems {
			dinp[s*elems+e] = dout[s*elems+e] * F(d.Scale(s, e))
		}
	}
}
