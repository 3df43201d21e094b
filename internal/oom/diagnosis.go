package oom

import (
	"strconv"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/oom/likely"
	"github.com/snugml/snug/internal/torch"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Case is a log and what is known besides it.
type Case struct {
	Log     *Log
	Config  *config.Config // the run's settings, nil when nobody knows them
	Target  fit.Target     // the card; its limit is replaced by the message's own figures where they tell
	Options torch.Options  // of the simulated run: DDP, resuming
}

// Diagnosis is what a log's failure was, and why.
type Diagnosis struct {
	Failure   *Failure
	Others    int // further failures in the log
	Run       *Run
	Phase     Phase
	Step      bool      // all that is known of the phase is that it is a training step's
	Chance    float64   // that the phase is right, where it is a guess by the log's words; 0 where the log shows it
	Causes    []Finding // the likeliest first, never empty
	Tensor    Tensor
	Budget    Budget
	Config    *config.Config // nil when the run's settings are not known
	Doubts    []Doubt        // where the log contradicts the settings
	Alloc     torch.AllocConf
	Room      units.Bytes    // what PyTorch's allocator could have had; 0 unknown
	Same      *torch.Failure // the simulated run's own failure, where it is the log's
	Fixes     []Fix          // the best first
	evalAlone bool           // only evaluation does not fit: with the smallest batch there it would
	base      *simulation    // nil when the run is not simulated
}

// Cause is the likeliest cause.
func (d *Diagnosis) Cause() Cause { return d.Causes[0].Cause }

// Guessed says that nothing in the log shows the phase.
func (d *Diagnosis) Guessed() bool { return d.Chance > 0 }

// Where is the phase in words.
func (d *Diagnosis) Where() i18n.Message {
	if d.Step {
		return i18n.M("phase.step")
	}
	switch {
	case d.Chance >= likely.Probable:
		return i18n.M("phase.likely", "phase", d.Phase.Words())
	case d.Guessed():
		return i18n.M("phase.perhaps", "phase", d.Phase.Words())
	}
	return d.Phase.Words()
}

// Doubt is a figure of the log that the settings do not give.
type Doubt struct {
	What          string // tokens, parameters
	Log, Settings int64
}

// Diagnose explains the log's failure; nil when it holds none.
func Diagnose(c Case) *Diagnosis {
	f := c.Log.Failure()
	if f == nil {
		return nil
	}
	d := &Diagnosis{Failure: f, Others: len(c.Log.Failures) - 1, Run: &c.Log.Run, Budget: budget(f.Facts), Room: f.Facts.Room()}
	seen := c.Log.sight()
	d.Phase, d.Step = seen.phase(), seen == sight{purpose: Forward}
	where, said := d.Phase, d.Phase
	if d.Step {
		where = UnknownPhase
	}
	if d.Phase == UnknownPhase || d.Run.Trainer != "nanogpt" && f.Trace.whole() { // the guess is told, and decides nothing
		if guess, chance := c.Log.guess(d.Phase); guess != d.Phase && guess != UnknownPhase {
			d.Phase, d.Chance = guess, chance
		}
	}
	if conf, err := torch.ParseAllocConf(d.Run.AllocConf); err == nil {
		d.Alloc = conf
	}
	d.base = d.simulate(c)
	s := d.base
	d.Tensor = name(f, where, s, d.Run)
	e := &evidence{Failure: f, run: d.Run, phase: c.Log.shown().phase(), told: said, budget: d.Budget, batch: batchSize(d.Run), limit: d.Room,
		resuming: d.Run.Setting("init_from") == "resume" || c.Options.Resume}
	for _, other := range c.Log.Failures {
		if other.Dialect == "tensorflow-driver" && e.refused == 0 {
			e.refused = value(other.Facts.Tried)
		}
	}
	if s != nil {
		e.batch, e.static = c.Config.BatchSize, s.static()
		if fail := s.limited.Failure; fail != nil {
			e.fails, e.here = true, where.inPhase(fail.Phase, fail.Stage)
		}
		if s.failsAs(f, where) {
			d.Same = s.limited.Failure
			d.Budget.Categories = s.limited.LedgerAtFailure().ByCategory()
		}
	}
	d.Causes = e.findings()
	d.Fixes = d.fixes()
	return d
}

// simulate runs the settings, unless they are unknown or the log contradicts them.
func (d *Diagnosis) simulate(c Case) *simulation {
	if c.Config == nil || d.Failure.Kind == Host {
		return nil
	}
	d.Config = c.Config
	s, err := simulate(c, d.Alloc, d.Room)
	if err != nil {
		return nil
	}
	d.Doubts = doubts(d.Run, c.Config, s.trace, max(c.Options.WorldSize, 1))
	if len(d.Doubts) > 0 {
		return nil
	}
	return s
}

// doubts compares what nanoGPT printed of its size with what the settings give.
func doubts(r *Run, cfg *config.Config, tr *trace.Trace, world int) []Doubt {
	var found []Doubt
	tokens := int64(cfg.GradientAccumulationSteps) / int64(world) * int64(world) * int64(cfg.BatchSize) * int64(cfg.BlockSize)
	if r.Tokens > 0 && r.Tokens != tokens {
		found = append(found, Doubt{"tokens", r.Tokens, tokens})
	}
	params := parameters(tr) // nanoGPT prints hundredths of a million
	if diff := r.Parameters - params; r.Trainer == "nanogpt" && r.Parameters > 0 && (diff > 5001 || diff < -5001) {
		found = append(found, Doubt{"parameters", r.Parameters, params})
	}
	return found
}

// Simulated is the card as it was, and the run on it; nil when the run's settings are not known.
func (d *Diagnosis) Simulated() (*fit.Outcome, fit.Target) {
	if d.base == nil {
		return nil, fit.Target{}
	}
	return d.base.outcome, d.base.target
}

// batchSize is the batch that the log tells of, under the names of several trainers; 0 unknown.
func batchSize(r *Run) int {
	for _, key := range []string{"batch_size", "per_device_train_batch_size", "micro_batch_size", "train_batch_size", "per_gpu_train_batch_size", "batch", "bs", "train_micro_batch_size_per_gpu"} {
		if n, err := strconv.Atoi(r.Setting(key)); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// Asks is what would make the diagnosis better.
func (d *Diagnosis) Asks() []i18n.Message {
	var asks []i18n.Message
	if d.Run.GPUName == "" && d.Failure.Kind != Host {
		asks = append(asks, i18n.M("ask.gpu"))
	}
	if d.Run.Torch == "" && (d.Failure.Facts.Framework == "pytorch" || d.Failure.Facts.Framework == "") {
		asks = append(asks, i18n.M("ask.torch"))
	}
	if d.base == nil && d.Failure.Kind != Host && d.Run.Trainer == "nanogpt" || len(d.Doubts) > 0 {
		asks = append(asks, i18n.M("ask.config"))
	}
	if len(d.Failure.Trace) == 0 {
		asks = append(asks, i18n.M("ask.traceback"))
	}
	if d.Failure.Facts.Tried == nil && (d.Failure.Kind == Device || d.Failure.Announced()) {
		asks = append(asks, i18n.M("ask.message"))
	}
	return asks
}
