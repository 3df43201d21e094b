// Package fit owns the search over settings: which of them fit a limit, and what each costs.
//
// It asks torch what a configuration takes and ranks the changes that make it fit: first those that leave
// training the same, then those that change it. Speeds are estimates from a cost model, and called so.
// It never computes a tensor's size, and never changes a file.
package fit

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/torch"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Target is the device that a run must fit on.
type Target struct {
	Card    gpu.Card
	Assumed bool        // the card stands for a device that is only known by its memory
	Limit   units.Bytes // what the process may take; 0 is no limit
}

// Device is what of the target decides the sequence of allocations.
func (t Target) Device() torch.Device {
	c := t.Card.Capability()
	return torch.Device{Capability: 10*c.Major + c.Minor, SMs: t.Card.SMs, L2: t.Card.L2()}
}

// OnCard is the target of a whole card.
func OnCard(c gpu.Card) Target { return Target{Card: c, Limit: c.Memory} }

// Within is the target of a limit on a device that is not named: the card that people most likely mean by it
// stands in, the smallest GeForce of the catalogue that has as much memory, or else the smallest card at all.
func Within(limit units.Bytes) Target {
	var best gpu.Card
	better := func(c gpu.Card) bool {
		switch {
		case best.Name == "":
			return true
		case c.Consumer() != best.Consumer():
			return c.Consumer()
		case c.Memory != best.Memory:
			return c.Memory < best.Memory
		}
		return c.BF16() && !best.BF16()
	}
	for _, c := range gpu.Cards() {
		if c.Memory >= limit-rounding && !c.Laptop && better(c) {
			best = c
		}
	}
	if best.Name == "" { // more than any card has: the largest
		for _, c := range gpu.Cards() {
			if c.Memory > best.Memory {
				best = c
			}
		}
	}
	return Target{Card: best, Assumed: true, Limit: limit}
}

// rounding is how far a limit typed with two decimals of a GiB may lie above what was meant.
const rounding = units.GiB / 200

// Setup is everything that decides what a PyTorch run takes.
type Setup struct {
	Config    config.Config
	AllocConf torch.AllocConf
	Options   torch.Options // Device is the target's
}

// Peak is the largest memory of a run, in three of the four numbers (the fourth is the card's total).
type Peak struct {
	Phase     string      `json:"phase"`
	Allocated units.Bytes `json:"allocated"`
	Reserved  units.Bytes `json:"reserved"`
	Process   units.Bytes `json:"process"`
}

// Outcome is what a setup takes on a target.
type Outcome struct {
	Setup   Setup
	Trace   *trace.Trace
	Result  torch.Result // without a limit: what the run would take
	Peak    Peak
	Context units.Bytes // of Process, what is not PyTorch's segments
	Margin  units.Bytes // Process may be this much more
	Fits    bool
	Tight   bool           // fits, but only because PyTorch gives cached memory back and asks again, which is slow
	Failure *torch.Failure // where PyTorch fails under the limit
	Seconds float64        // an iteration, estimated
}

// Try simulates a setup on a target.
func Try(s Setup, t Target) (*Outcome, error) {
	r, err := under(&s, t)
	if err != nil {
		return nil, err
	}
	o := &Outcome{Setup: s, Trace: r.trace, Seconds: seconds(s, r.trace, t),
		Fits: r.ok && r.Failure == nil, Failure: r.Failure, Result: r.Result}
	if r.Retries > 0 || !o.Fits {
		o.Result = torch.Simulate(r.trace, s.AllocConf, 0)
	}
	peak := o.Result.Peak()
	process := torch.ProcessMemory(o.Result.Reserved(), s.Config, s.Options)
	o.Context, o.Margin = process.Context, process.Margin
	o.Peak = Peak{Phase: peak.Name, Allocated: peak.PeakAllocated, Reserved: process.Reserved, Process: process.Total()}
	o.Tight = o.Fits && t.Limit > 0 && o.Peak.Process+o.Margin > t.Limit
	return o, nil
}

// run is a simulation under a target's limit.
type run struct {
	torch.Result
	trace *trace.Trace
	ok    bool // the limit leaves room beside the context at all
}

// under simulates a setup with what the target leaves the allocator. Where nothing fails and nothing is retried,
// the limit was never felt, and the result is that of a card without one.
func under(s *Setup, t Target) (run, error) {
	s.Options.Device = t.Device()
	tr, err := torch.Build(s.Config, s.Options)
	if err != nil {
		return run{}, err
	}
	var room units.Bytes
	if t.Limit > 0 {
		full := torch.ProcessMemory(t.Limit, s.Config, s.Options)
		if room = t.Limit - full.Context - full.Margin; room <= 0 {
			return run{trace: tr}, nil
		}
	}
	return run{torch.Simulate(tr, s.AllocConf, room), tr, true}, nil
}

// TokensPerSecond is the estimated speed.
func (o *Outcome) TokensPerSecond() float64 {
	c := &o.Setup.Config
	return float64(c.EffectiveBatch()) * float64(c.BlockSize) / o.Seconds
}

// Verdict says in one line whether it fits, with both numbers.
func (o *Outcome) Verdict(t Target) string {
	need := o.Peak.Process.GiB()
	switch {
	case t.Limit == 0:
		return "needs " + need
	case o.Tight:
		return fmt.Sprintf("fits only by giving cached memory back: wants %s of %s, and runs slower for it", need, t.Limit.GiB())
	case o.Fits:
		return fmt.Sprintf("fits: needs %s of %s", need, t.Limit.GiB())
	}
	return fmt.Sprintf("does not fit: needs %s, has %s", need, t.Limit.GiB())
}
