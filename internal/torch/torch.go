// Package torch owns what nanoGPT's train.py takes under PyTorch: the sequence of its allocations and frees, eager and
// compiled, built from the settings; and PyTorch's caching allocator, simulated, that turns the sequence into memory.
//
// Every number comes from the sequence. Constants appear only where PyTorch or CUDA has one, with their source.
// It never runs Python, never touches a device, and never decides which settings are better: fit does.
package torch

import "github.com/snugml/snug/internal/units"

// Device is what of a GPU decides the sequence of allocations. The zero Device is a typical one.
type Device struct {
	Capability int         // compute capability, 10·major + minor: 86 is Ampere's consumer cards
	SMs        int         // multiprocessors
	L2         units.Bytes // L2 cache; compiled runs flush it between measurements of kernels
}

// typical stands for a card of which nothing is known: a mid-range GeForce of the Ampere generation.
var typical = Device{Capability: 86, SMs: 46, L2: 4 * units.MiB}

func (d Device) orTypical() Device {
	if d == (Device{}) {
		return typical
	}
	return d
}

// Options are the choices that are not nanoGPT's settings.
type Options struct {
	Device     Device
	DropLogits bool // the loop lets go of logits after each backward (one added line in train.py: logits = None)
	EvalBatch  int  // sequences in estimate_loss's batches; 0: batch_size
	DDP        bool // under torchrun: the model is wrapped in DistributedDataParallel
	WorldSize  int  // processes under DDP; 0 is 1
	Resume     bool // as init_from=resume: the checkpoint is loaded onto the GPU first, and Inductor's cache is warm
	Unpadded   bool // where PaddingKnown is false: Inductor leaves lm_head's gradient unpadded
}
