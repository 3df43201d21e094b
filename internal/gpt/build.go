package gpt

import (
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// Param is a parameter and the tensors that belong to it.
type Param struct {
	Spec
	Weight, Master, Grad, M, V program.ID // Master is program.MasterOf's, None where Weight is fp32 itself
}

// ofLayer reports whether the parameter is a matrix of a layer: neither a vector nor an embedding.
func (s Spec) ofLayer() bool { return len(s.Shape) == 2 && strings.HasPrefix(s.Name, "transformer.h.") }

// Value is the tensor that is written and read as the parameter in fp32.
func (p Param) Value() program.ID {
	if p.Master != program.None {
		return p.Master
	}
	return p.Weight
}

// Step is a training step as a program, and the tensors and sections that its driver needs to find.
type Step struct {
	*program.Program
	Model  Model
	Shape  Shape
	Policy Policy
	Params []Param

	Idx, Targets program.ID // int32 (micro-batch, T), written before each train section, and as Inputs says before others
	LossSum      program.ID // f32 (1), the sum of an iteration's or an evaluation's losses over all tokens
	Norm         program.ID // f32 (1), the gradient's norm before clipping

	Init      int // section: zeroes the optimizer's state
	Weights   int // section: writes the weights from the parameters' fp32 values; -1 where they are written together
	Begin     int // section: zeroes LossSum, before an iteration
	BeginEval int // section: zeroes LossSum
	First     int // section: forward and backward of the first MicroBatch sequences of an iteration, which overwrites the gradients
	Train     int // section: the same of each later micro-batch, which adds to them; -1 where there is none
	TrainRest int // section: the same of the sequences that are left; -1 where none are
	Update    int // section: norm and AdamW
	Eval      int // section: forward and loss of Policy.EvalBatch sequences; -1 where none is built
	EvalRest  int // section: the same of the sequences that are left; -1 where none are

	given map[int]inputs // of the sections whose sequences Idx and Targets do not hold
}

// inputs are where a section's tokens and the tokens after each of them are written.
type inputs struct{ idx, targets program.ID }

// Build writes the training step of m under p as a program.
func Build(m Model, s Shape, p Policy) (*Step, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if s.Batch < 1 {
		return nil, fmt.Errorf("batch_size * gradient_accumulation_steps is %d, it must be at least 1", s.Batch)
	}
	p.MicroBatch = clamp(p.MicroBatch, s.Batch)
	p.EvalBatch = clamp(p.EvalBatch, s.EvalBatch)
	if p.Gradient != trace.Float32 && (p.Gradient != p.Activation || p.MicroBatch < s.Batch) {
		return nil, fmt.Errorf("gradients in %s: they need activations in it, which are %s, and all %d sequences of an iteration at once, which are %d: use float32",
			p.Gradient, p.Activation, s.Batch, p.MicroBatch)
	}
	b := &builder{Step: &Step{Program: &program.Program{}, Model: m, Shape: s, Policy: p}}
	b.persistent()

	b.Init = b.section("init", "eval", 0, b.init)
	b.Weights = -1
	if program.MasterOf(p.Weight) == trace.Float32 {
		b.Weights = b.section("weights", "eval", 0, b.weights)
	}
	b.BeginEval = b.section("begin_eval", "eval", 0, func() { b.zero("loss", b.LossSum) })
	b.Eval, b.EvalRest = -1, -1
	if p.EvalBatch > 0 {
		b.Eval = b.section("eval", "eval", p.EvalBatch, b.eval)
		if rest := s.EvalBatch % p.EvalBatch; rest > 0 {
			b.EvalRest = b.section("eval_rest", "eval", rest, b.eval)
		}
	}
	b.Begin = b.section("begin", "step", 0, func() { b.zero("loss", b.LossSum) })
	b.fresh = true
	b.First = b.section("train", "step", p.MicroBatch, b.train)
	b.Train, b.TrainRest, b.fresh = -1, -1, false
	if s.Batch >= 2*p.MicroBatch {
		b.Train = b.section("train_more", "step", p.MicroBatch, b.train)
	}
	if rest := s.Batch % p.MicroBatch; rest > 0 {
		b.TrainRest = b.section("train_rest", "step", rest, b.train)
	}
	b.Update = b.section("update", "step", 0, b.update)
	return b.Step, b.Check()
}

// Inputs are the tensors, int32 (its sequences, T), that are written before a train or eval section runs: Idx and Targets, or,
// where an evaluation takes more sequences at once than training, tensors of its own among its temporaries.
func (s *Step) Inputs(section int) (idx, targets program.ID) {
	if in, ok := s.given[section]; ok {
		return in.idx, in.targets
	}
	return s.Idx, s.Targets
}

// Next is the section for the sequences of an iteration from number done on.
func (s *Step) Next(done int) int {
	switch {
	case done == 0:
		return s.First
	case s.Shape.Batch-done < s.Policy.MicroBatch:
		return s.TrainRest
	}
	return s.Train
}

func clamp(n, most int) int { return max(min(n, most), min(1, most)) }

// builder appends ops to the section it is in.
type builder struct {
	*Step
	ops    []program.Op
	b      int              // sequences of the section
	params map[string]Param // by nanoGPT's name
	losses program.ID       // f32 (micro-batch, T)
	caches []cached         // of each layer, where a sequence grows instead of being trained on
	fresh  bool             // the gradients hold nothing of this iteration yet: the first to write overwrites them
}

// persistent makes the tensors that live as long as the program.
func (b *builder) persistent() {
	b.params = map[string]Param{}
	for _, spec := range b.Model.Specs() {
		tensor := func(category trace.Category, dtype trace.DType, suffix string) program.ID {
			return b.Add(program.Persistent, category, dtype, spec.Name+suffix, spec.Shape...)
		}
		p := Param{Spec: spec}
		p.Weight = tensor(trace.Weight, b.Policy.Weight, "")
		p.Master = b.AddMaster(trace.Optimizer, spec.Name+".master", p.Weight)
		gradient := trace.Float32
		if spec.ofLayer() {
			gradient = b.Policy.Gradient
		}
		p.Grad = tensor(trace.Gradient, gradient, ".grad")
		p.M = tensor(trace.Optimizer, trace.Float32, ".exp_avg")
		p.V = tensor(trace.Optimizer, trace.Float32, ".exp_avg_sq")
		b.Params = append(b.Params, p)
		b.params[spec.Name] = p
	}
	most, T := b.Policy.MicroBatch, b.Model.BlockSize
	b.Idx = b.Add(program.Persistent, trace.Input, trace.Int32, "idx", most, T)
	b.Targets = b.Add(program.Persistent, trace.Input, trace.Int32, "targets", most, T)
	b.losses = b.Add(program.Persistent, trace.Activation, trace.Float32, "losses", most, T)
	b.LossSum = b.Add(program.Persistent, trace.Activation, trace.Float32, "loss", 1)
	b.Norm = b.Add(program.Persistent, trace.Optimizer, trace.Float32, "grad_norm", 1)
}

// section appends the ops that fill emits as one section and returns its index.
func (b *builder) section(name, phase string, sequences int, fill func()) int {
	b.ops, b.b = make([]program.Op, 0, 32*b.Model.NLayer+16), sequences
	fill()
	b.Sections = append(b.Sections, program.Section{Name: name, Phase: phase, B: sequences, Ops: b.ops})
	return len(b.Sections) - 1
}

func (b *builder) weights() {
	for _, p := range b.Params {
		b.op(program.Cast, p.Name, program.Attrs{}, b.Whole(p.Weight), b.Whole(p.Master))
	}
}

func (b *builder) init() {
	for _, p := range b.Params {
		b.zero(p.Name, p.M)
		b.zero(p.Name, p.V)
	}
}

// update clips by the norm of all gradients together and takes one AdamW step over each of nanoGPT's two parameter groups.
func (b *builder) update() {
	norm := []program.Arg{b.Whole(b.Norm)}
	for _, p := range b.Params {
		norm = append(norm, b.Whole(p.Grad))
	}
	b.op(program.GlobalNorm, "grad_norm", program.Attrs{}, norm...)
	a := b.Shape.Adam
	for _, group := range []struct {
		name   string
		decays bool
		decay  float64
	}{{"decay", true, a.WeightDecay}, {"nodecay", false, 0}} {
		args := []program.Arg{b.Whole(b.Norm)}
		for _, p := range b.Params {
			if p.Decays() == group.decays {
				args = append(args, b.Whole(p.Weight), b.Whole(p.Master), b.Whole(p.M), b.Whole(p.V), b.Whole(p.Grad))
			}
		}
		b.op(program.AdamW, group.name, program.Attrs{Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, GradClip: a.GradClip, WeightDecay: group.decay}, args...)
	}
}

func (b *builder) zero(name string, id program.ID) {
	b.op(program.Zero, name, program.Attrs{}, b.Whole(id))
}

func (b *builder) op(code program.Code, name string, attrs program.Attrs, args ...program.Arg) {
	b.ops = append(b.ops, program.Op{Code: code, Name: name, Args: args, Attrs: attrs, Scratch: program.Absent})
}

// tokens is N, the tokens of the section.
func (b *builder) tokens() int { return b.b * b.Model.BlockSize }

// act makes a temporary (N, width...) in the activations' dtype.
func (b *builder) act(name string, width int) program.Arg {
	return b.Whole(b.Add(program.Temporary, trace.Activation, b.Policy.Activation, name, b.tokens(), width))
}

// stat makes a temporary f32 tensor of one number a token and head: layernorm's mean and rstd, attention's lse.
func (b *builder) stat(name string, heads int) program.Arg {
	return b.Whole(b.Add(program.Temporary, trace.Activation, trace.Float32, name, b.tokens()*heads))
}

// head returns the first n elements of a persistent tensor: a smaller section uses the head of the inputs.
func (b *builder) head(id program.ID, n int) program.Arg { return program.Arg{ID: id, Len: n} }

// weight, bias and their gradients, by nanoGPT's name without ".weight"; Absent where the model has no bias.
func (b *builder) weight(name string) program.Arg {
	return b.Whole(b.params["transformer."+name+".weight"].Weight)
}
func (b *builder) dweight(name string) program.Arg {
	return b.Whole(b.params["transformer."+name+".weight"].Grad)
}

func (b *builder) bias(name string) program.Arg {
	if p, ok := b.params["transformer."+name+".bias"]; ok {
		return b.Whole(p.Weight)
	}
	return program.Absent
}

func (b *builder) dbias(name string) program.Arg {
	if p, ok := b.params["transformer."+name+".bias"]; ok {
		return b.Whole(p.Grad)
	}
	return program.Absent
}
