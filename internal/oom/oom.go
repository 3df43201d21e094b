// Package oom owns the way from a failed run's output to a diagnosis: which memory failure a log holds, with which
// numbers, in which phase, for which tensor, why, and what would mend it.
//
// Reading is streamed and bounded: a Reader is an io.Writer that keeps a few kilobytes whatever passes through it.
// Numbers are only ever the printed ones; what a log does not say stays nil. It computes no tensor's size itself
// (internal/torch does), never touches a device or a file, and prints nothing.
package oom

import (
	"encoding/json"

	"github.com/snugml/snug/internal/units"
)

// Facts are the numbers of one failure message, as printed. Absent ones are nil.
//
// Allocated is in tensors, Reserved in PyTorch's segments, Process what the driver charges this process, Total the card.
type Facts struct {
	Framework           Name         `json:"framework"` // pytorch, jax, tensorflow, "" when the message does not tell
	GPU                 *int         `json:"gpu"`
	Rank                *int         `json:"rank"`
	Tried               *units.Bytes `json:"tried"`
	Total               *units.Bytes `json:"total"`
	Free                *units.Bytes `json:"free"`
	Process             *units.Bytes `json:"process"`
	Allocated           *units.Bytes `json:"allocated"`
	Reserved            *units.Bytes `json:"reserved"`
	ReservedUnallocated *units.Bytes `json:"reserved_unallocated"`
	Limit               *units.Bytes `json:"limit"` // the cap set by the user: "… allowed"

	PrivatePools *units.Bytes `json:"private_pools,omitempty"` // CUDA graphs' share of Allocated
	Others       []Holder     `json:"others,omitempty"`        // other processes on the card, where the message lists them
}

// Name is a name that may be missing: JSON shows an empty one as null.
type Name string

// MarshalJSON writes null for no name.
func (n Name) MarshalJSON() ([]byte, error) {
	if n == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(n))
}

// Holder is another process and the memory it has on the card.
type Holder struct {
	PID    int         `json:"pid"`
	Memory units.Bytes `json:"memory"`
}

// Kind is the memory that ran out.
type Kind string

const (
	Device  Kind = "device"  // the card's memory
	Library Kind = "library" // a library's workspace or handle on the card: cuBLAS, cuDNN, NCCL
	Host    Kind = "host"    // the machine's own memory
)

// Phase is where in the run it failed.
type Phase string

const (
	Init         Phase = "init"
	Load         Phase = "load"
	Eval         Phase = "eval"
	Forward      Phase = "forward"
	Backward     Phase = "backward"
	Optimizer    Phase = "optimizer"
	Compile      Phase = "compile"
	Data         Phase = "data" // reading, preparing or moving a batch
	Save         Phase = "save"
	Sample       Phase = "sample"
	UnknownPhase Phase = "unknown"
)

// coarser are the phases that scripts know (docs/doctor.md) for those that they do not: data are loaded, too.
var coarser = map[Phase]Phase{Data: Load, Save: UnknownPhase}

// Coarse is the phase as scripts know it, and the phase itself where that says less, else "".
func (p Phase) Coarse() (phase, detail Phase) {
	if c, ok := coarser[p]; ok {
		return c, p
	}
	return p, ""
}

// Failure is one memory failure found in a log.
type Failure struct {
	Dialect string // the name of the wording that matched
	Kind    Kind
	Device  string // cuda, hip, mps, xpu, npu, cpu, or "" when the message does not tell
	Facts   Facts
	Sizes   map[string]Size // the same numbers with the interval that their rounding allows
	Message string          // the message as printed, joined to one line
	Line    int64           // where it starts, from 1
	Trace   Traceback
	Below   string  // what followed it
	Logger  string  // who printed it, where it is a logger
	Buffer  *Buffer // the tensor the message or the traceback's last line spells out
}

// Buffer is a tensor spelled out in a log: by an inductor kernel's allocation or by TensorFlow.
type Buffer struct {
	Shape []int
	DType string
}

// sizes are the facts that are sizes, under their JSON names.
func (f *Facts) sizes() map[string]**units.Bytes {
	return map[string]**units.Bytes{
		"tried": &f.Tried, "total": &f.Total, "free": &f.Free, "process": &f.Process, "allocated": &f.Allocated,
		"reserved": &f.Reserved, "reserved_unallocated": &f.ReservedUnallocated, "limit": &f.Limit,
		"private_pools": &f.PrivatePools,
	}
}
