// Package arena owns the placing of things with known sizes and lifetimes in one allocation.
//
// It is offline dynamic storage allocation: lifetimes are known beforehand, so an offset is found for each item such
// that items alive together never overlap. The problem is NP-hard; a training step's lifetimes nest almost like
// brackets, so a few greedy orders and a short local search reach the bound nearly always.
// It knows nothing of tensors or programs, and never allocates memory itself.
package arena

import (
	"cmp"
	"slices"
)

// Item is something that must be placed: Size bytes, alive at every time from First to Last, both included.
type Item struct {
	Size        int64
	First, Last int
}

// Placement is where each item lies, and the size of the allocation that holds them.
type Placement struct {
	Offset []int64
	Size   int64
	Bound  int64 // the most aligned bytes alive at once: no placement is smaller
}

// rounds limits the local search; each round places every item anew.
const rounds = 64

// Place finds offsets, multiples of align, at which no two items alive together overlap.
// The same items give the same placement.
func Place(items []Item, align int64) Placement {
	p := placer{items: slices.Clone(items), offset: make([]int64, len(items))}
	for i := range p.items {
		p.items[i].Size = roundUp(p.items[i].Size, align)
	}
	best := Placement{Size: -1, Bound: Live(p.items)}
	var bestOrder []int
	for _, less := range orders(p.items) {
		order := make([]int, len(items))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, less)
		if size := p.place(order); best.Size < 0 || size < best.Size {
			best.Size, best.Offset, bestOrder = size, slices.Clone(p.offset), order
		}
		if best.Size == best.Bound {
			return best
		}
	}
	p.improve(&best, bestOrder)
	return best
}

// improve moves the items that reach the top to the front of the order, again and again, and keeps what is smaller.
func (p *placer) improve(best *Placement, bestOrder []int) {
	order := slices.Clone(bestOrder)
	p.place(order)
	for range rounds {
		top := int64(0)
		for i, o := range p.offset {
			top = max(top, o+p.items[i].Size)
		}
		slices.SortStableFunc(order, func(a, b int) int {
			atTop := func(i int) int { return boolInt(p.offset[i]+p.items[i].Size != top) }
			return cmp.Compare(atTop(a), atTop(b))
		})
		if size := p.place(order); size < best.Size {
			best.Size, best.Offset = size, slices.Clone(p.offset)
		}
		if best.Size == best.Bound {
			return
		}
	}
}

// Live is the most bytes alive at once.
func Live(items []Item) int64 {
	type edge struct {
		time  int
		delta int64
	}
	edges := make([]edge, 0, 2*len(items))
	for _, it := range items {
		edges = append(edges, edge{it.First, it.Size}, edge{it.Last + 1, -it.Size})
	}
	// At one time, deaths come before births: an item is dead after its Last.
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.delta, b.delta)) })
	var live, most int64
	for _, e := range edges {
		live += e.delta
		most = max(most, live)
	}
	return most
}

// orders are the greedy orders, the most promising first.
func orders(items []Item) []func(a, b int) int {
	length := func(i int) int64 { return int64(items[i].Last - items[i].First + 1) }
	by := func(keys ...func(i int) int64) func(a, b int) int {
		return func(a, b int) int {
			for _, key := range keys {
				if c := cmp.Compare(key(b), key(a)); c != 0 {
					return c
				}
			}
			return 0
		}
	}
	size := func(i int) int64 { return items[i].Size }
	area := func(i int) int64 { return size(i) * length(i) }
	early := func(i int) int64 { return -int64(items[i].First) }
	return []func(a, b int) int{by(length, size), by(size, length), by(area, size), by(early, length)}
}

// placer holds the state that passes reuse.
type placer struct {
	items  []Item
	offset []int64
	placed []int // items placed so far, by offset
}

// place puts each item, in order, into the lowest gap between the placed items alive with it, and returns the height.
func (p *placer) place(order []int) int64 {
	p.placed = p.placed[:0]
	var height int64
	for _, i := range order {
		it := p.items[i]
		var at int64
		for _, j := range p.placed {
			other := p.items[j]
			if other.Last < it.First || it.Last < other.First {
				continue
			}
			if p.offset[j]-at >= it.Size {
				break
			}
			at = max(at, p.offset[j]+other.Size)
		}
		p.offset[i] = at
		height = max(height, at+it.Size)
		k, _ := slices.BinarySearchFunc(p.placed, at, func(j int, at int64) int { return cmp.Compare(p.offset[j], at) })
		p.placed = slices.Insert(p.placed, k, i)
	}
	return height
}

func roundUp(n, align int64) int64 { return (n + align - 1) / align * align }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
