package oom

import (
	"cmp"
	"regexp"
	"slices"
	"sync"

	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/units"
)

// Cause is why memory ran out.
type Cause string

const (
	BatchTooLarge       Cause = "batch_too_large"
	ModelTooLarge       Cause = "model_too_large"
	Fragmentation       Cause = "fragmentation"
	OtherProcess        Cause = "other_process"
	Leak                Cause = "leak"
	EvalWithoutNoGrad   Cause = "eval_without_no_grad"
	EvalLargerThanTrain Cause = "eval_larger_than_train"
	CheckpointOnGPU     Cause = "checkpoint_on_gpu"
	WrongDevice         Cause = "wrong_device"
	HostMemory          Cause = "host_memory"
	Other               Cause = "other"
	UnknownCause        Cause = "unknown"
)

// Finding is a cause with the evidence for it, the strongest first.
type Finding struct {
	Cause    Cause
	Evidence []i18n.Message
	Weight   int // from 0 to 100; comparable within one log only
}

// evidence is a failure seen from all sides: what the clues look at.
type evidence struct {
	*Failure
	run      *Run
	phase    Phase       // as the log shows it
	told     Phase       // as the report has it, where the log shows none
	batch    int         // sequences or images at once, 0 unknown
	static   units.Bytes // weights, gradients and optimizer as simulated, 0 unknown
	limit    units.Bytes // what the allocator could have had, 0 unknown
	fails    bool        // the simulated run fails too
	here     bool        // and in the log's phase
	budget   Budget
	refused  units.Bytes // what TensorFlow asked the driver for, in vain, before
	resuming bool
}

func (e *evidence) tried() units.Bytes { return value(e.Facts.Tried) }
func (e *evidence) total() units.Bytes { return value(e.Facts.Total) }

func value(b *units.Bytes) units.Bytes {
	if b == nil {
		return 0
	}
	return *b
}

// share is part of whole, 0 when either is unknown.
func share(part, whole units.Bytes) float64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// Words is the phase as a message of its own, to stand inside others.
func (p Phase) Words() i18n.Message { return i18n.M("phase." + string(p)) }

// clue is one way to recognise a cause: how strongly it speaks (0: not at all), and in which words.
type clue struct {
	cause Cause
	look  func(*evidence) (int, i18n.Message)
}

// unused is memory that PyTorch holds without using it, which a request could have had if it were in one piece.
func (e *evidence) unused() units.Bytes { return value(e.budget.Unused) }

// roomy reports that the card had clearly more free than was asked for, and no cap explains the refusal.
func (e *evidence) roomy() bool {
	return e.Facts.Tried != nil && e.Facts.Free != nil && e.Facts.Limit == nil &&
		*e.Facts.Free-*e.Facts.Tried > max(200*units.MiB, *e.Facts.Tried/10)
}

func (e *evidence) trained() bool { return e.run.Progress.Steps > 1 }

func none() (int, i18n.Message) { return 0, i18n.Message{} }

func inPhase(e *evidence, phases ...Phase) bool { return slices.Contains(phases, e.phase) }

// within reports whether any call of the traceback matches.
func (e *evidence) within(expr *regexp.Regexp) bool {
	return slices.ContainsFunc(e.Trace, func(f Frame) bool {
		return expr.MatchString(f.Func) || expr.MatchString(f.Code) || expr.MatchString(f.Path)
	})
}

var (
	noGradExpr   = lazy(`decorate_context|no_grad|inference_mode|decorate_no_grad|transformers/trainer|pytorch_lightning|lightning/`)
	gatherExpr   = lazy(`nested_concat|nested_gather|gather_for_metrics|all_gather|torch\.cat\(|preds_host|\.append\(`)
	restoreExpr  = lazy(`serialization\.py|_cuda_deserialize|_load_optimizer|load_optimizer|load_opt_state|optimizer\.load_state_dict|_load_from_checkpoint|resume_from_checkpoint|load_checkpoint|torch/optim/optimizer\.py$|\brestore`)
	optStateExpr = lazy(`optim\w*\.load_state_dict|_load_optimizer|load_opt|torch/optim/optimizer\.py$|optimizer\.pt|\bth?\.load\(|torch\.load\(`)
)

// clues, by cause. Weights were set on real reports: the cause their authors found must come first or close to it.
var clues = sync.OnceValue(func() []clue {
	return append([]clue{
		{HostMemory, func(e *evidence) (int, i18n.Message) {
			if e.Kind == Host {
				return 100, i18n.M("evidence.host", "wording", e.Dialect)
			}
			return none()
		}},
		{OtherProcess, listedProcesses}, {OtherProcess, heldElsewhere}, {OtherProcess, hardlyOurs}, {OtherProcess, bareError}, {OtherProcess, takesAll},
		{Fragmentation, fragmented},
		{Leak, rising}, {Leak, manySteps},
		{EvalLargerThanTrain, evalAfterTraining}, {EvalWithoutNoGrad, evalKeepsGraph}, {EvalLargerThanTrain, toldEval}, {EvalWithoutNoGrad, volatile}, {EvalWithoutNoGrad, toldEval},
		{CheckpointOnGPU, loadsCheckpoint}, {CheckpointOnGPU, resumed},
		{ModelTooLarge, staticTooLarge}, {ModelTooLarge, failsEarly}, {ModelTooLarge, batchOfOne}, {ModelTooLarge, fullOfWeights}, {ModelTooLarge, modelPerhaps},
		{BatchTooLarge, oneHugeTensor}, {BatchTooLarge, activations}, {BatchTooLarge, batchPerhaps},
		{WrongDevice, sameCard}, {WrongDevice, roomElsewhere},
		{Other, refusedThoughFree}, {Other, roomLeft}, {Other, workspace}, {Other, capped}, {Other, whileCompiling},
	}, saidClues()...)
})

// findings ranks the causes that the evidence speaks for.
func (e *evidence) findings() []Finding {
	var all []Finding
	for _, c := range clues() {
		weight, text := c.look(e)
		if weight <= 0 {
			continue
		}
		i := slices.IndexFunc(all, func(f Finding) bool { return f.Cause == c.cause })
		if i < 0 {
			i = len(all)
			all = append(all, Finding{Cause: c.cause})
		}
		if weight > all[i].Weight {
			all[i].Weight = weight
			all[i].Evidence = slices.Insert(all[i].Evidence, 0, text)
		} else {
			all[i].Evidence = append(all[i].Evidence, text)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return cmp.Compare(b.Weight, a.Weight) })
	if len(all) == 0 {
		all = []Finding{{Cause: UnknownCause, Evidence: []i18n.Message{i18n.M("evidence.none")}}}
	}
	return all
}

func listedProcesses(e *evidence) (int, i18n.Message) {
	var sum units.Bytes
	for _, o := range e.Facts.Others {
		sum += o.Memory
	}
	part := share(sum, e.total())
	if part < 0.02 {
		return none()
	}
	weight := 25 + int(100*part)
	if e.tried() <= sum+value(e.Facts.Free) {
		weight += 25 // without them it would have fitted
	}
	return min(weight, 97), i18n.M("evidence.listed_processes", "count", len(e.Facts.Others), "memory", sum)
}

func heldElsewhere(e *evidence) (int, i18n.Message) {
	held := value(e.budget.Others)
	part := share(held, e.total())
	if held < units.GiB/2 || part < 0.08 {
		return none()
	}
	weight := 20 + int(80*part)
	if e.tried() <= held+value(e.Facts.Free) {
		weight += 20
	}
	return min(weight, 96), i18n.M("evidence.held_elsewhere", "memory", held, "total", e.total())
}

// hardlyOurs: the card is full, and this process has next to nothing of it.
func hardlyOurs(e *evidence) (int, i18n.Message) {
	if e.Facts.Allocated == nil || e.Facts.Free == nil || e.total() == 0 {
		return none()
	}
	own := *e.Facts.Allocated + e.unused()
	if share(own, e.total()) < 0.3 && share(*e.Facts.Free, e.total()) < 0.3 && float64(own+*e.Facts.Free) < 0.5*float64(e.total()) {
		return 95, i18n.M("evidence.hardly_ours", "allocated", *e.Facts.Allocated, "free", *e.Facts.Free, "total", e.total())
	}
	return none()
}

// bareError: the driver refused without a word about sizes, as it does when a context or a first buffer finds no room.
func bareError(e *evidence) (int, i18n.Message) {
	if e.Kind == Host || len(e.Sizes) > 0 || e.Announced() || e.Device == "mps" || e.Facts.Framework == "tensorflow" || e.Facts.Framework == "jax" {
		return none()
	}
	weight := 42
	if inPhase(e, Init, Load) {
		weight = 66
	}
	return weight, i18n.M("evidence.bare_error")
}

func fragmented(e *evidence) (int, i18n.Message) {
	unused, reserved := e.unused(), value(e.Facts.Allocated)+e.unused()
	part := share(unused, reserved)
	free := value(e.Facts.Free)
	text := i18n.M("evidence.fragmented", "unused", unused, "allocated", value(e.Facts.Allocated), "tried", e.tried())
	switch {
	case part < 0.08 || unused < 200*units.MiB || e.tried() == 0 || e.tried() > unused+free || e.roomy():
		return none()
	case e.tried() <= unused && part >= 0.15:
		return 84, text
	case e.tried() <= unused:
		return 58, text
	case part >= 0.25:
		return 62, text
	}
	return 34, text
}

func rising(e *evidence) (int, i18n.Message) {
	m := e.run.Progress.Memory
	if !e.run.Progress.Rising() {
		return none()
	}
	return 88, i18n.M("evidence.rising", "first", m[0], "last", m[len(m)-1])
}

func manySteps(e *evidence) (int, i18n.Message) {
	steps := e.run.Progress.Steps
	text := i18n.M("evidence.many_steps", "steps", steps)
	switch {
	case e.Kind == Host, inPhase(e, Init, Load), e.told == Load, e.phase == Eval && steps < 1000:
		return none()
	case steps >= 50:
		return 66, text
	case steps >= 10:
		return 50, text
	case steps >= 3:
		return 32, text
	}
	return none()
}

func evalAfterTraining(e *evidence) (int, i18n.Message) {
	switch {
	case e.phase != Eval:
		return none()
	case e.within(gatherExpr()):
		return 80, i18n.M("evidence.eval_gathers")
	case e.run.Trainer == "nanogpt" && e.run.Progress.Steps == 0:
		return none() // nanoGPT evaluates before its first step, with the training batch
	case e.trained():
		return 74, i18n.M("evidence.eval_after_steps", "steps", e.run.Progress.Steps)
	}
	return 64, i18n.M("evidence.eval_phase")
}

func evalKeepsGraph(e *evidence) (int, i18n.Message) {
	if e.phase != Eval || len(e.Trace) < 2 || e.within(noGradExpr()) {
		return none()
	}
	return 56, i18n.M("evidence.eval_no_grad")
}

func loadsCheckpoint(e *evidence) (int, i18n.Message) {
	switch {
	case e.Kind == Host || e.phase != Load:
		return none()
	case e.within(optStateExpr()):
		return 82, i18n.M("evidence.loads_checkpoint")
	case e.within(restoreExpr()):
		return 62, i18n.M("evidence.loads_checkpoint")
	}
	return none()
}

func resumed(e *evidence) (int, i18n.Message) {
	if !e.resuming || e.Kind == Host {
		return none()
	}
	if e.static > 0 && !e.here {
		return 94, i18n.M("evidence.resumed_early")
	}
	return 72, i18n.M("evidence.resumed")
}

func staticTooLarge(e *evidence) (int, i18n.Message) {
	part := share(e.static, e.limit)
	text := i18n.M("evidence.static", "static", e.static, "limit", e.limit)
	switch {
	case part >= 0.95:
		return 96, text
	case part >= 0.6:
		return 58, text
	}
	return none()
}

// failsEarly: before the first batch, only the model is there to blame.
func failsEarly(e *evidence) (int, i18n.Message) {
	if e.Kind == Host {
		return none()
	}
	switch e.phase {
	case Init, Load:
		if e.Facts.Allocated != nil && share(*e.Facts.Allocated, e.total()) < 0.3 {
			return 36, i18n.M("evidence.model_phase", "phase", e.phase.Words())
		}
		return 70, i18n.M("evidence.model_phase", "phase", e.phase.Words())
	case Optimizer:
		return 68, i18n.M("evidence.optimizer_phase")
	}
	return none()
}

func batchOfOne(e *evidence) (int, i18n.Message) {
	if e.batch == 1 && e.Kind != Host {
		return 63, i18n.M("evidence.batch_of_one")
	}
	return none()
}

// fullOfWeights: in generation little is kept for backward, so a full card is full of weights.
func fullOfWeights(e *evidence) (int, i18n.Message) {
	if e.phase == Sample && share(value(e.Facts.Allocated), e.total()) > 0.7 && share(e.tried(), e.total()) < 0.1 {
		return 64, i18n.M("evidence.full_of_weights", "allocated", *e.Facts.Allocated)
	}
	return none()
}

func modelPerhaps(e *evidence) (int, i18n.Message) {
	if e.Kind != Device || inPhase(e, Init, Load, Optimizer) || e.static > 0 {
		return none()
	}
	return 30, i18n.M("evidence.model_perhaps")
}

func oneHugeTensor(e *evidence) (int, i18n.Message) {
	switch part := share(e.tried(), e.total()); {
	case e.Kind != Device || inPhase(e, Init, Load, Optimizer):
		return none()
	case part > 1:
		return 92, i18n.M("evidence.larger_than_card", "tried", e.tried(), "total", e.total())
	case part > 0.2:
		return 78, i18n.M("evidence.huge_tensor", "tried", e.tried(), "part", i18n.Share(part))
	}
	return none()
}

// activations: what does not depend on the batch fits well, so the batch is what does not.
func activations(e *evidence) (int, i18n.Message) {
	if e.static == 0 || e.limit == 0 || e.Kind != Device {
		return none()
	}
	text := i18n.M("evidence.activations", "static", e.static, "limit", e.limit)
	switch {
	case share(e.static, e.limit) >= 0.6 || !e.fails:
		return none()
	case e.trained():
		return 55, text // it had fitted
	}
	return 90, text
}

func batchPerhaps(e *evidence) (int, i18n.Message) {
	if e.Kind == Host {
		return none()
	}
	weight := map[Phase]int{Forward: 60, Backward: 60, Eval: 55, Sample: 54, Optimizer: 40, Compile: 44, UnknownPhase: 46, Data: 44, Save: 12, Load: 12, Init: 14}[e.phase]
	if e.batch == 1 || e.static > 0 && !e.fails {
		weight -= 30
	}
	if e.Kind == Library {
		weight -= 14
	}
	if e.phase == UnknownPhase {
		return weight, i18n.M("evidence.batch_usual")
	}
	return weight, i18n.M("evidence.batch_phase", "phase", e.phase.Words())
}

// sameCard: ranks that should each have a card of their own meet on one.
func sameCard(e *evidence) (int, i18n.Message) {
	if e.Facts.Rank != nil && e.Facts.GPU != nil && *e.Facts.Rank != *e.Facts.GPU && *e.Facts.GPU == 0 {
		weight := 76
		if len(e.Facts.Others) > 0 {
			weight = 98 // the other ranks
		}
		return weight, i18n.M("evidence.same_card", "rank", *e.Facts.Rank, "gpu", *e.Facts.GPU)
	}
	if n := len(e.Facts.Others); n >= 2 && e.Facts.GPU != nil && *e.Facts.GPU == 0 && (e.run.Ranks > 1 || n >= 3) {
		return 64, i18n.M("evidence.ranks_on_card", "count", n+1, "gpu", 0)
	}
	return none()
}

func roomElsewhere(e *evidence) (int, i18n.Message) {
	if e.roomy() {
		return 30, i18n.M("evidence.roomy", "tried", e.tried(), "free", *e.Facts.Free)
	}
	return none()
}

// refusedThoughFree: the driver had the memory and did not give it: a full page file or a container's limit.
func refusedThoughFree(e *evidence) (int, i18n.Message) {
	if e.roomy() {
		return 80, i18n.M("evidence.roomy", "tried", e.tried(), "free", *e.Facts.Free)
	}
	return none()
}

func workspace(e *evidence) (int, i18n.Message) {
	if e.Kind == Library {
		return 70, i18n.M("evidence.workspace", "wording", e.Dialect)
	}
	return none()
}

func capped(e *evidence) (int, i18n.Message) {
	if e.Facts.Limit == nil || e.Facts.Total == nil || share(*e.Facts.Limit, *e.Facts.Total) > 0.95 {
		return none()
	}
	return 25, i18n.M("evidence.capped", "limit", *e.Facts.Limit, "total", *e.Facts.Total)
}

func whileCompiling(e *evidence) (int, i18n.Message) {
	if e.phase == Compile && e.Facts.Framework != "jax" { // XLA plans the whole step's memory when it compiles it
		return 60, i18n.M("evidence.compiling")
	}
	if e.phase == UnknownPhase && e.told == Compile {
		return 40, i18n.M("evidence.compiling")
	}
	return none()
}
