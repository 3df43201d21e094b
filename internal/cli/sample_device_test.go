//go:build linux

package cli

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/example"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/trace"
)

// Sampling takes the GPU where there is one that can, and the CPU behind it; a device that is named is the only one.
func TestSampleDevices(t *testing.T) {
	cudatest.StandIn(t)
	able, old := &gpu.Device{Capability: gpu.Capability{Major: 8, Minor: 6}}, &gpu.Device{Capability: gpu.Capability{Major: 7, Minor: 5}}
	for name, c := range map[string]struct {
		device string // empty: unset
		here   *gpu.Device
		want   []trace.DType // of the devices, in order
	}{
		"a GPU":           {"", able, []trace.DType{trace.BFloat16, trace.Float32}},
		"an old GPU":      {"", old, []trace.DType{trace.Float32}},
		"no GPU":          {"", nil, []trace.DType{trace.Float32}},
		"the CPU, named":  {"cpu", able, []trace.DType{trace.Float32}},
		"the GPU, named":  {"cuda", nil, []trace.DType{trace.BFloat16}},
		"a GPU by number": {"cuda:0", nil, []trace.DType{trace.BFloat16}},
	} {
		cfg := config.DefaultFor(config.Sample)
		if c.device != "" {
			if err := cfg.Set("device", c.device); err != nil {
				t.Fatal(err)
			}
		}
		devices, err := sampleDevices(&cfg, found(c.here))
		if err != nil || len(devices) != len(c.want) {
			t.Errorf("%s: %d devices, want %d (%v)", name, len(devices), len(c.want), err)
			continue
		}
		for i, open := range devices {
			d, err := open()
			if err != nil || d.DType != c.want[i] {
				t.Errorf("%s: device %d computes in %s, want %s (%v)", name, i, d.DType, c.want[i], err)
			}
			if err == nil {
				d.Exec.Close()
			}
		}
	}
	cfg := config.DefaultFor(config.Sample)
	if err := cfg.Set("device", "tpu"); err != nil {
		t.Fatal(err)
	}
	if _, err := sampleDevices(&cfg, found(nil)); err == nil || !strings.Contains(err.Error(), `device "tpu"`) {
		t.Errorf("a tpu: %v", err)
	}
}

func found(d *gpu.Device) func() (gpu.Device, bool) {
	return func() (gpu.Device, bool) {
		if d == nil {
			return gpu.Device{}, false
		}
		return *d, true
	}
}

// Where a run holds the GPU's memory the CPU samples, and a line says so; where the GPU is named it is an error.
func TestSamplingBesideARun(t *testing.T) {
	driver := cudatest.StandIn(t)
	if _, err := onStandIn(t, false, nil, nil); err != nil {
		t.Fatal(err)
	}
	driver.Others(cudatest.Total)
	cfg := config.DefaultFor(config.Sample)
	if err := cfg.Set("out_dir", example.OutDir); err != nil {
		t.Fatal(err)
	}
	var notes []string
	here := found(&gpu.Device{Capability: gpu.Capability{Major: 8, Minor: 6}})
	w, err := openSampler(&cfg, here, func(note string) { notes = append(notes, note) })
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := w.exec.(*cpu.Executor); !ok || len(notes) != 1 || !strings.HasPrefix(notes[0], "sampling on the CPU: ") {
		t.Errorf("sampling on %T, notes %q", w.exec, notes)
	}
	w.close()
	if err := cfg.Set("device", "cuda"); err != nil {
		t.Fatal(err)
	}
	if w, err := openSampler(&cfg, here, nil); err == nil {
		w.close()
		t.Error("a GPU without memory sampled")
	}
	driver.Others(0)
	if w, err = openSampler(&cfg, here, nil); err != nil {
		t.Fatal(err)
	}
	w.close()
}
