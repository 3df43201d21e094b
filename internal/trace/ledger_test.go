package trace

import (
	"testing"

	"github.com/snugml/snug/internal/units"
)

// A ledger lists what is alive after an event, the largest first, and its categories sum to its total.
func TestAlive(t *testing.T) {
	tr := &Trace{
		Tensors: []Tensor{
			{Name: "w", Category: Weight, Bytes: 10}, {Name: "x", Category: Activation, Bytes: 30}, {Name: "y", Category: Activation, Bytes: 30},
		},
		Phases: []Phase{
			{Name: "init", Events: []Event{{Tensor: 0}, {Tensor: 1}}},
			{Name: "step", Stages: []Stage{{"forward", 0}, {"backward", 2}},
				Events: []Event{{Tensor: 1, Free: true}, {Tensor: 2}, {Tensor: 1}, {Tensor: 2, Free: true}}},
		},
	}
	held := func(n int) units.Bytes { return []units.Bytes{512, 512, 0, 1024, 1024, 0}[n] }
	for _, c := range []struct {
		phase, event int
		want         []string
		total        units.Bytes
	}{
		{0, 1, []string{"w", "x"}, 1024},
		{1, -1, []string{"w", "x"}, 1024},
		{1, 0, []string{"w"}, 512},
		{1, 2, []string{"y", "x", "w"}, 2560},
		{1, 3, []string{"x", "w"}, 1536},
	} {
		l := tr.Alive(c.phase, c.event, held)
		var sum units.Bytes
		for _, s := range l.ByCategory() {
			sum += s.Held
		}
		if len(l) != len(c.want) || l.Total() != c.total || sum != c.total {
			t.Fatalf("phase %d event %d: %+v, want %v of %d", c.phase, c.event, l, c.want, c.total)
		}
		for i, e := range l {
			if e.Name != c.want[i] {
				t.Errorf("phase %d event %d: entry %d is %s, want %s", c.phase, c.event, i, e.Name, c.want[i])
			}
		}
	}
	for event, want := range []string{"forward", "forward", "backward", "backward"} {
		if got := tr.Phases[1].Stage(event); got != want {
			t.Errorf("event %d is in %s, want %s", event, got, want)
		}
	}
	if got := tr.Phases[0].Stage(0); got != "init" {
		t.Errorf("without stages an event is in %s, want init", got)
	}
}
