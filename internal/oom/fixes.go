package oom

import (
	"cmp"
	"slices"
	"time"

	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Fix is one change that may mend the failure, with its figures where the run can be simulated.
type Fix struct {
	Kind           string
	Do             i18n.Message      // what to change
	Effect         i18n.Message      // what the change does
	Changes        map[string]any    // settings; empty where none changes
	Env            map[string]string // environment variables
	Patch          bool              // lines of train.py change: --patch prints them
	EffectiveBatch int               // 0 where the run's is not known
	Peak           *fit.Peak         // nil where nothing was simulated
	Fits           *bool             // whether Peak fits the card as it was; nil unknown
	Speed          float64           // estimated, relative to these settings on a card that holds them; 0 unknown
}

// remedy is an entry of the repertoire beside what fit suggests.
type remedy struct {
	kind  string
	cause []Cause                                   // what it is for; nil is any
	when  func(*Diagnosis) bool                     // whether it can be had and is not on already; nil is always
	trial func(*Diagnosis, *fit.Setup, *fit.Target) // the change, to simulate; nil where there is nothing to
	edit  func(*Diagnosis, *Fix)                    // what else it says; may be nil
}

func simulated(d *Diagnosis) bool { return d.base != nil }
func onGPU(d *Diagnosis) bool     { return d.Failure.Kind != Host }
func foreign(d *Diagnosis) bool   { return !simulated(d) && onGPU(d) }

// training reports that an unknown trainer failed in its step.
func training(d *Diagnosis) bool {
	return foreign(d) && (d.Guessed() || !slices.Contains([]Phase{Sample, Load, Init, Save}, d.Phase))
}

// remedies keep this order among equals.
var remedies = []remedy{
	{kind: "free_card", cause: []Cause{OtherProcess}, when: onGPU, edit: freeCard, trial: func(d *Diagnosis, _ *fit.Setup, t *fit.Target) { t.Limit += value(d.Budget.Others) }},
	{kind: "map_location", cause: []Cause{CheckpointOnGPU}, edit: func(_ *Diagnosis, f *Fix) { f.Patch = true }, trial: func(_ *Diagnosis, s *fit.Setup, _ *fit.Target) { s.Options.Resume = false }},
	{kind: "save_cpu", cause: []Cause{ModelTooLarge, BatchTooLarge, Fragmentation}, when: func(d *Diagnosis) bool { return onGPU(d) && d.Phase == Save && !d.Guessed() }},
	{kind: "set_device", cause: []Cause{WrongDevice}},
	{kind: "eval_gather", cause: []Cause{EvalLargerThanTrain}, when: foreign},
	{kind: "eval_smaller", cause: []Cause{EvalLargerThanTrain}, when: foreign},
	{kind: "no_grad", cause: []Cause{EvalWithoutNoGrad}},
	{kind: "detach", cause: []Cause{Leak}},
	{kind: "generic_batch", cause: []Cause{BatchTooLarge}, when: func(d *Diagnosis) bool { return training(d) && batchSize(d.Run) != 1 && !d.Run.Told.One }},
	{kind: "generic_checkpointing", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: training},
	{kind: "generic_length", cause: []Cause{BatchTooLarge}, when: foreign},
	{kind: "generic_optimizer", cause: []Cause{ModelTooLarge}, when: training},
	{kind: "generic_model", cause: []Cause{ModelTooLarge}, when: foreign},
	{kind: "workspace", cause: []Cause{Other}, when: func(d *Diagnosis) bool { return d.Failure.Kind == Library }},
	{kind: "snug_train", cause: []Cause{BatchTooLarge, ModelTooLarge, EvalLargerThanTrain, Fragmentation}, when: simulated},
	{kind: "expandable_segments", cause: []Cause{Fragmentation}, when: canExpand, trial: func(_ *Diagnosis, s *fit.Setup, _ *fit.Target) { s.AllocConf.Expandable = true }, edit: func(_ *Diagnosis, f *Fix) {
		f.Env = map[string]string{"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
	}},
	{kind: "compile", cause: []Cause{BatchTooLarge, Other}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.Compile }, trial: func(_ *Diagnosis, s *fit.Setup, _ *fit.Target) { s.Config.Compile = false }, edit: func(_ *Diagnosis, f *Fix) { f.Changes["compile"] = false }},
	{kind: "drop_logits", cause: []Cause{BatchTooLarge}, when: simulated, trial: func(_ *Diagnosis, s *fit.Setup, _ *fit.Target) { s.Options.DropLogits = true }, edit: func(_ *Diagnosis, f *Fix) { f.Patch = true }},
	{kind: "empty_cache", cause: []Cause{Fragmentation, CheckpointOnGPU}, when: onGPU},
	{kind: "float16", when: func(d *Diagnosis) bool {
		return simulated(d) && d.Config.DType == "bfloat16" && !d.base.target.Assumed && !d.base.target.Card.BF16()
	}, trial: func(_ *Diagnosis, s *fit.Setup, _ *fit.Target) { s.Config.DType = "float16" }, edit: func(_ *Diagnosis, f *Fix) { f.Changes["dtype"] = "float16" }},
	{kind: "ddp", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Run.Ranks <= 1 }},
	{kind: "raise_cap", cause: []Cause{Other}, when: func(d *Diagnosis) bool {
		return d.Failure.Facts.Limit != nil && d.Failure.Facts.Total != nil && d.Failure.Device != "mps"
	}, edit: raiseCap},
	{kind: "driver", cause: []Cause{Other}, when: func(d *Diagnosis) bool {
		return d.Failure.Kind == Device && d.Failure.Facts.Limit == nil && d.Phase != Compile
	}},
	{kind: "lazy_data", cause: []Cause{HostMemory}},
	{kind: "more_host", cause: []Cause{HostMemory}},
	{kind: "eval_cpu", cause: []Cause{EvalLargerThanTrain, EvalWithoutNoGrad, BatchTooLarge}, when: evaluating, edit: evalOnCPU},
	{kind: "cpu", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.Device != "cpu" }, edit: onCPU},
}

// canExpand: not on already, and there is something to join up.
func canExpand(d *Diagnosis) bool {
	return onGPU(d) && !d.Alloc.Expandable && d.Failure.Device != "mps" && d.causeRank([]Cause{Fragmentation}) >= 0
}

func freeCard(d *Diagnosis, f *Fix) {
	held := value(d.Budget.Others)
	if held == 0 {
		held = value(d.Failure.Facts.Total)
	}
	if held == 0 {
		f.Effect = i18n.M("fix.free_card.effect_unknown")
		return
	}
	f.Effect.Args["memory"] = held
}

func raiseCap(d *Diagnosis, f *Fix) {
	f.Effect.Args["total"], f.Effect.Args["limit"] = *d.Failure.Facts.Total, *d.Failure.Facts.Limit
}

// PyTorch trains GPT-2 124M on two cores of a Sapphire Rapids Xeon in bfloat16 at 386 tokens a second (measured with
// B=4, T=256); other sizes scale with their parameters.
const (
	cpuRate       = 386
	cpuParameters = 124e6
)

func onCPU(d *Diagnosis, f *Fix) {
	f.Changes["device"], f.Changes["compile"] = "cpu", false
	rate := cpuRate * cpuParameters / float64(max(1, parameters(d.base.trace)))
	tokens := float64(d.Config.EffectiveBatch()) * float64(d.Config.BlockSize)
	f.Effect.Args["time"] = units.Duration(time.Duration(min(tokens/rate, 1e9) * float64(time.Second)))
	f.Effect.Args["rate"] = int64(max(1, rate))
	f.EffectiveBatch = d.Config.EffectiveBatch()
}

// evaluating reports that an evaluation failed on a card.
func evaluating(d *Diagnosis) bool { return d.Phase == Eval && !d.Guessed() && onGPU(d) }

// evalOnCPU says how long the CPU takes for one evaluation: eval_iters batches of both splits, forward only, which is a
// third of a training step's work.
func evalOnCPU(d *Diagnosis, f *Fix) {
	if !simulated(d) {
		return
	}
	rate := 3 * cpuRate * cpuParameters / float64(max(1, parameters(d.base.trace)))
	tokens := 2 * float64(d.Config.EvalIters) * float64(d.Config.BatchSize) * float64(d.Config.BlockSize)
	f.EffectiveBatch, f.Fits = d.Config.EffectiveBatch(), &d.evalAlone
	f.Effect = i18n.M("fix.eval_cpu.effect_time", "time", units.Duration(time.Duration(min(tokens/rate, 1e9)*float64(time.Second))), "tokens", int64(tokens))
}

// parameters counts the model's weights, the position embeddings left out as nanoGPT does.
func parameters(tr *trace.Trace) int64 {
	var n int64
	for _, t := range tr.Tensors {
		if t.Category == trace.Weight && t.Name != "transformer.wpe.weight" {
			n += int64(t.Bytes) / t.DType.Size()
		}
	}
	return n
}

// preferred come first among what fits: they leave the model, the updates and the way it is run as they were.
var preferred = []string{"micro_batch", "micro_batch_safe"}

// fixes are fit's suggestions and the rest of the repertoire: what the evidence asks for and the log does not show to
// be on, simulated where it can be. What fits comes first, then what is not known, then what is not enough.
func (d *Diagnosis) fixes() []Fix {
	all := d.suggestions()
	d.evalAlone = slices.ContainsFunc(all, func(f Fix) bool { return f.Kind == string(fit.EvalBatch) })
	order := make(map[string]int, len(all)+len(remedies))
	for i, f := range all {
		order[f.Kind] = i
	}
	for i, kind := range preferred {
		if _, ok := order[kind]; ok {
			order[kind] = i - len(preferred)
		}
	}
	for _, r := range remedies {
		if _, done := order[r.kind]; done || d.causeRank(r.cause) < 0 || r.when != nil && !r.when(d) {
			continue
		}
		f := Fix{Kind: r.kind, Changes: map[string]any{}, Do: i18n.M("fix." + r.kind + ".do"), Effect: i18n.M("fix." + r.kind + ".effect")}
		if r.trial != nil && simulated(d) {
			d.try(r, &f)
		}
		if r.edit != nil {
			r.edit(d, &f)
		}
		order[r.kind] = 10*d.causeRank(r.cause) + 5
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b Fix) int {
		return cmp.Or(cmp.Compare(a.standing(), b.standing()), cmp.Compare(order[a.Kind], order[b.Kind]))
	})
	return all
}

// standing puts what fits first and what is not enough last.
func (f *Fix) standing() int {
	switch {
	case f.Fits == nil:
		return 1
	case *f.Fits:
		return 0
	}
	return 2
}

// causeRank is how high the causes stand that a remedy is for; -1 when the evidence speaks for none of them.
func (d *Diagnosis) causeRank(causes []Cause) int {
	if causes == nil {
		return len(d.Causes)
	}
	return slices.IndexFunc(d.Causes, func(f Finding) bool { return slices.Contains(causes, f.Cause) })
}

// suggestions are fit's, for the card as it was.
func (d *Diagnosis) suggestions() []Fix {
	if !simulated(d) {
		return nil
	}
	found, err := fit.Suggest(d.base.outcome, d.base.target)
	if err != nil {
		return nil
	}
	var all []Fix
	for _, s := range found {
		kind := string(s.Kind)
		if s.Safe {
			kind += "_safe"
		}
		f := Fix{Kind: kind, Changes: s.Changes, Env: s.Env, Patch: s.Patch != "", EffectiveBatch: s.EffectiveBatch, Speed: s.RelativeSpeed,
			Peak: &s.Outcome.Peak, Do: i18n.M("fix." + kind + ".do"), Effect: i18n.M("fix." + kind + ".effect")}
		if d.base.target.Limit > 0 {
			f.Fits = &s.Outcome.Fits
		}
		if f.Changes == nil {
			f.Changes = map[string]any{}
		}
		all = append(all, f)
	}
	return all
}

// try simulates a remedy.
func (d *Diagnosis) try(r remedy, f *Fix) {
	setup, target := d.base.outcome.Setup, d.base.target
	r.trial(d, &setup, &target)
	o, err := fit.Try(setup, target)
	if err != nil {
		return
	}
	f.Peak, f.EffectiveBatch = &o.Peak, setup.Config.EffectiveBatch()
	f.Speed = o.TokensPerSecond() / d.base.outcome.TokensPerSecond()
	if target.Limit > 0 {
		f.Fits = &o.Fits
	}
}
