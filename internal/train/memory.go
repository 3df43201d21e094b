package train

import "github.com/snugml/snug/internal/units"

// FreeMemory is the host memory that a run may take without pushing others out; 0 where the system does not say.
func FreeMemory() units.Bytes { return freeMemory() }

// hostMargin is what Go's runtime, the data's pages in use and a checkpoint's buffers need beside the arena.
const hostMargin = 256 * units.MiB

// HostLimit is the arena's limit on the CPU: vram where it is given, else what is free less a margin.
func HostLimit(vram units.Bytes) units.Bytes {
	if vram > 0 {
		return vram
	}
	if free := FreeMemory(); free > 2*hostMargin {
		return free - hostMargin
	}
	return 0
}
