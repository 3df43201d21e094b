package oom

import (
	"cmp"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/oom/likely"
)

// Log is all that a Reader understood.
type Log struct {
	Failures []*Failure // in the order of the log
	Run      Run
	Lines    int64
	loose    []Traceback // calls that no message followed
	cut      []Traceback // of these, those that no exception ended
	engine   bool        // C++ calls of autograd's engine were printed
	native   Traceback   // C++'s calls, the innermost first
	gist     *likely.Gist
}

// Phase is where the run failed. Each piece of evidence fills what the stronger ones before it leave open: the calls the
// failure came through, after the graph's node or the engine that it names, the calls of other ranks, the progress shown last, the script
// on the command line, and the words of the one who reports it.
func (l *Log) Phase() Phase { return l.sight().phase() }

func (l *Log) sight() sight {
	said := told(l.Run.Title)
	title := heard{said.sight, 2}
	if strings.HasPrefix(l.Run.Title, "#") {
		title.sight = title.or(titled(l.Run.Title))
	}
	s := l.seen()
	if s == (sight{purpose: Sample}) && title.purpose == Eval { // what is predicted is evaluated
		s = title.sight
	}
	if title.doing != "" || title.purpose == Eval || title.purpose == Sample { // a script does many things
		s = s.or(title.sight)
	}
	s = l.started(s).or(said.sight)
	if f := l.Failure(); f != nil && strings.HasPrefix(f.Dialect, "dataloader") {
		return s // what feeds the step is no part of it
	}
	said = said.plainer(l.Run.Told.Phase)
	for _, f := range l.Failures {
		said = said.plainer(told(f.Message))
	}
	if said.weight > title.weight {
		s = s.or(said.sight)
	}
	s = s.or(title.sight).or(said.sight)
	if l.Run.Progress.Nameless && read(l.Run.Title).has(kTrain) {
		s = s.or(inTraining)
	}
	if f := l.Failure(); s == (sight{doing: Forward}) && f != nil && f.Trace.asked() && !read(l.Run.Title).has(kTrain) {
		s.purpose = Sample
	}
	if f := l.Failure(); s == (sight{}) && f != nil && f.Dialect == "tensorflow-driver" {
		s.doing = Init // it takes the card's memory when it starts
	}
	if l.Run.Progress.Loaded {
		s = s.or(sight{doing: Init}) // and nothing was shown after
	}
	return s
}

// Ends is what was being done where a log without a failure breaks off inside of calls.
func (l *Log) Ends() Phase {
	var s sight
	for _, t := range l.cut {
		s = s.or(t.sight())
	}
	if len(l.cut) > 0 {
		s = s.or(l.Run.Progress.sight())
	}
	return s.phase()
}

// guess is the likeliest phase by the log's words and by the phase that it shows, and its chance.
func (l *Log) guess(shown Phase) (Phase, float64) {
	phase, chance := l.gist.Guess(string(shown))
	return cmp.Or(Phase(phase), UnknownPhase), chance
}

// shown is what the log shows, the words of the one who reports it left out.
func (l *Log) shown() sight { return l.started(l.seen()) }

// started fills what is open with what the script is for.
func (l *Log) started(s sight) sight {
	s = s.or(l.Run.commanded())
	if f := l.Failure(); f != nil && f.Kind == Host && s.purpose == Forward {
		s.purpose = scripted // the machine's memory fills up beside the step
	}
	return s
}

// seen is what the log shows below the command.
func (l *Log) seen() sight {
	f := l.Failure()
	if f == nil {
		return sight{}
	}
	s := node(f.Message + " " + f.Below).or(f.Trace.sight())
	if strings.HasPrefix(f.Dialect, "dataloader") && s.purpose != Eval {
		return sight{doing: Data} // the step only waited for it
	}
	if f.Kind != Host {
		s = s.or(f.Trace.computing())
	} else {
		s = s.or(f.Trace.arrays())
	}
	says := announcing(f.Message)
	s = s.or(says).or(f.logged())
	if s.purpose == Sample && l.Run.Progress.Status == Eval && f.Trace.trains() || s == (sight{Forward, scripted}) && l.Run.Progress.Bar == Eval {
		s.purpose = Eval // what a training script predicts is for that, and what it shows it does
	}
	if l.engine {
		s = s.or(sight{doing: Backward})
	}
	s = s.or(l.native.inward())
	for _, other := range l.Failures {
		if other.Kind == f.Kind {
			s = s.or(node(other.Message + " " + other.Below)).or(other.Trace.sight())
		}
	}
	for _, t := range l.loose {
		s = s.or(t.sight())
	}
	for _, other := range l.Failures {
		s = s.or(kernel(other.Message))
	}
	if says == (sight{}) { // or else what it did next
		s = s.or(l.Run.Progress.sight())
	}
	return s
}

// trains reports that a script of the user's among the calls is named for training.
func (t Traceback) trains() bool {
	return slices.ContainsFunc(t, func(f Frame) bool {
		path := strings.ReplaceAll(f.Path, `\`, "/")
		return !library(path) && read(tail(path, 1)).has(kTrain)
	})
}

// commanded is what a script on the command line is for, by its name or else by its folder's.
func (r *Run) commanded() sight {
	path := strings.TrimSuffix(strings.TrimSuffix(r.Script, ".py"), ".sh")
	for range 2 {
		if s := (Traceback{{Path: path}}).sight(); s != (sight{}) {
			return s
		}
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
	return sight{}
}

// inward is what C++'s calls tell, which are printed from the innermost outwards: the first that names a phase or a purpose.
func (t Traceback) inward() (s sight) {
	for _, f := range t {
		_, method, _ := strings.Cut(f.Func, "::")
		n := read(method)
		switch {
		case n.has(kBackward):
			s = s.or(sight{doing: Backward})
		case n.has(kEval):
			s = s.or(sight{purpose: Eval})
		case n.has(kBuild) || n.any([]string{"setup"}):
			s = s.or(sight{doing: Init})
		case n.has(kStep):
			s = s.or(sight{doing: Optimizer})
		case n.has(kSave):
			s = s.or(sight{doing: Save})
		case n.has(kForward):
			s = s.or(sight{doing: Forward})
		case n.any([]string{"solve", "train"}):
			s = s.or(sight{purpose: Forward})
		}
	}
	return s
}

// nodeExpr is the operation of TensorFlow's graph that failed.
var nodeExpr = lazy(`(?:\{\{node |\[\[[Nn]ode:? |\b[Oo]p u?'|\[Op:|op_name="|stack trace for '|requested by op )([\w./:()-]+)`)

// jitExpr is the function that XLA compiled for JAX.
var jitExpr = lazy(`^p?(?:jit|map)\((\w\w+)\)/`)

// messagePhases are wordings that only one phase has; the first found counts.
var messagePhases = []struct {
	phase  Phase
	pieces []string
}{
	{Compile, []string{"compile permanent error", "insufficient to use tactic", "Skipping tactic"}},
	{Init, []string{"memory for the cache blocks", "available KV cache memory", "cuCtxCreate", "cudaSetDevice", "cuDevicePrimaryCtxRetain", "cuInit", "simple_bind error"}},
	{Backward, []string{"is_gradient_op: true", "nnconv_backward"}},
	{Forward, []string{"nnconv_forward"}},
}

// node is what a graph's operation is for: those of a backward pass are named so, and an optimizer's after it.
func node(message string) sight {
	var s sight
	for _, m := range messagePhases {
		if slices.ContainsFunc(m.pieces, func(piece string) bool { return strings.Contains(message, piece) }) {
			s.doing = m.phase
			break
		}
	}
	m := nodeExpr().FindStringSubmatch(message)
	if m == nil {
		return s
	}
	if fn := jitExpr().FindStringSubmatch(m[1]); fn != nil && !strings.Contains(m[1], "jvp(") {
		if n := read(fn[1]); !n.has(kTrain|kEval|kStep|kLoss|kGrad|kOptim|kBuild) && (n.has(kSample|kPerhaps|kForward) || n.any([]string{"apply"})) {
			return sight{Forward, Sample} // a function that is differentiated has another name
		}
	}
	switch n := read(m[1]); {
	case n.has(kCompile):
		s.doing = Compile
	case n.has(kGrad|kBackward) || strings.Contains(m[1], "transpose(jvp("):
		s.doing = Backward
	case n.has(kBuild):
		s.doing = Init
	case n.has(kOptim) || strings.Contains(m[1], "MovingAvg"): // the average is kept after the step
		s.doing = Optimizer
	case n.has(kLoad):
		s.doing = Load
	case !strings.Contains(m[0], "Op:") && !strings.HasPrefix(m[0], "requested"): // an operation run by itself may be anything's
		s.doing = Forward
	}
	return s
}

// kernelExpr is TensorFlow's operation that failed, by the file it is written in.
var kernelExpr = lazy(`OP_REQUIRES failed at (\w+)\.(?:cc|h)\b`)

// kernel is what such an operation belongs to.
func kernel(message string) sight {
	m := kernelExpr().FindStringSubmatch(message)
	if m == nil {
		return sight{}
	}
	switch n := read(m[1]); {
	case n.has(kGrad | kBackward):
		return sight{doing: Backward}
	case n.has(kTrain):
		return sight{doing: Optimizer} // training_ops.cc holds the optimizers'
	case n.has(kLoad | kSave):
		return sight{doing: Load}
	case slices.ContainsFunc(n.words, func(w string) bool { return strings.Contains("assign variable random constant fill resource", w) }):
		return sight{doing: Init}
	}
	return sight{doing: Forward}
}

// repeated is the traceback of a failure that says f again, where f is only its title: same wording, no other number.
func (l *Log) repeated(f *Failure) Traceback {
	for _, other := range l.Failures {
		same := other.Dialect == f.Dialect && len(other.Trace) > 0
		for name, size := range other.Sizes {
			same = same && f.Sizes[name] == size
		}
		if same {
			return other.Trace
		}
	}
	return nil
}

// Failure is the one that ended the run: numbers before none, raised before warned, the card's memory before the
// signals that follow it, and then the first. Nil when the log holds none.
func (l *Log) Failure() *Failure {
	var best *Failure
	for _, f := range l.Failures {
		if best == nil || f.weight() > best.weight() {
			best = f
		}
	}
	return best
}

func (f *Failure) weight() int {
	w := min(len(f.Sizes), 3)*4 + tells()[f.Dialect]
	if f.Facts.Framework != "" {
		w++
	}
	if f.Facts.GPU != nil || f.Buffer != nil {
		w++
	}
	if f.Kind != Host {
		w += 2
	}
	if len(f.Trace) > 0 {
		w += 3
	}
	return w
}
