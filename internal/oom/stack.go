package oom

import (
	"strings"
)

// stack is the traceback one rank is printing.
type stack struct {
	frames   Traceback
	wantCode bool  // the source line of the last call comes next
	spent    bool  // its exception was printed: the next call starts another traceback
	line     int64 // where it was
	raised   bool  // so it was, as an exception of its own line
	other    bool  // the head names one that memory does not raise
}

// push adds the calls printed in a line; above is the line above it.
func (s *stack) push(form callForm, line string, above []byte) bool {
	frames := form.calls(line)
	if len(frames) == 0 {
		return false
	}
	if s.spent || s.raised && len(s.frames) > 0 {
		*s = stack{}
	}
	s.lost(above)
	for _, f := range frames {
		s.frames = s.frames.push(f)
	}
	s.wantCode = frames[len(frames)-1].Code == ""
	return true
}

// code keeps the source line under a call.
func (s *stack) code(line string) {
	line = strings.TrimSpace(string(stripPrefix([]byte(line))))
	if line == "" || strings.Trim(line, "^~ ") == "" || len(s.frames) == 0 || contextExpr().MatchString(line) {
		return
	}
	s.wantCode = false
	if m := codeExpr().FindStringSubmatch(line); m != nil { // the arrow of a long number is short
		line = m[1]
	}
	if f := &s.frames[len(s.frames)-1]; f.Code == "" {
		f.Code = line[:min(len(line), maxCode)]
	}
}

// contextExpr is a source line around the failing one, as notebooks number them.
var contextExpr = lazy(`^\d+(?:\s|│|$)`)

// lostExpr is a line of code: what is left of a call whose own line was cut off.
var lostExpr = lazy(`^\s*(?:\w{5,6} )?[\w.\[\]'", ]*(?:= *)?[\w.\[\]'"]+\((?:.*\))?,?\s*(?:#.*)?$|^\s*(?:[\w.\[\], ]+ = |return ).*(?:\w\(| @ )`)

// hostExpr is a machine's name before each line it printed.
var hostExpr = lazy(`^[\w.-]+:\s+`)

// lost keeps the line above the first call, where it is the source line of an outer one.
func (s *stack) lost(line []byte) {
	if len(s.frames) > 0 || s.spent || len(line) == 0 {
		return
	}
	line = stripPrefix(line)
	line = line[len(hostExpr().Find(line)):]
	if lostExpr().Match(line) {
		s.frames = s.frames.push(Frame{Code: strings.TrimSpace(string(line))})
	}
}

// buffer is the tensor an inductor kernel was allocating, from the innermost call's source line.
func (t Traceback) buffer() *Buffer {
	if len(t) == 0 {
		return nil
	}
	m := bufferExpr().FindStringSubmatch(t[len(t)-1].Code)
	if m == nil {
		return nil
	}
	if shape := dims(m[1]); shape != nil {
		return &Buffer{shape, m[2]}
	}
	return nil
}
