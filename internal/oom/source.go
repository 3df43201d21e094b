package oom

import (
	"slices"
	"strings"
)

// callee is a call written in a source line, what it is called on and what is passed to it, as far as the line goes.
type callee struct {
	name, object, args string
	nested             bool // in the arguments of another
}

// touches are calls that are often the first to need the card.
var touches = []string{"set_device", "manual_seed", "manual_seed_all", "init", "current_device", "get_device_name", "get_device_properties", "device_count"}

func (c callee) touchesCard() bool {
	return c.object == "torch.cuda." && slices.Contains(touches, c.name)
}

// runsGraph reports a TensorFlow session's run: its arguments tell what for.
func (c callee) runsGraph() bool {
	return c.name == "run" && (strings.Contains(c.object, "sess") || c.object == "exe." || c.object == "executor.")
}

// ownFunction reports the call of a function with a backward of its own: GSpMM.apply(…).
func (c callee) ownFunction() bool {
	return c.name == "apply" && constructs(strings.TrimSuffix(c.object, ".")+"(")
}

// fills reports that a tensor which was made before takes what another holds: x.resize_(…).copy_(batch).
func (c callee) fills() bool { return c.name == "copy_" || c.name == "pin_memory" }

// stands reports that the call is the whole line, and its result is left.
func (c callee) stands(code string) bool {
	return c.object != "" && !strings.Contains(c.object, "(") && code == c.object+c.name+"("+c.args+")"
}

func (c callee) constructs() bool { return constructs(c.name + "(") }

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
	within := 0 // where the outer call's arguments end
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
		args := passed(code[i+1:])
		found = append(found, callee{code[start:i], code[object:start], args, i < within})
		within = max(within, i+1+len(args))
	}
	return found
}

// passed is a call's arguments: all up to its bracket, or to the end of the line.
func passed(rest string) string {
	depth := 1
	for i := range len(rest) {
		switch rest[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return rest[:i]
			}
		}
	}
	return rest
}

// updates takes update(…) by what it is handed: gradients are an optimizer's, an optimizer or its state a training step's.
func (c callee) updates(n ident) (Phase, kind) {
	if !n.alone(kStep) {
		return "", 0
	}
	first, _, _ := strings.Cut(c.args, ",")
	switch args := read(c.args); {
	case c.object != "" && read(first).has(kGrad):
		return Optimizer, 0
	case args.has(kOptim | kGrad | kLoss):
		return "", kEpoch
	}
	return "", 0
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
