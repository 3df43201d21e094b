package cpu

// EncoderForward embeds: out = dropout(wte[idx] + wpe[t]).
//
// out (B,T,C); idx (B,T); wte (V,C); wpe (T or more,C).
func EncoderForward[F Float](out []F, idx []int32, wte, wpe []F, B, T, C int, d Dropout) {
	for n := range B * T {
		token, pos := wte[int(idx[n])*C:][:C], wpe[n%T*C:][:C]
		for c := range C {
			out[n*C+c] = (token[c] + pos[c]) * F(d.Scale(n/T, n%T*C+c))
		}
	}
}

// EncoderBackward adds each token's gradient to the rows it came from, in the order of the tokens.
//
// dwte (V,C) +=, dwpe (T or more,C) +=; dout (B,T,C); idx (B,T).
func EncoderBackward[F Float](dwte, dwpe, dout []F, idx []int32, B, T, C int, d Dropout) {
	for n := range B * T {
		dtoken, dpos := dwte[int(idx[n])*C:][:C], dwpe[n%T*C:][:C]
		for c := range C {
			g := dout[n*C+c] * F(d.Scale(n/T, n%T*C+c))
			dtoken[c] += g
			dpos[c] += g
		}
	}
}
