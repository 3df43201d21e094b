package torch

import "slices"

// key is a free block in the order in which PyTorch looks for one: by size, then by address.
type key struct {
	size, addr int64
	block      int32
}

// freeList is a sorted list of keys: the distinct sizes, and for each the blocks of that size by address. Blocks are many
// and sizes few, so that a search stays within one short array.
type freeList struct {
	sizes   []int64
	bucket  []int32  // by size: where its blocks are in buckets
	buckets [][]slot // never moved, so that nothing the collector knows is
	spare   []int32  // emptied buckets, to use again
}

type slot struct {
	addr  int64
	block int32
}

// place is a position in a freeList.
type place struct{ size, at int }

// seek finds the first key that is not less than k.
func (l *freeList) seek(k key) place {
	i := l.seekSize(k.size)
	if i == len(l.sizes) || l.sizes[i] != k.size {
		return place{i, 0}
	}
	slots := l.slots(i)
	if at := seekAddr(slots, k.addr); at < len(slots) {
		return place{i, at}
	}
	return place{i + 1, 0}
}

func (l *freeList) slots(i int) []slot { return l.buckets[l.bucket[i]] }

func (l *freeList) seekSize(size int64) int {
	lo, hi := 0, len(l.sizes)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); l.sizes[mid] < size {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func seekAddr(slots []slot, addr int64) int {
	lo, hi := 0, len(slots)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); slots[mid].addr < addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// get returns the key at p, and whether there is one.
func (l *freeList) get(p place) (key, bool) {
	if p.size >= len(l.sizes) {
		return key{}, false
	}
	s := l.slots(p.size)[p.at]
	return key{l.sizes[p.size], s.addr, s.block}, true
}

// next is the place behind p.
func (l *freeList) next(p place) place {
	if p.at+1 < len(l.slots(p.size)) {
		return place{p.size, p.at + 1}
	}
	return place{p.size + 1, 0}
}

func (l *freeList) insert(k key) {
	i := l.seekSize(k.size)
	if i == len(l.sizes) || l.sizes[i] != k.size {
		empty := int32(len(l.buckets))
		if n := len(l.spare); n > 0 {
			empty, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			l.buckets = append(l.buckets, nil)
		}
		l.sizes = slices.Insert(l.sizes, i, k.size)
		l.bucket = slices.Insert(l.bucket, i, empty)
	}
	b := &l.buckets[l.bucket[i]]
	*b = slices.Insert(*b, seekAddr(*b, k.addr), slot{k.addr, k.block})
}

// removeAt takes the key at p out.
func (l *freeList) removeAt(p place) {
	b := &l.buckets[l.bucket[p.size]]
	if *b = slices.Delete(*b, p.at, p.at+1); len(*b) > 0 {
		return
	}
	l.spare = append(l.spare, l.bucket[p.size])
	l.sizes = slices.Delete(l.sizes, p.size, p.size+1)
	l.bucket = slices.Delete(l.bucket, p.size, p.size+1)
}

// keys lists everything, in order.
func (l *freeList) keys() []key {
	var all []key
	for i, size := range l.sizes {
		for _, s := range l.slots(i) {
			all = append(all, key{size, s.addr, s.block})
		}
	}
	return all
}
