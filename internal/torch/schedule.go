package torch

import (
	"cmp"
	"math"
	"slices"
)

// schedule puts the kernels into the order in which Inductor runs them. It tries four, estimates the peak of each and
// takes the lowest, of equals the first (reorder_for_peak_memory in torch/_inductor/memory.py of PyTorch 2.11). Kernels
// must have been added in the order in which the model's operations are lowered, which is the first of the four.
func (g *graph) schedule() {
	s := newScheduler(g)
	best := make([]int32, len(s.kernel))
	for i := range best {
		best[i] = int32(i)
	}
	least := s.peak(best)
	for _, try := range []func() []int32{s.leastPeakFirst, s.breadthFirst, s.depthFirst} {
		order := try()
		if p := s.peak(order); p < least {
			best, least = order, p
		}
	}
	nodes := make([]gnode, len(best))
	for at, n := range best {
		if k := s.kernel[n]; k != none {
			nodes[at] = g.nodes[k]
		}
	}
	g.nodes = nodes
}

// scheduler is a graph as Inductor's scheduler sees it: nodes and buffers by number, buffers with their bytes. A node is
// a kernel, or takes one output of a library's call out of what that returned.
type scheduler struct {
	kernel []int32   // its number in the graph, or none
	size   []int64   // of what a node allocates
	inner  []int64   // the part of it that no other node reads
	preds  [][]int32 // nodes that a node waits for, each once
	succs  [][]int32 // nodes that wait for it
	reads  [][]gid   // buffers that it reads, each once

	bytes   []int64 // of a buffer; 0 for what is not counted
	born    []int32 // the node that allocates it, or none for an input
	maker   []int32 // the node that others wait for
	readers [][]int32
	output  []bool
}

func newScheduler(g *graph) *scheduler {
	nodes, ins, bufs := 0, 0, len(g.bufs)
	for i := range g.nodes {
		node := &g.nodes[i]
		nodes, ins = nodes+1, ins+len(node.ins)
		if node.call {
			nodes += len(node.outs)
		}
		for _, id := range node.ins {
			if id != noBuf {
				g.bufs[id].read = true
			}
		}
	}
	s := &scheduler{
		kernel: make([]int32, 0, nodes), size: make([]int64, 0, nodes), inner: make([]int64, 0, nodes),
		preds: make([][]int32, 0, nodes), reads: make([][]gid, 0, nodes),
		bytes: make([]int64, bufs), born: make([]int32, bufs), maker: make([]int32, bufs), output: make([]bool, bufs),
	}
	for id := range g.bufs {
		b := &g.bufs[id]
		s.bytes[id], s.output[id] = b.counted(), b.output
		s.born[id], s.maker[id] = none, none
	}
	reads := make([]gid, 0, ins)
	preds := make([]int32, 0, 2*ins)
	adds := map[gid][]int32{} // who else writes a buffer: few are added to
	for i := range g.nodes {
		node := &g.nodes[i]
		n := s.add(int32(i), node.inner)
		reads, preds = reads[len(reads):], preds[len(preds):]
		for _, id := range node.ins {
			if id == noBuf || slices.Contains(reads, id) {
				continue
			}
			reads = append(reads, id)
			if m := s.maker[id]; m != none && !slices.Contains(preds, m) {
				preds = append(preds, m)
			}
			for _, m := range adds[id] {
				if !slices.Contains(preds, m) {
					preds = append(preds, m)
				}
			}
		}
		s.reads[n], s.preds[n] = reads[:len(reads):len(reads)], preds[:len(preds):len(preds)]
		for _, id := range node.changes {
			adds[id] = append(adds[id], n)
		}
		for _, ids := range [2][]gid{node.outs, node.late} {
			for _, id := range ids {
				maker := n
				if node.call {
					if b := &g.bufs[id]; !b.read && !b.output { // nobody takes it out
						s.bytes[id] = 0
						continue
					}
					maker = s.add(none, 0)
					s.preds[maker] = []int32{n}
				}
				s.size[n] += s.bytes[id]
				s.born[id], s.maker[id] = n, maker
			}
		}
	}
	s.succs = turned[int32](s.preds, len(s.kernel))
	s.readers = turned[gid](s.reads, bufs)
	return s
}

// add appends a node.
func (s *scheduler) add(kernel int32, inner int64) int32 {
	s.kernel = append(s.kernel, kernel)
	s.size, s.inner = append(s.size, inner), append(s.inner, inner)
	s.preds, s.reads = append(s.preds, nil), append(s.reads, nil)
	return int32(len(s.kernel) - 1)
}

// turned lists for each of n what lists it, in order.
func turned[T ~int32](lists [][]T, n int) [][]int32 {
	count, all := make([]int32, n), 0
	for _, l := range lists {
		all += len(l)
		for _, x := range l {
			count[x]++
		}
	}
	room := make([]int32, all)
	out := make([][]int32, n)
	for x, c := range count {
		out[x], room = room[:0:c], room[c:]
	}
	for i, l := range lists {
		for _, x := range l {
			out[x] = append(out[x], int32(i))
		}
	}
	return out
}

// peak estimates the peak of an order. PyTorch 2.11 takes an output off at the beginning instead of never.
func (s *scheduler) peak(order []int32) int64 {
	step := make([]int32, len(order))
	for at, n := range order {
		step[n] = int32(at)
	}
	change := make([]int64, len(order)+1)
	for id, bytes := range s.bytes {
		from, end := int32(0), int32(-1)
		if n := s.born[id]; n != none {
			from = step[n]
		} else if len(s.readers[id]) == 0 {
			continue
		}
		if !s.output[id] {
			if end = 0; s.maker[id] != none {
				end = step[s.maker[id]]
			}
			for _, r := range s.readers[id] {
				end = max(end, step[r])
			}
		}
		change[from] += bytes
		change[end+1] -= bytes
	}
	var now, most int64
	for at, n := range order {
		now += change[at]
		most = max(most, now+s.inner[n])
	}
	return most
}

// leastPeakFirst runs next, of the nodes that could run, one that stays under the peak so far and leaves the least
// (topological_sort_lpmf).
func (s *scheduler) leastPeakFirst() []int32 {
	waits := make([]int, len(s.size))
	frees := slices.Clone(s.inner)
	uses := make([]int, len(s.bytes))
	var live, outputs int64
	for id, bytes := range s.bytes {
		uses[id] = len(s.readers[id])
		if s.output[id] {
			uses[id]++
			outputs += bytes
		}
		if s.maker[id] == none && len(s.readers[id]) > 0 {
			live += bytes
		}
		if m := s.maker[id]; m != none && uses[id] == 0 {
			frees[m] += bytes
		}
		if uses[id] == 1 && len(s.readers[id]) == 1 {
			frees[s.readers[id][0]] += bytes
		}
	}
	var ready []int32
	for n := range s.size {
		if waits[n] = len(s.preds[n]); waits[n] == 0 {
			ready = append(ready, int32(n))
		}
	}
	most := max(live, outputs)
	order := make([]int32, 0, len(s.size))
	for len(ready) > 0 {
		gap := most - live
		at, over, left := 0, int64(math.MaxInt64), int64(0)
		for i, n := range ready {
			o, l := s.size[n], s.size[n]-frees[n]
			if o <= gap {
				o = 0
			}
			if o < over || o == over && (l < left || l == left && n < ready[at]) {
				at, over, left = i, o, l
			}
		}
		n := ready[at]
		ready[at] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		order = append(order, n)
		live += s.size[n]
		most = max(most, live)
		live -= frees[n]
		for _, next := range s.succs[n] {
			if waits[next]--; waits[next] == 0 {
				ready = append(ready, next)
			}
		}
		for _, id := range s.reads[n] {
			if uses[id]--; uses[id] == 1 {
				for _, r := range s.readers[id] {
					frees[r] += s.bytes[id]
				}
			}
		}
	}
	return order
}

// breadthFirst runs next the node whose predecessors ran the earliest (topological_sort_bfs).
func (s *scheduler) breadthFirst() []int32 {
	waits := make([]int, len(s.size))
	ran := make([]int32, len(s.size))
	after := make([][]int32, len(s.size)) // when a node's predecessors ran
	first := func(a, b int32) bool { return cmp.Or(slices.Compare(after[a], after[b]), cmp.Compare(a, b)) < 0 }
	var ready []int32 // a heap
	push := func(n int32) {
		for _, p := range s.preds[n] {
			after[n] = append(after[n], ran[p])
		}
		slices.Sort(after[n])
		ready = append(ready, n)
		for i := len(ready) - 1; i > 0 && first(ready[i], ready[(i-1)/2]); i = (i - 1) / 2 {
			ready[i], ready[(i-1)/2] = ready[(i-1)/2], ready[i]
		}
	}
	pop := func() int32 {
		top, last := ready[0], len(ready)-1
		ready[0], ready = ready[last], ready[:last]
		for i := 0; ; {
			child := 2*i + 1
			if child+1 < last && first(ready[child+1], ready[child]) {
				child++
			}
			if child >= last || !first(ready[child], ready[i]) {
				return top
			}
			ready[i], ready[child] = ready[child], ready[i]
			i = child
		}
	}
	for n := range s.size {
		if waits[n] = len(s.preds[n]); waits[n] == 0 {
			push(int32(n))
		}
	}
	order := make([]int32, 0, len(s.size))
	for len(ready) > 0 {
		n := pop()
		ran[n] = int32(len(order))
		order = append(order, n)
		for _, next := range s.succs[n] {
			if waits[next]--; waits[next] == 0 {
				push(next)
			}
		}
	}
	return order
}

// depthFirst visits the nodes by what they read and write, the least first, each after its predecessors
// (topological_sort_dfs).
func (s *scheduler) depthFirst() []int32 {
	touched := slices.Clone(s.size)
	for n, ids := range s.reads {
		for _, id := range ids {
			touched[n] += s.bytes[id]
		}
	}
	byTouched := func(a, b int32) int { return cmp.Or(cmp.Compare(touched[a], touched[b]), cmp.Compare(a, b)) }
	seen := make([]bool, len(s.size))
	order := make([]int32, 0, len(s.size))
	var visit func(n int32)
	visit = func(n int32) {
		if seen[n] {
			return
		}
		seen[n] = true
		slices.SortFunc(s.preds[n], byTouched)
		for _, p := range s.preds[n] {
			visit(p)
		}
		order = append(order, n)
	}
	all := make([]int32, len(s.size))
	for i := range all {
		all[i] = int32(i)
	}
	slices.SortFunc(all, byTouched)
	for _, n := range all {
		visit(n)
	}
	return order
}
