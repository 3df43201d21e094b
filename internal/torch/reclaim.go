package torch

import "slices"

// whole says whether free block i is a whole cudaMalloc segment, which the driver can take back.
func (a *allocator) whole(i int32) bool {
	return a.blocks[i].prev == none && a.blocks[i].next == none
}

// giveBack returns the free whole segment at position at of the pool to the driver.
func (a *allocator) giveBack(p *pool, at int) {
	k := p.free[at]
	p.free = slices.Delete(p.free, at, at+1)
	a.reserved -= k.size
	a.recycled = append(a.recycled, k.block)
}

// releaseAll gives every free whole segment, and every free page of expandable segments, back to the driver.
func (a *allocator) releaseAll() {
	for i := range a.pools {
		p := &a.pools[i]
		if a.conf.Expandable {
			for _, k := range slices.Clone(p.free) {
				a.unmapPages(k.block)
			}
			continue
		}
		for at := len(p.free) - 1; at >= 0; at-- {
			if a.whole(p.free[at].block) {
				a.giveBack(p, at)
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
	if i, _ := slices.BinarySearchFunc(p.free, key{size: want}, key.compare); i < len(p.free) {
		a.giveBack(p, i)
		return true
	}
	var released int64
	for at := len(p.free) - 1; at >= 0 && released < want && p.free[at].size >= a.conf.maxSplit(); at-- {
		released += p.free[at].size
		a.giveBack(p, at)
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
	var age, count, reclaimed int64
	for _, k := range p.free {
		if a.whole(k.block) {
			age += p.searches - a.blocks[k.block].born
			count++
		}
	}
	for freed := true; freed && reclaimed < target && count > 0; {
		freed = false
		average := float64(age) / float64(count)
		for at := 0; at < len(p.free); {
			k := p.free[at]
			old := p.searches - a.blocks[k.block].born
			if !a.whole(k.block) || float64(old) < average {
				at++
				continue
			}
			freed = true
			age, count, reclaimed = age-old, count-1, reclaimed+k.size
			a.giveBack(p, at)
		}
	}
}
