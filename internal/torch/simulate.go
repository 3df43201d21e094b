package torch

import (
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Result is what a trace takes under PyTorch's caching allocator.
type Result struct {
	Phases  []PhaseResult // as in the trace; after a failure, the phases up to and with the failing one
	Failure *Failure      // nil when everything fitted
	Retries int           // requests that fitted only after cached memory was given back: the run is slow there

	trace *trace.Trace
	held  []int64 // bytes held for each event's block, by the event's number in the whole trace
}

// PhaseResult is one phase's memory. Reserved never shrinks by itself, so a phase inherits the former's.
type PhaseResult struct {
	Name          string
	PeakAllocated units.Bytes
	PeakReserved  units.Bytes
	After         units.Bytes // allocated at the end
	PeakEvent     int         // the event that reached PeakAllocated; -1 when the phase began there
}

// Failure is the request that did not fit, in the figures of PyTorch's own message.
type Failure struct {
	Phase     string
	Stage     string // forward, backward, optimizer, or the phase's own name
	Event     int    // within the phase
	Tensor    trace.Tensor
	Tried     units.Bytes // "Tried to allocate": the segment asked of the driver
	Allocated units.Bytes // "is allocated by PyTorch"
	Reserved  units.Bytes // Allocated and "reserved by PyTorch but unallocated"
	Free      units.Bytes // the limit less Reserved
}

// Simulate runs the trace through PyTorch's caching allocator. limit is what the allocator may reserve, the
// context not counted; 0 is no limit.
func Simulate(tr *trace.Trace, conf AllocConf, limit units.Bytes) Result {
	a := newAllocator(conf, limit)
	total := 0
	for _, p := range tr.Phases {
		total += len(p.Events)
	}
	r := Result{trace: tr, held: make([]int64, 0, total)}
	at := make([]int32, len(tr.Tensors))
	for i := range tr.Phases {
		p := &tr.Phases[i]
		pr := PhaseResult{Name: p.Name, PeakAllocated: units.Bytes(a.allocated), PeakReserved: units.Bytes(a.reserved), PeakEvent: -1}
		for n, e := range p.Events {
			if e.Free {
				a.release(at[e.Tensor])
				r.held = append(r.held, 0)
				continue
			}
			b := a.alloc(int64(tr.Tensors[e.Tensor].Bytes))
			if b == none {
				r.Failure = a.failure(p, n, tr.Tensors[e.Tensor])
				break
			}
			at[e.Tensor] = b
			r.held = append(r.held, a.blocks[b].size)
			if now := units.Bytes(a.allocated); now > pr.PeakAllocated {
				pr.PeakAllocated, pr.PeakEvent = now, n
			}
			pr.PeakReserved = max(pr.PeakReserved, units.Bytes(a.reserved))
		}
		pr.After = units.Bytes(a.allocated)
		r.Phases = append(r.Phases, pr)
		if r.Failure != nil {
			break
		}
	}
	r.Retries = a.retries
	return r
}

func (a *allocator) failure(p *trace.Phase, event int, t trace.Tensor) *Failure {
	return &Failure{
		Phase: p.Name, Stage: p.Stage(event), Event: event, Tensor: t,
		Tried:     units.Bytes(segmentSize(a.conf.round(int64(t.Bytes)))),
		Allocated: units.Bytes(a.allocated), Reserved: units.Bytes(a.reserved), Free: units.Bytes(a.limit - a.reserved),
	}
}

// Peak is the phase with the largest allocated memory, the first of equals.
func (r *Result) Peak() PhaseResult {
	return r.Phases[r.peak()]
}

func (r *Result) peak() int {
	best := 0
	for i, p := range r.Phases {
		if p.PeakAllocated > r.Phases[best].PeakAllocated {
			best = i
		}
	}
	return best
}

// Reserved is the most the allocator ever held.
func (r *Result) Reserved() units.Bytes {
	var most units.Bytes
	for _, p := range r.Phases {
		most = max(most, p.PeakReserved)
	}
	return most
}

// Ledger lists what is alive at the run's peak; its entries sum to Peak().PeakAllocated.
func (r *Result) Ledger() trace.Ledger { return r.LedgerOf(r.peak()) }

// LedgerOf lists what is alive at the peak of one phase; its entries sum to that phase's PeakAllocated.
func (r *Result) LedgerOf(phase int) trace.Ledger {
	return r.trace.Alive(phase, r.Phases[phase].PeakEvent, func(n int) units.Bytes { return units.Bytes(r.held[n]) })
}

// LedgerAtFailure lists what was alive when the failing request came.
func (r *Result) LedgerAtFailure() trace.Ledger {
	if r.Failure == nil {
		return nil
	}
	return r.trace.Alive(len(r.Phases)-1, r.Failure.Event-1, func(n int) units.Bytes { return units.Bytes(r.held[n]) })
}
