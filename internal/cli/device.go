package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
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

// cpuDevice is the processor. nanoGPT computes in float32 on a CPU whatever dtype is, so bfloat16 must be asked for.
func cpuDevice(c *config.Config) (train.Device, error) {
	if !c.IsSet("dtype") {
		c.DType = "float32"
	}
	if c.DType == "float16" {
		return train.Device{}, usageError(errors.New("dtype float16 needs a GPU: on the CPU use float32 or bfloat16"))
	}
	x := cpu.New(cpu.Options{Threads: c.Threads, BF16: c.DType == "bfloat16"})
	return train.Device{Name: "CPU (" + x.String() + ")", Exec: x, DTypes: train.DTypes(trace.Float32), Costs: train.CPUCosts, Limit: train.HostLimit(c.Vram)}, nil
}
