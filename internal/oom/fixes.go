package oom

import (
	"cmp"
	"slices"
	"time"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/torch"
	"github.com/snugml/snug/internal/units"
)

// Fix is one change that may mend the failure, with its figures where the run can be simulated.
type Fix struct {
	Kind           string
	Do             i18n.Message   // what to change
	Effect         i18n.Message   // what the change does
	Changes        map[string]any // settings; empty where none changes
	Env            string         // an environment variable, KEY=VALUE
	Patch          bool           // lines of train.py change: --patch prints them
	EffectiveBatch int            // 0 where it is not the log's to say
	Peak           *Peak          // nil where nothing was simulated
	Fits           *bool          // whether Peak fits the card as it was; nil unknown
	Speed          float64        // relative to these settings on a card that holds them; 0 unknown
}

// Peak is the most a simulated run takes.
type Peak struct {
	Phase     string
	Allocated units.Bytes
	Reserved  units.Bytes
	Process   units.Bytes
}

// trial is a change to simulate: the settings and all else that decides the run.
type trial struct {
	cfg  config.Config
	opt  torch.Options
	conf torch.AllocConf
	room units.Bytes
}

// run simulates a trial. It fits when the allocator gets by with the room less a margin: what is allocated close to
// the limit fails an hour later.
func (t trial) run() (Peak, *bool, error) {
	tr, err := torch.Build(t.cfg, t.opt)
	if err != nil {
		return Peak{}, nil, err
	}
	free := torch.Simulate(tr, t.conf, 0)
	top := free.Peak()
	peak := Peak{Phase: top.Name, Allocated: top.PeakAllocated, Reserved: free.Reserved(), Process: torch.ProcessMemory(free.Reserved(), t.opt.Device).Total()}
	if t.room == 0 {
		return peak, nil, nil
	}
	margin := max(128*units.MiB, t.room/50)
	limited := torch.Simulate(tr, t.conf, t.room-margin)
	fits := limited.Failure == nil
	return peak, &fits, nil
}

// remedy is an entry of the repertoire.
type remedy struct {
	kind  string
	cause []Cause                // what it is for; nil is any
	when  func(*Diagnosis) bool  // whether it can be had and is not on already; nil is always
	trial func(*trial, *Fix)     // the change, simulated; nil where nothing can be
	edit  func(*Diagnosis, *Fix) // what else it says; may be nil
}

func simulated(d *Diagnosis) bool { return d.Config != nil && len(d.Doubts) == 0 }
func onGPU(d *Diagnosis) bool     { return d.Failure.Kind != Host }
func foreign(d *Diagnosis) bool   { return !simulated(d) && onGPU(d) }
func training(d *Diagnosis) bool {
	return foreign(d) && !slices.Contains([]Phase{Sample, Load, Init}, d.Phase)
}

// remedies are tried in this order; equals in rank keep it.
var remedies = []remedy{
	{kind: "free_card", cause: []Cause{OtherProcess}, when: onGPU, trial: func(t *trial, _ *Fix) {}, edit: freeCard},
	{kind: "map_location", cause: []Cause{CheckpointOnGPU}, edit: patched, trial: func(t *trial, _ *Fix) { t.opt.Resume = false }},
	{kind: "set_device", cause: []Cause{WrongDevice}},
	{kind: "micro_batch", cause: []Cause{BatchTooLarge, EvalLargerThanTrain, ModelTooLarge, Fragmentation, Leak, OtherProcess, CheckpointOnGPU, Other}, when: simulated, trial: smallerMicroBatch(1)},
	{kind: "micro_batch_safe", cause: []Cause{BatchTooLarge, EvalLargerThanTrain, ModelTooLarge, Fragmentation, OtherProcess}, when: simulated, trial: smallerMicroBatch(2)},
	{kind: "smaller_batch", cause: []Cause{BatchTooLarge}, when: simulated, trial: smallerBatch},
	{kind: "eval_gather", cause: []Cause{EvalLargerThanTrain}, when: func(d *Diagnosis) bool { return foreign(d) && d.Run.Trainer != "nanogpt" }},
	{kind: "eval_smaller", cause: []Cause{EvalLargerThanTrain}, when: foreign},
	{kind: "no_grad", cause: []Cause{EvalWithoutNoGrad}},
	{kind: "detach", cause: []Cause{Leak}},
	{kind: "generic_batch", cause: []Cause{BatchTooLarge}, when: func(d *Diagnosis) bool { return training(d) && batchSize(d.Run) != 1 }},
	{kind: "generic_checkpointing", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: training},
	{kind: "generic_length", cause: []Cause{BatchTooLarge}, when: foreign},
	{kind: "generic_optimizer", cause: []Cause{ModelTooLarge}, when: training},
	{kind: "generic_model", cause: []Cause{ModelTooLarge}, when: foreign},
	{kind: "workspace", cause: []Cause{Other}, when: func(d *Diagnosis) bool { return d.Failure.Kind == Library }},
	{kind: "drop_logits", cause: []Cause{BatchTooLarge}, when: simulated, trial: func(t *trial, _ *Fix) { t.opt.DropLogits = true }, edit: patched},
	{kind: "compile_off", cause: []Cause{BatchTooLarge, Other}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.Compile }, trial: func(t *trial, f *Fix) { t.cfg.Compile = false; f.Changes["compile"] = false }},
	{kind: "block_size", cause: []Cause{BatchTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.BlockSize >= 128 }, trial: func(t *trial, f *Fix) { t.cfg.BlockSize /= 2; f.Changes["block_size"] = t.cfg.BlockSize }},
	{kind: "eval_batch", cause: []Cause{BatchTooLarge, EvalLargerThanTrain}, when: func(d *Diagnosis) bool { return simulated(d) && d.Phase == Eval && d.Config.BatchSize > 1 }, trial: func(t *trial, _ *Fix) { t.opt.EvalBatch = max(1, t.cfg.BatchSize/4) }},
	{kind: "expandable_segments", cause: []Cause{Fragmentation}, when: canExpand, trial: func(t *trial, _ *Fix) { t.conf.Expandable = true }, edit: func(_ *Diagnosis, f *Fix) { f.Env = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" }},
	{kind: "empty_cache", cause: []Cause{Fragmentation, CheckpointOnGPU}, when: onGPU},
	{kind: "float16", when: func(d *Diagnosis) bool {
		return simulated(d) && d.Config.DType == "bfloat16" && d.options.Device.Capability < 80 && d.options.Device.Capability > 0
	}, trial: func(t *trial, f *Fix) { t.cfg.DType = "float16"; f.Changes["dtype"] = "float16" }},
	{kind: "smaller_model", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.NLayer > 1 && !isPreset(d.Config) }, trial: func(t *trial, f *Fix) { t.cfg.NLayer = (t.cfg.NLayer + 1) / 2; f.Changes["n_layer"] = t.cfg.NLayer }},
	{kind: "ddp", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Run.Ranks <= 1 }},
	{kind: "raise_cap", cause: []Cause{Other}, when: func(d *Diagnosis) bool {
		return d.Failure.Facts.Limit != nil && d.Failure.Facts.Total != nil && d.Failure.Device != "mps"
	}, edit: raiseCap},
	{kind: "driver", cause: []Cause{Other}, when: func(d *Diagnosis) bool {
		return d.Failure.Kind == Device && d.Failure.Facts.Limit == nil && d.Phase != Compile
	}},
	{kind: "lazy_data", cause: []Cause{HostMemory}},
	{kind: "more_host", cause: []Cause{HostMemory}},
	{kind: "cpu", cause: []Cause{BatchTooLarge, ModelTooLarge}, when: func(d *Diagnosis) bool { return simulated(d) && d.Config.Device != "cpu" }, edit: onCPU},
}

func patched(_ *Diagnosis, f *Fix) { f.Patch = true }

func isPreset(c *config.Config) bool {
	_, ok := config.Presets[c.InitFrom]
	return ok
}

// canExpand: not on already, and there is something to join up.
func canExpand(d *Diagnosis) bool {
	return onGPU(d) && !d.Alloc.Expandable && d.Failure.Device != "mps" && d.hasCause(Fragmentation)
}

func (d *Diagnosis) hasCause(c Cause) bool {
	return slices.ContainsFunc(d.Causes, func(f Finding) bool { return f.Cause == c })
}

func freeCard(d *Diagnosis, f *Fix) {
	held := value(d.Budget.Others)
	f.Effect.Args["memory"] = held
	if held == 0 {
		f.Effect = i18n.M("fix.free_card.effect", "memory", value(d.Failure.Facts.Total))
	}
}

func raiseCap(d *Diagnosis, f *Fix) {
	f.Effect.Args["total"], f.Effect.Args["limit"] = *d.Failure.Facts.Total, *d.Failure.Facts.Limit
}

// cpuRate is what PyTorch trains of GPT-2 124M on two cores of a Sapphire Rapids Xeon in bfloat16: 386 tokens a second
// (measured, B=4, T=256). Other sizes scale with their parameters.
const (
	cpuRate       = 386
	cpuParameters = 124e6
)

func onCPU(d *Diagnosis, f *Fix) {
	f.Changes["device"], f.Changes["compile"] = "cpu", false
	m := d.Config.Model()
	params := float64(12*m.NLayer*m.NEmbd*m.NEmbd + m.VocabSize*m.NEmbd)
	rate := cpuRate * cpuParameters / params
	tokens := float64(d.Config.EffectiveBatch() * m.BlockSize)
	f.Effect.Args["time"] = units.Duration(time.Duration(tokens / rate * float64(time.Second)))
	f.Effect.Args["rate"] = int64(rate)
	f.EffectiveBatch = d.Config.EffectiveBatch()
}

// smallerMicroBatch splits the same effective batch into more, smaller batches: the largest that fits, then smaller
// ones by further factors.
func smallerMicroBatch(further int) func(*trial, *Fix) {
	return func(t *trial, f *Fix) {
		effective, start := t.cfg.EffectiveBatch(), t.cfg.BatchSize
		found := 0
		for b := start / 2; b >= 1; b-- {
			if effective%b != 0 {
				continue
			}
			t.cfg.BatchSize, t.cfg.GradientAccumulationSteps = b, effective/b
			if _, fits, err := t.run(); err == nil && (fits == nil || *fits) {
				if found++; found == further {
					break
				}
			}
		}
		f.Changes["batch_size"], f.Changes["gradient_accumulation_steps"] = t.cfg.BatchSize, t.cfg.GradientAccumulationSteps
	}
}

func smallerBatch(t *trial, f *Fix) {
	for t.cfg.BatchSize > 1 {
		t.cfg.BatchSize /= 2
		if _, fits, err := t.run(); err == nil && fits != nil && *fits {
			break
		}
	}
	f.Changes["batch_size"] = t.cfg.BatchSize
}

// fixes tries the repertoire: what the evidence asks for and the log does not show to be on, simulated where it can be.
func (d *Diagnosis) fixes(opt torch.Options) []Fix {
	type ranked struct {
		Fix
		rank [2]int
	}
	var all []ranked
	for _, r := range remedies {
		at := d.causeRank(r.cause)
		if at < 0 || r.when != nil && !r.when(d) {
			continue
		}
		f := Fix{Kind: r.kind, Changes: map[string]any{}, Do: i18n.M("fix." + r.kind + ".do"), Effect: i18n.M("fix." + r.kind + ".effect")}
		if r.trial != nil && simulated(d) {
			if !d.try(r, opt, &f) {
				continue
			}
		}
		if r.edit != nil {
			r.edit(d, &f)
		}
		all = append(all, ranked{f, [2]int{f.standing(), at}})
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank[0], b.rank[0]), cmp.Compare(a.rank[1], b.rank[1]))
	})
	fixes := make([]Fix, len(all))
	for i := range all {
		fixes[i] = all[i].Fix
	}
	return fixes
}

// standing puts what fits first and what does not last.
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

// try simulates a remedy; false when it changes nothing.
func (d *Diagnosis) try(r remedy, opt torch.Options, f *Fix) bool {
	t := trial{cfg: *d.Config, opt: opt, conf: d.Alloc, room: d.Room}
	if r.kind == "free_card" {
		t.room += value(d.Budget.Others)
	}
	r.trial(&t, f)
	if before, after := d.Config.BatchSize, t.cfg.BatchSize; slices.Contains([]string{"micro_batch", "micro_batch_safe", "smaller_batch"}, r.kind) && after >= before {
		return false
	}
	peak, fits, err := t.run()
	if err != nil {
		return false
	}
	f.Peak, f.Fits, f.EffectiveBatch = &peak, fits, t.cfg.EffectiveBatch()
	return true
}
