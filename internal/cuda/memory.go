package cuda

import (
	"os"
	"strings"
	"sync"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// ProcessMemory is what the driver charges this process on the device, context and libraries included, as NVML reports
// it. ok is false where the driver does not tell (Windows, WSL, some containers).
func (d *Device) ProcessMemory() (used units.Bytes, ok bool) {
	d.nvml.Lock()
	defer d.nvml.Unlock()
	if !d.nvml.tried {
		d.nvml.tried = true
		d.nvml.open(d.UUID)
	}
	if d.nvml.lib == nil {
		return 0, false
	}
	list, err := d.nvml.lib.Processes(d.nvml.handle, gpu.Compute)
	if err != nil {
		return 0, false
	}
	for _, p := range list {
		// In a container the driver may know this process by another number; alone on the card it is still the one.
		if (p.PID == os.Getpid() || len(list) == 1) && p.Memory != nil {
			return *p.Memory, true
		}
	}
	return 0, false
}

// management is NVML, opened when it is first asked and kept; lib is nil where it does not know the device.
type management struct {
	sync.Mutex
	tried  bool
	lib    gpu.NVML
	handle gpu.Handle
}

// open finds the device by its UUID.
func (m *management) open(uuid string) {
	lib, err := gpu.Open(os.Getenv("SNUG_NVML"))
	if err != nil {
		return
	}
	n, err := lib.Count()
	for i := 0; i < n && err == nil; i++ {
		var h gpu.Handle
		if h, err = lib.Handle(i); err != nil {
			break
		}
		if id, err := lib.UUID(h); err == nil && id == uuid {
			m.lib, m.handle = lib, h
			return
		}
	}
	lib.Close()
}

// close gives NVML back.
func (m *management) close() {
	m.Lock()
	defer m.Unlock()
	if m.lib != nil {
		m.lib.Close()
		m.lib = nil
	}
}

// blasCode is what cuBLASLt's own kernels take on the device once they are loaded, beside its workspace.
const blasCode = 32 * units.MiB

// Overhead is what the process takes beside the arena: the context and every module that dtype's steps use, which it
// loads, as measured; and what the library and graphs will take. free is what is left on the device.
func (d *Device) Overhead(dtype trace.DType) (taken, free units.Bytes, err error) {
	err = d.on(func() error {
		for _, u := range Units() {
			if !strings.HasSuffix(u.Name, "."+elements[dtype].suffix) && u.Name != "adamw.f32" && u.Name != "loss.f32" {
				continue
			}
			if strings.HasPrefix(u.Name, "attention") && !strings.HasPrefix(u.Name, "attention64") {
				continue // a step uses one instance; they are of a size
			}
			if err := d.load(u.Name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	free, total, err := d.Memory()
	if err != nil {
		return 0, 0, err
	}
	taken, known := d.ProcessMemory()
	if !known {
		taken = total - free // all that is used counts as ours: too much is safe
	}
	return taken + d.toCome(), free - d.toCome(), nil
}

// Free is what is left on the device now beside what will be taken after the arena.
func (d *Device) Free() (units.Bytes, error) {
	free, _, err := d.Memory()
	return free - d.toCome(), err
}

// toCome is what will be taken after the arena: the library's kernels, and graphs.
func (d *Device) toCome() (n units.Bytes) {
	if d.blas != nil {
		n += blasCode
	}
	if d.graphing() {
		n += graphRoom
	}
	return n
}
