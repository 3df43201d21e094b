package cuda

import (
	"os"
	"strings"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// ProcessMemory is what the driver charges this process on the device, context and libraries included, as NVML reports
// it. ok is false where the driver does not tell (Windows, WSL, some containers).
func (d *Device) ProcessMemory() (used units.Bytes, ok bool) {
	lib, err := gpu.Open(os.Getenv("SNUG_NVML"))
	if err != nil {
		return 0, false
	}
	defer lib.Close()
	n, err := lib.Count()
	if err != nil {
		return 0, false
	}
	for i := range n {
		h, err := lib.Handle(i)
		if err != nil {
			continue
		}
		if uuid, err := lib.UUID(h); err != nil || uuid != d.UUID {
			continue
		}
		list, err := lib.Processes(h, gpu.Compute)
		if err != nil {
			return 0, false
		}
		for _, p := range list {
			// In a container the driver may know this process by another number; alone on the card it is still the one.
			if (p.PID == os.Getpid() || len(list) == 1) && p.Memory != nil {
				return *p.Memory, true
			}
		}
	}
	return 0, false
}

// blasCode is what cuBLASLt's own kernels take on the device once they are loaded, beside its workspace.
const blasCode = 32 * units.MiB

// Overhead is what the process takes beside the arena: the context and every module that dtype's steps use, which it
// loads, as measured; and what the library will load. free is what is left on the device.
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
	if d.blas != nil {
		taken, free = taken+blasCode, free-blasCode
	}
	return taken, free, nil
}
