// Package bench owns the measuring of a training step: how long an iteration takes, and each of its ops.
//
// It runs a planned step on random tokens; it plans nothing and prints nothing.
package bench

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/train"
	"github.com/snugml/snug/internal/units"
)

// Result is what was measured.
type Result struct {
	Tokens   int             // an iteration's
	Iters    []time.Duration // each timed iteration, from the loss of the one before to its own
	Queue    time.Duration   // of the last one, what the host took to queue its work: longer than an iteration, it holds the GPU up
	Loss     float64         // of the last one
	Eval     time.Duration   // a pass of an evaluation
	Graphs   int             // sections that the driver replays
	Ops      []Op            // one iteration's ops, grouped, the longest first; empty where not asked for
	Load     time.Duration   // taking the memory, and finding the products' algorithms
	Weights  time.Duration   // drawing the parameters
	First    time.Duration   // the first iteration
	Process  units.Bytes     // what the driver charges the process; 0 where it does not tell
	Arena    units.Bytes
	OpsTotal float64 // ms of all ops together
	Products float64 // ms of matmuls and attention: the floor, with these kernels
}

// Median is the middle iteration's time.
func (r *Result) Median() time.Duration {
	s := slices.Clone(r.Iters)
	slices.Sort(s)
	return s[len(s)/2]
}

// TokensPS is tokens a second of the middle iteration.
func (r *Result) TokensPS() float64 { return float64(r.Tokens) / r.Median().Seconds() }

// Op is one kind of op over an iteration.
type Op struct {
	Name  string  `json:"name"`
	Count int     `json:"count"`
	Ms    float64 `json:"ms"`
	Flops float64 `json:"flops"`
	Bytes float64 `json:"bytes"` // that must move: arguments read, and arguments written
}

// Run loads the step with nanoGPT's initial weights and times iters iterations, and as many passes of an evaluation, after some to warm up.
func Run(e *cuda.Executor, step *gpt.Step, layout *program.Layout, iters int, ops bool) (*Result, error) {
	start := time.Now()
	if err := e.Load(layout); err != nil {
		return nil, err
	}
	r := &Result{Tokens: step.Shape.Batch * step.Model.BlockSize, Arena: e.Taken(), Load: time.Since(start)}
	start = time.Now()
	if err := train.Initialise(e, step, 1337); err != nil {
		return nil, err
	}
	if err := errors.Join(e.Run(step.Init, program.Step{}), e.Synchronize()); err != nil {
		return nil, err
	}
	r.Weights, start = time.Since(start), time.Now()
	b := &batches{e: e, step: step, rng: rand.New(rand.NewPCG(1, 2))}
	if err := b.iterations(r, start, iters+warm+1); err != nil {
		return nil, err
	}
	if ops {
		if err := b.timeOps(r, iters+warm+1); err != nil {
			return nil, err
		}
	}
	if err := b.evaluate(r, iters); err != nil {
		return nil, err
	}
	r.Process, _ = e.ProcessMemory()
	r.Graphs = e.Graphs()
	return r, nil
}

// timeOps times each op of iteration it. Gradients that nobody times are queued before: the device is busy with them while the
// host queues the timed ops, so that no op's time is a wait for the host.
func (b *batches) timeOps(r *Result, it int) error {
	if err := b.gradients(it); err != nil {
		return err
	}
	times, err := b.e.Time(func() error { return errors.Join(b.gradients(it), b.update(it)) })
	if err == nil {
		err = b.wait()
	}
	if err == nil {
		r.group(b.step, times)
	}
	return err
}

// batches runs iterations over random tokens, few of them common, as text has it.
type batches struct {
	e    *cuda.Executor
	step *gpt.Step
	rng  *rand.Rand

	queue time.Duration // that the last iteration's sections took to queue
	loss  [1]float32
	wait  func() error  // until loss holds the last iteration's
	since time.Time     // when the loss before it was known
	took  time.Duration // between the last two losses
}

func (b *batches) run(section int, s program.Step) error {
	began := time.Now()
	err := b.e.Run(section, s)
	b.queue += time.Since(began)
	return err
}

// warm is how many iterations and passes run before those that are timed.
const warm = 2

// iterations runs n of them as training does: an iteration's loss is waited for when the gradients of the next are queued.
// The first is waited for at once, because its time is told. The last is not timed: nothing is queued between the end of the
// one before and its own, so that it seems short where the host is held up while it queues.
func (b *batches) iterations(r *Result, start time.Time, n int) error {
	for it := range n {
		if err := b.gradients(it); err != nil {
			return err
		}
		if it > 1 {
			if err := b.settle(r); err != nil {
				return err
			}
			if it > warm {
				r.Iters = append(r.Iters, b.took)
			}
		}
		if err := b.update(it); err != nil {
			return err
		}
		if it == 0 {
			if err := b.settle(r); err != nil {
				return err
			}
			r.First = time.Since(start)
		}
	}
	r.Queue = b.queue
	return b.settle(r)
}

// gradients queues an iteration as far as its gradients.
func (b *batches) gradients(it int) error {
	s := b.step
	at := program.Step{Seed: 1337, LossScale: 1}
	b.queue = 0
	if err := b.run(s.Begin, at); err != nil {
		return err
	}
	for done := 0; done < s.Shape.Batch; {
		section := s.Next(done)
		at.Sample = uint64(it*s.Shape.Batch + done)
		if err := errors.Join(b.feed(section), b.run(section, at)); err != nil {
			return err
		}
		done += s.Sections[section].B
	}
	return nil
}

// feed writes a section's tokens.
func (b *batches) feed(section int) error {
	n := b.step.Sections[section].B * b.step.Model.BlockSize
	zipf := rand.NewZipf(b.rng, 1.1, 4, uint64(b.step.Model.VocabSize-1))
	tokens := make([]int32, n+1)
	for i := range tokens {
		tokens[i] = int32(zipf.Uint64())
	}
	idx, targets := b.step.Inputs(section)
	return errors.Join(b.e.SetInts(idx, tokens[:n]), b.e.SetInts(targets, tokens[1:]))
}

// update queues the rest of an iteration, and the read of its loss.
func (b *batches) update(it int) (err error) {
	if err := b.run(b.step.Update, program.Step{LR: 6e-4, T: it + 1, LossScale: 1}); err != nil {
		return err
	}
	b.wait, err = b.e.Later(b.loss[:], b.step.LossSum)
	return err
}

// settle waits for the end of the last iteration that was queued.
func (b *batches) settle(r *Result) error {
	if err := b.wait(); err != nil {
		return err
	}
	now := time.Now()
	b.took, b.since, r.Loss = now.Sub(b.since), now, float64(b.loss[0])/float64(r.Tokens)
	return nil
}

// evaluate times n passes of an evaluation, all over the same tokens.
func (b *batches) evaluate(r *Result, n int) error {
	s := b.step
	if s.Eval < 0 {
		return nil
	}
	if err := b.feed(s.Eval); err != nil {
		return err
	}
	for _, passes := range []int{warm, n} {
		began := time.Now()
		for range passes {
			if err := b.e.Run(s.Eval, program.Step{LossScale: 1}); err != nil {
				return err
			}
		}
		if err := b.e.Floats(s.LossSum, b.loss[:]); err != nil {
			return err
		}
		r.Eval = time.Since(began) / time.Duration(passes)
	}
	return nil
}

var layer = regexp.MustCompile(`h\.\d+\.`)

// group adds up the ops of every layer under one name.
func (r *Result) group(step *gpt.Step, times []cuda.OpTime) {
	index := map[string]int{}
	for _, t := range times {
		name := t.Op.Code.String()
		if t.Op.Code != program.AdamW && t.Op.Code != program.Zero {
			name += " " + layer.ReplaceAllString(t.Op.Name, "")
		}
		i, ok := index[name]
		if !ok {
			i = len(r.Ops)
			index[name] = i
			r.Ops = append(r.Ops, Op{Name: name})
		}
		o := &r.Ops[i]
		o.Count++
		o.Ms += t.Ms
		o.Flops += flops(t.Op)
		if flops(t.Op) > 0 {
			r.Products += t.Ms
		}
		for i, a := range t.Op.Args {
			if a.None() {
				continue
			}
			bytes := float64(a.Len) * float64(step.Tensors[a.ID].DType.Size())
			if t.Op.Reads(i) {
				o.Bytes += bytes
			}
			if t.Op.Param(i).Access != program.Read {
				o.Bytes += bytes
			}
		}
		r.OpsTotal += t.Ms
	}
	slices.SortFunc(r.Ops, func(a, b Op) int { return int((b.Ms - a.Ms) * 1e6) })
}

// flops is the arithmetic of matmuls and attention; other ops move bytes and count none. Causal attention does half of T x T.
func flops(op *program.Op) float64 {
	a := op.Attrs
	switch op.Code {
	case program.MatmulForward, program.MatmulGeluForward, program.MatmulBackwardInput, program.MatmulBackwardWeight:
		return 2 * float64(a.N) * float64(a.C) * float64(a.OC)
	case program.AttentionForward:
		return 2 * float64(a.B) * float64(a.T) * float64(a.T) * float64(a.C)
	case program.AttentionBackward:
		return 5 * float64(a.B) * float64(a.T) * float64(a.T) * float64(a.C)
	}
	return 0
}
