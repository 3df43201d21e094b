// Package supervise owns a PyTorch trainer under watch: it starts the trainer, passes everything through, and when
// memory runs out restarts it with settings that fit and the same effective batch.
//
// It reads failures with oom and chooses settings through a Planner. A run that ends for any other reason is left as it
// ended. It never changes a script or a config file, and never signals a process that it did not start.
package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// Supervisor is one supervised run. Every function must be there; Planner and Prober may be nil.
type Supervisor struct {
	Command   *Command
	Planner   Planner     // nil: memory is learned from the tries
	Limit     units.Bytes // what the run may take; 0 is unknown
	Preflight bool        // plan before the start
	Retries   int

	Streams Streams
	Env     []string
	Signals <-chan os.Signal // what the user sends to snug
	Log     io.Writer        // the trainer's output is kept here too
	Say     func(line string)
	Explain func(*oom.Log) []string // the diagnosis, in a few lines
	Publish func(runs.Run)
	Prober  gpu.Prober // nil: memory is not watched
	Device  string     // UUID of the device that the run will be on; "" is unknown

	Interval time.Duration // between two looks at the device
	Grace    time.Duration // for leftovers between asking and forcing them to end
	Silence  time.Duration // after which a trainer that ran out of memory and neither ends nor prints is ended

	state state
}

// Attempt is one start of the trainer.
type Attempt struct {
	Setting
	Args        []string      `json:"args"`
	ResumedFrom string        `json:"resumed_from,omitempty"`
	Outcome     Outcome       `json:"outcome"`
	Exit        int           `json:"exit"`
	Took        time.Duration `json:"took_ns"`
	Measured    units.Bytes   `json:"measured,omitempty"` // process memory, the largest seen; 0 is unknown
	Facts       *oom.Facts    `json:"facts,omitempty"`
	Iteration   *int64        `json:"iteration,omitempty"` // the last that was printed
}

// Outcome is how an attempt ended.
type Outcome string

const (
	Done        Outcome = "done"
	OutOfMemory Outcome = "out_of_memory"
	Failed      Outcome = "failed"      // in any other way: it is not retried
	Interrupted Outcome = "interrupted" // by the user
)

// Summary is the whole run.
type Summary struct {
	Attempts []Attempt     `json:"attempts"`
	Given    *Prediction   `json:"given,omitempty"` // what the settings as given would have taken
	Lost     time.Duration `json:"lost_ns"`         // work that had to be done again
	Exit     int           `json:"exit"`
	Signal   int           `json:"signal,omitempty"` // the signal that ended the trainer
	GaveUp   string        `json:"gave_up,omitempty"`
}

// DoesNotFitError says that no setting with the same effective batch fits.
type DoesNotFitError struct {
	Given Prediction
	Limit units.Bytes
	Why   error
}

func (e *DoesNotFitError) Error() string {
	return fmt.Sprintf("plan the run: needs %s, has %s: %v", e.Given.Process.GiB(), e.Limit.GiB(), e.Why)
}

// Plan decides what the first attempt runs with, and says it.
func (s *Supervisor) Plan() (Setting, *Prediction, error) {
	first := Setting{}
	strategy, err := s.strategy()
	if err != nil || strategy == nil {
		return first, nil, err
	}
	s.state.strategy = strategy
	if b, err := s.Command.Batch(); err == nil {
		first.Batch = &b
	}
	// Without preflight the prediction is made all the same, to be compared with what is measured.
	chosen, given, fits, err := strategy.first(s.Limit, s.Preflight)
	switch {
	case !s.Preflight && err != nil:
		return first, nil, nil
	case err != nil && given.Process > 0:
		return first, &given, &DoesNotFitError{Given: given, Limit: s.Limit, Why: err}
	case err != nil:
		s.Say("plan: " + err.Error() + ": starting as given")
		return first, nil, nil
	case given.Process == 0: // memory is learned
		return chosen, nil, nil
	case !s.Preflight:
		return chosen, &given, nil
	case s.Limit == 0:
		s.Say(fmt.Sprintf("plan: needs %s; no GPU to compare with was found (--vram says how much there is)", given.Process.GiB()))
	case fits:
		s.Say(fmt.Sprintf("plan: fits, needs %s of %s", given.Process.GiB(), s.Limit.GiB()))
	default:
		s.Say(fmt.Sprintf("plan: does not fit, needs %s (in %s), has %s", given.Process.GiB(), given.Phase, s.Limit.GiB()))
		s.Say(fmt.Sprintf("plan: taking %s, which needs %s and keeps the effective batch of %d", chosen, chosen.Predicted.Process.GiB(), chosen.Batch.Effective()))
	}
	return chosen, &given, nil
}

// strategy is nil where snug cannot change the command.
func (s *Supervisor) strategy() (strategy, error) {
	c := s.Command
	switch {
	case c.Trainer == nil:
		return nil, nil
	case c.Config != nil && s.Planner != nil && len(c.Notes) == 0:
		return &planned{cmd: c, planner: s.Planner, tried: map[string]bool{}}, nil
	}
	batch, err := c.Batch()
	if err != nil {
		return nil, err
	}
	return &learned{cmd: c, given: batch}, nil
}

// Run runs the trainer to its end, with restarts where memory runs out. first and given come from Plan.
// The error is snug's own (the trainer could not be started); how the trainer ended is in the summary.
func (s *Supervisor) Run(ctx context.Context, first Setting, given *Prediction) (Summary, error) {
	sum := Summary{Given: given}
	began := time.Now()
	setting := first
	var from Checkpoint
	for {
		a, log, end, err := s.attempt(ctx, len(sum.Attempts)+1, setting, from)
		if err != nil {
			return sum, err
		}
		sum.Attempts = append(sum.Attempts, a)
		sum.Exit, sum.Signal = a.Exit, end.Number
		if a.Outcome != OutOfMemory {
			return sum, nil
		}
		for _, line := range s.Explain(log) {
			s.Say(line)
		}
		if why := s.cannotRetry(len(sum.Attempts)); why != "" {
			sum.GaveUp = why
			s.Say("not restarted: " + why)
			return sum, nil
		}
		ended := time.Now()
		checkpoint, resumable := s.Command.newest(began)
		facts := seen(a.Facts)
		facts.Progress, facts.Resume = a.Iteration != nil, resumable
		if room := s.room(ctx); room > 0 && (facts.Limit == 0 || room < facts.Limit) {
			facts.Limit = room
		}
		if facts.Limit > 0 && (s.Limit == 0 || facts.Limit < s.Limit) {
			s.Limit = facts.Limit
		}
		next, err := s.state.strategy.next(setting, facts)
		if err == nil {
			err = s.interruptedMeanwhile()
		}
		if err != nil {
			sum.GaveUp = err.Error()
			s.Say("not restarted: " + err.Error())
			return sum, nil
		}
		if resumable {
			sum.Lost += max(0, min(a.Took, ended.Sub(checkpoint.Written)))
		} else {
			sum.Lost += a.Took
		}
		s.announce(len(sum.Attempts), next, checkpoint)
		setting, from = next, checkpoint
	}
}

// room is what the device that the trainer was on has free now that it has ended: others may have taken the rest. 0 is unknown.
func (s *Supervisor) room(ctx context.Context) units.Bytes {
	device := cmp.Or(s.state.device, s.Device)
	if s.Prober == nil || device == "" {
		return 0
	}
	snapshot, err := s.Prober.Snapshot(ctx)
	if err != nil {
		return 0
	}
	for _, d := range snapshot.Usable() {
		if d.UUID == device {
			return d.Free
		}
	}
	return 0
}

func (s *Supervisor) cannotRetry(attempts int) string {
	switch {
	case s.state.strategy == nil:
		return "snug doesn't know this script's batch: name its flags with --batch-flag and --accum-flag"
	case s.Command.Nodes > 1:
		return "the other machines of this run are not in snug's hands: restart all of them with a smaller batch"
	case attempts > s.Retries:
		return fmt.Sprintf("%d restarts were made, --retries allows no more", attempts-1)
	case s.state.interrupted(s.Streams):
		return "interrupted"
	}
	return ""
}

// interruptedMeanwhile takes the signals that came while no trainer ran: one that ends is for snug itself then.
func (s *Supervisor) interruptedMeanwhile() error {
	for {
		select {
		case sig := <-s.Signals:
			s.state.stopped = s.state.stopped || ends(sig)
		default:
			if s.state.interrupted(s.Streams) {
				return errors.New("interrupted")
			}
			return nil
		}
	}
}

func (s *Supervisor) announce(restart int, next Setting, from Checkpoint) {
	where := "from the start: there is no checkpoint yet"
	if from.Path != "" {
		where = "from " + from.Path
	}
	s.Say(fmt.Sprintf("restart %d of at most %d, %s, with %s", restart, s.Retries, where, next))
	if next.Predicted != nil {
		s.Say(fmt.Sprintf("predicted: %s", next.Predicted.Process.GiB()))
	}
}

// attempt runs the trainer once.
func (s *Supervisor) attempt(ctx context.Context, number int, setting Setting, from Checkpoint) (Attempt, *oom.Log, exit, error) {
	args := s.Command.With(setting.Changes)
	for _, r := range from.Args { // a flag that the command has already is replaced
		flag, value, _ := strings.Cut(r, "=")
		args = (&Command{Args: args}).With([]Change{{flag, value}})
	}
	a := Attempt{Setting: setting, Args: args, ResumedFrom: from.Path}
	reader, progress := oom.NewReader(), newProgressReader(time.Now)
	shared := &sync.Mutex{}
	var parts []*lines
	see := func() io.Writer {
		l := &lines{mu: shared, to: io.MultiWriter(reader, progress)}
		parts = append(parts, l)
		return io.MultiWriter(s.Log, l)
	}
	began := time.Now()
	c, err := start(args, append(slices.Clone(s.Env), setting.Env...), s.Streams, see)
	if err != nil {
		return a, nil, exit{}, fmt.Errorf("start the trainer: %w", err)
	}
	w := &watcher{s: s, child: c, progress: progress, attempt: number, setting: setting, began: began}
	end := w.untilEnd(ctx)
	for _, l := range parts {
		l.flush()
	}
	log := reader.Finish()
	a.Took, a.Exit, a.Measured, a.Iteration = time.Since(began), end.Code, w.peak, progress.Now().Iteration
	a.Outcome, a.Facts = s.judge(end, log, progress, w)
	if a.Outcome == OutOfMemory {
		c.sweep(s.Grace, w.tree)
	}
	return a, log, end, end.Err
}

// judge says how an attempt ended. Memory ran out when a failure of the device's memory is the last thing of note that
// was printed, or when the trainer died wordlessly with the device full.
func (s *Supervisor) judge(end exit, log *oom.Log, progress *progressReader, w *watcher) (Outcome, *oom.Facts) {
	switch {
	case s.state.interrupted(s.Streams):
		return Interrupted, nil
	case end.Code == 0:
		return Done, nil
	case len(log.Failures) > 0 && !progress.wentOn():
		if f := log.Failures[len(log.Failures)-1]; f.Kind != oom.Host {
			return OutOfMemory, &f.Facts
		}
	case w.full && !progress.traceback() && (end.Number == 0 || end.Number == int(syscall.SIGABRT)):
		return OutOfMemory, &oom.Facts{}
	}
	return Failed, nil
}

// state is what outlives an attempt.
type state struct {
	strategy strategy
	stopped  bool   // the user sent a signal that ends
	device   string // UUID of the fullest device that the trainer was seen on
}

func (st *state) interrupted(streams Streams) bool {
	if k, ok := streams.In.(*Keys); ok && k.interrupted() {
		return true
	}
	return st.stopped
}
