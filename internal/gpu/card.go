// Package gpu owns what is known about cards: a catalogue of published facts, and the live devices of this machine
// with their memory and processes, read through NVML.
//
// The catalogue answers "what would an RTX 3060 hold" without a GPU; List answers "what does mine hold now".
// It never allocates device memory, never changes a device's settings, and never ends a process.
package gpu

import (
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// Capability is CUDA's compute capability, 8.6 for most of the Ampere cards.
type Capability struct{ Major, Minor int }

func (c Capability) String() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// MarshalText writes "8.6", so that JSON carries the capability as people write it.
func (c Capability) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (c *Capability) UnmarshalText(text []byte) error {
	if _, err := fmt.Sscanf(string(text), "%d.%d", &c.Major, &c.Minor); err != nil {
		return fmt.Errorf("read compute capability %q: want a form such as 8.6", text)
	}
	return nil
}

// BF16 says whether the tensor cores multiply bfloat16: from Ampere on.
func (c Capability) BF16() bool { return c.Major >= 8 }

// Source says where a card's Memory comes from.
type Source string

const (
	Logged    Source = "logged"    // printed by PyTorch for that card, or for one of its family and size
	Estimated Source = "estimated" // nominal size less what the driver keeps on logged cards of the family
)

// Card is one model as published, except Memory, which is what CUDA reports for it.
type Card struct {
	Name       string // NVIDIA's name without "NVIDIA": "GeForce RTX 3060"
	Chip       string // key of the chips table: "GA10x"
	Laptop     bool
	NominalGB  int         // what the box says
	Memory     units.Bytes // totalGlobalMem under Linux, the smallest seen: a newer driver keeps more for itself
	Source     Source
	SMs        int     // streaming multiprocessors
	BoostMHz   int     // for laptops the top of the published range
	MatrixMHz  int     // the clock behind the published tensor-core rates where it differs from BoostMHz, else 0
	FullRate   bool    // tensor cores accumulate fp16 products in fp32 at full rate; GeForce cards do at half
	BusBits    int     // memory bus
	GbpsPerPin float64 // memory data rate
	Aliases    []string
}

// chip holds what the cards of one silicon family share: operations (2 a fused multiply-add) per SM and clock.
type chip struct {
	generation string
	capability Capability
	fp32       int     // CUDA cores
	fp16       int     // tensor cores, dense, fp32 accumulation at full rate; 0 without tensor cores
	l2         float64 // L2 cache in KiB per bit of the memory bus: caches and memory controllers come together
}

// chips are from NVIDIA's architecture white papers (GP100, GV100, TU102, GA100, GA102, AD102, GH100, Blackwell).
var chips = map[string]chip{
	"GP100": {"Pascal", Capability{6, 0}, 128, 0, 1},
	"GP10x": {"Pascal", Capability{6, 1}, 256, 0, 8},
	"GV100": {"Volta", Capability{7, 0}, 128, 1024, 1.5},
	"TU10x": {"Turing", Capability{7, 5}, 128, 1024, 16},
	"TU11x": {"Turing", Capability{7, 5}, 128, 0, 8},
	"GA100": {"Ampere", Capability{8, 0}, 128, 2048, 8},
	"GA10x": {"Ampere", Capability{8, 6}, 256, 1024, 16},
	"GA10B": {"Ampere", Capability{8, 7}, 256, 2048, 16},
	"AD10x": {"Ada", Capability{8, 9}, 256, 1024, 192},
	"GH100": {"Hopper", Capability{9, 0}, 256, 4096, 10},
	"GB100": {"Blackwell", Capability{10, 0}, 256, 8192, 15.75},
	"GB110": {"Blackwell", Capability{10, 3}, 256, 8192, 15.75},
	"GB20x": {"Blackwell", Capability{12, 0}, 256, 1024, 192},
	"GB10":  {"Blackwell", Capability{12, 1}, 256, 1024, 96},
}

// Generation is the marketing name of the architecture: "Ampere".
func (c Card) Generation() string { return chips[c.Chip].generation }

// Capability is the compute capability that CUDA reports.
func (c Card) Capability() Capability { return chips[c.Chip].capability }

// BF16 says whether the card trains in bfloat16 at tensor-core speed.
func (c Card) BF16() bool { return c.Capability().BF16() }

// L2 is the size of the L2 cache, to within what a card has switched off.
func (c Card) L2() units.Bytes {
	return units.Bytes(chips[c.Chip].l2 * float64(c.BusBits) * float64(units.KiB))
}

// Consumer says whether it is a GeForce, the kind that people own.
func (c Card) Consumer() bool { return strings.HasPrefix(c.Name, "GeForce") }

// Bandwidth is the memory's peak, in bytes a second.
func (c Card) Bandwidth() float64 { return float64(c.BusBits) / 8 * c.GbpsPerPin * 1e9 }

// FP32 is the CUDA cores' peak, in operations a second.
func (c Card) FP32() float64 {
	return float64(c.SMs*chips[c.Chip].fp32) * float64(c.BoostMHz) * 1e6
}

// FP16 is the dense peak of matrix products of fp16 accumulated in fp32, as PyTorch asks for them, in operations a
// second. Without tensor cores cuBLAS computes such products on the CUDA cores, at the fp32 rate.
func (c Card) FP16() float64 {
	ops := chips[c.Chip].fp16
	if ops == 0 {
		return c.FP32()
	}
	if !c.FullRate {
		ops /= 2
	}
	mhz := c.BoostMHz
	if c.MatrixMHz != 0 {
		mhz = c.MatrixMHz
	}
	return float64(c.SMs*ops) * float64(mhz) * 1e6
}

// BF16Rate is FP16's figure where the tensor cores know bfloat16, else 0: such cards emulate it, slower than fp32.
func (c Card) BF16Rate() float64 {
	if !c.BF16() {
		return 0
	}
	return c.FP16()
}

// TF32 is the dense peak of fp32 matrix products with TF32 allowed: half of fp16's from Ampere on, else FP32's.
func (c Card) TF32() float64 {
	if c.Capability().Major < 8 {
		return c.FP32()
	}
	return c.FP16() / 2
}
