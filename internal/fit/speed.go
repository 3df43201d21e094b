package fit

import (
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// The cost model of nanoGPT under PyTorch. One micro-step takes
//
//	gpu  = (flops / (matrixShare · rate) + touches · bytes / (copyShare · bandwidth)) · (N + fill·SMs) / N
//	host = hostFixed + hostPerTensor · allocations
//
// and the longer of the two, because the processor runs ahead of the GPU or holds it up. N is its tokens.
// The shares are what libraries reach of the published rates; fill is the cost of filling and draining the
// multiprocessors. All are set once from nanoGPT's measured speeds on an H200 (docs/performance.md), and
// TestSpeedAgainstMeasuredRuns holds the model against each of those runs.
const (
	matrixShare   = 0.66
	copyShare     = 0.85
	touches       = 3.0 // an activation is written once, read in forward and read in backward
	fill          = 11  // tokens a multiprocessor
	hostFixed     = 3.6e-3
	hostPerTensor = 22e-6
)

// seconds estimates one iteration of s: accumulation's micro-steps and the update.
func seconds(s Setup, tr *trace.Trace, t Target) float64 {
	c := &s.Config
	m := c.Model()
	tokens := float64(c.BatchSize) * float64(m.BlockSize)
	bytes, allocations := microStep(tr)
	gpuTime := (tokens*flopsPerToken(m)/(matrixShare*matrixRate(t.Card, c.DType)) + touches*float64(bytes)/(copyShare*t.Card.Bandwidth())) *
		(tokens + fill*float64(t.Card.SMs)) / tokens
	host := hostFixed + hostPerTensor*float64(allocations)
	// AdamW reads weight, gradient and two moments, writes weight and moments: 7 floats a parameter.
	update := 4 * 7 * parameters(m) / (copyShare * t.Card.Bandwidth())
	return float64(c.GradientAccumulationSteps)*max(gpuTime, host) + update
}

// flopsPerToken counts forward and backward: 6 a weight in a matmul, and the causal half of attention's products.
func flopsPerToken(m config.Model) float64 {
	l, c := float64(m.NLayer), float64(m.NEmbd)
	return 6*(12*l*c*c+float64(m.VocabSize)*c) + 6*l*c*float64(m.BlockSize)
}

func parameters(m config.Model) float64 {
	l, c := float64(m.NLayer), float64(m.NEmbd)
	return 12*l*c*c + float64(m.VocabSize+m.BlockSize)*c
}

// matrixRate is the card's published rate for the dtype. A card without bfloat16 computes it in float32.
func matrixRate(c gpu.Card, dtype string) float64 {
	switch dtype {
	case "float16":
		return c.FP16()
	case "bfloat16":
		if r := c.BF16Rate(); r > 0 {
			return r
		}
		return c.FP32()
	}
	return c.TF32()
}

// microStep measures one micro-step in the trace's last phase: the bytes it allocates and in how many tensors.
func microStep(tr *trace.Trace) (units.Bytes, int) {
	p := &tr.Phases[len(tr.Phases)-1]
	micro := 0
	for _, s := range p.Stages {
		if s.Name == "forward" {
			micro++
		}
	}
	var bytes units.Bytes
	n := 0
	for i, e := range p.Events {
		if !e.Free && p.Stage(i) != "optimizer" {
			bytes += tr.Tensors[e.Tensor].Bytes
			n++
		}
	}
	micro = max(1, micro)
	return bytes / units.Bytes(micro), n / micro
}
