package cpu

import "math"

// GlobalNorm is the square root of the sum of squares over all gradients, as clip_grad_norm_ measures it.
func GlobalNorm[F Float](grads ...[]F) F {
	var sum float64
	for _, g := range grads {
		for _, v := range g {
			sum += float64(v) * float64(v)
		}
	}
	return F(math.Sqrt(sum))
}

// AdamWParams are the optimizer's numbers at one step.
type AdamWParams struct {
	LR, Beta1, Beta2, Eps float64
	WeightDecay           float64 // 0 for tensors with fewer than two dimensions
	GradClip              float64 // 0: no clipping
	T                     int     // 1 at the first step
}

// ClipScale is what clip_grad_norm_ multiplies the gradients by: min(1, clip/(norm + 1e-6)).
func ClipScale(clip, norm float64) float64 {
	if clip == 0 {
		return 1
	}
	return min(1, clip/(norm+1e-6))
}

// AdamW is PyTorch's torch.optim.AdamW on a gradient clipped by its global norm:
//
//	g = grad * clip,  p *= 1 - lr*wd,  m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
//	p -= lr/(1-b1^t) * m / (sqrt(v)/sqrt(1-b2^t) + eps)
func AdamW[F Float](param, m, v, grad []F, norm F, h AdamWParams) {
	clip := F(ClipScale(h.GradClip, float64(norm)))
	b1, b2 := F(h.Beta1), F(h.Beta2)
	step := F(h.LR / (1 - math.Pow(h.Beta1, float64(h.T))))
	correction := F(math.Sqrt(1 - math.Pow(h.Beta2, float64(h.T))))
	decay := F(1 - h.LR*h.WeightDecay)
	for i := range param {
		g := grad[i] * clip
		m[i] = b1*m[i] + (1-b1)*g
		v[i] = b2*v[i] + (1-b2)*g*g
		param[i] = param[i]*decay - step*m[i]/(F(math.Sqrt(float64(v[i])))/correction+F(h.Eps))
	}
}
