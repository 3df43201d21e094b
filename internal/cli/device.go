package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
)

// openDevice is the device that the settings name; left unset it is the GPU where there is a usable one, else the CPU.
func openDevice(ctx context.Context, c *config.Config, o cuda.Options) (train.Device, error) {
	kind, number, _ := strings.Cut(c.Device, ":")
	var note string
	if !c.IsSet("device") {
		kind = "cpu"
		switch here, ok := deviceHere(ctx); {
		case ok && here.BF16():
			kind, number = "cuda", ""
			if strings.HasPrefix(here.UUID, "GPU-") {
				o.UUID = here.UUID
			}
		case ok:
			note = fmt.Sprintf("%s has compute capability %v and snug's kernels need 8.0: training on the CPU", here.Name, here.Capability)
		}
	}
	switch kind {
	case "cpu":
		d, err := cpuDevice(c)
		if note != "" {
			d.Notes = append(d.Notes, note)
		}
		if o.Sync {
			d.Notes = append(d.Notes, "sync has no effect: the CPU ends every op before the next")
		}
		return d, err
	case "cuda":
		d, _, err := openCUDA(c, number, o)
		var ee *exitError
		if errors.As(err, &ee) && ee.code == ExitNoDevice {
			ee.err = fmt.Errorf("%w, or use --device=cpu", ee.err)
		}
		return d, err
	}
	return train.Device{}, usageError(fmt.Errorf("device %q: use cuda, cuda:1 or cpu", c.Device))
}

// addSync gives cmd the flag that finds a kernel that fails.
func addSync(cmd *cobra.Command, o *cuda.Options) {
	cmd.Flags().BoolVar(&o.Sync, "sync", false, "wait for and check every kernel, and name the one that fails")
}

// cacheFolder is where snug remembers what it found out about this machine; empty where the system names none.
func cacheFolder() string {
	folder, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(folder, "snug")
}

// openCUDA opens a GPU by its number, the first where none is given.
func openCUDA(c *config.Config, number string, o cuda.Options) (train.Device, *cuda.Executor, error) {
	if number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return train.Device{}, nil, usageError(fmt.Errorf("device %q: use cuda, cuda:1 or cpu", c.Device))
		}
		o.Ordinal = n
	}
	o.Cache = cacheFolder()
	d, e, err := train.OpenCUDA(c, o)
	var fit *train.FitError
	switch {
	case errors.As(err, &fit):
		return d, nil, &exitError{ExitDoesNotFit, err}
	case err != nil:
		return d, nil, &exitError{ExitNoDevice, err}
	}
	return d, e, nil
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
	threads := min(c.Threads, runtime.NumCPU())
	if threads < c.Threads {
		d.Notes = append(d.Notes, fmt.Sprintf("threads %d: this machine runs %d at once", c.Threads, threads))
	}
	x := cpu.New(cpu.Options{Threads: threads, BF16: c.DType == "bfloat16"})
	d.Name, d.Exec = "CPU ("+x.String()+")", x
	return d, nil
}
