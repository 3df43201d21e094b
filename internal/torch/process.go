package torch

import (
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/units"
)

// Process is the memory the driver charges a training process.
type Process struct {
	Reserved units.Bytes // PyTorch's segments
	Context  units.Bytes // CUDA's context with the kernels of PyTorch and its libraries
	Margin   units.Bytes // the most by which Total has been, or may be, too small
}

// Total is what nvidia-smi shows, the margin not counted.
func (p Process) Total() units.Bytes { return p.Reserved + p.Context }

// stackPerThread is CUDA's default stack (cudaLimitStackSize). A context holds it for every thread that the card can run at
// once: raising the limit to 2 and 4 KiB on an H200 took 264 MiB, 132 multiprocessors of 2048 threads, for each KiB more.
const stackPerThread = units.KiB

// libraries is what a process takes besides its segments and the threads' stacks: the bare context, the kernels that are
// loaded when first used, cuBLAS. The figures are those of single processes.
var libraries = []struct {
	capability int // and above
	size       units.Bytes
	measured   bool // by scripts/record; else from PyTorch's own out-of-memory messages, process less allocated less unallocated
	source     string
}{
	{120, 340 * units.MiB, false, "RTX 5090, 595 MiB in all: Wan-Video/Wan2.1 issue 465"},
	{90, 478 * units.MiB, true, "H200, 742 MiB in all, driver 580.159, CUDA 13.0, torch 2.11"},
	{89, 300 * units.MiB, false, "RTX 4090, 473 and 503 MiB in all: pinokiofactory/flux-webui issue 11, 3DTopia/Phidias-Diffusion issue 8"},
	{86, 155 * units.MiB, false, "a 12 GB Ampere card under nanoGPT: 7.04 GiB with 6.78 allocated, where PyTorch reserves 6.85"},
	{80, 400 * units.MiB, false, "no message known: between Ada's and Hopper's"},
	{0, 130 * units.MiB, false, "RTX 2080 Ti, 197 MiB in all: lllyasviel/FramePack issue 369"},
}

// More that some runs load, measured on the H200.
const (
	cudnnLibrary = 16 * units.MiB  // where attention is cuDNN's: 758 instead of 742 MiB
	ncclLibrary  = 170 * units.MiB // DDP with one process: 928 instead of 758 MiB
)

// ProcessMemory is what the driver charges a run whose allocator reserved that much.
//
// The margin covers what is not known: the context where the card was not measured; what Inductor's timing of kernels
// reserves, up to 4 % of a compiled run; the peers' buffers of NCCL with several processes.
func ProcessMemory(reserved units.Bytes, cfg config.Config, opt Options) Process {
	p := Process{Reserved: reserved, Margin: 64*units.MiB + reserved/200}
	d := opt.Device.orTypical()
	for _, l := range libraries {
		if d.Capability >= l.capability {
			p.Context = l.size
			if !l.measured {
				p.Margin += 96 * units.MiB
			}
			break
		}
	}
	p.Context += units.Bytes(d.SMs*d.threadsPerSM()) * stackPerThread
	k := kernels{dev: d}
	if k.attention(dimsOf(cfg)) == cudnnAttention {
		p.Context += cudnnLibrary
	}
	if opt.DDP || opt.WorldSize > 1 {
		p.Context += ncclLibrary
	}
	if opt.WorldSize > 1 {
		p.Margin += 256 * units.MiB
	}
	if cfg.Compile {
		p.Margin += reserved / 25
	}
	return p
}
