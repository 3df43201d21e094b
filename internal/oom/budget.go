package oom

import (
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Budget is the card's memory when it ran out, as far as the message tells. What it does not tell is nil.
//
// Total = Free + Others + Process; Process = Allocated + Unused + NonPyTorch.
type Budget struct {
	Total      *units.Bytes `json:"total"`
	Free       *units.Bytes `json:"free"`
	Others     *units.Bytes `json:"others"`      // held by other processes and the desktop
	Process    *units.Bytes `json:"process"`     // what the driver charges this process
	NonPyTorch *units.Bytes `json:"non_pytorch"` // of it, context and libraries
	Unused     *units.Bytes `json:"unused"`      // of it, reserved by PyTorch but unallocated
	Allocated  *units.Bytes `json:"allocated"`   // of it, in tensors

	Categories []trace.Sum `json:"-"` // what is inside Allocated, as simulated
}

// contextAllowance is what a CUDA context and the libraries take at most on current cards, where a message does not
// tell: only more than this counts as held by somebody else.
const contextAllowance = 900 * units.MiB

// budget works out what the message's numbers leave.
func budget(f Facts) Budget {
	if f.Process != nil && f.Allocated != nil && *f.Process < *f.Allocated-*f.Allocated/100 {
		f.Process = nil // a container's driver may report 0 bytes for every process
	}
	b := Budget{Total: f.Total, Free: f.Free, Process: f.Process, Allocated: f.Allocated, Unused: f.ReservedUnallocated}
	if b.Unused == nil && f.Reserved != nil && f.Allocated != nil {
		unused := max(0, *f.Reserved-*f.Allocated)
		b.Unused = &unused
	}
	if f.Process != nil && b.Allocated != nil && b.Unused != nil {
		if rest := *f.Process - *b.Allocated - *b.Unused; rest >= 0 {
			b.NonPyTorch = &rest
		}
	}
	b.Others = others(f, b)
	return b
}

// others is what neither is free nor belongs to this process. Without the driver's figure for the process it is
// what remains after a generous context, so it errs towards too little.
func others(f Facts, b Budget) *units.Bytes {
	if f.Total == nil || f.Free == nil {
		return nil
	}
	rest := *f.Total - *f.Free
	switch {
	case f.Process != nil:
		rest -= *f.Process
	case b.Allocated != nil && b.Unused != nil && f.Limit == nil:
		rest -= *b.Allocated + *b.Unused + contextAllowance
	default:
		return nil
	}
	if rest < 0 {
		return nil
	}
	return &rest
}

// Room is what PyTorch's allocator could have had: what it held and what was free, under its cap. 0 when unknown.
func (f Facts) Room() units.Bytes {
	b := budget(f)
	if b.Allocated == nil || b.Unused == nil || f.Free == nil {
		return 0
	}
	room := *b.Allocated + *b.Unused + *f.Free
	if f.Limit != nil {
		room = min(room, *f.Limit)
	}
	return room
}
