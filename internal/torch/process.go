package torch

import "github.com/snugml/snug/internal/units"

// Process is the memory the driver charges a training process.
type Process struct {
	Reserved units.Bytes // PyTorch's segments
	Context  units.Bytes // CUDA's context, the kernels of PyTorch and cuBLAS loaded into it
	Margin   units.Bytes // how much more it may be
}

// Total is what nvidia-smi shows, the margin not counted.
func (p Process) Total() units.Bytes { return p.Reserved + p.Context }

// h200Context is what a training process takes beyond PyTorch's segments on an H200 (driver 580, CUDA 13.0): 758 MiB.
const h200Context = 758 * units.MiB

// ProcessMemory is what the driver charges a process whose allocator reserved that much on the device.
func ProcessMemory(reserved units.Bytes, d Device) Process {
	return Process{Reserved: reserved, Context: h200Context, Margin: 64*units.MiB + reserved/20}
}
