package train

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// CUDACosts is measured on an H200 with GPT-2 124M (docs/performance.md): micro-batches of 2,048 to 65,536 tokens follow
// 1 + 1100/tokens, and a layer that recomputes everything costs a fifth of its step.
var CUDACosts = Costs{Tokens: 65536, Overhead: 1100, Recompute: [5]float64{0, 0.008, 0.02, 0.11, 0.20}, Logits: 1 * units.GiB}

// deviceMargin is left free on a card whose limit is what is free: others' small growth must not hit the run.
const deviceMargin = 128 * units.MiB

// CUDADTypes are what a step stores on a GPU under a setting of dtype: weights and activations in it, gradients in fp32.
func CUDADTypes(dtype string) (gpt.Policy, error) {
	t, ok := map[string]trace.DType{"bfloat16": trace.BFloat16, "float16": trace.Float16, "float32": trace.Float32}[dtype]
	if !ok {
		return gpt.Policy{}, fmt.Errorf("dtype %q: choose bfloat16, float16 or float32", dtype)
	}
	return gpt.Policy{Weight: t, Activation: t, Gradient: trace.Float32}, nil
}

// OpenCUDA opens a GPU for a run. Its limit is vram, or what is free less a margin, less what the context, the kernels
// and the libraries take beside the arena.
func OpenCUDA(c *config.Config, o cuda.Options) (Device, *cuda.Executor, error) {
	dtypes, err := CUDADTypes(c.DType)
	if err != nil {
		return Device{}, nil, err
	}
	d, err := cuda.Open(o)
	if err != nil {
		return Device{}, nil, err
	}
	overhead, free, err := d.Overhead(dtypes.Activation)
	if err != nil {
		d.Close()
		return Device{}, nil, err
	}
	limit := free - deviceMargin
	if c.Vram > 0 {
		limit = min(c.Vram-overhead, limit)
	}
	if limit <= 0 {
		d.Close()
		return Device{}, nil, &FitError{Need: overhead, Limit: c.Vram}
	}
	e := cuda.NewExecutor(d)
	return Device{Name: fmt.Sprintf("%s, %s", d.Name, d.Blas), Exec: e, DTypes: dtypes, Costs: CUDACosts, Limit: limit}, e, nil
}
