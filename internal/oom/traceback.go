package oom

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Frame is one call of a Python traceback.
type Frame struct {
	Path  string
	Line  int
	Class string // where the log shows it
	Func  string
	Code  string // the source line, where the log shows it
}

// Traceback is the calls that led to a failure, outermost first.
type Traceback []Frame

const (
	maxFrames = 256 // the outer half and the inner half of a deeper one are kept
	maxCode   = 400
)

// callForm is one way a call is printed: the literal that marks it and the expression that reads it.
type callForm struct {
	anchor string
	expr   func() *regexp.Regexp
}

// either is an expression that matches what one of its alternatives does: a long one is written as a list.
func either(alternatives ...string) string { return strings.Join(alternatives, "|") }

func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// arrowForm is a chain of calls as people write one down: train.py:12 step -> model.py:40 forward.
const arrowForm = `(?P<path>[\w~/.\\-]+\.py):(?P<line>\d+):?(?: in)? (?P<func>[A-Za-z_<][\w.<>]*)(?:\(\))?\s*(?:->|→|$)`

// plainForm is old IPython's.
const plainForm = `(?P<path>[\w~/.\\:<>-][^\n"│|]{0,400}?\.pyc?) in (?P<func>[\w.<>]+)`

// callForms are Python's, IPython's (old and new), rich's, notebook cells' and Colab's ways to print a call.
var callForms = []callForm{
	{`", line `, lazy(`(?:File \\?"|^\s*)(?P<path>[^"\n]{0,500}?)\\?", line (?P<line>\d+)(?:, in (?P<func>[^\s\\,]+))?`)},
	{", line ", lazy(`File (?:'|‘|“|&quot;)?(?P<path>[^"'\n,]{1,500}?)(?:'|’|”|&quot;)?, line (?P<line>\d+)(?:, in (?P<func>[^\s\\,]+))?`)},
	{", in ", lazy(`^[^"'\n]{0,8}\d+, in (?P<func>[\w.<>]+)\s*$`)}, // cut inside its line
	{".py:", lazy(`(?:File )?(?P<path>[\w~/.\\-][^\s":│|]{0,400}\.py):(?P<line>\d+),? in (?P<func>[\w.<>]+)`)},
	{".py:", lazy(`^\s*(?P<path>[\w~/.\\-]{1,400}\.py):(?P<line>\d+): (?:\w*(?:Error|Exception))?\s*$`)}, // pytest's
	{"-> ", lazy(arrowForm)}, {"→", lazy(arrowForm)},
	{".py in ", lazy(plainForm)}, {".pyc in ", lazy(plainForm)},
	{"ray::", lazy(`\bray::(?P<func>[\w.]+)\(\)`)},
	{"<ipython-input", lazy(`(?P<path><ipython-input-[^>\s]+>) in (?P<func>[\w.<>]+)`)},
	{"cell in[", lazy(`(?P<path>Cell In\[\d+\])(?:, line (?P<line>\d+)|, in (?P<func>[^\n(]+))`)},
	{"input in [", lazy(`(?P<path>Input In \[\d+\]), in (?P<func>[^\n(]+)`)},
	{"](https://localhost", lazy(`\[(?P<path>[^\[\]\n]{1,400})\]\(https://localhost[^)\s]*\) in (?P<func>[\w.<>]+)`)},
}

// codeExpr is a source line marked as the failing one: IPython's arrow or rich's.
var codeExpr = lazy(`^\s*│?\s*(?:-+>|❱)\s*(?:\d+|\[\d+\]\([^()\s]*\))\s*│?\s?(.*)$`)

// calls finds the calls printed in one line. Text between two calls on it is the source line of the first.
func (form callForm) calls(line string) []Frame {
	expr := form.expr()
	found := expr.FindAllStringSubmatchIndex(line, maxFrames)
	frames := make([]Frame, len(found))
	for i, loc := range found {
		group := func(name string) string {
			if g := expr.SubexpIndex(name); g >= 0 && loc[2*g] >= 0 {
				return line[loc[2*g]:loc[2*g+1]]
			}
			return ""
		}
		frames[i] = Frame{Path: strings.TrimSpace(group("path"))}
		frames[i].Class, frames[i].Func = qualified(group("func"))
		if n := number(group("line")); n != nil {
			frames[i].Line = *n
		}
		end := len(line)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		if code := strings.TrimSpace(line[loc[1]:end]); len(found) > 1 && len(code) < maxCode {
			frames[i].Code = code
		}
	}
	return frames
}

// qualified splits off the class that IPython prints before a method: Trainer.evaluate is Trainer's evaluate.
func qualified(fn string) (class, method string) {
	fn = strings.TrimRight(fn, ":.")
	dot := strings.LastIndexByte(fn, '.')
	return fn[:max(dot, 0)], fn[dot+1:]
}

// push adds a call, forgetting the middle of a traceback that is too deep.
// nativeExpr is a call of C++ as glog prints it, innermost first: Caffe's stacks, and its heirs'.
var nativeExpr = lazy(`^\s*@\s+0x[0-9a-f]+\s+([\w:<>~]+)\(`)

// maxNative is how many of them are kept.
const maxNative = 64

// within reports that a call's file lies in a folder.
func (t Traceback) within(folder string) bool {
	return slices.ContainsFunc(t, func(f Frame) bool { return strings.Contains(strings.ReplaceAll(f.Path, `\\`, "/"), folder) })
}

// whole reports that the outermost call is among them: the words of a log have all that led to the failure in view.
func (t Traceback) whole() bool {
	return slices.ContainsFunc(t, func(f Frame) bool { return f.Func == "<module>" })
}

func (t Traceback) push(f Frame) Traceback {
	if len(t) == maxFrames {
		t = append(t[:maxFrames/2], t[maxFrames/2+1:]...)
	}
	return append(t, f)
}
