package supervise

import (
	"context"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// watcher looks after one attempt while it runs: signals, memory, silence, and what is published of it.
type watcher struct {
	s        *Supervisor
	child    *child
	progress *progressReader
	attempt  int
	setting  Setting
	began    time.Time

	peak units.Bytes // process memory on one device, the largest seen
	full bool        // a device that the trainer is on had next to nothing free, at the last look that found it there
	tree []process   // the trainer's descendants, at the last look

	listed bool                   // the driver has listed the trainer among its processes
	before map[string]units.Bytes // used on each device at the first look, by UUID
}

// nearlyNothing is the free share of a card under which it counts as full.
const nearlyNothing = 0.02

// untilEnd returns when the trainer has ended.
func (w *watcher) untilEnd(ctx context.Context) exit {
	clock := time.NewTicker(w.s.Interval)
	defer clock.Stop()
	looks := make(chan gpu.Snapshot, 1)
	asking := false
	ending := false
	done := ctx.Done()
	for {
		select {
		case end := <-w.child.ended:
			return end
		case <-done:
			done = nil
			w.s.state.stopped = true
			w.child.signal(syscall.SIGTERM)
		case sig := <-w.s.Signals:
			w.take(sig)
		case look := <-looks:
			asking = false
			w.look(look)
			w.publish()
		case <-clock.C:
			w.tree = descendants(w.child.cmd.Process.Pid)
			if quiet, failed := w.progress.silentSince(time.Now()); failed && quiet > w.s.Silence && !ending {
				ending = true
				w.s.Say("the trainer ran out of memory and hangs: ending it")
				go w.child.sweep(w.s.Grace, w.tree)
			}
			if w.s.Prober == nil {
				w.publish()
			} else if !asking {
				asking = true
				go w.ask(ctx, looks)
			}
		}
	}
}

// take passes a signal on. The pty tells the trainer of a new size by itself.
func (w *watcher) take(sig os.Signal) {
	if isResize(sig) {
		w.child.resize()
		return
	}
	if ends(sig) {
		w.s.state.stopped = true
	}
	w.child.signal(sig)
}

func (w *watcher) ask(ctx context.Context, looks chan<- gpu.Snapshot) {
	snapshot, err := w.s.Prober.Snapshot(ctx)
	if err != nil {
		snapshot = gpu.Snapshot{} // a driver that fails now may answer later: the run matters more
	}
	looks <- snapshot
}

// look finds the trainer's processes on the devices.
func (w *watcher) look(snapshot gpu.Snapshot) {
	mine := map[int]bool{w.child.cmd.Process.Pid: true}
	for _, p := range w.tree {
		mine[p.pid] = true
	}
	seen, full := false, false
	var least units.Bytes
	for _, d := range snapshot.Usable() {
		held, on := w.held(d, mine)
		if !on {
			continue
		}
		w.peak = max(w.peak, held)
		seen, full = true, full || float64(d.Free) < nearlyNothing*float64(d.Total)
		if least == 0 || d.Free < least {
			least, w.s.state.device = max(1, d.Free), d.UUID
		}
	}
	if seen { // a look that came after the trainer's death says nothing of how it died
		w.full = full
	}
	if w.before == nil {
		w.before = map[string]units.Bytes{}
		for _, d := range snapshot.Usable() {
			w.before[d.UUID] = d.Used
		}
	}
}

// held is what the trainer has on a device. Inside a container the driver lists other PIDs or none: then it is what has
// come in use since the first look on the device that the run is planned for.
func (w *watcher) held(d gpu.Device, mine map[int]bool) (held units.Bytes, on bool) {
	for _, p := range d.Processes {
		if mine[p.PID] {
			on, w.listed = true, true
			if p.Memory != nil {
				held += *p.Memory
			}
		}
	}
	if used, known := w.before[d.UUID]; known && !w.listed && d.UUID == w.s.Device {
		return max(0, d.Used-used), true
	}
	return held, on
}

// publish tells watchers of the run.
func (w *watcher) publish() {
	now := w.progress.Now()
	r := runs.Run{
		PID: os.Getpid(), Processes: []int{w.child.cmd.Process.Pid}, Command: strings.Join(w.child.cmd.Args, " "),
		Started: w.began, Updated: time.Now(), Attempt: w.attempt, Iteration: now.Iteration, Loss: finite(now.Loss),
		StepSeconds: inSeconds(now.Step), UsualStep: inSeconds(now.Usual),
	}
	for _, p := range w.tree {
		r.Processes = append(r.Processes, p.pid)
	}
	limit, peak := w.s.Limit, w.peak // copies: the reader may keep them
	if limit > 0 {
		r.Limit = &limit
	}
	if w.setting.Predicted != nil {
		r.Predicted = &w.setting.Predicted.Process
	}
	if peak > 0 {
		r.Measured = &peak
	}
	w.s.Publish(r)
}

func inSeconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}
