package program

import (
	"slices"

	"github.com/snugml/snug/internal/arena"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Life is when a tensor that is not persistent is alive: in one section, from op First to op Last, both included.
type Life struct {
	Section, First, Last int // Section is -1 for a tensor that no op touches
}

// Lifetimes derives the life of every temporary from the ops: from its first use to its last. What is given to a section
// lives through all of it. Persistent tensors, alive always, have Section -1 too.
func (p *Program) Lifetimes() []Life {
	lives := make([]Life, len(p.Tensors))
	for i := range lives {
		lives[i].Section = -1
	}
	for s := range p.Sections {
		ops := p.Sections[s].Ops
		for i := range ops {
			for _, a := range ops[i].Args {
				p.use(lives, a, s, i)
			}
			p.use(lives, ops[i].Scratch, s, i)
		}
	}
	for i := range lives {
		if l := &lives[i]; p.Tensors[i].Class == Given && l.Section >= 0 {
			l.First, l.Last = 0, len(p.Sections[l.Section].Ops)-1
		}
	}
	return lives
}

func (p *Program) use(lives []Life, a Arg, section, op int) {
	if a.None() || p.Tensors[a.ID].Class == Persistent {
		return
	}
	l := &lives[a.ID]
	if l.Section >= 0 && l.Section != section {
		panic("program: temporary " + p.Tensors[a.ID].Name + " is used in two sections")
	}
	if l.Section < 0 {
		*l = Life{section, op, op}
	}
	l.Last = op
}

// Place finds every tensor its offset in one allocation: persistent tensors first, then, in the space above, each
// section's temporaries anew, because sections run one after the other.
func (p *Program) Place() *Layout {
	l := &Layout{Program: p, Offset: make([]units.Bytes, len(p.Tensors))}
	var base units.Bytes
	for i := range p.Tensors {
		if p.Tensors[i].Class == Persistent {
			l.Offset[i] = base
			base += (p.Tensors[i].Bytes + Align - 1) / Align * Align
			l.Live += p.Tensors[i].Bytes
		}
	}
	lives := p.Lifetimes()
	var above, live units.Bytes
	var before []arena.Item
	var placed arena.Placement
	for s := range p.Sections {
		ids, items := p.temporaries(lives, s)
		if !slices.Equal(items, before) { // a later micro-batch lies as the first
			placed, before = arena.Place(items, Align), items
		}
		for k, id := range ids {
			l.Offset[id] = base + units.Bytes(placed.Offset[k])
		}
		above = max(above, units.Bytes(placed.Size))
		live = max(live, units.Bytes(arena.Live(items)))
	}
	l.Size = base + above
	l.Live += live
	return l
}

// Live is the most bytes that are alive at once, found without placing anything: what a search needs.
func (p *Program) Live() units.Bytes {
	var persistent, live units.Bytes
	for i := range p.Tensors {
		if p.Tensors[i].Class == Persistent {
			persistent += p.Tensors[i].Bytes
		}
	}
	lives := p.Lifetimes()
	change := make([][]units.Bytes, len(p.Sections)) // of the live bytes, before each op
	for s := range p.Sections {
		change[s] = make([]units.Bytes, len(p.Sections[s].Ops)+1)
	}
	for i, life := range lives {
		if life.Section >= 0 {
			change[life.Section][life.First] += p.Tensors[i].Bytes
			change[life.Section][life.Last+1] -= p.Tensors[i].Bytes
		}
	}
	for _, section := range change {
		var now units.Bytes
		for _, c := range section {
			now += c
			live = max(live, now)
		}
	}
	return persistent + live
}

// temporaries are the tensors that live in section s, as items to place.
func (p *Program) temporaries(lives []Life, s int) (ids []ID, items []arena.Item) {
	for i, life := range lives {
		if life.Section == s {
			ids = append(ids, ID(i))
			items = append(items, arena.Item{Size: int64(p.Tensors[i].Bytes), First: life.First, Last: life.Last})
		}
	}
	return ids, items
}

// Trace tells l as allocations and frees: every persistent tensor at the start, then each section's temporaries.
//
// What alignment and packing add to the most live bytes is one more tensor, alive always,
// so that the trace's peak is the allocation's size to the byte.
func (l *Layout) Trace() *trace.Trace {
	t := &trace.Trace{Tensors: make([]trace.Tensor, len(l.Tensors), len(l.Tensors)+1)}
	var start []trace.Event
	for i := range l.Tensors {
		t.Tensors[i] = l.Tensors[i].Tensor
		if l.Tensors[i].Class == Persistent {
			start = append(start, trace.Event{Tensor: int32(i)})
		}
	}
	if slack := l.Size - l.Live; slack > 0 {
		start = append(start, trace.Event{Tensor: int32(len(t.Tensors))})
		t.Tensors = append(t.Tensors, trace.Tensor{Name: "alignment", Category: trace.Workspace,
			Shape: []int{int(slack)}, DType: trace.UInt8, Bytes: slack})
	}
	lives := l.Lifetimes()
	for s := range l.Sections {
		sec := &l.Sections[s]
		if n := len(t.Phases); n == 0 || t.Phases[n-1].Name != sec.Phase {
			t.Phases = append(t.Phases, trace.Phase{Name: sec.Phase, Events: start})
			start = nil
		}
		ph := &t.Phases[len(t.Phases)-1]
		ph.Events = append(ph.Events, sectionEvents(lives, s, len(sec.Ops))...)
	}
	return t
}

// sectionEvents are the births and deaths in section s, op by op: a tensor is born before its first op and dies after its last.
func sectionEvents(lives []Life, s, ops int) []trace.Event {
	born, dead := make([][]int, ops), make([][]int, ops)
	for i, life := range lives {
		if life.Section == s {
			born[life.First] = append(born[life.First], i)
			dead[life.Last] = append(dead[life.Last], i)
		}
	}
	var events []trace.Event
	for op := range ops {
		for _, i := range born[op] {
			events = append(events, trace.Event{Tensor: int32(i)})
		}
		for _, i := range dead[op] {
			events = append(events, trace.Event{Tensor: int32(i), Free: true})
		}
	}
	return events
}

// Ledger is what is alive when the most bytes are, and the phase in which that is. It sums to l.Size.
func (l *Layout) Ledger() (phase string, ledger trace.Ledger) {
	t := l.Trace()
	var held []units.Bytes // of every event, as trace.Alive counts them
	var live, most units.Bytes
	var at [2]int
	for p := range t.Phases {
		for e, ev := range t.Phases[p].Events {
			bytes := t.Tensors[ev.Tensor].Bytes
			held = append(held, bytes)
			if ev.Free {
				bytes = -bytes
			}
			if live += bytes; live > most {
				most, at = live, [2]int{p, e}
			}
		}
	}
	return t.Phases[at[0]].Name, t.Alive(at[0], at[1], func(n int) units.Bytes { return held[n] })
}
