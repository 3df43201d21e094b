package oom

import (
	"cmp"
	"slices"
	"strings"
)

// A phase is the answer to two questions. What was being done, the innermost calls tell: the framework's are few,
// and the same in every program. What for, the outer ones tell: a forward pass is training's, an evaluation's or a
// generation's by the names that people gave to what called it. Names are read word by word (see vocabulary), so a name that
// nobody has seen yet is read as well as a known one.

// sight is the two answers, "" where they are not known. The purpose Forward is training.
type sight struct {
	doing, purpose Phase
}

// scripted is the purpose of a script that is named for training: it may be doing anything.
const scripted Phase = "training"

// phase is one answer out of two. A training step that shows no more counts as its forward pass, which asks for most.
func (s sight) phase() Phase {
	if (s.doing == Forward || s.doing == "") && s.purpose != scripted {
		return cmp.Or(s.purpose, s.doing, UnknownPhase)
	}
	return cmp.Or(s.doing, UnknownPhase)
}

// or fills what s leaves open with what o knows.
func (s sight) or(o sight) sight {
	switch {
	case s.doing == "" && (s.purpose == "" || s.purpose == Forward || s.purpose == scripted): // training evaluates and loads, too
		if s.purpose == Forward && o.purpose == scripted {
			o.purpose = Forward
		}
		return sight{o.doing, cmp.Or(o.purpose, s.purpose)}
	case s.doing == Forward && s.purpose == "":
		s.purpose = o.purpose
	}
	return s
}

// walk goes down a traceback, from the outermost call inwards.
type walk struct {
	doing   Phase
	purpose Phase  // by the functions outside the model
	script  Phase  // by the files' names
	perhaps Phase  // by words that may mean it
	inner   Phase  // by the functions inside the model
	inside  bool   // of a Module.__call__
	firm    bool   // what is done stays what it is, whatever it calls
	own     bool   // the backward pass is a user's function, which may compute the loss first
	mine    bool   // it is a user's function: no pass of a model begins inside of a real one
	named   bool   // it is only by a user's name for it
	library bool   // the call is of a library
	noGrad  bool   // the next call is decorated with no_grad
	without bool   // some call was
	started bool   // the call before was what starts an installed program
	served  bool   // the program is one that only samples
	trained bool   // one of the calls trains
	names   Phase  // by the names in the user's source lines
	calls   string // what the line with these names calls
	loss    bool   // a loss was computed: nobody does who only samples
}

// sight is what the calls tell.
func (t Traceback) sight() sight {
	var w walk
	if n := len(t); n > 1 && t[n-1].Func == "<module>" && t[0].Func != "<module>" { // printed innermost first
		t = slices.Clone(t)
		slices.Reverse(t)
	}
	for i, f := range t {
		next := ""
		if i+1 < len(t) {
			next = t[i+1].Func
		}
		if next == "" && i == len(t)-1 {
			f.Code = completed(f.Code, read(tail(f.Path, 2)))
		}
		w.frame(f, next)
	}
	if w.loss && w.script == Sample {
		w.script = ""
	}
	if w.script == Data { // what is built, written and asked of models there
		if w.doing == Init || w.doing == Save {
			w.doing = Data
		}
		if w.purpose == Sample {
			w.purpose = Data
		}
	}
	if w.names != "" && (w.doing == Forward || w.doing == "" && w.purpose == Sample) {
		w.purpose = w.names
	}
	if (w.doing == "" || w.doing == Load) && len(t) > 0 && t.spawning() {
		w.doing = Data
	}
	for _, purpose := range []Phase{w.purpose, w.script, w.perhaps, w.inner} {
		if purpose != "" {
			return sight{w.doing, purpose}
		}
	}
	if w.doing == Forward && (w.served || w.without && w.inside) {
		return sight{Forward, Sample}
	}
	return sight{doing: w.doing}
}

// Phase says what the program was doing, from the calls it was inside of.
func (t Traceback) Phase() Phase { return t.sight().phase() }

// frame takes one call and its source line; next is the function that it calls.
func (w *walk) frame(f Frame, next string) {
	path := strings.ReplaceAll(strings.ReplaceAll(f.Path, `\`, "/"), "//", "/")
	switch {
	case f.Func == "decorate_context" || f.Func == "decorate_no_grad":
		w.noGrad, w.without = true, true
		return
	case callsModule(path, f.Func):
		w.enter()
		return
	case f.Func == "handler" && strings.HasSuffix(path, "torch/utils/data/_utils/signal_handling.py") && w.purpose != Eval: // a worker died, whatever was being done
		w.doing, w.firm = Data, true
		return
	}
	w.library = library(path)
	w.loss = w.loss || strings.HasSuffix(path, "torch/nn/modules/loss.py")
	w.file(path)
	w.function(path, f)
	w.noGrad = false
	if !w.library && !w.inside && w.purpose != Sample && evaluates(f.Code) {
		w.names, w.calls = Eval, next
	}
	w.source(f.Code, next)
	if w.doing == "" && (gradExpr().MatchString(f.Code) || stateExpr().MatchString(f.Code)) {
		w.do(Optimizer, ident{}, false)
	}
}

// gradExpr is a gradient put in its place by hand, as optimizers do.
var gradExpr = lazy(`^[\w.\[\]]+\.grad(?:\.data)? = `)

// stateExpr is what an optimizer keeps of every parameter, by the names that PyTorch's have.
var stateExpr = lazy(`\b(?:(?:max_)?exp_avg(?:_sqs?|s)?|exp_inf|momentum_buffer|square_avg|acc_delta)\b|\boptim\w*\.state\[`)

// function takes a call by its function's name, class and file.
func (w *walk) function(path string, f Frame) {
	if p, ok := placed(path, f.Func); ok {
		if p.made {
			w.doing, w.firm = p.phase, true
			return
		}
		w.do(p.phase, ident{kind: p.kind}, true)
		return
	}
	if f.Func == "" || f.Func[0] == '<' {
		return
	}
	n := read(f.Func)
	phase := w.shows(n, read(f.Class+" "+tail(path, 3)))
	if phase == "" && w.doing == "" && n.kind&^(kMake|kPerhaps|kModel|kLayer|kCompute|kTensor|kThing) == 0 && read(tail(path, 2)).has(kLayer|kCompute) {
		phase = Forward // a model's file, and nothing else to do with it
	}
	if file := read(f.Class + " " + tail(path, 1)); phase == Init && !w.library && n.alone(kBuild|kMake) && file.any(stores) && !file.has(kModel) {
		phase = Data // what is made there
	}
	w.do(phase, n, true)
	subject := f.Class
	switch { // what a user's file is named for is weighed as the script
	case w.library && n.alone(kRun):
		subject += " " + tail(path, 1)
	case w.library:
		subject += " " + tail(path, 3)
	}
	w.why(n, read(subject), true)
}

// source takes a call by its source line: the calls written there, or the one that the next call is.
func (w *walk) source(code, next string) {
	for _, s := range sources {
		if strings.Contains(code, s.code) {
			w.do(s.phase, ident{}, false)
		}
	}
	if words := read(code); strings.HasPrefix(code, "raise ") && words.has(kLoad) && words.has(kModel|kFile) {
		w.do(Load, words, false) // the exception says what was tried
	}
	calls := callees(code)
	if target, value, assigned := strings.Cut(code, " = "); assigned && next == "" && len(calls) > 0 && !constructs(value) && keptLoss().MatchString(target) {
		w.do(Forward, ident{}, false)
	}
	if i := slices.IndexFunc(calls, func(c callee) bool { return c.name == next && !read(next).alone(kRun) }); i >= 0 {
		calls = calls[i : i+1]
	}
	for _, c := range calls {
		n, subject := read(c.name), read(c.object)
		phase := w.shows(n, subject)
		switch {
		case c.touchesCard(),
			c.constructs() && phase != Load && n.has(kModel|kLayer|kForward|kOptim),
			n.alone(kMove) && constructs(c.object):
			phase, n = Init, ident{kind: kBuild}
		case slices.Contains(elsewhere, c.object) && n.any(readers):
			phase = Data
			if target, _, _ := strings.Cut(code, " = "); read(target).ends(kModel) {
				phase = Load // a model is no data
			}
		case phase == "" && c.constructs() && n.any(stores), c.fills() && read(code).any(parts) && !subject.has(kModel|kGrad):
			phase = Data
		case phase != "":
		case n.alone(kMove) && next == "" && c.stands(code): // a tensor's move gives another: only a module is moved so
			phase = Init
		case n.alone(kMove) && (subject.ends(kModel) || subject.has(kModel) && strings.HasPrefix(code, c.object[:max(len(c.object)-1, 0)]+" = ")):
			phase = Init
		case n.alone(kMove) && next == "" && (subject.any(parts) || strings.EqualFold(c.object, "x.") || strings.EqualFold(c.object, "y.")) && !subject.has(kModel) && !subject.any(owned): // a tensor's move calls nothing further
			phase = Data
		case n.alone(kModel), c.ownFunction():
			phase = Forward
		default:
			var k kind
			phase, k = c.updates(n)
			n.kind |= k
		}
		if c.nested && next != "" && c.name != next && (phase == Data || phase == Load) {
			continue // it was done before what failed
		}
		w.do(phase, n, false)
		w.why(n, subject, false)
		if c.runsGraph() {
			w.session(read(code))
		}
	}
}

// keptLoss is the target of a line that computes a loss.
var keptLoss = lazy(`(?i)(?:^|[\w, ])loss(?:es)?(?:_dict|_value|_out)?(?:,|$)`)

// session takes the names of what a graph is run for: an optimizer's operation trains.
func (w *walk) session(n ident) {
	switch {
	case n.has(kBuild):
		w.do(Init, ident{kind: kBuild}, false)
	case n.has(kTrain | kOptim | kLoss):
		w.why(ident{kind: kTrain, words: []string{"train"}}, ident{}, false)
	}
}

// shows is doing with less trust in a library's words: it initialises and loads much that is no model.
func (w *walk) shows(n, subject ident) Phase {
	phase := doing(n, subject)
	if w.library && (phase == Init && !n.has(kModel|kWarm|kFile) && !n.alone(kBuild|kMake) || phase == Load && !n.has(kFile|kModel) && !subject.has(kFile|kModel|kTorch)) {
		return ""
	}
	return phase
}

// enter is a Module.__call__: no optimizer makes one, so a closure of it does.
func (w *walk) enter() {
	if !w.firm && (w.doing == "" || w.doing == Init || w.doing == Data || w.doing == Optimizer || w.doing == Backward && w.own) {
		w.doing = Forward
	}
	w.inside = true
}

// do takes what a call shows to be done. Compiling is done inside of anything, a backward pass runs forwards again, and
// a forward pass loads and builds what it needs; so the more special stays.
func (w *walk) do(phase Phase, n ident, function bool) {
	switch phase {
	case Compile:
		w.doing = Compile
	case Backward:
		if w.doing != Compile && w.doing != Load && w.doing != Save {
			w.own = (w.own || w.doing != Backward) && !w.library && (n.letter || !n.alone(kBackward|kGrad))
			w.mine = !w.library && (function || w.mine)
			w.doing = Backward
		}
	case Optimizer:
		if w.doing != Compile && w.doing != Load && w.doing != Save && w.doing != Backward && !(w.doing == Init && w.firm) {
			w.doing = Optimizer
		}
	case Save:
		if !w.inside && w.doing != Compile {
			w.doing, w.firm = Save, true
		}
	case Data:
		if w.purpose == Sample && (n.has(kMake) || function && !w.library && !n.has(kLoad)) { // of what it was given, or makes
			return
		}
		setup := w.doing == Init && !w.firm && (n.alone(kMove) || function && n.has(kLoad)) // where data is loaded, too
		if !w.inside && (w.doing == "" || w.doing == Forward && function || setup) {
			w.doing, w.firm = Data, function
		}
	case Load:
		if !w.inside && (w.doing == "" || w.doing == Init || w.doing == Forward) {
			w.doing, w.named = Load, true
		}
		w.named = w.named && n.has(kLoad) && !n.has(kFile)
	case Init:
		w.firm = w.firm || w.doing == Init && n.has(kWarm)
		switch worded := n.kind != 0 && !n.alone(kMove); {
		case w.inside || worded && (w.purpose == Eval || w.purpose == Sample):
		case w.doing == "", w.doing == Forward && !worded, w.doing == Load && w.named && n.kind == kBuild: // load_model builds it first
			w.doing, w.firm = Init, n.has(kWarm)
		}
	case Forward:
		if w.doing == Optimizer && n.has(kLoss) { // that it was handed: optimizer.update(lossfun, x)
			w.doing, w.purpose, w.inside = Forward, cmp.Or(w.purpose, Forward), true
		}
		if !w.firm && (w.doing == "" || w.doing == Init || w.doing == Optimizer && function || w.doing == Backward && w.mine && !function && n.alone(kModel)) {
			w.doing = Forward
		}
	}
	if n.has(kClosure) && w.doing == Optimizer {
		w.doing = ""
	}
}

// why takes what a call says about the purpose.
func (w *walk) why(n, subject ident, function bool) {
	k := n.kind
	if n.alone(kRun) {
		k = subject.kind
	}
	if k&kAfter != 0 {
		k &^= kTrain | kEpoch
	}
	if k&(kLoad|kBuild|kData) != 0 || k&kMake != 0 && k&(kModel|kFile) != 0 || k&kTrain != 0 && k&kEval != 0 {
		return
	}
	purpose, strong := Phase(""), true
	switch {
	case k&kEval != 0, k&kSample != 0 && k&kEpoch != 0: // inference_one_epoch
		purpose = Eval
	case k&kTrain != 0:
		purpose = Forward
	case k&kPerhaps != 0 && (k|subject.kind)&kSample == 0:
		if w.inside || !w.noGrad || !function {
			if !w.inside && !w.library {
				w.perhaps = Sample
			}
			return
		}
		purpose = Sample
	case k&(kSample|kPerhaps) != 0:
		purpose, strong = Sample, n.alone(kSample) || subject.has(kSample) || w.noGrad
	case k&kEpoch != 0:
		purpose, strong = Forward, false
	default:
		return
	}
	switch {
	case w.inside && !(function && n.has(kStep)): // validation_step runs inside of what spreads it over the cards
		w.inner = purpose
		return
	case w.purpose == Eval && purpose == Sample, w.purpose != "" && !strong,
		w.purpose == Sample && w.library && slices.Equal(n.words, []string{"eval"}): // of the model, as llama.cpp calls it
		return
	}
	w.purpose, w.trained = purpose, w.trained || purpose == Forward
	if called := len(n.words) > 0 && slices.Equal(n.words, read(w.calls).words); function && (purpose == Forward || purpose == Sample && !w.library && !w.trained && !called) {
		w.names = ""
	}
	if function && !w.firm && (w.doing == Init || w.doing == Load || w.doing == Optimizer) {
		w.doing = ""
	}
}

// file takes what a file is named for: a script of the user's, or the page or server that called it.
func (w *walk) file(path string) {
	w.served = w.served || !library(path) && read(path).has(kServe)
	if w.inside {
		return
	}
	if library(path) && w.started { // a package's own program
		if n := read(strings.TrimSuffix(tail(path, 1), ".py")); n.has(kSample|kPerhaps) && !n.has(kTrain|kEval) {
			w.perhaps = Sample
		}
	}
	w.started = strings.Contains(path, "/bin/") || strings.HasSuffix(path, "/runpy.py")
	if library(path) {
		if _, inside, _ := strings.Cut(path, "-packages/"); read(inside).has(kServe) || asks(inside) {
			w.script = Sample
		}
		return
	}
	if w.script == Data {
		return // it asks what models it needs
	}
	switch n := read(strings.TrimSuffix(tail(path, 1), ".py")); {
	case n.has(kTrain) && n.has(kEval):
	case n.has(kTrain) && n.has(kSample) && n.first(kTrain|kSample) == kSample: // infer_finetuning
		w.script = Sample
	case n.shows():
		w.script = Sample
	case n.has(kExport) && n.has(kTarget):
		w.script = Compile
	case n.any(preparers), n.has(kMake) && n.feeding():
		w.script = Data
	case n.has(kEval):
		w.script = Eval
	case n.has(kTrain):
		w.script = scripted
	case n.has(kSample):
		w.script = Sample
	case n.has(kPerhaps | kPage):
		w.perhaps = Sample
	}
}
