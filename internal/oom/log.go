package oom

// Log is all that a Reader understood.
type Log struct {
	Failures []*Failure // in the order of the log
	Run      Run
	Lines    int64
}

// Phase is where the run failed: from the calls it was inside of, or from the last thing it showed.
func (l *Log) Phase() Phase {
	f := l.Failure()
	if f == nil {
		return UnknownPhase
	}
	switch phase := f.Trace.Phase(); {
	case phase != UnknownPhase:
		return phase
	case l.Run.Progress.Loading:
		return Load
	case l.Run.Progress.Evaluating:
		return Eval
	}
	return UnknownPhase
}

// repeated is the traceback of a failure that says f again, where f is only its title: same wording, no other number.
func (l *Log) repeated(f *Failure) Traceback {
	for _, other := range l.Failures {
		same := other.Dialect == f.Dialect && len(other.Trace) > 0
		for name, size := range other.Sizes {
			same = same && f.Sizes[name] == size
		}
		if same {
			return other.Trace
		}
	}
	return nil
}

// Failure is the one that ended the run: numbers before none, raised before warned, the card's memory before the
// signals that follow it, and then the first. Nil when the log holds none.
func (l *Log) Failure() *Failure {
	var best *Failure
	for _, f := range l.Failures {
		if best == nil || f.weight() > best.weight() {
			best = f
		}
	}
	return best
}

func (f *Failure) weight() int {
	w := min(len(f.Sizes), 3) * 4
	if f.Facts.Framework != "" {
		w++
	}
	if f.Facts.GPU != nil || f.Buffer != nil {
		w++
	}
	if f.Kind != Host {
		w += 2
	}
	if len(f.Trace) > 0 {
		w += 3
	}
	return w
}
