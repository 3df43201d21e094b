package torch

// expandableSpace is the address space of one expandable segment: PyTorch reserves 9/8 of the device's memory,
// so a pool never needs a second one on a device it fits on. Segments begin at multiples of every page size.
const expandableSpace = largeBuffer << 24

// pageSize is the granularity at which an expandable segment of the pool takes memory from the driver.
func pageSize(small bool) int64 {
	if small {
		return smallBuffer
	}
	return largeBuffer
}

// expandsTo is a free block's size together with the unmapped space behind it.
func (a *allocator) expandsTo(i int32) int64 {
	b := a.blocks[i]
	if b.next != none && a.blocks[b.next].unmapped {
		return b.size + a.blocks[b.next].size
	}
	return b.size
}

// growExpandable maps memory at the lowest address where size bytes of free and unmapped space lie together.
// It returns a free block of at least size that is in no pool, or none when the limit forbids it.
func (a *allocator) growExpandable(small bool, size int64) int32 {
	b := a.room(small, size)
	if a.blocks[b].unmapped && !a.mapPages(b, min(a.blocks[b].size, size)) {
		return none
	}
	for a.blocks[b].size < size {
		next := a.blocks[b].next
		if !a.mapPages(next, min(size-a.blocks[b].size, a.blocks[next].size)) {
			return none
		}
		b = next // it swallowed the block before it
	}
	a.remove(b)
	return b
}

// room finds the lowest block from which free and unmapped blocks make up size bytes.
func (a *allocator) room(small bool, size int64) int32 {
	p := a.pool(small)
	for _, i := range p.unmapped {
		if prev := a.blocks[i].prev; prev != none && a.blocks[prev].free {
			i = prev
		}
		var bytes int64
		for j := i; j != none && a.blocks[j].free && bytes < size; j = a.blocks[j].next {
			bytes += a.blocks[j].size
		}
		if bytes >= size {
			return i
		}
	}
	a.frontier -= expandableSpace
	b := a.newBlock(block{addr: a.frontier, size: expandableSpace, prev: none, next: none, small: small, free: true, unmapped: true})
	a.insert(b)
	return b
}

// mapPages backs the first size bytes of unmapped block b with memory, in whole pages, and merges it with its free neighbours.
func (a *allocator) mapPages(b int32, size int64) bool {
	page := pageSize(a.blocks[b].small)
	take := min((size+page-1)/page*page, a.blocks[b].size)
	if a.reserved > a.limit-take {
		return false
	}
	a.remove(b)
	a.blocks[b].unmapped = false
	if whole := a.blocks[b]; take < whole.size {
		rest := a.newBlock(block{
			addr: whole.addr + take, size: whole.size - take, prev: b, next: whole.next, small: whole.small, free: true, unmapped: true,
		})
		if whole.next != none {
			a.blocks[whole.next].prev = rest
		}
		a.blocks[b].next, a.blocks[b].size = rest, take
		a.insert(rest)
	}
	a.merge(b, a.blocks[b].prev)
	a.merge(b, a.blocks[b].next)
	a.insert(b)
	a.reserved += take
	return true
}

// unmapPages gives the whole pages inside free block b back to the driver.
func (a *allocator) unmapPages(b int32) {
	page := pageSize(a.blocks[b].small)
	first := (a.blocks[b].addr + page - 1) / page * page
	last := (a.blocks[b].addr + a.blocks[b].size) / page * page
	if last <= first {
		return
	}
	a.remove(b)
	if before := first - a.blocks[b].addr; before > 0 {
		rest := a.cut(b, before)
		a.insert(b)
		b = rest
	}
	if keep := last - first; keep < a.blocks[b].size {
		a.insert(a.cut(b, keep))
	}
	a.blocks[b].unmapped = true
	a.reserved -= a.blocks[b].size
	a.merge(b, a.blocks[b].prev)
	a.merge(b, a.blocks[b].next)
	a.insert(b)
}

// cut splits off what lies behind the first size bytes of b and returns it; neither part is put into a pool.
func (a *allocator) cut(b int32, size int64) int32 {
	whole := a.blocks[b]
	rest := whole
	rest.addr, rest.size, rest.prev = whole.addr+size, whole.size-size, b
	i := a.newBlock(rest)
	if whole.next != none {
		a.blocks[whole.next].prev = i
	}
	a.blocks[b].next, a.blocks[b].size = i, size
	return i
}
