// Package train owns nanoGPT's training loop over a planned step: learning rate, accumulation, evaluation, checkpoints,
// and what is told of them.
//
// Samples and dropout are numbered through the whole run, so a run is the same however it is split or interrupted.
// It never computes a tensor (executors do) and never prints (its Reporter does).
package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// Data gives windows of block_size tokens, and the same windows one token later, by number.
type Data interface {
	// Train fills x and y with training samples n, n+1, …: as many as x holds windows.
	Train(n uint64, x, y []int32) error
	// Eval fills x and y with samples n, n+1, … of the evaluation at iteration it, from split "train" or "val".
	Eval(split string, it int, n uint64, x, y []int32) error
}

// Reporter is told what happens, in order, on the loop's own goroutine.
type Reporter interface {
	Iter(Iter) error
	Eval(Eval) error
	Saved(path string, iter int)
}

// Iter is one iteration's line.
type Iter struct {
	Iter     int
	Loss     float64 // mean over the effective batch, before the update
	LR       float64
	GradNorm float64 // before clipping
	Time     time.Duration
	TokensPS float64
	FlopsPS  float64 // as nanoGPT's estimate_mfu counts them
}

// Eval is one estimate_loss.
type Eval struct {
	Iter               int
	TrainLoss, ValLoss float64
	BestValLoss        float64
	Time               time.Duration
	LR                 float64
	Best               bool // ValLoss is the lowest so far
}

// Loop is a run that is ready: executor loaded, parameters set.
type Loop struct {
	Config config.Config
	Step   *gpt.Step
	Exec   program.Executor
	Data   Data
	Report Reporter
	// Save begins a checkpoint of p; best says that its val loss is the lowest so far. Nil saves nothing.
	Save func(p Progress, best bool) (*Saving, error)

	Progress
	first  int // the iteration that Run began with
	x, y   []int32
	one    [1]float32
	queued queued
	since  time.Time // from when the time of the next line counts
	saving *Saving   // the checkpoint that is on its way, nil where none is
}

// queued is the iteration whose update is queued and whose loss and norm are not taken yet, if on.
type queued struct {
	on   bool
	lr   float64
	read [2]float32 // LossSum, Norm
	from [2]program.ID
	wait func() error // until read holds them; nil where it does already
}

// Progress is what a run carries from iteration to iteration beside its tensors.
type Progress struct {
	Iter        int     `json:"iter"`      // the next iteration
	Sample      uint64  `json:"sample"`    // the next training sample
	Updates     int     `json:"updates"`   // AdamW steps taken
	BestValLoss float64 `json:"best_val"`  // 1e9 before the first estimate, as nanoGPT has it
	Evaluated   int     `json:"evaluated"` // the last iteration that was evaluated; -1 if none was
	Scale       Scaler  `json:"scale"`
}

// Start is the progress of a run that begins.
func Start() Progress { return Progress{BestValLoss: 1e9, Evaluated: -1, Scale: Scaler{Scale: 1}} }

// ErrStopped is returned when the context ended the run; the state was saved, unless the run had done no iteration.
var ErrStopped = errors.New("stopped")

// Run is nanoGPT's while True: evaluate and save every eval_interval, iterate, until iteration max_iters is done.
func (l *Loop) Run(ctx context.Context) (err error) {
	defer func() { err = l.finish(err) }()
	T := l.Step.Model.BlockSize
	most := max(l.Step.Policy.MicroBatch, l.Step.Policy.EvalBatch)
	l.x, l.y = make([]int32, most*T), make([]int32, most*T)
	c := &l.Config
	saved := l.Iter
	l.first = l.Iter
	if l.Iter > c.MaxIters && !c.EvalOnly {
		return nil // a finished run was resumed
	}
	for it := l.Iter; ; it++ {
		if err := l.saved(false); err != nil {
			return err
		}
		lr := LearningRate(c, it)
		if (it%c.EvalInterval == 0 || c.EvalOnly) && l.Evaluated != it {
			didSave, err := l.evaluate(ctx, lr)
			if err != nil {
				return l.stop(err)
			}
			if didSave {
				saved = it
			}
		}
		if c.EvalOnly {
			return nil
		}
		if ctx.Err() != nil {
			return l.stop(ctx.Err())
		}
		if err := l.iterate(it, lr); err != nil {
			return err
		}
		if it == c.MaxIters {
			if err := l.settle(); err != nil || !c.AlwaysSaveCheckpoint || saved >= it {
				return err
			}
			return l.save(false)
		}
	}
}

// stop saves what there is when the run was asked to end. A run that has done no iteration has nothing to save: the
// checkpoint that its folder may hold is worth more.
func (l *Loop) stop(err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if err := l.settle(); err != nil {
		return err
	}
	if l.Iter > l.first {
		if err := l.save(false); err != nil {
			return err
		}
	}
	if err := l.saved(true); err != nil {
		return err
	}
	return ErrStopped
}

// save begins a checkpoint, when the one before is in its file.
func (l *Loop) save(best bool) (err error) {
	if l.Save == nil {
		return nil
	}
	if err := l.saved(true); err != nil {
		return err
	}
	if l.saving, err = l.Save(l.Progress, best); err != nil {
		return err
	}
	return l.saved(false)
}

// saved tells of the checkpoint on its way when it is in its file; wait waits for that.
func (l *Loop) saved(wait bool) error {
	s := l.saving
	if s == nil || !wait && !s.done() {
		return nil
	}
	l.saving = nil
	if err := s.wait(); err != nil {
		return err
	}
	l.Report.Saved(s.Path, s.Iter)
	return nil
}

// finish ends what is on its way when the run has ended, with err or without: the checkpoint, and before it the line of an
// iteration that an error came behind, where that can still be had.
func (l *Loop) finish(err error) error {
	if err != nil {
		_ = l.settle() // err is why the run ends
	}
	switch e := l.saved(true); {
	case e == nil:
		return err
	case err == nil:
		return e
	default:
		return fmt.Errorf("%w; and %w", err, e)
	}
}

// evaluate is estimate_loss and what nanoGPT does with it.
func (l *Loop) evaluate(ctx context.Context, lr float64) (saved bool, err error) {
	if err := l.settle(); err != nil {
		return false, err
	}
	start := time.Now()
	e := Eval{Iter: l.Iter, LR: lr}
	for _, split := range []struct {
		name string
		loss *float64
	}{{"train", &e.TrainLoss}, {"val", &e.ValLoss}} {
		if *split.loss, err = l.estimate(ctx, split.name); err != nil {
			return false, err
		}
	}
	l.Evaluated = l.Iter
	e.Best = e.ValLoss < l.BestValLoss
	keep := e.Best || l.Config.AlwaysSaveCheckpoint
	if keep {
		l.BestValLoss = e.ValLoss
	}
	e.BestValLoss, e.Time = l.BestValLoss, time.Since(start)
	if err := l.Report.Eval(e); err != nil {
		return false, err
	}
	if keep && l.Iter > 0 && !l.Config.EvalOnly {
		return true, l.save(e.Best)
	}
	return false, nil
}

// estimate is the mean loss over eval_iters * batch_size sequences of a split.
func (l *Loop) estimate(ctx context.Context, split string) (float64, error) {
	s := l.Step
	if err := l.Exec.Run(s.BeginEval, program.Step{}); err != nil {
		return 0, err
	}
	draw := func(n uint64, x, y []int32) error { return l.Data.Eval(split, l.Iter, n, x, y) }
	for at := 0; at < s.Shape.EvalBatch; {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		section := pick(s.Shape.EvalBatch-at, s.Policy.EvalBatch, s.Eval, s.EvalRest)
		if err := l.feed(section, uint64(at), draw); err != nil {
			return 0, err
		}
		if err := l.Exec.Run(section, program.Step{LossScale: 1}); err != nil {
			return 0, err
		}
		at += s.Sections[section].B
	}
	sum, err := l.scalar(s.LossSum)
	return sum / (float64(s.Shape.EvalBatch) * float64(s.Model.BlockSize)), err
}

// pick is the whole section while enough sequences are left, then the one for the rest.
func pick(left, whole, section, rest int) int {
	if left >= whole {
		return section
	}
	return rest
}

// feed writes the inputs of a section: its sequences are the samples from first on.
func (l *Loop) feed(section int, first uint64, draw func(n uint64, x, y []int32) error) error {
	s := l.Step
	T, n := s.Model.BlockSize, s.Sections[section].B
	if err := draw(first, l.x[:n*T], l.y[:n*T]); err != nil {
		return err
	}
	idx, targets := s.Inputs(section)
	if err := l.Exec.SetInts(idx, l.x[:n*T]); err != nil {
		return err
	}
	return l.Exec.SetInts(targets, l.y[:n*T])
}

// iterate queues iteration it. The loss and norm of the one before are taken when its gradients are queued behind that:
// the device always has work while the host looks at them, and no update is queued before the last one is known to be good.
//
// float16 stays in step, because the next gradients are scaled by what the last norm was; so does an executor that does
// not queue.
func (l *Loop) iterate(it int, lr float64) error {
	if err := l.gradients(it); err != nil {
		return err
	}
	if err := l.settle(); err != nil {
		return err
	}
	if err := l.update(lr); err != nil {
		return err
	}
	if l.queued.wait == nil || l.Scale.On {
		return l.settle()
	}
	return nil
}

// gradients queues the sections of an iteration that leave its loss and gradients.
func (l *Loop) gradients(it int) error {
	if !l.queued.on {
		l.since = time.Now()
	}
	s := l.Step
	first := l.Sample + uint64(it-l.Iter)*uint64(s.Shape.Batch)
	step := program.Step{Seed: uint64(l.Config.Seed), LossScale: l.Scale.Scale}
	if err := l.Exec.Run(s.Begin, step); err != nil {
		return err
	}
	for at := 0; at < s.Shape.Batch; {
		section := s.Next(at)
		step.Sample = first + uint64(at)
		if err := l.feed(section, step.Sample, l.Data.Train); err != nil {
			return err
		}
		if err := l.Exec.Run(section, step); err != nil {
			return err
		}
		at += s.Sections[section].B
	}
	return nil
}

// update queues AdamW over the gradients, and the read of what is told of the iteration. AdamW changes what a checkpoint
// holds: the one on its way must have left the device.
func (l *Loop) update(lr float64) (err error) {
	if l.saving != nil && l.saving.Copied() != nil {
		return l.saved(true)
	}
	if err := l.Exec.Run(l.Step.Update, program.Step{LR: lr, T: l.Updates + 1, LossScale: l.Scale.Scale}); err != nil {
		return err
	}
	q := &l.queued
	q.from, q.lr = [2]program.ID{l.Step.LossSum, l.Step.Norm}, lr
	q.wait, err = l.Exec.Later(q.read[:], q.from[:]...)
	q.on = err == nil
	return err
}

// settle takes the loss and norm of the queued iteration, if there is one, counts it as done, and tells of it.
func (l *Loop) settle() error {
	q := &l.queued
	if !q.on {
		return nil
	}
	q.on = false
	if q.wait != nil {
		if err := q.wait(); err != nil {
			return err
		}
	}
	tokens := float64(l.Step.Shape.Batch) * float64(l.Step.Model.BlockSize)
	loss, norm := float64(q.read[0])/tokens, float64(q.read[1])
	if !finite(loss) || !finite(norm) {
		if done, err := l.overflow(loss, norm); done {
			return err
		}
	} else {
		l.Updates++
		l.Scale.Good()
	}
	now := time.Now()
	dt := now.Sub(l.since)
	l.since = now
	it := Iter{Iter: l.Iter, Loss: loss, LR: q.lr, GradNorm: norm, Time: dt,
		TokensPS: tokens / dt.Seconds(), FlopsPS: tokens * l.Step.Model.FlopsPerToken() / dt.Seconds()}
	l.Iter++
	l.Sample += uint64(l.Step.Shape.Batch)
	return l.Report.Iter(it)
}

// overflow handles a loss or norm that is no number. AdamW left everything as it was if the norm is not finite:
// in float16 the scale goes down and the run goes on; otherwise it ends, with the state before this iteration saved. What
// is queued behind it are gradients, which no checkpoint holds.
func (l *Loop) overflow(loss, norm float64) (done bool, err error) {
	if finite(loss) && l.Scale.Overflow() {
		return false, nil
	}
	clip := ""
	if l.Config.GradClip == 0 {
		clip = " or set grad_clip"
	}
	err = fmt.Errorf("iteration %d: loss is %.4g and the gradient's norm %.4g: lower learning_rate (%.3g now)%s, then go on with --init_from=resume",
		l.Iter, loss, norm, LearningRate(&l.Config, l.Iter), clip)
	if !finite(norm) {
		if e := l.save(false); e != nil {
			return true, fmt.Errorf("%w; and %w", err, e)
		}
	}
	return true, err
}

func (l *Loop) scalar(id program.ID) (float64, error) {
	err := l.Exec.Floats(id, l.one[:])
	return float64(l.one[0]), err
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Scaler is torch's GradScaler: the loss is scaled up so that float16 gradients do not vanish. Other dtypes stand at 1.
type Scaler struct {
	Scale float64 `json:"scale"`
	Since int     `json:"since"` // iterations since the scale last changed
	On    bool    `json:"on"`
}

// scalerFor is the scaler of a run that stores activations as dtype: a float16 run's own where it has one, else
// GradScaler's start.
func scalerFor(dtype trace.DType, own Scaler) Scaler {
	switch {
	case dtype != trace.Float16:
		return Scaler{Scale: 1}
	case own.On:
		return own
	}
	return Scaler{Scale: 65536, On: true}
}

// Good counts an iteration without overflow; after 2,000 of them the scale doubles.
func (s *Scaler) Good() {
	if !s.On {
		return
	}
	if s.Since++; s.Since >= 2000 {
		s.Scale, s.Since = s.Scale*2, 0
	}
}

// Overflow halves the scale and reports whether that can help.
func (s *Scaler) Overflow() bool {
	if !s.On || s.Scale < 1 {
		return false
	}
	s.Scale, s.Since = s.Scale/2, 0
	return true
}
