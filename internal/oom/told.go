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
	Leak     bool  // memory grows while it runs
	Late     bool  // it fails after some epochs or steps
	Resume   bool  // it happens on resuming
	Eval     bool  // it happens in evaluation
	Phase    sight // what it says was going on
	Volatile bool  // PyTorch's warning that volatile=True no longer switches the graph off
}

// say keeps the first sentence that names a phase.
func say(r *Run, m []string) {
	if r.Told.Phase.phase() != UnknownPhase && r.Told.Phase != inTraining || !speaks(m[0]) {
		return
	}
	s := told(m[0])
	if s == (sight{}) && memoryWords().MatchString(m[0]) {
		s = titled(translated(m[0]))
	}
	if m := stageExpr().FindStringSubmatch(m[0]); s == (sight{}) && m != nil {
		s = titled(m[1])
	}
	if s == (sight{}) && trainingExpr().MatchString(m[0]) {
		s = inTraining
	}
	r.Told.Phase = r.Told.Phase.or(s)
}

// inTraining is all that many a sentence says. Anything else says more.
var inTraining = sight{purpose: Forward}

// stageExpr is a stage of the run in which memory rises or ends.
var stageExpr = lazy(`(?i)\b((?:test|valid|eval|infer|predict)\w*)[ -](?:phase|stage|step|loop)\b[^.\n]{0,60}\b(?:memory|oom)\b`)

// trainingExpr says it; when training, or starting it, fails may be before its first step.
var trainingExpr = lazy(`(?i)(?:memory|\boom\b|error|crash\w*|fail\w*|occurs?|happens?)\b[^.\n]{0,40}\b(?:during|while|in the middle of)\s+(?:(?:the|i|am|running|[\w-]+|rl)\s+){0,3}(?:pre-?)?train(?:ing)?(?:\s|[,;:!?)]|\.\s|\.?$)|训练(?:时|的时候|过程|中|到)|学習中`)

// speaks is a quick look whether a sentence may be about the failure.
func speaks(text string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc([]string{"memory", "memmory", "oom", "crash", "killed", "error", "fail", "happen", "occur", "die", "stop", "exception", "problem", "issue", "vram", "显存", "内存", "メモリ", "speicher", "मेमोरी"}, func(w string) bool { return strings.Contains(text, w) })
}

func tell(get func(*Told) *bool) func(*Run, []string) {
	return func(r *Run, _ []string) { *get(&r.Told) = true }
}

const (
	growthExpr   = `(?i)(?:memory|vram|ram)\b[^.\n]{0,60}(?:\b(?:keeps?|kept)(?: on)? (?:increas|grow|ris|climb)|\b(?:grow(?:s|ed|ing)?|increas(?:es|ed|ing))\b[^.\n]{0,20}\b(?:slowly|steadily|gradually|every|each|over|until|during|with)\b)|memory[^.\n]{0,60}\bsteady increase`
	evalTalkExpr = `(?i)(?:memory|oom|error|crash\w*|fails?)\b[^\n]{0,80}\b(?:during|in|on|at|when|while|for)(?: the| doing| running| i run)* (?:evaluat|validat)|\b(?:during|in|when|while)(?: the| doing| running| i run)* (?:evaluat|validat)[^\n]{0,80}(?:memory|oom|error|crash)`
)

// toldExpr is a sentence's words for the failure and the phrase beside them that says when it happens.
var toldExpr = lazy(`(?i)(?:out[ _-]*of[ _-]*mem+ory|\boom\b|\bmemory (?:error|leak|issue|problem|usage)|\b(?:crash|fail|occur|happen|error|problem|issue|exception|die|stop)\w{0,3}\b|\bkilled\b)[^.\n]{0,40}?\b(?:during|when|while|in|on|at|upon|for|before|doing|running|with|inside|after calling|calling)\b((?:[^\w.\n]+[\w.]+){1,5})|\b(?:during|when|while|in|at)\b((?:[^\w.\n]+[\w.]+){1,5})[^.\n]{0,40}?(?:out[ _-]*of[ _-]*mem+ory|\bmemory overflow|\boom\b|\b(?:crash|fail)\w{0,3}\b|\berror\b)`)

// told is the phase that a sentence about the failure names.
func told(text string) sight {
	if code, note, ok := strings.Cut(text, "#"); ok && titleExpr().MatchString(note) { // loss.backward()  # out of memory here
		if s := (Traceback{{Code: strings.TrimSpace(code)}}).sight(); s != (sight{}) {
			return s
		}
	}
	if s := called(text); s != (sight{}) {
		return s
	}
	for _, m := range toldExpr().FindAllStringSubmatch(text, 8) {
		if s := titled(m[1] + m[2]); s != (sight{}) {
			return s
		}
	}
	return sight{}
}

// calledExpr is a call that a sentence names as what was being done: "when calling `model.cuda()`".
var calledExpr = lazy("(?i)\\b(?:calls?|calling|called|do(?:ing)?|run(?:ning)?|during|in|at|on|when|while|after|line)(?: the| to| just| i)*\\s+[`'\"*]*([\\w.\\[\\]()]*\\.?\\w+\\([^()\n]{0,80}\\))")

// called is what such a call shows. What is moved and not named is the model.
func called(text string) sight {
	if !titleExpr().MatchString(text) || adviceExpr().MatchString(text) {
		return sight{}
	}
	for _, m := range calledExpr().FindAllStringSubmatch(text, 8) {
		code := m[1]
		if code[0] == '.' {
			code = "model" + code
		}
		if s := (Traceback{{Code: code}}).sight(); s != (sight{}) {
			return s
		}
	}
	return sight{}
}

// memoryWords are a failure of memory in the languages of pieces.
var memoryWords = lazy(`(?i)out of memory|\boom\b|显存|内存|メモリ|speicher|मेमोरी`)

// pieces are words of languages that are written without blanks, or bend theirs: pieces to look for.
var pieces = map[string]string{
	"推理": "inference", "测试": "test", "推論": "inference", "生成": "generate", "预测": "predict", "验证": "validation", "評価": "evaluation", "评估": "evaluation",
	"加载": "load model", "読み込み": "load model", "反向": "backward", "训练": "train", "学習": "train",
	"Laden": "load model", "Auswert": "evaluation", "Inferenz": "inference", "Training": "train", "मूल्यांकन": "evaluation",
}

// startExpr is a program that does not come up.
var startExpr = lazy(`(?i)\b(?:not|fail\w*|unable|can't|cannot) (?:to )?(?:start|launch|boot)|\bstart-?up\b|\b(?:starting|launching) (?:the |up )?(?:\w+ )?(?:server|service|engine|api|webui|container)`)

func translated(text string) string {
	words := ""
	for piece, word := range pieces {
		if strings.Contains(text, piece) {
			words += " " + word
		}
	}
	return words
}

// idleExpr are words of a title that name nothing done: a setup that somebody has, an error that something generates.
var idleExpr = lazy(`(?i)\bsetup\b|\bgenerat(?:es?|ed|ing) (?:an? |the )?(?:\w+ ){0,2}(?:error|oom\b|out of memory)`)

// titled is the phase that the words of a title name.
func titled(title string) sight {
	if startExpr().MatchString(title) {
		return sight{doing: Init}
	}
	n := read(idleExpr().ReplaceAllString(title, "") + translated(title))
	if phase := doing(n, n); phase != "" && (phase != Init || n.has(kBuild)) && (phase != Forward || n.has(kForward)) && !n.has(kTrain) {
		return sight{doing: phase}
	}
	p := Progress{Status: activity(n)}
	if p.Status == Forward {
		p.Status = ""
	}
	return p.sight()
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

func toldLeak(e *evidence) (int, i18n.Message) {
	if e.run.Told.Leak && e.Kind == Device {
		return 57, i18n.M("evidence.told_leak")
	}
	return none()
}

func toldLate(e *evidence) (int, i18n.Message) {
	if e.run.Told.Late && e.Kind == Device && !inPhase(e, Init, Load, Eval) {
		return 45, i18n.M("evidence.told_late")
	}
	return none()
}

func toldResume(e *evidence) (int, i18n.Message) {
	if e.run.Told.Resume && e.Kind == Device {
		return 53, i18n.M("evidence.told_resume")
	}
	return none()
}

// toldEval is for both that evaluation may do wrong: words do not tell them apart.
func toldEval(e *evidence) (int, i18n.Message) {
	if (e.run.Told.Eval || e.told == Eval) && e.Kind == Device && e.phase == UnknownPhase {
		return 45, i18n.M("evidence.told_eval")
	}
	return none()
}

func volatile(e *evidence) (int, i18n.Message) {
	if e.run.Told.Volatile && inPhase(e, Eval, Sample, UnknownPhase) {
		return 86, i18n.M("evidence.volatile")
	}
	return none()
}

// takesAll: TensorFlow asks the driver for nearly the whole card at once, so what it is refused somebody else has.
func takesAll(e *evidence) (int, i18n.Message) {
	if e.Dialect == "tensorflow-driver" {
		return 60, i18n.M("evidence.takes_all", "tried", e.tried())
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
