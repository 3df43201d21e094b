package torch

import "slices"

// key orders the free blocks of a pool as PyTorch does: by size, then by address.
type key struct {
	size, addr int64
	block      int32
}

func (a key) less(b key) bool { return a.size < b.size || a.size == b.size && a.addr < b.addr }

// freeList is a sorted list of keys in chunks, so that an insertion moves few of them.
type freeList struct{ chunks [][]key }

const chunkSize = 64

// place is a position in a freeList.
type place struct{ chunk, at int }

// seek finds the first key that is not less than k.
func (l *freeList) seek(k key) place {
	lo, hi := 0, len(l.chunks)
	for lo < hi { // the first chunk whose last key is not less than k
		mid := (lo + hi) / 2
		c := l.chunks[mid]
		if c[len(c)-1].less(k) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(l.chunks) {
		return place{lo, 0}
	}
	c := l.chunks[lo]
	from, to := 0, len(c)
	for from < to {
		mid := (from + to) / 2
		if c[mid].less(k) {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return place{lo, from}
}

// get returns the key at p, and whether there is one.
func (l *freeList) get(p place) (key, bool) {
	if p.chunk >= len(l.chunks) || p.at >= len(l.chunks[p.chunk]) {
		return key{}, false
	}
	return l.chunks[p.chunk][p.at], true
}

// next is the place behind p.
func (l *freeList) next(p place) place {
	if p.at+1 < len(l.chunks[p.chunk]) {
		return place{p.chunk, p.at + 1}
	}
	return place{p.chunk + 1, 0}
}

func (l *freeList) insert(k key) {
	if len(l.chunks) == 0 {
		l.chunks = append(l.chunks, append(make([]key, 0, chunkSize), k))
		return
	}
	p := l.seek(k)
	if p.chunk == len(l.chunks) {
		p.chunk--
		p.at = len(l.chunks[p.chunk])
	}
	c := l.chunks[p.chunk]
	if len(c) == chunkSize {
		right := append(make([]key, 0, chunkSize), c[chunkSize/2:]...)
		l.chunks[p.chunk] = c[:chunkSize/2]
		l.chunks = slices.Insert(l.chunks, p.chunk+1, right)
		if p.at > chunkSize/2 {
			p = place{p.chunk + 1, p.at - chunkSize/2}
		}
		c = l.chunks[p.chunk]
	}
	l.chunks[p.chunk] = slices.Insert(c, p.at, k)
}

// removeAt takes the key at p out.
func (l *freeList) removeAt(p place) {
	c := l.chunks[p.chunk]
	if c = slices.Delete(c, p.at, p.at+1); len(c) == 0 {
		l.chunks = slices.Delete(l.chunks, p.chunk, p.chunk+1)
		return
	}
	l.chunks[p.chunk] = c
}

// keys lists everything, in order.
func (l *freeList) keys() []key { return slices.Concat(l.chunks...) }
