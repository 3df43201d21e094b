package cpu

import "math"

// AttentionForward is causal self-attention of NH heads of HS = C/NH channels:
//
//	s_k = q_t . k_k / sqrt(HS) for k <= t,  p = softmax(s),  out_t = sum_k dropout(p_k) v_k
//
// out (B,T,C); lse (B,NH,T): log of the sum of exp(s), which backward makes p of; qkv (B,T,3C): q, k and v side by side,
// each (NH,HS), as nanoGPT's c_attn splits them. Dropout's element is probabilities(h*T+t, T) + k.
func AttentionForward[F Float](out, lse, qkv []F, B, T, C, NH int, d Dropout) {
	HS := C / NH
	scale := F(1 / math.Sqrt(float64(HS)))
	for i := range B * NH * T {
		b, h, t := i/(NH*T), i/T%NH, i%T
		q := qkv[(b*T+t)*3*C+h*HS:][:HS]
		o := out[(b*T+t)*C+h*HS:][:HS]
		clear(o)
		// Online softmax: peak is the largest score so far, sum and o are relative to exp(peak).
		peak, sum := math.Inf(-1), 0.0
		for k := range t + 1 {
			row := qkv[(b*T+k)*3*C+h*HS:]
			s := float64(dot(q, row[C:][:HS]) * scale)
			if s > peak {
				r := math.Exp(peak - s)
				peak, sum = s, sum*r
				for c := range o {
					o[c] *= F(r)
				}
			}
			p := math.Exp(s - peak)
			sum += p
			axpy(o, F(p*d.Scale(b, probabilities(h*T+t, T)+k)), row[2*C:][:HS])
		}
		for c := range o {
			o[c] /= F(sum)
		}
		lse[i] = F(peak + math.Log(sum))
	}
}

// AttentionBackward is the gradient of AttentionForward. With p from lse, mask m and D_t = dout_t . out_t:
//
//	dv_k += p m dout_t,  ds = p (m dout_t . v_k - D_t),  dq_t += ds k_k / sqrt(HS),  dk_k += ds q_t / sqrt(HS)
//
// dqkv (B,T,3C) is written; dout, out (B,T,C); qkv (B,T,3C); lse (B,NH,T).
func AttentionBackward[F Float](dqkv, dout, qkv, out, lse []F, B, T, C, NH int, d Dropout) {
	HS := C / NH
	scale := F(1 / math.Sqrt(float64(HS)))
	clear(dqkv[:B*T*3*C])
	for i := range B * NH * T {
		b, h, t := i/(NH*T), i/T%NH, i%T
		head := (b*T+t)*C + h*HS
		do := dout[head:][:HS]
		D := dot(do, out[head:][:HS])
		q, dq := qkv[(b*T+t)*3*C+h*HS:][:HS], dqkv[(b*T+t)*3*C+h*HS:][:HS]
		for k := range t + 1 {
			row, drow := qkv[(b*T+k)*3*C+h*HS:], dqkv[(b*T+k)*3*C+h*HS:]
			key, value := row[C:][:HS], row[2*C:][:HS]
			p := F(math.Exp(float64(dot(q, key)*scale - lse[i])))
			m := F(d.Scale(b, probabilities(h*T+t, T)+k))
			ds := p * (m*dot(do, value) - D) * scale
			axpy(drow[2*C:][:HS], p*m, do)
			axpy(dq, ds, key)
			axpy(drow[C:][:HS], ds, q)
		}
	}
}

func dot[F Float](a, b []F) F {
	var sum F
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

// axpy is y += a*x.
func axpy[F Float](y []F, a F, x []F) {
	for i, v := range x {
		y[i] += a * v
	}
}
