package oom

import (
	"regexp"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/units"
)

// Told is what a report's own words say of the failure, beside what the program printed: people paste both. It weighs
// less than numbers, never becomes a fact, and a phase only where nothing else shows one.
type Told struct {
	Memory   bool  // memory ran out
	Claim    bool  // and it did so to the reporter
	Other    bool  // something else ended it
	Host     bool  // the machine's own
	Held     bool  // something else holds the card's memory
	Leak     bool  // memory grows while it runs
	Late     bool  // it fails after some epochs or steps
	Resume   bool  // it happens on resuming
	Eval     bool  // it happens in evaluation
	Phase    heard // what it says was going on
	NoGrad   bool  // torch.no_grad() is what was missing
	Mapped   bool  // map_location is
	Full     bool  // whole inputs are tested, parts trained on
	One      bool  // the batch is one already
	Again    bool  // the same is done again and again in one process
	CPU      bool  // it was to run on the CPU
	Volatile bool  // PyTorch's warning that volatile=True no longer switches the graph off
}

// say keeps the plainest sentence that names a phase, the first of equals.
func (r *Run) say(text string) {
	if r.Told.Phase.weight < 3 {
		r.Told.Phase = r.Told.Phase.plainer(told(text))
	}
}

// remark is what reporters say of a failure: the words that mark a line, and the expression that it must match.
type remark struct {
	of    func(*Told) *bool
	words string
	expr  string
	fails bool // not where the sentence tells what works
}

var remarks = []remark{
	{func(t *Told) *bool { return &t.Leak }, "leak", `memory leak|leak(?:s|ed|ing)?(?: of)?(?: \w+)? (?:memory|vram)|\bmemory\b[^.\n]{0,20}\bleak`, false},
	{func(t *Told) *bool { return &t.Leak }, "increas climb ris grew rose grow bigger larger accumulat piling build 显存 内存", `(?:显存|内存)[^，。\n]{0,6}(?:逐渐|一直|不断|持续|越来越)|(?:memory|vram|ram)\b[^.\n]{0,60}(?:\b(?:keeps?|kept)(?: on)? (?:increas|grow|ris|climb|accumulat|going up)|\b(?:is|are|was) (?:getting|becoming) (?:bigger|larger|higher)|\b(?:grow(?:s|ed|ing)?|grew|rose|increas(?:es|ed|ing)|ris(?:es|ing)|climb(?:s|ed|ing)?|creeps?|accumulat\w+)\b[^.\n]{0,20}\b(?:slowly|steadily|gradually|every|each|over|until|during|with|batch|epoch|iterations?|steps?|time)\b)|memory[^.\n]{0,60}\bsteady increase|\b(?:increas|grow|ris)ing (?:\w+ )?(?:memory|vram|ram) (?:consumption|usage|use|footprint)\b|(?:memory|vram)\b[^.\n]{0,40}\b(?:pil(?:es|ed|ing)|build(?:s|ing)?|add(?:s|ing)?) up\b`, false},
	{func(t *Told) *bool { return &t.Late }, "after", `(?:memory|oom|crash\w*|fails?|error|happens|occurs)\b[^.\n]{0,60}\bafter (?:about |around |only |at least |~ ?|the |first )*(?:\d+k?|several|some|few|a few|many)(?:th|st|nd|rd)? (?:of )?(?:\w+ )?(?:epoch|iter|step|batch)`, false},
	{func(t *Told) *bool { return &t.Late }, "after", `\bafter (?:about |around |only |at least |~ ?|the |first )*(?:\d+k?|several|some|few|a few|many)(?:th|st|nd|rd)? (?:of )?(?:\w+ )?(?:epoch|iter|step|batch)[^.\n]{0,60}\b(?:memory|oom|crash\w*|killed)\b`, false},
	{func(t *Told) *bool { return &t.Again }, "loop fold trial", `\b(?:train|fit|run|load|creat|evaluat|infer|predict|call|generat)\w*\b[^.\n]{0,30}\bin (?:a |the |one )?(?:for |while )?loop\b|\b(?:second|next|each|every|other|several|multiple) (?:fold|trial|hyper-?parameter|experiment)s?\b|\bk-?fold\b|\bcross[- ]?validation\b`, false},
	{func(t *Told) *bool { return &t.Held }, "process released someone holding same", `\b(?:another|other|previous|zombie|stale|old)\b (?:\w+ ){0,2}process(?:es)?\b[^.\n]{0,40}\b(?:hold|occup|us(?:e|ing)|eat|tak|consum|keep|remain)|\bby (?:someone|somebody|others?|another)\b|\bprocess(?:es|\(es\))? (?:\w+ )?still (?:hold|occup|us)|\bzombie process|\bmemory (?:\w+ )?(?:is |was )?not (?:being )?(?:released|freed)|\bshar(?:ed|ing) (?:the )?(?:same )?(?:gpu|card|machine|server)|\b(?:holding|occupying) (?:about |around )?~?[\d.]+ ?[gm]i?b\b|\bloaded on the same (?:gpu|card)\b`, false},
	{func(t *Told) *bool { return &t.One }, "batch", `\bbatch[ _-]?size\W{0,3}(?:(?:is|was|to|of|as|at|=|down|set|even|already|reduced|just|only)\W+){0,4}(?:1|one)\b(?:[^\d.x*]|\.\s|\.?$)`, true},
	{func(t *Told) *bool { return &t.CPU }, "cpu use_gpu no_cuda", `\b(?:in|on|with|using|the) cpu[- ](?:only|mode)\b|["\x60']cpu only["\x60']|\buse_gpu\s*=\s*False|\bno_cuda\s*=\s*True`, true},
	{func(t *Told) *bool { return &t.Eval }, "validat evaluat", `(?:memory|oom|error|crash\w*|fails?)\b[^\n]{0,80}\b(?:during|in|on|at|when|while|for)(?: the| doing| running| i run)* (?:evaluat|validat)|\b(?:during|in|when|while)(?: the| doing| running| i run)* (?:evaluat|validat)[^\n]{0,80}(?:memory|oom|error|crash)`, false},
	{func(t *Told) *bool { return &t.NoGrad }, "no_grad", `\b(?:add(?:ed|ing)?|us(?:e|es|ed|ing)|need\w*|forg[eo]t\w*|miss\w*|with|without|under|wrap\w*|try|put)\b[^.\n]{0,40}\b(?:torch\.)?no_grad\b|\bno_grad\b[^.\n]{0,40}\b(?:help|fix|solv|work|missing|forgot)`, false},
	{func(t *Told) *bool { return &t.Full }, "test", `\btest\w*\b[^.\n]{0,60}\b(?:full[- ]?(?:size|resolution)|(?:whole|entire|full) (?:image|picture|video|volume|scene|frame)|no cropping|not crop)|\btrain\w*\b[^.\n]{0,40}\bcrop(?:s|ped|ping)?\b[^\n]{0,80}\btest`, false},
	{func(t *Told) *bool { return &t.Volatile }, "volatile", `volatile was removed and now has no effect`, false},
	{func(t *Told) *bool { return &t.Resume }, "resum", `\b(?:resum(?:e|es|ing|ed)|restart(?:s|ing|ed)?) [^.\n]{0,60}\b(?:train|checkpoint|fail|oom|crash|die|memory)|(?:memory|oom|crash\w*|fails?|error)\b[^.\n]{0,40}\b(?:on|when|after|upon|while|during|at)(?: i| trying to| the)* resum`, false},
	{func(t *Told) *bool { return &t.Resume }, "restart", `\brestart(?:s|ing|ed)? [^.\n]{0,40}\bcheckpoint`, false},
	{func(t *Told) *bool { return &t.Mapped }, "map_location", `\b(?:add(?:ed|ing)?|us(?:e|es|ed|ing)|set(?:ting)?|with|without|need\w*|should|try|pass\w*)\b[^.\n]{0,40}\bmap_location\b|\bmap_location\b[^.\n]{0,40}\b(?:help|fix|solv|work|missing|cure)`, false},
}

// remarked are these as notes, one for each word.
func remarked() (list []note) {
	for _, s := range remarks {
		expr := `(?i)` + s.expr
		if s.fails { // the whole sentence
			expr = `(?i)[^.\n]*(?:` + s.expr + `)[^.\n]*`
		}
		take := func(r *Run, m []string) {
			if !s.fails || !wellExpr().MatchString(m[0]) || notExpr().MatchString(m[0]) {
				*s.of(&r.Told) = true
			}
		}
		for _, word := range strings.Fields(s.words) {
			list = append(list, note{anchor: word, expr: expr, take: take})
		}
	}
	return list
}

// voices name the framework where the wording itself does not: a library's error, raised through one of them.
var voices = []struct {
	framework Name
	expr      func() *regexp.Regexp
}{
	{"pytorch", lazy(`(?i)RuntimeError: (?:cuda|cudnn|hip|nccl) error|RuntimeError\s+CUDA error|when calling .{0,2}cublas|\bc10::|libtorch|torch[/\\.]|\bpytorch\b`)},
	{"tensorflow", lazy(`(?i)\btensorflow\b|\bkeras\b`)},
	{"jax", lazy(`\bjax(?:lib)?\b`)},
}

// voice is the framework that a message or its traceback speaks through, "" when neither tells.
func voice(f *Failure) Name {
	for _, v := range voices {
		if v.expr().MatchString(f.Message) {
			return v.framework
		}
		for _, call := range f.Trace {
			if v.expr().MatchString(call.Path) {
				return v.framework
			}
		}
	}
	return ""
}

// toldEval is for both that evaluation may do wrong: words do not tell them apart.
func toldEval(e *evidence) (int, i18n.Message) {
	if e.Kind == Device && (e.phase == UnknownPhase && e.run.Told.Eval || e.phase != Eval && e.told == Eval) {
		return 45, i18n.M("evidence.told_eval")
	}
	return none()
}

// sayings are what the reporter says of a cause: how strongly it speaks, in which words, and where it may hold.
var sayings = []struct {
	cause    Cause
	said     func(*Told) bool
	weight   int
	evidence string
	when     func(*evidence) bool
}{
	{OtherProcess, func(t *Told) bool { return t.Held }, 52, "evidence.told_held", onCard},
	{Leak, func(t *Told) bool { return t.Leak }, 57, "evidence.told_leak", onCard},
	{Leak, func(t *Told) bool { return t.Late }, 45, "evidence.told_late", func(e *evidence) bool { return onCard(e) && !inPhase(e, Init, Load, Eval) }},
	{Leak, func(t *Told) bool { return t.Again }, 46, "evidence.told_again", func(e *evidence) bool { return onCard(e) && !inPhase(e, Init, Load) }},
	{ModelTooLarge, func(t *Told) bool { return t.One }, 62, "evidence.batch_of_one", onCard},
	{WrongDevice, func(t *Told) bool { return t.CPU }, 68, "evidence.told_cpu", onCard},
	{EvalLargerThanTrain, func(t *Told) bool { return t.Full }, 56, "evidence.told_full", outside},
	{EvalWithoutNoGrad, func(t *Told) bool { return t.NoGrad }, 58, "evidence.told_no_grad", outside},
	{CheckpointOnGPU, func(t *Told) bool { return t.Resume }, 53, "evidence.told_resume", onCard},
	{CheckpointOnGPU, func(t *Told) bool { return t.Mapped }, 55, "evidence.told_mapped", onCard},
}

// saidClues are those as clues.
func saidClues() (list []clue) {
	for _, row := range sayings {
		list = append(list, clue{row.cause, func(e *evidence) (int, i18n.Message) {
			if row.said(&e.run.Told) && row.when(e) {
				return row.weight, i18n.M(row.evidence)
			}
			return none()
		}})
	}
	return list
}

func onCard(e *evidence) bool { return e.Kind == Device }

// outside reports that the failure was, or may have been, outside of training.
func outside(e *evidence) bool {
	return onCard(e) && inPhase(e, Eval, Sample, Forward, UnknownPhase) && !slices.Contains([]Phase{Backward, Optimizer}, e.told)
}

func volatile(e *evidence) (int, i18n.Message) {
	if e.run.Told.Volatile && inPhase(e, Eval, Sample, UnknownPhase) {
		return 86, i18n.M("evidence.volatile")
	}
	return none()
}

// takesAll: TensorFlow asks the driver for nearly the whole card at once, so what it is refused somebody else has.
func takesAll(e *evidence) (int, i18n.Message) {
	if e.refused > 0 {
		return 60, i18n.M("evidence.takes_all", "tried", e.refused)
	}
	return none()
}

// roomLeft: a whole message that gives no free memory, as Intel's driver cannot tell it, and numbers that leave room.
func roomLeft(e *evidence) (int, i18n.Message) {
	f := e.Facts
	if f.Free != nil || f.Limit != nil || f.Allocated == nil || e.budget.Unused == nil || e.total() == 0 || f.Tried == nil {
		return none()
	}
	held := *f.Allocated + e.unused()
	if held+*f.Tried > e.total()-max(units.GiB, e.total()/5) {
		return none()
	}
	return 79, i18n.M("evidence.room_left", "tried", e.tried(), "held", held, "total", e.total())
}
