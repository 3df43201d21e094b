package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
)

// openDevice is the device that the settings name; left unset it is the GPU where there is a usable one, else the CPU.
func openDevice(c *config.Config) (train.Device, error) {
	kind, _, _ := strings.Cut(c.Device, ":")
	switch {
	case !c.IsSet("device") || kind == "cpu":
		return cpuDevice(c)
	case kind == "cuda":
		return train.Device{}, &exitError{ExitNoDevice, fmt.Errorf("device %s: snug trains on the CPU only so far: use --device=cpu", c.Device)}
	}
	return train.Device{}, usageError(fmt.Errorf("device %q: use cuda, cuda:1 or cpu", c.Device))
}

// cpuDevice is the processor. It stores float32; bfloat16, the default, is what its matmuls round their factors to
// where it has instructions for that, and float32 where it has none.
func cpuDevice(c *config.Config) (train.Device, error) {
	if c.DType == "float16" {
		return train.Device{}, usageError(errors.New("dtype float16 needs a GPU: on the CPU use bfloat16 or float32"))
	}
	d := train.Device{DTypes: train.DTypes(trace.Float32), Costs: train.CPUCosts, Limit: train.HostLimit(c.Vram)}
	if kernel.Best().BF16 == nil && c.DType == "bfloat16" {
		if c.IsSet("dtype") {
			d.Notes = append(d.Notes, "this processor has no instructions for bfloat16: computing in float32")
		}
		c.DType = "float32"
	}
	x := cpu.New(cpu.Options{Threads: c.Threads, BF16: c.DType == "bfloat16"})
	d.Name, d.Exec = "CPU ("+x.String()+")", x
	return d, nil
}
