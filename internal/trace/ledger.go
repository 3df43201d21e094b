package trace

import (
	"cmp"
	"slices"

	"github.com/snugml/snug/internal/units"
)

// Entry is one line of a ledger: a tensor that is alive, and the bytes its allocator holds for it.
type Entry struct {
	Tensor
	Held units.Bytes // Bytes after the allocator's rounding
}

// Ledger lists what is alive at one moment. Its entries sum to what the allocator has handed out at that moment.
type Ledger []Entry

// Alive lists the tensors alive after event of phase (both counted from 0), the largest first, equals in order of birth.
//
// held gives the bytes the allocator took for an allocating event, by the event's number in the whole trace.
func (t *Trace) Alive(phase, event int, held func(n int) units.Bytes) Ledger {
	birth := make([]int, len(t.Tensors))
	for i := range birth {
		birth[i] = -1
	}
	n := 0
	for p := range t.Phases[:phase+1] {
		events := t.Phases[p].Events
		if p == phase {
			events = events[:event+1]
		}
		for _, e := range events {
			if e.Free {
				birth[e.Tensor] = -1
			} else {
				birth[e.Tensor] = n
			}
			n++
		}
	}
	var order []int
	for i, b := range birth {
		if b >= 0 {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(held(birth[b]), held(birth[a])), cmp.Compare(birth[a], birth[b]))
	})
	ledger := make(Ledger, len(order))
	for i, tensor := range order {
		ledger[i] = Entry{Tensor: t.Tensors[tensor], Held: held(birth[tensor])}
	}
	return ledger
}

// Total is the sum of what the ledger's entries hold.
func (l Ledger) Total() units.Bytes {
	var sum units.Bytes
	for _, e := range l {
		sum += e.Held
	}
	return sum
}

// Sum is the total of one category.
type Sum struct {
	Category Category
	Count    int
	Held     units.Bytes
}

// ByCategory sums the ledger by category, the largest first. The sums add up to Total.
func (l Ledger) ByCategory() []Sum {
	var sums []Sum
	for _, e := range l {
		i := slices.IndexFunc(sums, func(s Sum) bool { return s.Category == e.Category })
		if i < 0 {
			i = len(sums)
			sums = append(sums, Sum{Category: e.Category})
		}
		sums[i].Count++
		sums[i].Held += e.Held
	}
	slices.SortStableFunc(sums, func(a, b Sum) int { return cmp.Compare(b.Held, a.Held) })
	return sums
}
