// Package watch owns the monitor: a history of snapshots, what it makes of them, and how they look on a terminal.
//
// It reads what gpu and runs tell and draws it. It never asks a driver itself, and never touches a process.
package watch

import (
	"slices"
	"time"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// Sample is memory at a moment.
type Sample struct {
	Time   time.Time
	Memory units.Bytes
}

// State is what is known now and what came before. The zero State knows nothing.
type State struct {
	Now  gpu.Snapshot
	Runs []runs.Run
	Err  error // why the last snapshot failed; Now is then the one before

	devices   map[string][]Sample // by UUID, oldest first
	processes map[int][]Sample    // by PID
}

// history is how many samples are kept of each device and process: an hour at one a second.
const history = 3600

// Add takes the next snapshot and the runs told beside it.
func (s *State) Add(now gpu.Snapshot, list []runs.Run, err error) {
	s.Runs, s.Err = list, err
	if err != nil {
		return
	}
	s.Now = now
	devices, processes := map[string][]Sample{}, map[int][]Sample{}
	held := map[int]units.Bytes{}
	for _, d := range now.Devices {
		if d.Fault != "" {
			continue
		}
		devices[d.UUID] = push(s.devices[d.UUID], Sample{now.Time, d.Used})
		for _, p := range d.Processes {
			if p.Memory != nil {
				held[p.PID] += *p.Memory // a process on several cards is one process
			}
		}
	}
	for pid, memory := range held {
		processes[pid] = push(s.processes[pid], Sample{now.Time, memory})
	}
	s.devices, s.processes = devices, processes // what is gone is forgotten
}

func push(list []Sample, s Sample) []Sample {
	if len(list) == history {
		list = slices.Delete(list, 0, history/4)
	}
	return append(list, s)
}

// Held is what the run's processes hold now, on all cards; known is false where the driver lists none of them.
func (s *State) Held(r runs.Run) (memory units.Bytes, known bool) {
	for _, pid := range r.Processes {
		if h := s.processes[pid]; len(h) > 0 {
			memory += h[len(h)-1].Memory
			known = true
		}
	}
	return memory, known
}
