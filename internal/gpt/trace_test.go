package gpt

import (
	"testing"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// The trace's peak is the allocation's size to the byte, and its ledger sums to it.
func TestTracePeakIsTheAllocation(t *testing.T) {
	n := 0
	configurations(func(name string, m Model, s Shape, p Policy) {
		if n++; n%9 != 0 {
			return
		}
		step, err := Build(m, s, p)
		if err != nil {
			t.Fatal(err)
		}
		l := step.Place()
		phase, ledger := l.Ledger()
		if ledger.Total() != l.Size {
			t.Errorf("%s: the ledger at the peak (%s) sums to %d, the allocation is %d", name, phase, ledger.Total(), l.Size)
		}
		var live, most units.Bytes
		alive := map[int32]bool{}
		tr := l.Trace()
		for _, ph := range tr.Phases {
			for _, e := range ph.Events {
				if alive[e.Tensor] == !e.Free {
					t.Fatalf("%s: %s is born or dies twice", name, tr.Tensors[e.Tensor].Name)
				}
				alive[e.Tensor] = !e.Free
				if e.Free {
					live -= tr.Tensors[e.Tensor].Bytes
				} else {
					live += tr.Tensors[e.Tensor].Bytes
				}
				most = max(most, live)
			}
		}
		if most != l.Size {
			t.Errorf("%s: the trace peaks at %d, the allocation is %d", name, most, l.Size)
		}
		if phases := []string{tr.Phases[0].Name, tr.Phases[1].Name}; len(tr.Phases) != 2 || phases[0] != "eval" || phases[1] != "step" {
			t.Errorf("%s: phases %v", name, phases)
		}
	})
	if step, err := Build(odd, Shape{Batch: 1}, Policy{MicroBatch: 1, Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32}); err != nil || step.Eval != -1 {
		t.Errorf("without evaluation: section %d, %v", step.Eval, err)
	}
}
