package train

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/snugml/snug/internal/metrics"
	"github.com/snugml/snug/internal/units"
)

// logs writes metrics.jsonl, and TensorBoard's files where asked, before it tells the next reporter.
type logs struct {
	log    *metrics.Log
	events *metrics.Events
	next   Reporter

	memory  func() (units.Bytes, bool) // what the device charges the process; nil where nothing does
	process units.Bytes                // the last reading of it
	read    time.Time
}

// openLogs begins the run's logs, or goes on with them at iteration iter.
func (r *Run) openLogs() (err error) {
	l := &logs{next: r.Report, memory: r.Device.Memory}
	path := filepath.Join(r.Config.OutDir, metrics.Name)
	if r.Config.InitFrom == "resume" {
		l.log, err = metrics.Resume(path, r.Iter)
	} else {
		l.log, err = metrics.Create(path, filepath.Join(r.Config.OutDir, metrics.PrevName))
	}
	if err == nil && r.Config.TensorboardLog {
		l.events, err = metrics.NewEvents(r.Config.OutDir, r.Iter)
	}
	r.logs, r.Report = l, l
	return err
}

func (l *logs) Iter(it Iter) error {
	m := metrics.Iter{Iter: it.Iter, Loss: metrics.Float(it.Loss), LR: metrics.Float(it.LR), GradNorm: metrics.Float(it.GradNorm),
		DtMs: metrics.Float(it.Time.Seconds() * 1e3), TokensPerS: metrics.Float(it.TokensPS), VramProcess: l.vram()}
	if err := l.log.Iter(m); err != nil {
		return err
	}
	if l.events != nil {
		if err := l.events.Iter(m); err != nil {
			return err
		}
	}
	return l.next.Iter(it)
}

// vram reads the process's memory, at most once a second: asking takes longer than a small model's iteration.
func (l *logs) vram() units.Bytes {
	if l.memory != nil && time.Since(l.read) >= time.Second {
		l.process, _ = l.memory()
		l.read = time.Now()
	}
	return l.process
}

func (l *logs) Eval(e Eval) error {
	m := metrics.Eval{Iter: e.Iter, TrainLoss: metrics.Float(e.TrainLoss), ValLoss: metrics.Float(e.ValLoss)}
	if err := l.log.Eval(m); err != nil {
		return err
	}
	if l.events != nil {
		if err := l.events.Eval(m); err != nil {
			return err
		}
	}
	return l.next.Eval(e)
}

func (l *logs) Saved(path string, iter int) { l.next.Saved(path, iter) }

func (l *logs) close() error {
	var err error
	if l.log != nil {
		err = l.log.Close()
	}
	if l.events != nil {
		err = errors.Join(err, l.events.Close())
	}
	return err
}
