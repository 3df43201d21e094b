package torch

import (
	"math"
	"slices"

	"github.com/snugml/snug/internal/units"
)

// Sizes of PyTorch's caching allocator, from c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (2.11).
const (
	minBlock    = 512           // every request is rounded up to a multiple of this
	smallSize   = 1 << 20       // requests up to here come from the small pool
	smallBuffer = 2 << 20       // a segment of the small pool
	largeBuffer = 20 << 20      // a segment for requests from smallSize up to minLarge
	minLarge    = 10 << 20      // larger requests get a segment of their own size…
	roundLarge  = 2 << 20       // …rounded up to this
	noSplitMax  = math.MaxInt64 // max_split_size when it is not set
)

// none is the index of no block.
const none = int32(-1)

// block is a range of a segment: handed out, free, or (in expandable segments) address space without memory.
type block struct {
	addr, size int64
	prev, next int32
	born       int64 // the pool's count of searches when the block became free: its age for garbage collection
	small      bool
	free       bool
	unmapped   bool
}

// pool holds the free blocks of the small or of the large segments.
type pool struct {
	free     freeList
	unmapped []int32 // expandable segments: blocks without memory, by address
	searches int64
}

// allocator is the state of PyTorch's caching allocator on one device and one stream.
type allocator struct {
	conf      AllocConf
	limit     int64 // reserved may not pass it
	blocks    []block
	recycled  []int32                // block records to use again
	pools     [2]pool                // small, large
	address   func(size int64) int64 // cudaMalloc: where a new segment lies
	frontier  int64                  // the lowest address taken so far
	holes     freeList               // address space left in chunks
	allocated int64
	reserved  int64
	retries   int // requests that fitted only after cached blocks were given back
}

func newAllocator(conf AllocConf, limit units.Bytes) *allocator {
	if limit <= 0 {
		limit = math.MaxInt64
	}
	a := &allocator{conf: conf, limit: int64(limit), frontier: largeBuffer << 36}
	a.address = a.place
	return a
}

// alloc hands out a block for a request of bytes and returns it, or none when the limit forbids it.
func (a *allocator) alloc(bytes int64) int32 {
	size := a.conf.round(bytes)
	small := size <= smallSize
	p := a.pool(small)
	if a.conf.GCThreshold > 0 {
		p.searches++
	}
	b := a.takeFree(p, size)
	if b == none {
		if a.conf.GCThreshold > 0 && a.limit != math.MaxInt64 {
			a.collect()
		}
		b = a.grow(small, size)
		if b == none && a.releaseOversize(p, size) {
			b = a.grow(small, size)
		}
		if b == none {
			a.releaseAll()
			if b = a.grow(small, size); b == none {
				return none
			}
			a.retries++
		}
	}
	if rest := a.blocks[b].size - size; a.splits(small, size, rest) {
		a.split(b, size)
	}
	a.blocks[b].free = false
	a.allocated += a.blocks[b].size
	return b
}

// release takes a block back and merges it with its free neighbours.
func (a *allocator) release(b int32) {
	a.allocated -= a.blocks[b].size
	a.blocks[b].free = true
	a.merge(b, a.blocks[b].prev)
	a.merge(b, a.blocks[b].next)
	a.insert(b)
}

func (a *allocator) pool(small bool) *pool {
	if small {
		return &a.pools[0]
	}
	return &a.pools[1]
}

// segmentSize is what a request of size takes from the driver when no free block serves it.
func segmentSize(size int64) int64 {
	switch {
	case size <= smallSize:
		return smallBuffer
	case size < minLarge:
		return largeBuffer
	}
	return (size + roundLarge - 1) / roundLarge * roundLarge
}

// splits says whether the rest of a block that serves a request of size becomes a free block of its own.
func (a *allocator) splits(small bool, size, rest int64) bool {
	if small || a.conf.Expandable {
		return rest >= minBlock
	}
	return size < a.conf.maxSplit() && rest > smallSize
}

// takeFree removes the best-fitting free block from the pool.
func (a *allocator) takeFree(p *pool, size int64) int32 {
	at := p.free.seek(key{size: size})
	found, ok := p.free.get(at)
	if !ok {
		return none
	}
	if a.conf.Expandable {
		// A block at the growing end counts as large as it can become.
		for next := p.free.next(at); ; next = p.free.next(at) {
			k, ok := p.free.get(next)
			if !ok || a.expandsTo(k.block) >= a.expandsTo(found.block) {
				break
			}
			at, found = next, k
		}
	}
	maxSplit := a.conf.maxSplit()
	if size < maxSplit && found.size >= maxSplit || size >= maxSplit && found.size >= size+a.conf.nonSplitRounding() {
		return none
	}
	p.free.removeAt(at)
	return found.block
}

// grow takes memory from the driver for a request of size, or returns none when the limit forbids it.
func (a *allocator) grow(small bool, size int64) int32 {
	take := segmentSize(size)
	if a.reserved > a.limit-take {
		return none
	}
	if a.conf.Expandable {
		return a.growExpandable(small, size)
	}
	b := a.newBlock(block{addr: a.address(take), size: take, prev: none, next: none, small: small, free: true})
	a.reserved += take
	return b
}

// addressChunk is the granularity at which the driver takes address space for cudaMalloc.
const addressChunk = 32 << 20

// place gives a new segment its address: in the smallest hole that earlier segments left in their chunks, or else in
// new chunks below all others, as the driver does on Linux. Addresses break ties between free blocks of one size.
func (a *allocator) place(size int64) int64 {
	at := a.holes.seek(key{size: size})
	if hole, ok := a.holes.get(at); ok {
		a.holes.removeAt(at)
		a.addHole(hole.addr+size, hole.size-size)
		return hole.addr
	}
	chunks := (size + addressChunk - 1) / addressChunk * addressChunk
	a.frontier -= chunks
	a.addHole(a.frontier+size, chunks-size)
	return a.frontier
}

func (a *allocator) addHole(addr, size int64) {
	if size > 0 {
		a.holes.insert(key{size: size, addr: addr})
	}
}

// split cuts size bytes off the front of free block b; the rest becomes a free block behind it.
func (a *allocator) split(b int32, size int64) {
	front := a.blocks[b]
	rest := a.newBlock(block{
		addr: front.addr + size, size: front.size - size, prev: b, next: front.next, small: front.small, free: true,
	})
	if front.next != none {
		a.blocks[front.next].prev = rest
	}
	a.blocks[b].next, a.blocks[b].size = rest, size
	a.insert(rest)
}

// merge joins src, a free neighbour of dst, into dst and reports whether it did.
func (a *allocator) merge(dst, src int32) bool {
	if src == none || !a.blocks[src].free || a.blocks[src].unmapped != a.blocks[dst].unmapped {
		return false
	}
	a.remove(src)
	s, d := a.blocks[src], &a.blocks[dst]
	if d.prev == src {
		d.addr, d.prev = s.addr, s.prev
		if s.prev != none {
			a.blocks[s.prev].next = dst
		}
	} else {
		d.next = s.next
		if s.next != none {
			a.blocks[s.next].prev = dst
		}
	}
	d.size += s.size
	a.recycled = append(a.recycled, src)
	return true
}

func (a *allocator) newBlock(b block) int32 {
	if n := len(a.recycled); n > 0 {
		i := a.recycled[n-1]
		a.recycled = a.recycled[:n-1]
		a.blocks[i] = b
		return i
	}
	a.blocks = append(a.blocks, b)
	return int32(len(a.blocks) - 1)
}

// insert puts a free block into its pool; remove takes it out.
func (a *allocator) insert(i int32) {
	b := &a.blocks[i]
	p := a.pool(b.small)
	if b.unmapped {
		at, _ := slices.BinarySearchFunc(p.unmapped, b.addr, a.byAddr)
		p.unmapped = slices.Insert(p.unmapped, at, i)
		return
	}
	b.born = p.searches
	p.free.insert(key{b.size, b.addr, i})
}

func (a *allocator) remove(i int32) {
	b := &a.blocks[i]
	p := a.pool(b.small)
	if b.unmapped {
		at, _ := slices.BinarySearchFunc(p.unmapped, b.addr, a.byAddr)
		p.unmapped = slices.Delete(p.unmapped, at, at+1)
		return
	}
	p.free.removeAt(p.free.seek(key{b.size, b.addr, i}))
}

func (a *allocator) byAddr(i int32, addr int64) int {
	switch b := &a.blocks[i]; {
	case b.addr < addr:
		return -1
	case b.addr > addr:
		return 1
	}
	return 0
}
