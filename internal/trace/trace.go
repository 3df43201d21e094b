// Package trace owns the spine of snug: a training step as named allocations and frees, in phases.
//
// Producers (torch, gpt) append events; readers (allocators, ledger, reports, doctor) walk them.
// It knows nothing of frameworks, allocators or models, and never computes a tensor's meaning.
package trace

import "github.com/snugml/snug/internal/units"

// DType is the element type of a tensor, under PyTorch's name.
type DType string

const (
	Float32  DType = "float32"
	BFloat16 DType = "bfloat16"
	Float16  DType = "float16"
	Int64    DType = "int64"
	Int32    DType = "int32"
	UInt16   DType = "uint16"
	UInt8    DType = "uint8"
	Bool     DType = "bool"

	// Float32Low is the lower 16 bits of float32 values whose upper ones are a bfloat16 tensor. PyTorch has no such type.
	Float32Low DType = "float32.low16"
)

// Size is the bytes of one element.
func (d DType) Size() int64 {
	switch d {
	case Int64:
		return 8
	case Float32, Int32:
		return 4
	case BFloat16, Float16, UInt16, Float32Low:
		return 2
	case UInt8, Bool:
		return 1
	}
	panic("trace: unknown dtype " + string(d))
}

// Category says what a tensor is for; reports group by it.
type Category string

const (
	Weight     Category = "weight"
	Gradient   Category = "gradient"
	Optimizer  Category = "optimizer"
	Activation Category = "activation"
	Workspace  Category = "workspace"
	Input      Category = "input"
)

// Tensor is one allocation: nanoGPT's name for it, its shape and what it takes.
type Tensor struct {
	Name     string
	Category Category
	Shape    []int
	DType    DType
	Bytes    units.Bytes // the product of shape and dtype, before any allocator's rounding
}

// Numel is how many elements the tensor has.
func (t *Tensor) Numel() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Event is the birth or the death of a tensor. A tensor that has died may be born again.
type Event struct {
	Tensor int32 // index into Trace.Tensors
	Free   bool
}

// Stage is a part of a phase that begins with event First: forward, backward, optimizer.
type Stage struct {
	Name  string
	First int
}

// Phase is a named run of events: init, eval, first_step, step, resume.
type Phase struct {
	Name   string
	Stages []Stage // in order of First; may be empty
	Events []Event
}

// Stage names the stage that event belongs to: the last one that began at or before it, or the phase itself.
func (p *Phase) Stage(event int) string {
	name := p.Name
	for _, s := range p.Stages {
		if s.First <= event {
			name = s.Name
		}
	}
	return name
}

// Trace is a whole run's allocations in order. What is alive at the end of a phase is alive at the start of the next.
type Trace struct {
	Tensors []Tensor
	Phases  []Phase
}
