package cpu

import "math"

// Loss is the cross-entropy of each token, losses = logsumexp(logits) - logits[target], and with gradient it turns the
// logits into their gradient in place: (softmax - onehot) * scale.
//
// losses (n); logits (n,V); targets (n), -1 is ignored: its loss and its gradient are 0.
func Loss[F Float](losses, logits []F, targets []int32, n, V int, scale float64, gradient bool) {
	for i := range n {
		row, target := logits[i*V:][:V], int(targets[i])
		losses[i] = 0
		if target < 0 {
			if gradient {
				clear(row)
			}
			continue
		}
		peak := row[0]
		for _, v := range row {
			peak = max(peak, v)
		}
		var sum float64
		for _, v := range row {
			sum += math.Exp(float64(v - peak))
		}
		losses[i] = F(math.Log(sum)) - (row[target] - peak)
		if !gradient {
			continue
		}
		for j, v := range row {
			row[j] = F(math.Exp(float64(v-peak)) / sum * scale)
		}
		row[target] -= F(scale)
	}
}
