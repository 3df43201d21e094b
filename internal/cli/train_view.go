package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/metrics"
	"github.com/snugml/snug/internal/plot"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
	"github.com/snugml/snug/internal/units"
)

// trainView shows a run: the plan, a bar with loss, speed and time left (lines where the output is piped), each
// estimate, and the result. Estimates and the result are stdout's, everything else stderr's.
type trainView struct {
	io    *term.IO
	o     trainOptions
	run   *train.Run
	bar   *term.Progress
	first int // iteration at which the bar began
	start time.Time
	last  train.Iter
	eval  train.Eval
	saved string
	speed float64 // tokens a second, averaged over the last iterations
	noted int     // of the run's notes, how many were shown

	runs      string      // the folder that snug watch reads; empty where it cannot be written
	published time.Time   // when it was last told
	peak      units.Bytes // the most that the process was seen to hold then
}

func newTrainView(io *term.IO, o trainOptions, run *train.Run) *trainView {
	total := int64(run.Config.MaxIters + 1 - run.Iter)
	return &trainView{io: io, o: o, run: run, first: run.Iter, bar: io.Err.Progress("train", max(total, 1)), start: time.Now(), runs: runs.Dir(io.Env)}
}

// plan says what will run and what it takes, before it takes it.
func (v *trainView) plan() {
	m, p, c, row := v.run.Step.Model, v.run.Step.Policy, &v.run.Config, v.row
	row("device", "%s, %s", v.run.Device.Name, c.DType)
	row("model", "%.2fM parameters: %d layers, %d heads, %d wide, block %d, vocabulary %d", float64(m.Params(true))/1e6, m.NLayer, m.NHead, m.NEmbd, m.BlockSize, m.VocabSize)
	row("data", "%s: %s tokens to train on, %s to validate", filepath.Join(c.DataDir, c.Dataset), units.Count(int(v.run.Set.Train.Len())), units.Count(int(v.run.Set.Val.Len())))
	batch := fmt.Sprintf("%s, %s tokens an iteration, %s at once", sequences(v.run.Step.Shape.Batch), units.Count(v.run.Step.Shape.Batch*m.BlockSize), sequences(p.MicroBatch))
	if p.Gradient != trace.Float32 {
		batch += fmt.Sprintf(", gradients in %s", p.Gradient)
	}
	if again := recomputed(v.run.Step); again != "" {
		batch += ", recomputing " + again
	}
	row("batch", "%s", batch)
	row("memory", "%s", v.memory())
	v.notes()
	if v.run.Iter > 0 {
		row("resume", "from iteration %d, best val loss %.4f", v.run.Iter, v.run.BestValLoss)
	}
}

// notes shows the run's notes that have not been shown.
func (v *trainView) notes() {
	for _, note := range v.run.Notes[v.noted:] {
		v.row("note", "%s", note)
	}
	v.noted = len(v.run.Notes)
}

// row is a line of the plan: its name, and its text beside it.
func (v *trainView) row(name, format string, args ...any) {
	for i, part := range term.Wrapped(fmt.Sprintf(format, args...), max(40, v.io.Err.Width-9)) {
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(v.io.Err, "%s%s\n", v.io.Err.Paint(term.Bold, fmt.Sprintf("%-8s ", name)), part)
	}
}

// memory is the plan in a line: the bytes to be taken, and what they are at the peak.
func (v *trainView) memory() string {
	size := v.run.Layout.Size
	_, ledger := v.run.Layout.Ledger()
	var parts []string
	for _, s := range ledger.ByCategory() {
		parts = append(parts, fmt.Sprintf("%s %v", plural(s.Category), s.Held))
	}
	text := fmt.Sprintf("%v (%s bytes), taken once: %s", size, units.Count(int(size)), strings.Join(parts, ", "))
	if limit := v.run.Device.Limit; limit > 0 {
		text += fmt.Sprintf("; the limit is %v", limit)
	}
	return text
}

func plural(c trace.Category) string {
	switch c {
	case trace.Workspace, trace.Optimizer:
		return string(c)
	}
	return string(c) + "s"
}

// recomputed counts the layers at each recompute level that is on.
func recomputed(s *gpt.Step) string {
	var parts []string
	levels := s.Policy.Recompute
	for i := 0; i < len(levels); {
		j := i
		for j < len(levels) && levels[j] == levels[i] {
			j++
		}
		if levels[i] > 0 {
			parts = append(parts, fmt.Sprintf("%v in %d of %d layers", levels[i], j-i, len(levels)))
		}
		i = j
	}
	return strings.Join(parts, ", ")
}

func (v *trainView) Iter(it train.Iter) error {
	v.last = it
	if v.speed == 0 {
		v.speed = it.TokensPS
	}
	v.speed = 0.9*v.speed + 0.1*it.TokensPS
	v.publish(time.Now())
	if v.io.Err.TTY {
		v.bar.Set(int64(it.Iter-v.first+1), fmt.Sprintf("iter %d  loss %.4f  %s tok/s", it.Iter, it.Loss, units.Count(int(v.speed))))
		return nil
	}
	if it.Iter%v.run.Config.LogInterval == 0 {
		fmt.Fprintf(v.io.Err, "iter %d: loss %.4f, lr %.2e, norm %.3f, time %.2f ms, %s tok/s\n",
			it.Iter, it.Loss, it.LR, it.GradNorm, it.Time.Seconds()*1e3, units.Count(int(it.TokensPS)))
	}
	return nil
}

func (v *trainView) Eval(e train.Eval) error {
	v.eval = e
	v.bar.Clear()
	if v.o.json {
		return nil
	}
	best := ""
	if e.Best && e.Iter > 0 {
		best = v.io.Out.Paint(term.Green, ", best so far")
	}
	_, err := fmt.Fprintf(v.io.Out, "step %d: train loss %.4f, val loss %.4f%s\n", e.Iter, e.TrainLoss, e.ValLoss, best)
	return err
}

func (v *trainView) Saved(path string, iter int) {
	v.saved = path
	v.bar.Clear()
	fmt.Fprintf(v.io.Err, "saved iteration %d to %s\n", iter, path)
}

// trainResult is the end of a run as JSON shows it.
type trainResult struct {
	Iterations  int         `json:"iterations"`
	Loss        *float64    `json:"loss"`
	TrainLoss   *float64    `json:"train_loss"`
	ValLoss     *float64    `json:"val_loss"`
	BestValLoss *float64    `json:"best_val_loss"`
	Seconds     float64     `json:"seconds"`
	TokensPerS  float64     `json:"tokens_per_s"`
	Planned     units.Bytes `json:"planned_bytes"`
	Taken       units.Bytes `json:"taken_bytes"`
	Checkpoint  string      `json:"checkpoint,omitempty"`
	OutDir      string      `json:"out_dir"`
}

func (v *trainView) result() trainResult {
	r := trainResult{Iterations: v.run.Iter - v.first, Seconds: time.Since(v.start).Seconds(), TokensPerS: v.speed,
		Planned: v.run.Layout.Size, Taken: v.run.Exec.Taken(), Checkpoint: v.saved, OutDir: v.run.Config.OutDir}
	if r.Iterations > 0 {
		r.Loss = &v.last.Loss
	}
	if v.eval.ValLoss != 0 {
		r.TrainLoss, r.ValLoss, r.BestValLoss = &v.eval.TrainLoss, &v.eval.ValLoss, &v.eval.BestValLoss
	}
	return r
}

// end draws the curve and shows the result.
func (v *trainView) end() error {
	c := &v.run.Config
	curve, err := v.draw()
	if err != nil {
		return err
	}
	if v.o.json {
		return writeJSON(v.io.Out, v.result())
	}
	if c.EvalOnly {
		return nil
	}
	showCurve(v.io.Out, curve)
	r := v.result()
	fmt.Fprintf(v.io.Out, "%s iterations in %s, %s tok/s; %s bytes planned, %s taken\n", units.Count(r.Iterations),
		units.Duration(time.Duration(r.Seconds*float64(time.Second))), units.Count(int(r.TokensPerS)), units.Count(int(r.Planned)), units.Count(int(r.Taken)))
	fmt.Fprintf(v.io.Out, "loss curve in %s, every iteration in %s\n", filepath.Join(c.OutDir, metrics.CurveName), filepath.Join(c.OutDir, metrics.Name))
	return nil
}

// publishEvery is how often snug watch hears of a run.
const publishEvery = time.Second

// publish tells snug watch how the run goes. A run that cannot be published trains on: watching is no part of it.
func (v *trainView) publish(now time.Time) {
	if v.runs == "" || now.Sub(v.published) < publishEvery {
		return
	}
	v.published = now
	d, arena := &v.run.Device, v.run.Layout.Size
	process := func(arena units.Bytes) *units.Bytes { n := arena + d.Overhead; return &n }
	r := runs.Run{PID: os.Getpid(), Processes: []int{os.Getpid()}, Command: v.o.again, Started: v.start, Updated: now, Attempt: 1,
		Predicted: process(arena), Allocated: &arena}
	if d.Limit > 0 {
		r.Limit = process(d.Limit)
	}
	if d.Memory != nil {
		if held, known := d.Memory(); known {
			v.peak = max(v.peak, held)
			r.Measured = &v.peak
		}
	}
	if v.last.Time > 0 {
		iteration, seconds := int64(v.last.Iter), v.last.Time.Seconds()
		r.Iteration, r.Loss, r.StepSeconds = &iteration, &v.last.Loss, &seconds
	}
	if runs.Publish(v.runs, r) != nil {
		v.runs = ""
	}
}

// close withdraws the run from snug watch.
func (v *trainView) close() {
	v.bar.Clear()
	if v.runs != "" {
		_ = runs.Withdraw(v.runs, os.Getpid()) // a file whose process has ended counts for nothing anyway
	}
}

// draw leaves the curve of the run in out_dir. A run that only evaluates has none.
func (v *trainView) draw() (*plot.Chart, error) {
	c := &v.run.Config
	if c.EvalOnly {
		return nil, nil
	}
	return metrics.Draw(c.OutDir, "loss of "+c.OutDir)
}

// showCurve draws a curve where a person watches, as wide as the terminal but no wider than is read at a glance.
func showCurve(out *term.Stream, c *plot.Chart) {
	if !out.TTY {
		return
	}
	colours := []term.Style{term.Cyan, term.Yellow}
	fmt.Fprint(out, c.Text(plot.Style{Width: min(out.Width, 100), Height: 14, UTF8: out.UTF8,
		Paint: func(i int, text string) string { return out.Paint(colours[i%len(colours)], text) }}))
}
