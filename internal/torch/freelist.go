package torch

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
	buckets [][]slot // with room for more; never moved, so that nothing the collector knows is
	counts  []int32  // by bucket: the blocks in it
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

func (l *freeList) slots(i int) []slot {
	b := l.bucket[i]
	return l.buckets[b][:l.counts[b]]
}

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
			l.buckets, l.counts = append(l.buckets, make([]slot, 4)), append(l.counts, 0)
		}
		l.sizes, l.bucket = append(l.sizes, 0), append(l.bucket, 0)
		copy(l.sizes[i+1:], l.sizes[i:])
		copy(l.bucket[i+1:], l.bucket[i:])
		l.sizes[i], l.bucket[i] = k.size, empty
	}
	b := l.bucket[i]
	s, n := l.buckets[b], int(l.counts[b])
	if n == len(s) {
		s = append(s, make([]slot, n)...)
		l.buckets[b] = s
	}
	at := seekAddr(s[:n], k.addr)
	copy(s[at+1:n+1], s[at:n])
	s[at] = slot{k.addr, k.block}
	l.counts[b]++
}

// removeAt takes the key at p out.
func (l *freeList) removeAt(p place) {
	b := l.bucket[p.size]
	s := l.slots(p.size)
	copy(s[p.at:], s[p.at+1:])
	if l.counts[b]--; l.counts[b] > 0 {
		return
	}
	l.spare = append(l.spare, b)
	l.sizes = append(l.sizes[:p.size], l.sizes[p.size+1:]...)
	l.bucket = append(l.bucket[:p.size], l.bucket[p.size+1:]...)
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
