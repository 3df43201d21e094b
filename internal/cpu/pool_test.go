package cpu

import (
	"sync/atomic"
	"testing"
)

// Every piece runs once, and no phase starts before the one before it is done.
func TestPoolRunsEveryPieceInOrder(t *testing.T) {
	for _, threads := range []int{1, 2, 5} {
		p := newPool(threads)
		sizes := []int{1, 100, 0, 7, 1, 1000, 3}
		counts := make([]atomic.Int64, len(sizes))
		var early atomic.Int64
		phases := make([]phase, len(sizes))
		for k, n := range sizes {
			phases[k] = phase{n, func(i, worker int) {
				if worker < 0 || worker >= threads {
					t.Errorf("worker %d of %d", worker, threads)
				}
				if k > 0 && counts[k-1].Load()%int64(max(sizes[k-1], 1)) != 0 {
					early.Add(1)
				}
				counts[k].Add(1)
			}}
		}
		const runs = 10
		for range runs {
			p.walk(phases)
		}
		p.close()
		for k, n := range sizes {
			if got := counts[k].Load(); got != int64(runs*n) {
				t.Errorf("%d threads: phase %d ran %d pieces, want %d", threads, k, got, runs*n)
			}
		}
		if early.Load() != 0 {
			t.Errorf("%d threads: %d pieces ran before the phase before was done", threads, early.Load())
		}
	}
}

func TestPoolAllocatesNothing(t *testing.T) {
	p := newPool(2)
	defer p.close()
	phases := []phase{{10, func(i, worker int) {}}, {1, func(i, worker int) {}}}
	if n := testing.AllocsPerRun(100, func() { p.walk(phases) }); n != 0 {
		t.Errorf("a walk allocates %g times", n)
	}
}

func BenchmarkPoolPhase(b *testing.B) {
	p := newPool(2)
	defer p.close()
	phases := make([]phase, 1000)
	for i := range phases {
		phases[i] = phase{2, func(i, worker int) {}}
	}
	for b.Loop() {
		p.walk(phases)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(phases)), "ns/phase")
}

func TestMergeRunsEveryPieceOnce(t *testing.T) {
	sizes := []int{0, 3, 0, 0, 1, 5, 0}
	var phases []phase
	got := make([][]int, len(sizes))
	for k, n := range sizes {
		got[k] = make([]int, n)
		phases = append(phases, phase{n, func(i, _ int) { got[k][i]++ }})
	}
	all := merge(phases...)
	for i := range all.n {
		all.do(i, 0)
	}
	if all.n != 9 {
		t.Errorf("%d pieces, want 9", all.n)
	}
	for k := range got {
		for i, n := range got[k] {
			if n != 1 {
				t.Errorf("phase %d piece %d ran %d times", k, i, n)
			}
		}
	}
}
