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
	if phase := f.Trace.Phase(); phase != UnknownPhase || !l.Run.Progress.Loading {
		return phase
	}
	return Load
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
