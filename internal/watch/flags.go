package watch

import (
	"fmt"
	"slices"
	"time"

	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// Flag is something a person should look at.
type Flag struct {
	Kind string `json:"kind"` // full, leak, fragmentation, slow, fault
	PID  int    `json:"pid,omitempty"`
	Text string `json:"text"`
}

// Thresholds of the flags.
const (
	fullShare   = 0.02            // of a card's memory left free
	leakWindow  = 2 * time.Minute // at least, before growth is called a leak
	leakParts   = 6               // the window's parts, the least memory of each above that of the one before
	leakSamples = 24              // in the window, at least
	leakStep    = 8 * units.MiB   // from part to part: less is noise
	leakGrowth  = 64 * units.MiB  // over the window: the first steps of a run grow by less than this after warm-up
	wasteShare  = 0.3             // reserved above allocated, or measured above predicted
	wasteLeast  = 512 * units.MiB
	slowFactor  = 2.0 // step time against the usual
)

// Flags are what the state shows to be wrong, the gravest first.
func (s *State) Flags() []Flag {
	var list []Flag
	for _, d := range s.Now.Devices {
		switch {
		case d.Fault != "":
			list = append(list, Flag{Kind: "fault", Text: fmt.Sprintf("GPU %s: %s", d.Label(), d.Fault)})
		case !d.MIG && d.Total > 0 && float64(d.Free) < fullShare*float64(d.Total):
			list = append(list, Flag{Kind: "full", Text: fmt.Sprintf("GPU %s is full: %s of %s free; the next allocation may fail", d.Label(), d.Free, d.Total.GiB())})
		}
	}
	for _, r := range s.Runs {
		list = append(list, s.runFlags(r)...)
	}
	var pids []int
	for pid := range s.processes {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	for _, pid := range pids {
		if growth, over, ok := leak(s.processes[pid]); ok {
			list = append(list, Flag{Kind: "leak", PID: pid, Text: fmt.Sprintf(
				"pid %d creeps: +%s in %s without a fall; does the script keep tensors (losses, outputs) from step to step?", pid, growth, units.Duration(over))})
		}
	}
	return list
}

func (s *State) runFlags(r runs.Run) []Flag {
	var list []Flag
	if r.Allocated != nil && r.Reserved != nil && far(*r.Reserved, *r.Allocated) {
		list = append(list, Flag{Kind: "fragmentation", PID: r.PID, Text: fmt.Sprintf(
			"reserved %s is far above allocated %s: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help", r.Reserved.GiB(), r.Allocated.GiB())})
	} else if held, known := s.Held(r); known && r.Predicted != nil && far(held, *r.Predicted) {
		list = append(list, Flag{Kind: "fragmentation", PID: r.PID, Text: fmt.Sprintf(
			"the run holds %s where the plan says %s: PyTorch reserves far more than it has allocated, or the script is not what was planned", held.GiB(), r.Predicted.GiB())})
	}
	if r.StepSeconds != nil && r.UsualStep != nil && *r.UsualStep > 0 && *r.StepSeconds > slowFactor**r.UsualStep {
		list = append(list, Flag{Kind: "slow", PID: r.PID, Text: fmt.Sprintf(
			"a step took %s, usually %s: near the limit PyTorch frees and retries allocations", seconds(*r.StepSeconds), seconds(*r.UsualStep))})
	}
	return list
}

func far(high, low units.Bytes) bool {
	return high-low > wasteLeast && float64(high-low) > wasteShare*float64(low)
}

func seconds(s float64) string { return units.Duration(time.Duration(s * float64(time.Second))) }

// leak says whether the memory rose all through the newest window that is long enough: allocators go up and down,
// leaks only up, so each part's least must lie above the least of the part before.
func leak(h []Sample) (growth units.Bytes, over time.Duration, ok bool) {
	if len(h) < leakSamples {
		return 0, 0, false
	}
	end := h[len(h)-1].Time
	start := slices.IndexFunc(h, func(x Sample) bool { return end.Sub(x.Time) <= 2*leakWindow })
	window := h[start:]
	over = end.Sub(window[0].Time)
	if len(window) < leakSamples || over < leakWindow {
		return 0, 0, false
	}
	var first, last units.Bytes
	for i := range leakParts {
		part := window[i*len(window)/leakParts : (i+1)*len(window)/leakParts]
		least := slices.MinFunc(part, func(a, b Sample) int { return int(min(1, max(-1, a.Memory-b.Memory))) }).Memory
		if i == 0 {
			first = least
		} else if least < last+leakStep {
			return 0, 0, false
		}
		last = least
	}
	return last - first, over, last-first >= leakGrowth
}
