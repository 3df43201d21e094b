package fit

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"sync"
)

// Kind is what a suggestion changes.
type Kind string

const (
	MicroBatch     Kind = "micro_batch"         // smaller batches, more of them: the same effective batch
	Compile        Kind = "compile"             // torch.compile on or off
	Expandable     Kind = "expandable_segments" // PyTorch's allocator grows segments instead of adding new ones
	DropLogits     Kind = "drop_logits"         // one line in train.py: the last step's logits are let go
	EvalBatch      Kind = "eval_batch"          // estimate_loss with smaller batches
	EffectiveBatch Kind = "effective_batch"     // fewer sequences an update
	BlockSize      Kind = "block_size"
	NLayer         Kind = "n_layer"
	NEmbd          Kind = "n_embd"
)

// Suggestion is a change of settings and what it brings.
type Suggestion struct {
	Kind           Kind
	Changes        map[string]any    // settings
	Env            map[string]string // environment variables
	Patch          string            // a change of train.py itself, in words
	SameTraining   bool              // the model and the updates stay what they were
	Safe           bool              // the extra-safe variant of the first
	EffectiveBatch int
	Outcome        *Outcome
	RelativeSpeed  float64 // estimated tokens a second over the original's
	Why            string
}

// Suggest returns what would make a setup fit the target, best first.
//
// Suggestions that leave training the same come first, the fastest of each kind, with an extra-safe one after the
// best; then those that change training. Only what fits is suggested; when nothing does, the smallest thing is
// returned with Fits false in its outcome, so that there is a number to say.
func Suggest(o *Outcome, t Target) ([]Suggestion, error) {
	same, err := searches(o, t, (*search).microBatches, (*search).compile, (*search).withoutConfig)
	if o.Fits || err != nil {
		return rank(same), err
	}
	smaller, err := searches(o, t, (*search).smallerBatch, (*search).shorterContext, (*search).shallower, (*search).narrower)
	all := append(rank(same), smaller...)
	if len(all) == 0 && err == nil {
		return searches(o, t, (*search).smallest)
	}
	return all, err
}

// searches looks in several directions at once, and returns what they found in their order.
func searches(o *Outcome, t Target, directions ...func(*search)) ([]Suggestion, error) {
	all := make([]search, len(directions))
	var wg sync.WaitGroup
	for i, look := range directions {
		all[i] = search{base: o, target: t}
		wg.Go(func() { look(&all[i]) })
	}
	wg.Wait()
	var found []Suggestion
	for i := range all {
		if all[i].err != nil {
			return found, all[i].err
		}
		found = append(found, all[i].found...)
	}
	return found, nil
}

type search struct {
	base   *Outcome
	target Target
	found  []Suggestion
	err    error
}

// with is the base with changes; ok is false where the settings then do not go together.
func (s *search) with(changes map[string]any) (setup Setup, ok bool) {
	setup = s.base.Setup
	for key, v := range changes {
		if err := setup.Config.Set(key, v); err != nil {
			s.err = err
			return setup, false
		}
	}
	return setup, setup.Config.Check() == nil
}

// fits says whether the base with changes fits comfortably, mostly at the price of one simulation that stops where it fails.
func (s *search) fits(changes map[string]any) bool {
	setup, ok := s.with(changes)
	if !ok {
		return false
	}
	r, err := under(&setup, s.target)
	if err != nil {
		s.err = err
		return false
	}
	if !r.ok || r.Failure != nil || r.Retries == 0 {
		return r.ok && r.Failure == nil
	}
	o, err := Try(setup, s.target)
	return err == nil && comfortably(o)
}

// try simulates the base with changes and records it as a suggestion when keep says so.
func (s *search) try(sg Suggestion, change func(*Setup), keep func(*Outcome) bool) {
	setup, ok := s.with(sg.Changes)
	if !ok {
		return
	}
	if change != nil {
		change(&setup)
	}
	o, err := Try(setup, s.target)
	if err != nil {
		s.err = err
		return
	}
	if keep(o) {
		sg.Outcome = o
		sg.EffectiveBatch = setup.Config.EffectiveBatch()
		sg.RelativeSpeed = o.TokensPerSecond() / s.base.TokensPerSecond()
		s.found = append(s.found, sg)
	}
}

// comfortably is the standard for a suggestion: it fits without allocation retries.
func comfortably(o *Outcome) bool { return o.Fits && !o.Tight }

// sizes are the values of one setting that are worth a try, falling: at(0) is the largest.
type sizes struct {
	n  int
	at func(i int) int
}

func list(values []int) sizes { return sizes{len(values), func(i int) int { return values[i] }} }

// below are all values from n-1 to 1.
func below(n int) sizes { return sizes{n - 1, func(i int) int { return n - 1 - i }} }

// halvings are n/2, n/4 … down to least.
func halvings(n, least int) sizes {
	var v []int
	for n /= 2; n >= least; n /= 2 {
		v = append(v, n)
	}
	return list(v)
}

// widths are those under n that keep a head's size a multiple of 8, as tensor cores want it.
func widths(n, heads int) sizes {
	step := 8 * heads
	most := (n - 1) / step
	return sizes{most, func(i int) int { return (most - i) * step }}
}

// divisors of n up to limit.
func divisors(n, limit int) sizes {
	var v []int
	for i := 1; i*i <= n; i++ {
		if n%i != 0 {
			continue
		}
		for _, d := range []int{i, n / i} {
			if d <= limit && !slices.Contains(v, d) {
				v = append(v, d)
			}
		}
	}
	slices.Sort(v)
	slices.Reverse(v)
	return list(v)
}

// microBatches finds the largest micro-batch that fits at the same effective batch, and an extra-safe one.
func (s *search) microBatches() {
	if comfortably(s.base) {
		return
	}
	c := &s.base.Setup.Config
	batches := divisors(s.rankBatch(), c.BatchSize-1)
	best := s.largest(batches, s.split)
	if best < 0 {
		return
	}
	b := batches.at(best)
	s.try(Suggestion{Kind: MicroBatch, Changes: s.split(b), SameTraining: true,
		Why: fmt.Sprintf("memory for activations and logits falls with batch_size; %d x %d sequences are still %d an update",
			b, c.EffectiveBatch()/b, c.EffectiveBatch())}, nil, comfortably)
	if half := divisors(s.rankBatch(), (b+1)/2); b > 1 && half.n > 0 {
		s.try(Suggestion{Kind: MicroBatch, Changes: s.split(half.at(0)), SameTraining: true, Safe: true,
			Why: "about half the micro-batch leaves room for other programs on the card"}, nil, comfortably)
	}
}

// rankBatch is each process's share of the effective batch: what divides it leaves accumulation a multiple of the
// processes, as train.py asserts.
func (s *search) rankBatch() int {
	return s.base.Setup.Config.EffectiveBatch() / max(1, s.base.Setup.Options.WorldSize)
}

func (s *search) split(batch int) map[string]any {
	return map[string]any{"batch_size": batch, "gradient_accumulation_steps": s.base.Setup.Config.EffectiveBatch() / batch}
}

// largest finds the first of values (falling) that fits: memory falls with them, so by halving. -1 is none.
func (s *search) largest(values sizes, changes func(int) map[string]any) int {
	i := sort.Search(values.n, func(i int) bool { return s.fits(changes(values.at(i))) })
	if i == values.n {
		return -1
	}
	return i
}

// compile turns torch.compile over, alone where that fits, else with the largest micro-batch that does.
func (s *search) compile() {
	if comfortably(s.base) {
		return
	}
	c := &s.base.Setup.Config
	on := !c.Compile
	batches := divisors(s.rankBatch(), c.BatchSize)
	change := func(b int) map[string]any {
		if b == c.BatchSize {
			return map[string]any{"compile": on}
		}
		m := s.split(b)
		m["compile"] = on
		return m
	}
	best := s.largest(batches, change)
	if best < 0 {
		return
	}
	why := "without torch.compile nothing is compiled at the start, but more tensors are kept and steps are slower"
	if on {
		why = "torch.compile fuses operations: fewer tensors are kept for backward, and steps are faster"
	}
	s.try(Suggestion{Kind: Compile, Changes: change(batches.at(best)), SameTraining: true, Why: why}, nil, comfortably)
}

// withoutConfig tries what no setting does: the allocator's mode, and one-line changes of train.py. Each is named
// only where it alone makes the run fit, or lets a larger micro-batch in than the settings do.
func (s *search) withoutConfig() {
	if comfortably(s.base) {
		return
	}
	for _, m := range []struct {
		sg     Suggestion
		change func(*Setup)
	}{
		{Suggestion{Kind: Expandable, Env: map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
			Why: "the run fits, only its cached segments do not: growing segments leave fewer holes"},
			func(u *Setup) { u.AllocConf.Expandable = true }},
		{Suggestion{Kind: DropLogits, Patch: "after loss.backward(): del logits",
			Why: "nanoGPT's loop keeps the last step's logits through the next forward; letting go of them costs nothing"},
			func(u *Setup) { u.Options.DropLogits = true }},
		{Suggestion{Kind: EvalBatch, Patch: "in estimate_loss: batches of one sequence",
			Why: "only the estimate of the loss does not fit; training does"},
			func(u *Setup) { u.Options.EvalBatch = 1 }},
	} {
		m.sg.SameTraining = true
		s.try(m.sg, m.change, comfortably)
	}
}

// What follows alters training: fewer sequences an update, a shorter context, a smaller model.

func (s *search) smallerBatch() {
	s.shrink(EffectiveBatch, "batch_size", below(s.base.Setup.Config.BatchSize), "fewer sequences an update than before: noisier gradients, so more iterations")
}

func (s *search) shorterContext() {
	s.shrink(BlockSize, "block_size", halvings(s.base.Setup.Config.Model().BlockSize, 64), "a shorter context: the model cannot look further back")
}

func (s *search) shallower() {
	s.shrink(NLayer, "n_layer", below(s.base.Setup.Config.Model().NLayer), "a shallower model has less capacity")
}

func (s *search) narrower() {
	m := s.base.Setup.Config.Model()
	s.shrink(NEmbd, "n_embd", widths(m.NEmbd, m.NHead), "a narrower model has less capacity")
}

// shrink suggests the largest value of one setting that fits with nothing else changed.
func (s *search) shrink(kind Kind, key string, values sizes, why string) {
	change := func(v int) map[string]any { return map[string]any{key: v} }
	if best := s.largest(values, change); best >= 0 {
		s.try(Suggestion{Kind: kind, Changes: change(values.at(best)), Why: why}, nil, comfortably)
	}
}

// smallest records the least this model can take with its training unchanged, though it does not fit.
func (s *search) smallest() {
	s.try(Suggestion{Kind: MicroBatch, Changes: s.split(1), SameTraining: true,
		Why: "the least this model takes under PyTorch; it is still too much for the card"}, nil, func(*Outcome) bool { return true })
}

// rank orders suggestions that leave training the same: settings alone before changes of the environment or of
// train.py, faster before slower, and the extra-safe one right after the best.
func rank(found []Suggestion) []Suggestion {
	slices.SortStableFunc(found, func(a, b Suggestion) int {
		return cmp.Or(cmp.Compare(effort(a), effort(b)), cmp.Compare(b.RelativeSpeed, a.RelativeSpeed))
	})
	if i := slices.IndexFunc(found, func(s Suggestion) bool { return s.Safe }); i > 1 {
		safe := found[i]
		found = slices.Insert(slices.Delete(found, i, i+1), 1, safe)
	}
	return found
}

// effort is what a person must touch: settings, the environment, or train.py.
func effort(s Suggestion) int {
	switch {
	case s.Patch != "":
		return 2
	case len(s.Env) > 0:
		return 1
	}
	return 0
}
