package train

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/metrics"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// queue is the CPU's executor behind a queue, as a GPU is: work is done when something waits for it, and no earlier.
type queue struct {
	program.Executor
	work []func() error
	done int // of work, by count
	err  error

	letters map[int]string // of the sections that are written down
	log     string         // in the order they were queued

	update int   // the section that changes what a snapshot shows
	shot   *shot // the last snapshot
}

// shot is a snapshot that is taken as late as is allowed: when the writer of the checkpoint and the loop both wait for it.
type shot struct {
	copy func() error
	sync.Mutex
	waiting int
	done    chan struct{}
	err     error
}

func (s *shot) wait() error {
	s.Lock()
	if s.waiting++; s.waiting == 2 {
		s.err = s.copy()
		close(s.done)
	}
	s.Unlock()
	<-s.done
	return s.err
}

func (s *shot) taken() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

var errUnderWay = errors.New("a snapshot is under way")

func (q *queue) Snapshot(ids []program.ID, dst [][]float32) (func() error, error) {
	if q.shot != nil && !q.shot.taken() {
		return nil, errUnderWay
	}
	mark := len(q.work)
	q.shot = &shot{done: make(chan struct{}), copy: func() error {
		if err := q.until(mark); err != nil {
			return err
		}
		for i, id := range ids {
			if err := q.Executor.Floats(id, dst[i]); err != nil {
				return err
			}
		}
		return nil
	}}
	return q.shot.wait, nil
}

func (q *queue) Load(l *program.Layout) error {
	q.update = l.Section("update")
	return q.Executor.Load(l)
}

func queuing(d Device) Device {
	d.Exec = &queue{Executor: d.Exec}
	return d
}

func (q *queue) push(f func() error) error {
	q.work = append(q.work, f)
	return q.err
}

// until does the first n pieces of work.
func (q *queue) until(n int) error {
	for ; q.done < n && q.err == nil; q.done++ {
		q.err = q.work[q.done]()
		q.work[q.done] = nil
	}
	return q.err
}

func (q *queue) Run(section int, s program.Step) error {
	if section == q.update && q.shot != nil && !q.shot.taken() {
		return errUnderWay
	}
	q.log += q.letters[section]
	return q.push(func() error { return q.Executor.Run(section, s) })
}

func (q *queue) SetFloats(id program.ID, src []float32) error {
	src = slices.Clone(src)
	return q.push(func() error { return q.Executor.SetFloats(id, src) })
}

func (q *queue) SetInts(id program.ID, src []int32) error {
	src = slices.Clone(src)
	return q.push(func() error { return q.Executor.SetInts(id, src) })
}

func (q *queue) Floats(id program.ID, dst []float32) error {
	if err := q.until(len(q.work)); err != nil {
		return err
	}
	return q.Executor.Floats(id, dst)
}

func (q *queue) Later(dst []float32, ids ...program.ID) (func() error, error) {
	read := make([]float32, len(ids))
	err := q.push(func() error { _, err := q.Executor.Later(read, ids...); return err })
	n := len(q.work)
	return func() error {
		err := q.until(n)
		copy(dst, read)
		return err
	}, err
}

// sameState fails where two checkpoints differ in a bit of a tensor or in their place in the run.
func sameState(t *testing.T, got, want string) {
	t.Helper()
	var states [2]*checkpoint.State
	for i, dir := range []string{got, want} {
		s, err := checkpoint.Load(dir, checkpoint.Everything)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		states[i] = s
	}
	a, b := states[0], states[1]
	if string(a.Extra[progressKey]) != string(b.Extra[progressKey]) || a.IterNum != b.IterNum || a.Optimizer.Step != b.Optimizer.Step {
		t.Errorf("the checkpoint is at %s, want %s", a.Extra[progressKey], b.Extra[progressKey])
	}
	for g, group := range [][2][]checkpoint.Tensor{{a.Params, b.Params}, {a.Optimizer.ExpAvg, b.Optimizer.ExpAvg}, {a.Optimizer.ExpAvgSq, b.Optimizer.ExpAvgSq}} {
		for i := range group[1] {
			x, err := group[0][i].Float32s()
			y, err2 := group[1][i].Float32s()
			if err != nil || err2 != nil || !slices.Equal(x, y) {
				t.Errorf("tensor %d of group %d, %s, has other bits (%v, %v)", i, g, group[1][i].Name, err, err2)
			}
		}
	}
}

// A queue in front of the executor changes when things are known, and nothing else: the same lines in the same order, the
// same estimates, checkpoints and parameters, also over stops.
func TestQueueChangesNothing(t *testing.T) {
	for _, stops := range [][]int{{0}, {2, 5, 0}} {
		var runs [2]struct {
			losses []float64
			evals  []Eval
			params [][]float32
			config config.Config
		}
		for i, d := range []func() Device{func() Device { return device(2) }, func() Device { return queuing(device(2)) }} {
			run := &runs[i]
			run.config = tiny(t, nil)
			for part, stop := range stops {
				rec, err := &recorder{stopAt: stop}, error(nil)
				if part > 0 {
					run.config.InitFrom = "resume"
				}
				run.params, err = trainOn(t, d(), run.config, rec, func(*Run) {})
				if stop > 0 && !errors.Is(err, ErrStopped) || stop == 0 && err != nil {
					t.Fatalf("stop at %d: %v", stop, err)
				}
				for _, e := range rec.evals {
					e.Time = 0
					run.evals = append(run.evals, e)
				}
				run.losses = append(run.losses, rec.losses()...)
			}
		}
		if !slices.Equal(runs[0].losses, runs[1].losses) || !slices.Equal(runs[0].evals, runs[1].evals) {
			t.Errorf("stops %v: losses %v and estimates %v, without a queue %v and %v", stops, runs[1].losses, runs[1].evals, runs[0].losses, runs[0].evals)
		}
		for i := range runs[0].params {
			if !slices.Equal(runs[1].params[i], runs[0].params[i]) {
				t.Errorf("stops %v: parameter %d has other bits behind a queue", stops, i)
			}
		}
		sameState(t, runs[1].config.OutDir, runs[0].config.OutDir)
		a, _ := metrics.Read(filepath.Join(runs[0].config.OutDir, metrics.Name))
		b, _ := metrics.Read(filepath.Join(runs[1].config.OutDir, metrics.Name))
		for i := range a.Iters {
			x, y := a.Iters[i], b.Iters[i]
			if x.Iter != y.Iter || x.Loss != y.Loss || x.LR != y.LR || x.GradNorm != y.GradNorm || !(y.DtMs > 0) {
				t.Errorf("metrics.jsonl: %+v, without a queue %+v", y, x)
			}
		}
	}
}

// diary is a reporter that writes the number of each line behind what was queued before it was told.
type diary struct {
	recorder
	exec *queue
}

func (d *diary) Iter(it Iter) error {
	d.exec.log += fmt.Sprint(it.Iter)
	return d.recorder.Iter(it)
}

// A line is told when the next iteration's gradients are queued and its update is not; before an estimate, at the end, and
// in float16, where the next gradients are scaled by what is read, before anything more is queued.
func TestLinesAreTakenOneIterationLate(t *testing.T) {
	for dtype, want := range map[trace.DType]string{trace.BFloat16: "egug0u1egug2u3", trace.Float16: "egu0gu1egu2gu3"} {
		c := tiny(t, func(c *config.Config) { c.MaxIters, c.EvalInterval = 3, 2 })
		d := queuing(device(2))
		defer d.Exec.Close()
		r, err := Prepare(c, d)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.Scale = scalerFor(dtype, r.Scale)
		exec := d.Exec.(*queue)
		exec.letters = map[int]string{r.Step.Eval: "e", r.Step.First: "g", r.Step.Update: "u"}
		if err := r.Start(&diary{exec: exec}); err != nil {
			t.Fatal(err)
		}
		if err := r.Run(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(exec.log, "ee", "e"); got != want { // an estimate is of two splits
			t.Errorf("%s: estimates, gradients, updates and lines came as %s, want %s", dtype, got, want)
		}
	}
}

// What ends a run while an iteration is queued does not lose that iteration's line.
func TestFaultKeepsTheLastLine(t *testing.T) {
	rec := &recorder{}
	_, err := trainOn(t, queuing(device(2)), tiny(t, nil), rec, func(r *Run) { r.Data = &short{Data: r.Data, left: 3} })
	if !errors.Is(err, errShort) || len(rec.iters) != 3 {
		t.Errorf("%v after %d lines, want 3", err, len(rec.iters))
	}
}

// short is data that ends after a few training batches.
type short struct {
	Data
	left int
}

var errShort = errors.New("the data has ended")

func (s *short) Train(n uint64, x, y []int32) error {
	if s.left--; s.left < 0 {
		return errShort
	}
	return s.Data.Train(n, x, y)
}
