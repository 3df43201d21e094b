package torch

// whole says whether free block i is a whole cudaMalloc segment, which the driver can take back.
func (a *allocator) whole(i int32) bool {
	return a.blocks[i].prev == none && a.blocks[i].next == none
}

// giveBack returns a free whole segment to the driver.
func (a *allocator) giveBack(p *pool, k key) {
	p.free.removeAt(p.free.seek(k))
	a.reserved -= k.size
	a.recycled = append(a.recycled, k.block)
}

// releaseAll gives every free whole segment, and every free page of expandable segments, back to the driver.
func (a *allocator) releaseAll() {
	for i := range a.pools {
		p := &a.pools[i]
		for _, k := range p.free.keys() {
			if a.conf.Expandable {
				a.unmapPages(k.block)
			} else if a.whole(k.block) {
				a.giveBack(p, k)
			}
		}
	}
}

// releaseOversize gives back free segments of max_split_size or more: the smallest that covers the request, or
// the largest ones until together they do. It reports whether the request may now be tried again.
func (a *allocator) releaseOversize(p *pool, size int64) bool {
	if a.conf.MaxSplit == 0 || a.conf.Expandable {
		return false
	}
	want := max(size, a.conf.maxSplit())
	if k, ok := p.free.get(p.free.seek(key{size: want})); ok {
		a.giveBack(p, k)
		return true
	}
	var released int64
	keys := p.free.keys()
	for i := len(keys) - 1; i >= 0 && released < want && keys[i].size >= a.conf.maxSplit(); i-- {
		released += keys[i].size
		a.giveBack(p, keys[i])
	}
	return released >= want
}

// collect is PyTorch's garbage collection: above the threshold it gives back free whole segments of the large pool
// that are older than their average, until reserved is under the threshold again or nothing is left to give.
func (a *allocator) collect() {
	threshold := int64(a.conf.GCThreshold * float64(a.limit))
	if a.reserved <= threshold {
		return
	}
	p, target := &a.pools[1], a.reserved-threshold
	var segments []key
	var age, reclaimed int64
	for _, k := range p.free.keys() {
		if a.whole(k.block) {
			segments = append(segments, k)
			age += p.searches - a.blocks[k.block].born
		}
	}
	for freed := true; freed && reclaimed < target && len(segments) > 0; {
		average := float64(age) / float64(len(segments))
		freed = false
		var kept []key
		for _, k := range segments {
			old := p.searches - a.blocks[k.block].born
			if float64(old) < average {
				kept = append(kept, k)
				continue
			}
			freed = true
			age, reclaimed = age-old, reclaimed+k.size
			a.giveBack(p, k)
		}
		segments = kept
	}
}
