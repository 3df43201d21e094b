// Package program owns a training step as data: ops in order over named tensors, in sections.
//
// It derives each tensor's lifetime from the ops and places all of them in one allocation; executors (cpu, cuda) run it.
// It knows signatures, never models: gpt builds programs, and nothing here knows what a layer is.
package program

import (
	"fmt"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Class says how long a tensor lives.
type Class uint8

const (
	// Temporary tensors live inside one section, from their first write to their last use.
	Temporary Class = iota
	// Persistent tensors live as long as the program: weights, gradients, optimizer state, inputs, results.
	Persistent
	// Given tensors live in one section, all of it, and are written before it runs.
	Given
)

// Tensor is a named tensor of a program.
type Tensor struct {
	trace.Tensor
	Class     Class
	Completes ID // of a master (AddMaster): the parameter that it completes
}

// Len is the number of elements.
func (t *Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Section is a run of ops executed as one: a micro-batch's forward and backward, the update, an evaluation batch.
type Section struct {
	Name  string // "train", "eval", "update", …: the program's builder names them
	Phase string // the phase of the trace that it belongs to; sections of a phase stand together
	B     int    // sequences in it; 0 where it has none
	Ops   []Op
}

// Program is tensors and the sections over them. What is not persistent belongs to one section each.
type Program struct {
	Tensors  []Tensor
	Sections []Section
}

// Layout is a program with every tensor placed in one allocation.
type Layout struct {
	*Program
	Offset []units.Bytes // of each tensor, in bytes from the start
	Size   units.Bytes   // of the allocation
	Live   units.Bytes   // the most bytes that are alive at once: Size's lower bound
}

// Align is the alignment of every tensor in the arena.
const Align = 256

// Add appends a tensor and returns its ID.
func (p *Program) Add(class Class, category trace.Category, dtype trace.DType, name string, shape ...int) ID {
	t := Tensor{Class: class, Tensor: trace.Tensor{Name: name, Category: category, DType: dtype, Shape: shape}}
	t.Bytes = units.Bytes(int64(t.Len()) * dtype.Size())
	p.Tensors = append(p.Tensors, t)
	return ID(len(p.Tensors) - 1)
}

// AddMaster appends what AdamW keeps beside a persistent param, as MasterOf has it, and returns its ID, None where there is none.
func (p *Program) AddMaster(category trace.Category, name string, param ID) ID {
	t := p.Tensors[param]
	dtype := MasterOf(t.DType)
	if dtype == "" {
		return None
	}
	master := p.Add(Persistent, category, dtype, name, t.Shape...)
	p.Tensors[master].Completes = param
	return master
}

// Whole is the argument that is all of tensor id.
func (p *Program) Whole(id ID) Arg {
	if id == None {
		return Absent
	}
	return Arg{ID: id, Len: p.Tensors[id].Len()}
}

// Find returns the tensor called name, or None.
func (p *Program) Find(name string) ID {
	for i := range p.Tensors {
		if p.Tensors[i].Name == name {
			return ID(i)
		}
	}
	return None
}

// Section returns the index of the section called name, or -1.
func (p *Program) Section(name string) int {
	for i := range p.Sections {
		if p.Sections[i].Name == name {
			return i
		}
	}
	return -1
}

// AddScratch gives every op the workspace that need says it wants.
func (p *Program) AddScratch(need func(*Op) units.Bytes) {
	for s := range p.Sections {
		for i := range p.Sections[s].Ops {
			op := &p.Sections[s].Ops[i]
			if n := int(need(op)); n > 0 {
				op.Scratch = p.Whole(p.Add(Temporary, trace.Workspace, trace.UInt8, op.Name+".scratch", n))
			}
		}
	}
}

// Check reports the first op whose arguments do not match its signature, or that reads what nothing wrote.
func (p *Program) Check() error {
	for _, s := range p.Sections {
		written := map[ID]bool{}
		for i := range s.Ops {
			if err := p.checkOp(&s.Ops[i], written); err != nil {
				return fmt.Errorf("section %s, op %d %s %s: %w", s.Name, i, s.Ops[i].Name, s.Ops[i].Code, err)
			}
		}
	}
	return nil
}

func (p *Program) checkOp(op *Op, written map[ID]bool) error {
	spec := op.Code.Spec()
	if !spec.takes(len(op.Args)) {
		return fmt.Errorf("%d arguments, the signature has %d", len(op.Args), len(spec.Params))
	}
	for i, a := range op.Args {
		param := op.Param(i)
		if a.None() {
			if !param.Optional {
				return fmt.Errorf("%s is absent", param.Name)
			}
			continue
		}
		t := &p.Tensors[a.ID]
		if a.Len <= 0 || a.Offset < 0 || a.Offset+a.Len > t.Len() {
			return fmt.Errorf("%s is [%d:%d] of %s, which has %d elements", param.Name, a.Offset, a.Offset+a.Len, t.Name, t.Len())
		}
		if t.Class == Temporary && op.Reads(i) && !written[a.ID] {
			return fmt.Errorf("%s reads %s before anything wrote it", param.Name, t.Name)
		}
	}
	for i, a := range op.Args {
		if !a.None() && op.Param(i).Access != Read {
			written[a.ID] = true
		}
	}
	return nil
}
