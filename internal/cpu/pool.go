package cpu

import (
	"sort"
	"sync"
	"sync/atomic"
)

// phase is work in n independent pieces: do(i, worker) for i in [0,n), in any order, on any worker.
// A phase starts when the one before it is done.
type phase struct {
	n  int
	do func(i, worker int)
}

// merge is several phases, which need not wait for each other, as one.
func merge(phases ...phase) phase {
	ends := make([]int, len(phases))
	n := 0
	for k, ph := range phases {
		n += ph.n
		ends[k] = n
	}
	return phase{n, func(i, worker int) {
		k := sort.SearchInts(ends, i+1)
		ph := &phases[k]
		ph.do(i-ends[k]+ph.n, worker)
	}}
}

// pool is a team of threads that walk lists of phases together. Nothing is allocated while they do.
//
// Pieces are claimed one by one from a shared counter, so a slow thread gets fewer; what a piece computes never depends
// on who computes it. A thread that must wait spins for a short while, then sleeps.
type pool struct {
	threads int
	phases  []phase

	run  atomic.Uint64    // lists started
	next atomic.Int64     // the next piece of the current phase
	here atomic.Int64     // threads that have arrived at the end of the current phase
	done atomic.Uint64    // phases finished since the pool was made
	stop atomic.Bool      // no list will follow
	idle atomic.Int64     // threads asleep
	mu   sync.Mutex       // guards sleeping
	wake sync.Cond        // a list started or a phase ended
	gone sync.WaitGroup   // workers that have not ended
	base uint64           // phases finished before this list
	_    [8]atomic.Uint64 // the counters above share no cache line with what follows the pool
}

// newPool starts threads-1 workers; the caller of walk is the last of the team.
func newPool(threads int) *pool {
	p := &pool{threads: max(threads, 1)}
	p.wake.L = &p.mu
	for w := 1; w < p.threads; w++ {
		p.gone.Go(func() { p.work(w) })
	}
	return p
}

// walk runs the phases in order and returns when the last is done.
func (p *pool) walk(phases []phase) {
	if len(phases) == 0 {
		return
	}
	p.phases, p.base = phases, p.done.Load()
	p.run.Add(1)
	p.rouse()
	p.team(0)
}

// close ends the workers.
func (p *pool) close() {
	p.stop.Store(true)
	p.run.Add(1)
	p.rouse()
	p.gone.Wait()
}

func (p *pool) work(worker int) {
	for run := uint64(1); ; run++ {
		p.wait(&p.run, run)
		if p.stop.Load() {
			return
		}
		p.team(worker)
	}
}

// team is one thread's part in a list: claim pieces until a phase has none left, then meet the others.
func (p *pool) team(worker int) {
	phases, base := p.phases, p.base
	for i := range phases {
		ph := &phases[i]
		for {
			piece := int(p.next.Add(1)) - 1
			if piece >= ph.n {
				break
			}
			ph.do(piece, worker)
		}
		if p.here.Add(1) < int64(p.threads) {
			p.wait(&p.done, base+uint64(i)+1)
			continue
		}
		// The last to arrive: the others wait for done, so nobody claims.
		p.next.Store(0)
		p.here.Store(0)
		p.done.Add(1)
		p.rouse()
	}
}

// spins is how often a waiting thread looks before it sleeps: about 20 microseconds.
const spins = 20_000

// wait returns when counter has reached at least value.
func (p *pool) wait(counter *atomic.Uint64, value uint64) {
	for range spins {
		if counter.Load() >= value {
			return
		}
	}
	p.mu.Lock()
	p.idle.Add(1)
	for counter.Load() < value {
		p.wake.Wait()
	}
	p.idle.Add(-1)
	p.mu.Unlock()
}

// rouse wakes the sleepers after a counter has moved. A thread counts itself idle before it looks a last time,
// so either it sees the counter's new value or rouse sees it.
func (p *pool) rouse() {
	if p.idle.Load() == 0 {
		return
	}
	p.mu.Lock()
	p.wake.Broadcast()
	p.mu.Unlock()
}
