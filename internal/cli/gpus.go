package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/term"
)

// probeCommand is the hidden command that a gpu.Probe runs in a child process.
const probeCommand = "gpu-probe"

// newProbe asks this very program, in a child process, about the GPUs.
func newProbe() (*gpu.Probe, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find snug's own path: %w", err)
	}
	return &gpu.Probe{Command: []string{self, probeCommand}, Timeout: 20 * time.Second}, nil
}

// noDevice gives a machine without a GPU its exit code.
func noDevice(err error) error {
	var none *gpu.NoDeviceError
	if errors.As(err, &none) {
		return &exitError{ExitNoDevice, err}
	}
	return err
}

func newGPUProbe(io *term.IO) *cobra.Command {
	return &cobra.Command{
		Use: probeCommand, Short: "Answer each line on stdin with the GPUs' state as a line of JSON", Hidden: true, Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return gpu.Serve(io.In, io.Out, func() (gpu.NVML, error) { return gpu.Open(io.Env("SNUG_NVML")) }, gpu.ProcessFacts)
		},
	}
}

func newGPUs(io *term.IO) *cobra.Command {
	return &cobra.Command{
		Use:   "gpus",
		Short: "List the GPUs: their memory, who holds it, what would free it",
		Long: "gpus lists this machine's NVIDIA GPUs: total and free memory, compute capability, bf16 or not, and who holds the memory.\n" +
			"It says what would free memory, and never does it. SNUG_NVML names the driver's NVML library where it is not found by itself.",
		Example: "  snug gpus\n  snug gpus --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			probe, err := newProbe()
			if err != nil {
				return err
			}
			defer probe.Close()
			s, err := probe.Snapshot(cmd.Context())
			if err != nil {
				return noDevice(err)
			}
			if wantJSON(cmd) {
				return writeJSON(io.Out, gpusReport(s))
			}
			return writeGPUs(io.Out, s)
		},
	}
}

// gpuReport is a device in `gpus --json`: the snapshot's figures, and what follows from them.
type gpuReport struct {
	gpu.Device
	BF16 bool   `json:"bf16"`
	Card string `json:"card,omitempty"` // the catalogue's name for it
}

func gpusReport(s gpu.Snapshot) any {
	var devices []gpuReport
	for _, d := range s.Devices {
		r := gpuReport{Device: d, BF16: d.BF16()}
		if card, ok := gpu.ForDevice(d.Name, d.Total); ok {
			r.Card = card.Name
		}
		devices = append(devices, r)
	}
	return struct {
		Driver  string       `json:"driver"`
		CUDA    string       `json:"cuda,omitempty"`
		Devices []gpuReport  `json:"devices"`
		Advice  []gpu.Advice `json:"advice"`
	}{s.Driver, s.CUDA, devices, append([]gpu.Advice{}, gpu.Advise(s)...)}
}

func writeGPUs(out *term.Stream, s gpu.Snapshot) error {
	driver := "driver " + s.Driver
	if s.CUDA != "" {
		driver += ", CUDA up to " + s.CUDA
	}
	fmt.Fprintf(out, "%s\n\n", out.Paint(term.Dim, driver))
	if err := out.Table(deviceTable(out, s)); err != nil {
		return err
	}
	if t := processTable(s); len(t.Rows) > 0 {
		fmt.Fprintln(out)
		if err := out.Table(t); err != nil {
			return err
		}
	}
	if advice := gpu.Advise(s); len(advice) > 0 {
		fmt.Fprintf(out, "\n%s\n", out.Paint(term.Bold, "To free memory"))
		for _, a := range advice {
			for i, line := range term.Wrapped(fmt.Sprintf("GPU %s: %s", a.Device, a.Text), out.Width-4) {
				fmt.Fprintf(out, "%s%s\n", []string{"  ", "    "}[min(i, 1)], line)
			}
		}
	}
	return nil
}

func deviceTable(out *term.Stream, s gpu.Snapshot) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "GPU"}, {Title: "name"}, {Title: "total", Align: term.Right}, {Title: "free", Align: term.Right},
		{Title: "used", Align: term.Right}, {Title: "compute", Align: term.Right}, {Title: "bf16"}, {Title: "busy", Align: term.Right}}}
	for _, d := range s.Devices {
		if d.Fault != "" {
			t.Add(d.Label(), d.Name, "?", "?", "?", "?", "?", "?")
			continue
		}
		bf16, busy := "no", "?"
		if d.BF16() {
			bf16 = "yes"
		}
		if d.Percent != nil {
			busy = fmt.Sprintf("%d%%", *d.Percent)
		}
		name := d.Name
		if d.MIG {
			name += " (in MIG instances)"
		}
		t.Add(d.Label(), fitted(out, name), d.Total.GiB(), d.Free.GiB(), d.Used.GiB(), d.Capability.String(), bf16, busy)
	}
	return t
}

// fitted cuts a device's name to what the other columns leave on a terminal.
func fitted(out *term.Stream, name string) string {
	if !out.TTY {
		return name
	}
	return term.Truncate(strings.TrimPrefix(name, "NVIDIA "), max(12, out.Width-63))
}

func processTable(s gpu.Snapshot) *term.Table {
	t := &term.Table{Columns: []term.Column{{Title: "GPU"}, {Title: "pid", Align: term.Right}, {Title: "memory", Align: term.Right}, {Title: "user"},
		{Title: "age", Align: term.Right}, {Title: "command", Align: term.Wrap}}}
	for _, d := range s.Devices {
		if d.MIG {
			continue
		}
		for _, p := range d.Processes {
			t.Add(d.Label(), fmt.Sprint(p.PID), p.Holds(), orUnknown(p.User), p.Runs(s.Time), orUnknown(p.Command))
		}
	}
	return t
}

func orUnknown(s string) string {
	if s == "" {
		return "?"
	}
	return s
}
