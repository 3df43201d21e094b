// Package bench owns the measuring of a training step: how long an iteration takes, and each of its ops.
//
// It runs a planned step on random tokens; it plans nothing and prints nothing.
package bench

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// Result is what was measured.
type Result struct {
	Tokens   int             // an iteration's
	Iters    []time.Duration // each timed iteration
	Queue    time.Duration   // of the last one, what the host took to queue its work: longer than an iteration, it holds the GPU up
	Loss     float64         // of the last one
	Ops      []Op            // one iteration's ops, grouped, the longest first; empty where not asked for
	First    time.Duration   // from loading to the end of the first iteration
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

// Run loads the step with nanoGPT's initial weights and times iters iterations after two to warm up.
func Run(e *cuda.Executor, step *gpt.Step, layout *program.Layout, iters int, ops bool) (*Result, error) {
	start := time.Now()
	if err := e.Load(layout); err != nil {
		return nil, err
	}
	r := &Result{Tokens: step.Shape.Batch * step.Model.BlockSize, Arena: e.Taken()}
	if err := initialise(e, step); err != nil {
		return nil, err
	}
	if err := e.Run(step.Init, program.Step{}); err != nil {
		return nil, err
	}
	b := &batches{e: e, step: step, rng: rand.New(rand.NewPCG(1, 2))}
	for it := range iters + 2 {
		begin := time.Now()
		loss, err := b.iteration(it)
		if err != nil {
			return nil, err
		}
		switch {
		case it == 0:
			r.First = time.Since(start)
		case it >= 2:
			r.Iters = append(r.Iters, time.Since(begin))
		}
		r.Loss, r.Queue = loss, b.queue
	}
	r.Process, _ = e.ProcessMemory()
	if !ops {
		return r, nil
	}
	times, err := e.Time(func() error { _, err := b.iteration(iters + 2); return err })
	if err == nil {
		r.group(step, times)
	}
	return r, err
}

func initialise(e *cuda.Executor, step *gpt.Step) error {
	for i, p := range step.Params {
		v := make([]float32, p.Len())
		p.Initial(v, i, 1337)
		if err := e.SetFloats(p.Weight, v); err != nil {
			return err
		}
		if p.Master != program.None {
			if err := e.SetFloats(p.Master, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// batches runs iterations over random tokens, few of them common, as text has it.
type batches struct {
	e    *cuda.Executor
	step *gpt.Step
	rng  *rand.Rand

	queue time.Duration // that the last iteration's sections took to queue
}

func (b *batches) run(section int, s program.Step) error {
	began := time.Now()
	err := b.e.Run(section, s)
	b.queue += time.Since(began)
	return err
}

func (b *batches) iteration(it int) (loss float64, err error) {
	s, T := b.step, b.step.Model.BlockSize
	at := program.Step{Seed: 1337, LR: 6e-4, T: it + 1, LossScale: 1}
	b.queue = 0
	if err := b.run(s.Begin, at); err != nil {
		return 0, err
	}
	zipf := rand.NewZipf(b.rng, 1.1, 4, uint64(s.Model.VocabSize-1))
	for done := 0; done < s.Shape.Batch; {
		section := s.Next(done)
		n := s.Sections[section].B
		tokens := make([]int32, n*T+1)
		for i := range tokens {
			tokens[i] = int32(zipf.Uint64())
		}
		if err := b.e.SetInts(s.Idx, tokens[:n*T]); err != nil {
			return 0, err
		}
		if err := b.e.SetInts(s.Targets, tokens[1:]); err != nil {
			return 0, err
		}
		at.Sample = uint64(it*s.Shape.Batch + done)
		if err := b.run(section, at); err != nil {
			return 0, err
		}
		done += n
	}
	if err := b.run(s.Update, at); err != nil {
		return 0, err
	}
	one := make([]float32, 1)
	err = b.e.Floats(s.LossSum, one)
	return float64(one[0]) / float64(s.Shape.Batch*T), err
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
