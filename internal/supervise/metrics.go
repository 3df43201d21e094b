package supervise

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// Metrics serves the newest state of a run in Prometheus' text form.
type Metrics struct {
	mu      sync.Mutex
	run     runs.Run
	devices []gpu.Device
}

// Set takes the newest state of the run.
func (m *Metrics) Set(r runs.Run) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.run = r
}

// SetDevices takes the newest figures of the devices.
func (m *Metrics) SetDevices(d []gpu.Device) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.devices = d
}

// ServeHTTP answers GET /metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/metrics" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, m.text())
}

func (m *Metrics) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	metric := func(name, kind, help string, values ...string) {
		if len(values) == 0 {
			return
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, v := range values {
			fmt.Fprintf(&b, "%s%s\n", name, v)
		}
	}
	r := m.run
	if r.Attempt > 0 {
		metric("snug_run_attempts_total", "counter", "Starts of the trainer.", fmt.Sprintf(" %d", r.Attempt))
		metric("snug_run_restarts_total", "counter", "Restarts after memory ran out.", fmt.Sprintf(" %d", r.Attempt-1))
	}
	if r.Iteration != nil {
		metric("snug_run_iteration", "gauge", "The last iteration that the trainer printed.", fmt.Sprintf(" %d", *r.Iteration))
	}
	metric("snug_run_loss", "gauge", "The last loss that the trainer printed.", number(r.Loss)...)
	metric("snug_run_step_seconds", "gauge", "The last step's time.", number(r.StepSeconds)...)
	metric("snug_run_memory_limit_bytes", "gauge", "Memory that the run may take.", size(r.Limit)...)
	metric("snug_run_memory_predicted_bytes", "gauge", "Predicted peak of process memory.", size(r.Predicted)...)
	metric("snug_run_memory_peak_bytes", "gauge", "Measured peak of process memory.", size(r.Measured)...)
	for _, f := range []struct {
		name, help string
		read       func(gpu.Device) units.Bytes
	}{
		{"snug_gpu_memory_total_bytes", "Memory that programs can have on the device.", func(d gpu.Device) units.Bytes { return d.Total }},
		{"snug_gpu_memory_used_bytes", "Memory in use on the device.", func(d gpu.Device) units.Bytes { return d.Used }},
	} {
		var values []string
		for _, d := range m.devices {
			if d.Fault == "" {
				values = append(values, fmt.Sprintf("{gpu=%q,uuid=%q} %d", d.Label(), d.UUID, f.read(d)))
			}
		}
		metric(f.name, "gauge", f.help, values...)
	}
	return b.String()
}

func number(v *float64) []string {
	if v == nil {
		return nil
	}
	return []string{fmt.Sprintf(" %g", *v)}
}

func size(v *units.Bytes) []string {
	if v == nil {
		return nil
	}
	return []string{fmt.Sprintf(" %d", *v)}
}
