package torch

import (
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// ref is a live tensor of a trace under construction; nil tensors are nothing and may be freed.
type ref int32

const nothing = ref(-1)

// builder appends the events of a run to a trace. A tensor that is born again under its name takes its old place in
// the trace, unless that is still alive: then the trace holds both under one name.
type builder struct {
	tr    *trace.Trace
	more  []int32     // per tensor: another tensor of the same name, or none
	alive []bool      // per tensor
	now   units.Bytes // what is alive
	most  units.Bytes // and the most that ever was
}

// newBuilder begins a trace with room for that many tensors.
func newBuilder(tensors int) *builder {
	return &builder{
		tr:    &trace.Trace{Tensors: make([]trace.Tensor, 0, tensors)},
		more:  make([]int32, 0, tensors),
		alive: make([]bool, 0, tensors),
	}
}

// phase begins a phase with room for that many events.
func (b *builder) phase(name string, events int) {
	b.tr.Phases = append(b.tr.Phases, trace.Phase{Name: name, Events: make([]trace.Event, 0, events)})
}

// stage begins a stage of the current phase.
func (b *builder) stage(name string) {
	p := &b.tr.Phases[len(b.tr.Phases)-1]
	p.Stages = append(p.Stages, trace.Stage{Name: name, First: len(p.Events)})
}

// define adds a tensor to the trace without giving birth to it.
func (b *builder) define(t trace.Tensor) ref {
	b.tr.Tensors = append(b.tr.Tensors, t)
	b.more = append(b.more, none)
	b.alive = append(b.alive, false)
	return ref(len(b.tr.Tensors) - 1)
}

// birth allocates the tensor, or another of its name where it is still alive, and returns the one it allocated.
func (b *builder) birth(r ref) ref {
	for b.alive[r] {
		if b.more[r] == none {
			twin := b.define(b.tr.Tensors[r])
			b.more[r] = int32(twin)
		}
		r = ref(b.more[r])
	}
	b.alive[r] = true
	b.now += b.tr.Tensors[r].Bytes
	b.most = max(b.most, b.now)
	b.event(trace.Event{Tensor: int32(r)})
	return r
}

// free ends tensors, in order.
func (b *builder) free(refs ...ref) {
	for _, r := range refs {
		if r == nothing {
			continue
		}
		if !b.alive[r] {
			panic("torch: " + b.tr.Tensors[r].Name + " freed twice")
		}
		b.alive[r] = false
		b.now -= b.tr.Tensors[r].Bytes
		b.event(trace.Event{Tensor: int32(r), Free: true})
	}
}

func (b *builder) event(e trace.Event) {
	p := &b.tr.Phases[len(b.tr.Phases)-1]
	p.Events = append(p.Events, e)
}

// tensor describes a tensor by its shape.
func tensor(name string, cat trace.Category, dtype trace.DType, shape ...int) trace.Tensor {
	bytes := dtype.Size()
	for _, n := range shape {
		bytes *= int64(n)
	}
	return trace.Tensor{Name: name, Category: cat, Shape: shape, DType: dtype, Bytes: units.Bytes(bytes)}
}
