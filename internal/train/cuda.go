package train

import (
	"cmp"
	"fmt"
	"time"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// deviceMargin is left free on a card whose limit is what is free: others' small growth must not hit the run.
const deviceMargin = 128 * units.MiB

// OpenCUDA opens a GPU for a run. The arena's limit is vram, or what is free less a margin, less what the context, the
// kernels and the libraries take beside it.
func OpenCUDA(c *config.Config, o cuda.Options) (Device, *cuda.Executor, error) {
	dtypes := DTypes(trace.DType(c.DType))
	d, err := cuda.Open(o)
	if err != nil {
		return Device{}, nil, err
	}
	overhead, free, err := d.Overhead(dtypes.Activation)
	if err != nil {
		d.Close()
		return Device{}, nil, err
	}
	limit := func(free units.Bytes) units.Bytes {
		if c.Vram > 0 {
			return min(c.Vram-overhead, free-deviceMargin)
		}
		return free - deviceMargin
	}
	if limit(free) <= 0 {
		d.Close()
		return Device{}, nil, &FitError{Need: overhead, Limit: min(cmp.Or(c.Vram, overhead+free), overhead+free)}
	}
	e := cuda.NewExecutor(d)
	costs := GPUCosts(d.Multiprocessors)
	calibrate := func(m gpt.Model) Costs {
		return costFileIn(o.Cache, d.Name, d.HasBlas()).calibrated(&calibrator{e, m, dtypes, limit(free), time.Now}, costs)
	}
	if o.Sync { // every launch is waited for: no time means anything
		calibrate = nil
	}
	return Device{Name: fmt.Sprintf("%s (%s)", d.Name, d.Blas), Exec: e, DTypes: dtypes, Costs: costs, calibrate: calibrate,
		Limit: limit(free), Overhead: overhead, Memory: d.ProcessMemory,
		LimitNow: func() (units.Bytes, error) { free, err := d.Free(); return limit(free), err }}, e, nil
}
