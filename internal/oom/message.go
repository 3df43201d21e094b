package oom

import (
	"bytes"
	"slices"
	"strings"
)

// pending is a message being collected: the line with its anchor and those after it.
type pending struct {
	text  strings.Builder
	rules []int
	line  int64
	lines int
	rank  *int
	trace Traceback
}

// anchor opens a message at a dialect's anchor, or adds the dialect to the message already open on this line.
func (r *Reader) anchor(line []byte, h hit, rank *int, s *stack, anchored int) int {
	const before = 300 // an exception's name stands before its message
	if r.open != nil && anchored >= 0 && h.end-anchored < maxMessage-before {
		r.open.rules = append(r.open.rules, h.literal)
		return anchored
	}
	if r.open != nil && r.open.lines <= 2 && r.sameMessage(h) {
		r.open.rules = append(r.open.rules, h.literal)
		return anchored
	}
	if aside(line) {
		return anchored
	}
	r.close()
	start := max(0, h.end-len(dialects[h.literal].anchor)-before)
	r.open = &pending{rules: []int{h.literal}, line: r.lines + 1, lines: 1, rank: rank}
	if !s.spent && !s.over(r.lines) {
		r.open.trace = slices.Clone(s.frames)
		s.spent = len(s.frames) > 0
	}
	r.open.text.Write(line[start:min(len(line), start+maxMessage)])
	return start
}

// sameMessage reports whether an anchor on a following line continues the open message: a wrapped line, or the
// library's own words under a general exception.
func (r *Reader) sameMessage(h hit) bool {
	general := dialects[h.literal]
	return general.detailed || general.name == "out-of-memory" || slices.Contains(r.open.rules, h.literal) && general.kind == Library
}

func stripPrefix(line []byte) []byte {
	if loc := prefixExpr().FindIndex(line); loc != nil {
		line = line[loc[1]:]
	}
	if box := bytes.TrimRight(line, " \t"); bytes.HasSuffix(box, []byte("│")) {
		return bytes.TrimRight(box, "│ ")
	}
	return line
}

// aside reports a line that speaks of an allocation TensorFlow can do without.
func aside(line []byte) bool { return bytes.Contains(line, []byte("this is not a failure")) }

// continueMessage adds a line to the open message, until it is long enough.
func (r *Reader) continueMessage(line []byte, rank *int) {
	o := r.open
	if o == nil || rank != nil && (o.rank == nil || *o.rank != *rank) || len(bytes.TrimSpace(line)) == 0 || aside(line) {
		return
	}
	if o.lines >= maxLines || o.text.Len()+len(line) > maxMessage {
		r.close()
		return
	}
	o.lines++
	o.text.WriteByte('\n')
	o.text.Write(line)
}

// close reads the open message. Past maxFailures only the newest is kept, to be read at the end.
func (r *Reader) close() {
	o := r.open
	if o == nil {
		return
	}
	r.open = nil
	r.windows++
	if r.windows > 16*maxFailures || len(r.failures) >= maxFailures {
		r.last = o
		return
	}
	r.settle(o)
}

// settle turns a collected message into a failure, unless it is none or a repetition.
func (r *Reader) settle(o *pending) {
	slices.Sort(o.rules)
	lines := strings.Split(o.text.String(), "\n")
	logger := loggerExpr().FindStringSubmatch(lines[0])
	for i, l := range lines {
		lines[i] = string(stripPrefix([]byte(l)))
	}
	f := matchMessage(strings.Join(lines, "\n"), slices.Compact(o.rules))
	if f == nil {
		r.unused = o.trace
		if n := len(r.failures); n > 0 {
			r.failures[n-1].Below = oneLine(o.text.String())
		}
		return
	}
	f.Line, f.Trace, f.Facts.Rank = o.line, o.trace, o.rank
	if logger != nil {
		f.Logger = logger[1]
	}
	if f.Facts.Framework == "" && f.Kind != Host {
		f.Facts.Framework = voice(f)
	}
	if f.Buffer == nil {
		f.Buffer = f.Trace.buffer()
	}
	if n := len(r.failures); n > 0 && r.failures[n-1].Message == f.Message && len(f.Trace) <= len(r.failures[n-1].Trace) {
		return
	}
	if n := len(r.failures); n > 0 && r.failures[n-1].title(f) {
		r.failures[n-1] = f
		return
	}
	r.failures = append(r.failures, f)
}

// loggerExpr is the logger that printed a message, by the module it is named for.
var loggerExpr = lazy(`\b(?:ERROR|CRITICAL|WARNING)\W{1,4}([a-z_]\w*(?:\.\w+)+)\s*(?::|-|\])`)

// logged is what such a module is for.
func (f *Failure) logged() sight {
	switch n := read(f.Logger); {
	case n.has(kTrain):
		return sight{purpose: scripted}
	case n.has(kEval):
		return sight{purpose: Eval}
	case n.has(kSample | kPerhaps | kServe):
		return sight{purpose: Sample}
	}
	return sight{}
}

// title reports whether f only announces fuller, the message below it.
func (f *Failure) title(fuller *Failure) bool {
	if f.Dialect != fuller.Dialect || len(f.Trace) > 0 || len(f.Sizes) >= len(fuller.Sizes) {
		return false
	}
	for name, size := range f.Sizes {
		if fuller.Sizes[name] != size {
			return false
		}
	}
	return true
}
