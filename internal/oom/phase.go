package oom

import (
	"slices"
	"strings"
)

// A phase is the answer to two questions. What was being done, the innermost calls tell: the framework's are few,
// and the same in every program. What for, the outer ones tell: a forward pass is training's, an evaluation's or a
// generation's by the names that people gave to what called it. Names are read word by word (see vocabulary), so a name that
// nobody has seen yet is read as well as a known one.

// sight is the two answers, as far as they are known. The purpose Forward is training.
type sight struct {
	doing, purpose Phase
}

// scripted is the purpose of a script that is named for training: it may be doing anything.
const scripted Phase = "training"

// phase is one answer out of two. A training step that shows no more counts as its forward pass, which asks for most.
func (s sight) phase() Phase {
	if s.purpose == scripted {
		return s.doing
	}
	if (s.doing == Forward || s.doing == UnknownPhase) && s.purpose != UnknownPhase {
		return s.purpose
	}
	return s.doing
}

// or fills what s leaves open with what o knows.
func (s sight) or(o sight) sight {
	if phase := s.phase(); phase != UnknownPhase && phase != Forward || s.doing == Forward && s.purpose != UnknownPhase {
		return s
	}
	if s.doing == UnknownPhase {
		s.doing = o.doing
		if (s.purpose == Forward || s.purpose == scripted) && o.purpose != UnknownPhase { // training evaluates, too
			s.purpose = o.purpose
		}
	}
	if s.purpose == UnknownPhase && (s.doing == Forward || s.doing == UnknownPhase) {
		s.purpose = o.purpose
	}
	return s
}

// place is a file of a framework whose functions tell a phase by being there.
type place struct {
	path  string
	funcs string // "" is any
	phase Phase
}

// places are tried in order; a path matches where it holds the piece.
var places = []place{
	{"torch/nn/modules/module.py", "to cuda _apply convert float half bfloat16 double to_empty type xpu <lambda>", Init},
	{"torch/optim/lr_scheduler.py", "", UnknownPhase},
	{"torch/optim/swa_utils.py", "", UnknownPhase},
	{"torch/optim/", "", Optimizer},
	{"torch/serialization.py", "", Load},
	{"torch/_utils.py", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter", Load},
	{"safetensors/", "", Load},
	{"torch/nn/parallel/distributed.py", "__init__ _ddp_init_helper _sync_module_states _sync_params_and_buffers", Init},
	{"torch/nn/utils/clip_grad.py", "", Optimizer},
	{"torch/nn/modules/", "__init__ reset_parameters", Init},
	{"torch/nn/parameter.py", "", Init},
	{"torch/nn/init.py", "", Init},
	{"torch/cuda/__init__.py", "_lazy_init init set_device current_device", Init},
	{"torch/cuda/random.py", "", Init},
	{"torch/distributed/distributed_c10d.py", "barrier init_process_group", Init},
	{"/tensorflow", "__init__ _init_ __call__ call apply_op create_op", UnknownPhase}, // where a graph was made, not run
	{"torch/nn/", "", Forward},
	{"torch/functional.py", "", Forward},
}

// sources are lines of PyTorch that tell a phase by themselves: pastes often begin there.
var sources = []struct {
	code  string
	phase Phase
}{
	{"t.to(device, dtype if", Init}, {"fn(param", Init}, {"t.cuda(device", Init}, {"self._apply(", Init},
	{"forward_call(", Forward}, {"self.forward(", Forward}, {"torch._C._nn.", Forward},
	{"unpickler.load(", Load}, {"restore_location(", Load},
}

// moduleCall is Module.__call__ under its names since 0.4: what is called inside of it belongs to a forward pass.
var moduleCall = []string{"__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward"}

// sign is a row of what an identifier shows to be done: it has every kind of all, and one of with, itself or in its subject
// (a method's object, a function's class and file), and none of not.
type sign struct {
	phase Phase
	all   kind
	with  kind // 0 is no matter
	not   kind
	alone bool // the identifier says nothing else
}

// doings are tried in order for each identifier.
var doings = []sign{
	{phase: Compile, all: kCompile, with: kCompiler | kTorch, not: kWrapper},
	{phase: Load, all: kLoad, with: kFile | kModel | kOptim | kTorch, not: kData | kDataset},
	{phase: Load, all: kFrom | kFile},
	{phase: Load, all: kSet | kModel | kMove},
	{phase: Backward, all: kBackward, not: kForward | kTrain | kBuild},
	{phase: Backward, all: kGrad, alone: true},
	{phase: Optimizer, all: kClip, with: kGrad},
	{phase: Optimizer, all: kStep, with: kOptim, not: kTrain | kEval | kSample},
	{phase: Optimizer, all: kGrad | kMove},
	{phase: Optimizer, all: kOptim | kFile, not: kLoad},
	{phase: Init, all: kWarm, with: kModel | kRun},
	{phase: Load, all: kLoad, not: kData | kDataset | kTrain | kEval | kSample},
	{phase: Init, all: kBuild, not: kData | kDataset | kForward | kLoss},
	{phase: Init, all: kMake | kModel, not: kData | kDataset | kForward | kLoss},
	{phase: Init, all: kMake | kLayer, not: kData | kDataset | kForward | kLoss},
	{phase: Init, all: kMake, with: kModel, alone: true},
	{phase: Forward, all: kForward},
	{phase: Forward, all: kLoss},
	{phase: Forward, all: kTrain | kStep, not: kBackward},
}

// doing is the phase that an identifier shows.
func doing(n, subject ident) Phase {
	for _, r := range doings {
		if n.kind&r.all == r.all && n.kind&r.not == 0 && (r.with == 0 || (n.kind|subject.kind)&r.with != 0) && (!r.alone || n.alone(r.all)) {
			return r.phase
		}
	}
	return UnknownPhase
}

// walk goes down a traceback, from the outermost call inwards.
type walk struct {
	doing   Phase
	purpose Phase // by the functions outside the model
	script  Phase // by the files' names
	perhaps Phase // by words that may mean it
	inner   Phase // by the functions inside the model
	inside  bool  // of a Module.__call__
	firm    bool  // what is done stays what it is, whatever it calls
	named   bool  // it is only by a user's name for it
	library bool  // the call is of a library
	noGrad  bool  // the next call is decorated with no_grad
	without bool  // some call was
	loss    bool  // a loss was computed: nobody does who only samples
}

// sight is what the calls tell.
func (t Traceback) sight() sight {
	w := walk{doing: UnknownPhase}
	if n := len(t); n > 1 && t[n-1].Func == "<module>" && t[0].Func != "<module>" { // printed innermost first
		t = slices.Clone(t)
		slices.Reverse(t)
	}
	for i, f := range t {
		next := ""
		if i+1 < len(t) {
			next = t[i+1].Func
		}
		w.frame(f, next)
	}
	if w.loss && w.script == Sample {
		w.script = ""
	}
	for _, purpose := range []Phase{w.purpose, w.script, w.perhaps, w.inner} {
		if purpose != "" {
			return sight{w.doing, purpose}
		}
	}
	if w.without && w.inside {
		return sight{w.doing, Sample}
	}
	return sight{w.doing, UnknownPhase}
}

// Phase says what the program was doing, from the calls it was inside of.
func (t Traceback) Phase() Phase { return t.sight().phase() }

// frame takes one call and its source line; next is the function that it calls.
func (w *walk) frame(f Frame, next string) {
	path := strings.ReplaceAll(strings.ReplaceAll(f.Path, `\`, "/"), "//", "/")
	if strings.HasPrefix(f.Func, "decorate_") {
		w.noGrad, w.without = true, true
		return
	}
	file := tail(path, 3)
	if strings.HasSuffix(path, "torch/nn/modules/module.py") && slices.Contains(moduleCall, f.Func) {
		w.enter()
		return
	}
	w.file(path)
	w.library = library(path)
	subject := read(f.Class + " " + file)
	w.loss = w.loss || strings.HasSuffix(path, "torch/nn/modules/loss.py")
	if phase, ok := placed(path, f.Func); ok {
		w.do(phase, ident{kind: built(f.Func)}, true)
	} else if f.Func != "" && f.Func[0] != '<' {
		n := read(f.Func)
		phase := w.doingOf(n, subject)
		if phase == UnknownPhase && w.doing == UnknownPhase && n.kind&^(kMake|kPerhaps|kModel|kLayer) == 0 && read(tail(path, 2)).has(kLayer) {
			phase = Forward // a model's file, and nothing else to do with it
		}
		w.do(phase, n, true)
		if !w.library {
			subject = read(f.Class) // what its file is named for is weighed as the script
		}
		w.why(n, subject, true)
	}
	w.noGrad = false
	for _, s := range sources {
		if strings.Contains(f.Code, s.code) {
			w.do(s.phase, ident{}, false)
		}
	}
	calls := callees(f.Code)
	if i := slices.IndexFunc(calls, func(c callee) bool { return c.name == next && !read(next).alone(kRun) }); i >= 0 {
		calls = calls[i : i+1]
	}
	for _, c := range calls {
		n, subject := read(c.name), read(c.object)
		phase := w.doingOf(n, subject)
		switch {
		case c.object == "torch.cuda.": // the first that touches the card
			phase, n = Init, ident{kind: kBuild}
		case constructs(c.name+"(") && phase != Load && n.has(kModel|kLayer|kForward), n.alone(kMove) && constructs(c.object):
			phase, n = Init, ident{kind: kBuild}
		case phase != UnknownPhase:
		case n.alone(kMove) && subject.ends(kModel):
			phase = Init
		case n.alone(kModel):
			phase = Forward
		}
		w.do(phase, n, false)
		w.why(n, subject, false)
		if c.name == "run" && strings.Contains(c.object, "sess") { // a graph: what it is to compute tells
			w.session(read(f.Code))
		}
	}
}

// session takes the names of what a graph is run for: an optimizer's operation trains.
func (w *walk) session(n ident) {
	switch {
	case n.has(kBuild):
		w.do(Init, ident{kind: kBuild}, false)
	case n.has(kTrain | kOptim | kLoss):
		w.why(ident{kind: kTrain, words: []string{"train"}}, ident{}, false)
	}
}

// doingOf is doing with less trust in a library's words: it initialises and loads much that is no model.
func (w *walk) doingOf(n, subject ident) Phase {
	phase := doing(n, subject)
	if w.library && (phase == Init && !n.has(kModel|kWarm) && !n.alone(kBuild|kMake) || phase == Load && !n.has(kFile|kModel) && !subject.has(kFile|kModel|kTorch)) {
		return UnknownPhase
	}
	return phase
}

func built(fn string) kind {
	if fn == "__init__" || fn == "reset_parameters" {
		return kBuild
	}
	return 0
}

// library reports whether a file is not the user's own.
func library(path string) bool {
	return strings.Contains(path, "-packages/") || strings.Contains(path, "/lib/python") || strings.Contains(path, "/tensorflow")
}

// tail is the last n parts of a path.
func tail(path string, n int) string {
	at := len(path)
	for ; n > 0 && at >= 0; n-- {
		at = strings.LastIndexByte(path[:at], '/')
	}
	return path[at+1:]
}

func placed(path, fn string) (Phase, bool) {
	for _, p := range places {
		if strings.Contains(path, p.path) && (p.funcs == "" || slices.Contains(strings.Fields(p.funcs), fn)) {
			return p.phase, true
		}
	}
	return UnknownPhase, false
}

// enter is a Module.__call__: no optimizer makes one, so a closure of it does.
func (w *walk) enter() {
	if !w.firm && (w.doing == UnknownPhase || w.doing == Init || w.doing == Optimizer) {
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
		if w.doing != Compile && w.doing != Load {
			w.doing = Backward
		}
	case Optimizer:
		if w.doing != Compile && w.doing != Load && w.doing != Backward {
			w.doing = Optimizer
		}
	case Load:
		if !w.inside && (w.doing == UnknownPhase || w.doing == Init || w.doing == Forward) {
			w.doing, w.named = Load, true
		}
		w.named = w.named && n.has(kLoad) && !n.has(kFile)
	case Init:
		w.firm = w.firm || w.doing == Init && n.has(kWarm)
		switch worded := n.kind != 0; {
		case w.inside || worded && (w.purpose == Eval || w.purpose == Sample):
		case w.doing == UnknownPhase, w.doing == Forward && !worded, w.doing == Load && w.named && n.kind == kBuild: // load_model builds it first
			w.doing, w.firm = Init, n.has(kWarm)
		}
	case Forward:
		if !w.firm && (w.doing == UnknownPhase || w.doing == Init || w.doing == Optimizer && function) {
			w.doing = Forward
		}
	}
	if n.has(kClosure) && w.doing == Optimizer {
		w.doing = UnknownPhase
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
	if k&(kLoad|kBuild|kData) != 0 || k&kMake != 0 && k&kModel != 0 || k&kTrain != 0 && k&kEval != 0 {
		return
	}
	purpose, strong := Phase(""), true
	switch {
	case k&kEval != 0:
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
	case w.purpose == Eval && purpose == Sample, w.purpose != "" && !strong:
		return
	}
	w.purpose = purpose
	if function && !w.firm && (w.doing == Init || w.doing == Load || w.doing == Optimizer) {
		w.doing = UnknownPhase
	}
}

// file takes what a file is named for: a script of the user's, or the page or server that called it.
func (w *walk) file(path string) {
	if w.inside {
		return
	}
	if library(path) {
		if _, inside, _ := strings.Cut(path, "-packages/"); read(inside).has(kServe) {
			w.script = Sample
		}
		return
	}
	if read(path).has(kServe) {
		w.perhaps = Sample
	}
	switch n := read(strings.TrimSuffix(tail(path, 1), ".py")); {
	case n.has(kTrain) && n.has(kEval):
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

// callee is a call written in a source line, and what it is called on.
type callee struct {
	name, object string
}

// constructs reports whether a class is called: Net(…).
func constructs(call string) bool {
	name, _, called := strings.Cut(call, "(")
	name = name[strings.LastIndexByte(name, '.')+1:]
	return called && name != "" && name[0] >= 'A' && name[0] <= 'Z'
}

func word(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// callees finds the calls in a source line, in their order.
func callees(code string) []callee {
	if code, _, _ = strings.Cut(code, "#"); strings.HasPrefix(code, "raise ") {
		return nil
	}
	var found []callee
	for i := range len(code) {
		start := i
		for code[i] == '(' && start > 0 && word(code[start-1]) {
			start--
		}
		if start == i || code[start:i] == "eval" && strings.HasPrefix(code[i:], "()") { // switches, and runs nothing
			continue
		}
		object := start
		for depth := 0; object > 0 && (object < start || code[start-1] == '.'); object-- {
			switch c := code[object-1]; {
			case c == ')' || c == ']':
				depth++
			case c == '(' || c == '[':
				depth--
			case depth == 0 && (c == ' ' || c == '=' || c == ','):
				depth = -1
			}
			if depth < 0 {
				break
			}
		}
		found = append(found, callee{code[start:i], code[object:start]})
	}
	return found
}
