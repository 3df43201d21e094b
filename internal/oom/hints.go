package oom

import (
	"slices"
	"strings"
)

// A source line shows more than the calls in it: what its names are for, what it was about to call when the paste
// ended, and, where nothing else is known, that something was being computed.

// evaluates reports whether a line's own names say so (labels_val, x_test), and none says training. A mask that is valid
// does not, and what is predicted is evaluated only where the result's name says it.
func evaluates(code string) bool {
	if target, _, assigned := strings.Cut(code, " = "); assigned && read(code).has(kSample) {
		code = target
	}
	found := false
	for _, name := range strings.FieldsFunc(code, func(c rune) bool { return c >= 0x80 || !word(byte(c)) }) {
		n := read(name)
		if n.has(kTrain | kLoad | kBuild) {
			return false
		}
		letter := len(name) > 2 && (name[1] == '_' || name[len(name)-2] == '_') // x_test, val_y
		found = found || n.has(kEval) && (n.has(kThing|kLoss) || letter)
	}
	return found
}

// endings are what a line that was cut inside a name can only go on with: of several, the first is meant.
var endings = []struct {
	object kind // what the name belongs to; 0 is anything
	word   string
	rest   string
}{
	{kLoss, "", "backward()"}, {kOptim, "scaler", "scale(loss).backward()"}, {kOptim, "", "step()"}, {0, "", "backward()"}, {0, "", "loss'].backward()"}, {0, "", `loss"].backward()`},
	{kModel, "", "cuda()"}, {0, "", "from_pretrained()"}, {0, "", "load_state_dict()"}, {0, "", "generate()"}, {0, "", "forward()"}, {0, "", "evaluate()"},
	{0, "", "training_step()"}, {0, "", "train_step()"}, {0, "", "validation_step()"},
}

// completed is a source line with the name it was cut in written out, where that is clear enough.
func completed(code string, path ident) string {
	at := strings.LastIndexAny(code, ".'\"") + 1
	begun := code[at:]
	if at == 0 || begun == "" || strings.ContainsFunc(begun, func(c rune) bool { return c >= 0x80 || !word(byte(c)) }) {
		return code
	}
	key := code[at-1] != '.'
	if key && (at < 2 || code[at-2] != '[') {
		return code
	}
	start := strings.LastIndexAny(code[:at-1], " =,;") + 1
	object := read(code[start : at-1])
	for _, e := range endings {
		quoted := strings.IndexAny(e.rest, `'"`)
		if !strings.HasPrefix(e.rest, begun) || e.object != 0 && !object.has(e.object) || e.object == 0 && len(begun) < 4 && !key {
			continue
		}
		if e.word != "" && !slices.Contains(object.words, e.word) {
			continue
		}
		if key != (quoted > 0) || key && (e.rest[quoted] != code[at-1] || !path.has(kOptim)) {
			continue
		}
		return code[:at] + e.rest
	}
	return code
}

// elsewhere are libraries that compute on the machine itself.
var elsewhere = []string{"np.", "numpy.", "pd.", "cv2.", "scipy.", "sklearn.", "os.", "json.", "pickle."}

// arrays is data being made where the machine's own memory ran out in a line of the user's that calls one of these.
func (t Traceback) arrays() sight {
	for i := len(t) - 1; i >= 0; i-- {
		if library(strings.ReplaceAll(t[i].Path, `\`, "/")) {
			continue
		}
		n := read(t[i].Func)
		if t[i].Func != "" && t[i].Func[0] != '<' && !n.alone(kRun) && !n.has(kLoad|kBuild|kMake|kData|kDataset|kTrain|kExport) && !n.any(parts) && !n.any(preparers) {
			break
		}
		if slices.ContainsFunc(callees(t[i].Code), func(c callee) bool { return slices.Contains(elsewhere, c.object) }) {
			return sight{doing: Data}
		}
		break
	}
	return sight{}
}

// anyFunction are what decorators call: it may be anything.
var anyFunction = strings.Fields("func fn function wrapped wrapper method callback hook")

// valueExpr is what a line computes to keep or to return.
var valueExpr = lazy(`^(?:[\w.\[\], '":]+ [+*-]?= |return )(.*)$`)

// arithmeticExpr is a sum or a product of tensors, without a word of text in it.
var arithmeticExpr = lazy(`^[\w.\[\]():, *+/@-]*[\w)\]] [*+/@-] [\w(][\w.\[\]():, *+/@-]*$`)

// movedExpr is a line that ends with something put on the card.
var movedExpr = lazy(`\.(?:cuda\(\w*\)|to\([\w.'"]+\))$`)

// computing is a forward pass where nothing else is known of a failure than the expression that was being computed:
// a bare line, or a tensor's operation in a function that says nothing.
func (t Traceback) computing() sight {
	if len(t) == 0 {
		return sight{}
	}
	f := t[len(t)-1]
	bare, value := false, f.Code
	if m := valueExpr().FindStringSubmatch(f.Code); m != nil {
		bare, value = f.Path == "" && f.Func == "", m[1]
	}
	if f.Func == "" && strings.HasPrefix(f.Code, "self.") && movedExpr().MatchString(f.Code) {
		return sight{doing: Init} // what an object keeps on the card, it made when it was made
	}
	calls := callees(value)
	for _, c := range calls {
		n := read(c.name)
		switch {
		case n.any(anyFunction) && c.object == "", slices.Contains(elsewhere, c.object), n.has(kTensor | kLoad | kBuild | kMake | kFile | kData | kDataset | kMove):
			return sight{}
		case n.has(kCompute|kOp) && f.Func != "<module>":
			return sight{doing: Forward}
		}
	}
	arithmetic := len(calls) == 0 && arithmeticExpr().MatchString(value) && f.Func != "<module>" && !read(f.Func).has(kLoad|kBuild|kMake|kData|kDataset|kOptim|kStep)
	if bare && (len(calls) > 0 || strings.Contains(value, " @ ")) || arithmetic {
		return sight{doing: Forward}
	}
	return sight{}
}
