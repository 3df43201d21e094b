package oom

import (
	"slices"
	"strings"

	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/torch"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Certainty says how a tensor was recognised.
type Certainty string

const (
	Exact         Certainty = "exact"   // size and phase match the simulated run, or the log spells the tensor out
	Likely        Certainty = "likely"  // only the size's arithmetic fits
	UnknownTensor Certainty = "unknown" // nothing fits
)

// Tensor is what the failed request was for.
type Tensor struct {
	Name      Name        `json:"name"`
	Shape     []int       `json:"shape"`
	DType     Name        `json:"dtype"`
	Bytes     units.Bytes `json:"bytes"` // of the tensor where it is known, else as printed
	Certainty Certainty   `json:"certainty"`
}

// simulation is the configuration's run, as PyTorch would have had it on that card.
type simulation struct {
	target  fit.Target // the card as it was: the limit is what this process could have had
	outcome *fit.Outcome
	trace   *trace.Trace
	limited torch.Result // under the room that the message tells of
}

// simulate builds the run of cfg and gives it the room that the message tells of.
func simulate(c Case, conf torch.AllocConf, room units.Bytes) (*simulation, error) {
	target := c.Target
	c.Options.Device = target.Device()
	if room > 0 {
		target.Limit = room + torch.ProcessMemory(0, *c.Config, c.Options).Context
	}
	o, err := fit.Try(fit.Setup{Config: *c.Config, AllocConf: conf, Options: c.Options}, target)
	if err != nil {
		return nil, err
	}
	s := &simulation{target: target, outcome: o, trace: o.Trace}
	if room > 0 {
		s.limited = torch.Simulate(o.Trace, conf, room)
	}
	return s, nil
}

// static is what the run needs whatever the batch: weights, gradients and optimizer at the peak.
func (s *simulation) static() units.Bytes {
	var sum units.Bytes
	free := &s.outcome.Result
	for i := range free.Phases {
		var here units.Bytes
		for _, c := range free.LedgerOf(i).ByCategory() {
			if c.Category == trace.Weight || c.Category == trace.Gradient || c.Category == trace.Optimizer {
				here += c.Held
			}
		}
		sum = max(sum, here)
	}
	return sum
}

// inPhase reports whether the simulated stage is the one the log shows. An unknown phase agrees with any.
func (p Phase) inPhase(phase, stage string) bool {
	switch p {
	case Eval:
		return phase == "eval"
	case Forward, Backward, Optimizer:
		return stage == string(p) && phase != "eval"
	case Init:
		return phase == "init"
	case Load:
		return phase == "init" || phase == "resume"
	}
	return false
}

// name finds the failed request: where the simulation itself fails, then among all requests of the phase, then of
// the run, then by arithmetic alone.
func name(f *Failure, phase Phase, s *simulation, run *Run) Tensor {
	size, printed := f.Sizes["tried"]
	unknown := Tensor{Bytes: value(f.Facts.Tried), Certainty: UnknownTensor}
	if s != nil && printed {
		if s.failsAs(f, phase) {
			return f.Buffer.named(s.limited.Failure.Tensor, Exact)
		}
		if t, certainty := s.find(f, phase, size); certainty != UnknownTensor {
			return f.Buffer.named(t, certainty)
		}
	}
	if f.Buffer != nil {
		return f.Buffer.alone(run)
	}
	if !printed {
		return unknown
	}
	if t, ok := byArithmetic(f, size, run, s); ok {
		return t
	}
	return unknown
}

// failsAs reports that the simulated run fails at the request the log shows: same size, same phase, same buffer.
func (s *simulation) failsAs(f *Failure, phase Phase) bool {
	fail := s.limited.Failure
	size, printed := f.Sizes["tried"]
	return fail != nil && printed && size.Holds(fail.Tried) && phase.inPhase(fail.Phase, fail.Stage) && f.Buffer.fits(fail.Tensor)
}

// find looks for the request among all of the run: of that phase first, of those the one made when PyTorch had
// allocated what the message says.
func (s *simulation) find(f *Failure, phase Phase, size Size) (trace.Tensor, Certainty) {
	var best trace.Tensor
	found := UnknownTensor
	nearest := units.Bytes(-1)
	var allocated units.Bytes
	for i := range s.trace.Phases {
		p := &s.trace.Phases[i]
		for n, e := range p.Events {
			t := s.trace.Tensors[e.Tensor]
			if e.Free {
				allocated -= t.Bytes
				continue
			}
			allocated += t.Bytes
			if !size.Holds(s.outcome.Setup.AllocConf.Asked(t.Bytes)) || !f.Buffer.fits(t) {
				continue
			}
			certainty := Likely
			if phase.inPhase(p.Name, p.Stage(n)) {
				certainty = Exact
			}
			distance := max(allocated-t.Bytes-value(f.Facts.Allocated), value(f.Facts.Allocated)-allocated+t.Bytes)
			if found == UnknownTensor || certainty == Exact && found == Likely || certainty == found && distance < nearest {
				best, found, nearest = t, certainty, distance
			}
		}
	}
	return best, found
}

// fits reports whether a simulated tensor can be the one the log spells out; without one any can.
func (b *Buffer) fits(t trace.Tensor) bool {
	return b == nil || product(b.Shape) == product(t.Shape) && b.DType == string(t.DType)
}

// named is the simulated tensor, in the shape the log spells out where it does.
func (b *Buffer) named(t trace.Tensor, c Certainty) Tensor {
	shape := t.Shape
	if b != nil {
		shape, c = b.Shape, Exact
	}
	return Tensor{Name: Name(t.Name), Shape: slices.Clone(shape), DType: Name(t.DType), Bytes: t.Bytes, Certainty: c}
}

// alone is a tensor that only the log knows: exact in shape and type, its name by arithmetic.
func (b *Buffer) alone(run *Run) Tensor {
	t := Tensor{Shape: slices.Clone(b.Shape), DType: Name(b.DType), Certainty: Exact}
	if size, ok := elementSize[b.DType]; ok {
		t.Bytes = units.Bytes(product(b.Shape) * size)
	}
	if n := len(b.Shape); n > 1 && slices.Contains(vocabularies(run), b.Shape[n-1]) {
		t.Name = "logits"
	}
	return t
}

// elementSize is the bytes of an element under PyTorch's, TensorFlow's and numpy's names.
var elementSize = map[string]int64{
	"float64": 8, "double": 8, "int64": 8, "complex64": 8, "complex128": 16,
	"float32": 4, "float": 4, "int32": 4, "uint32": 4, "float16": 2, "half": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
	"int8": 1, "uint8": 1, "bool": 1,
}

func product(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		if d != 0 && n > (1<<60)/int64(d) {
			return 1 << 60
		}
		n *= int64(d)
	}
	return n
}

// vocabularies are the sizes that logits may have: the log's own, or those of common models.
func vocabularies(run *Run) []int {
	if n := number(run.Setting("vocab_size")); n != nil && *n > 0 {
		return []int{*n}
	}
	return []int{50304, 50257, 32000, 30522, 128256, 151936, 151936, 250880, 32128, 50265, 50432, 100352, 256000, 152064, 32768, 49152}
}

// byArithmetic names a tensor by its size alone: tokens x vocabulary where GPT-2's vocabulary is at work and the calls
// speak of a loss or a head, heads x T x T where they speak of attention.
func byArithmetic(f *Failure, size Size, run *Run, s *simulation) (Tensor, bool) {
	loss, attention, gpt2 := false, false, run.Trainer == "nanogpt" || s != nil || run.Setting("vocab_size") != ""
	for i, call := range f.Trace {
		text := strings.ToLower(call.Func + " " + call.Code + " " + call.Path)
		gpt2 = gpt2 || strings.Contains(text, "gpt2")
		if i < len(f.Trace)-4 {
			continue
		}
		loss = loss || lossExpr().MatchString(text)
		attention = attention || attentionExpr().MatchString(text)
	}
	if gpt2 && (loss || len(f.Trace) == 0) {
		for _, v := range vocabularies(run)[:min(2, len(vocabularies(run)))] {
			for _, d := range []trace.DType{trace.BFloat16, trace.Float32} {
				if tokens, ok := tokensFor(size, int64(v)*d.Size()); ok {
					return Tensor{"logits", []int{int(tokens), v}, Name(d), units.Bytes(tokens * int64(v) * d.Size()), Likely}, true
				}
			}
		}
	}
	if attention {
		return squares(size)
	}
	return Tensor{}, false
}

var (
	lossExpr      = lazy(`cross_entropy|lm_head|logits|log_softmax`)
	attentionExpr = lazy(`attn|attention|scores`)
)

// tokensFor is the number of rows of that many bytes that print as size. Batches of text are round numbers of tokens;
// the coarser the print, the rounder they must be, or every size would fit.
func tokensFor(size Size, row int64) (int64, bool) {
	var conf torch.AllocConf
	const granule = 2 * units.MiB // PyTorch asks for whole ones
	step := int64(64)
	for span := int64(size.High-size.Low+granule) / row; step < 8*span; {
		step *= 2
	}
	for tokens := int64(size.High) / row / step * step; tokens >= step; tokens -= step {
		if asked := conf.Asked(units.Bytes(tokens * row)); size.Holds(asked) {
			return tokens, true
		} else if asked < size.Low {
			return 0, false
		}
	}
	return 0, false
}

// squares is an attention matrix, batch·heads x T x T, for the common lengths; the longest that fits wins.
func squares(size Size) (Tensor, bool) {
	var conf torch.AllocConf
	for _, t := range []int64{8192, 4096, 2048, 1024, 512} {
		for _, d := range []trace.DType{trace.BFloat16, trace.Float32} {
			row := t * t * d.Size()
			n := int64(size.Bytes) / row
			if n >= 4 && n%4 == 0 && size.Holds(conf.Asked(units.Bytes(n*row))) {
				return Tensor{"attention scores", []int{int(n), int(t), int(t)}, Name(d), units.Bytes(n * row), Likely}, true
			}
		}
	}
	return Tensor{}, false
}
