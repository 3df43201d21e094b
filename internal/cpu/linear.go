package cpu

import (
	"runtime"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
)

// Linear runs linear layers, and other work in pieces, on a team of threads, for callers whose shapes change from call to
// call and so have no program: sampling. One goroutine at a time may use it.
type Linear struct {
	Kernels *kernel.Set
	pool    *pool
	scratch []byte
}

// NewLinear starts the threads, one for each processor where 0 is given; nil kernels are the fastest there are.
func NewLinear(threads int, k *kernel.Set) *Linear {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	if k == nil {
		k = kernel.Best()
	}
	return &Linear{Kernels: k, pool: newPool(threads)}
}

// Threads is the size of the team: workers are numbered from 0 to Threads-1.
func (l *Linear) Threads() int { return l.pool.threads }

// Do runs do(i, worker) for i in [0,n), in any order, on any worker, and returns when all are done.
func (l *Linear) Do(n int, do func(i, worker int)) { l.pool.walk([]phase{{n, do}}) }

// Forward is out (N,OC) = inp (N,C) weight^T + bias; weight (OC,C), bias (OC) or nil.
// The order of every sum depends on the shape alone, but differs from that of a product with another N.
func (l *Linear) Forward(out, inp, weight, bias []float32, N, C, OC int) {
	p := &product{g: l.Kernels.F32, M: N, N: OC, K: C, ldc: OC, c: out, bias: bias,
		a: operand{data: inp, outer: C, inner: 1}, b: operand{data: weight, outer: C, inner: 1}}
	if need := p.scratch(l.pool.threads) + program.Align; need > len(l.scratch) {
		l.scratch = make([]byte, need)
	}
	l.pool.walk(p.phases(aligned(l.scratch), l.pool.threads))
}

// Close ends the threads.
func (l *Linear) Close() { l.pool.close() }
