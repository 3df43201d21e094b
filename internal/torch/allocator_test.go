package torch

import (
	"cmp"
	"math/rand/v2"
	"testing"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Whatever is allocated and freed, in any order and under any setting: no two live blocks overlap, the statistics
// are the sums of the blocks, reserved stays under the limit, and after the last free everything can be given back.
func TestAllocatorInvariants(t *testing.T) {
	for _, text := range []string{"", "expandable_segments:True", "max_split_size_mb:64", "garbage_collection_threshold:0.6", "roundup_power2_divisions:4"} {
		for _, limit := range []units.Bytes{0, 2 * units.GiB} {
			conf, err := ParseAllocConf(text)
			if err != nil {
				t.Fatal(err)
			}
			a := newAllocator(conf, limit)
			rng := rand.New(rand.NewPCG(1, 2))
			var live []int32
			for range 4000 {
				if n := len(live); n > 0 && rng.IntN(2) == 0 {
					i := rng.IntN(n)
					a.release(live[i])
					live = append(live[:i], live[i+1:]...)
				} else if b := a.alloc(1 << rng.IntN(29) * int64(1+rng.IntN(3))); b != none {
					live = append(live, b)
				}
				checkAllocator(t, a, live)
			}
			for _, b := range live {
				a.release(b)
			}
			a.releaseAll()
			if a.allocated != 0 || a.reserved != 0 {
				t.Errorf("%q: %d allocated and %d reserved after everything was freed", text, a.allocated, a.reserved)
			}
		}
	}
}

func checkAllocator(t *testing.T, a *allocator, live []int32) {
	t.Helper()
	var handed, free int64
	for _, b := range live {
		handed += a.blocks[b].size
	}
	for _, p := range a.pools {
		keys := p.free.keys()
		for i, k := range keys {
			free += k.size
			if b := a.blocks[k.block]; !b.free || b.unmapped || b.size != k.size || b.addr != k.addr {
				t.Fatalf("free list holds %+v for block %+v", k, b)
			}
			if i > 0 && cmp.Or(cmp.Compare(keys[i-1].size, k.size), cmp.Compare(keys[i-1].addr, k.addr)) >= 0 {
				t.Fatalf("free list out of order at %d", i)
			}
		}
	}
	if handed != a.allocated || handed+free != a.reserved || a.reserved > a.limit {
		t.Fatalf("live %d, free %d; allocated %d, reserved %d, limit %d", handed, free, a.allocated, a.reserved, a.limit)
	}
}

// Failing reports the figures of PyTorch's message, and the parts of the ledger sum to them.
func TestSimulateFails(t *testing.T) {
	big := trace.Tensor{Name: "logits", Category: trace.Activation, Bytes: 600 * units.MiB}
	tr := &trace.Trace{
		Tensors: []trace.Tensor{big, big, big},
		Phases: []trace.Phase{
			{Name: "eval", Events: []trace.Event{{Tensor: 0}, {Tensor: 0, Free: true}}},
			{Name: "first_step", Stages: []trace.Stage{{Name: "forward"}, {Name: "backward", First: 1}}, Events: []trace.Event{{Tensor: 1}, {Tensor: 2}}},
		},
	}
	r := Simulate(tr, AllocConf{}, units.GiB)
	f := r.Failure
	if f == nil || f.Phase != "first_step" || f.Stage != "backward" || f.Event != 1 || f.Tried != 600*units.MiB ||
		f.Allocated != 600*units.MiB || f.Reserved != 600*units.MiB || f.Free != 424*units.MiB {
		t.Fatalf("failure = %+v", f)
	}
	if got := r.LedgerAtFailure().Total(); got != f.Allocated {
		t.Errorf("ledger at failure sums to %v, want %v", got, f.Allocated)
	}
	if r := Simulate(tr, AllocConf{}, 0); r.Failure != nil || r.Peak().PeakAllocated != r.Ledger().Total() {
		t.Errorf("without a limit: %+v", r)
	}
}
