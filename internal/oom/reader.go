package oom

import (
	"bytes"
	"io"
	"maps"
	"slices"

	"github.com/snugml/snug/internal/oom/likely"
)

// Limits that bound what a Reader keeps, whatever it is fed.
const (
	maxPiece    = 64 << 10 // a line is handled in pieces of this size
	overlap     = 4 << 10  // of which this much is seen again, so nothing is cut
	maxMessage  = 4 << 10  // a message and the lines it may continue on
	maxLines    = 14
	maxFailures = 64
	maxRanks    = 64
)

// Reader takes a run's output piece by piece, as it comes, and finds memory failures in it. It is an io.Writer.
type Reader struct {
	run      Run
	gist     likely.Gist // all of it, in words
	failures []*Failure
	last     *pending // the newest message past maxFailures, not read yet
	windows  int

	line    []byte // the unfinished line
	held    []byte // the beginning of a call that was wrapped, and how many lines were added to it
	joined  int
	pointed bool   // the line of code below is where it fails
	warned  bool   // it follows a warning
	above   []byte // the one before it, where it may be code
	title   string // the first one
	seen    int    // how much of it an earlier piece showed already
	scratch []byte
	hits    []hit
	lines   int64
	start   bool // whether the first bytes were looked at
	utf16   int  // 0 no; 1 or 2: little endian, at an even or an odd byte

	former    *Reader // the run before this one in the same log
	open      *pending
	stacks    map[int]*stack
	printing  []*stack  // the same, to be gone through for every line
	noted     []int     // how often each note was tried: a word that stands on every line is not read for ever
	unused    Traceback // the calls above a message that was none
	said      said
	broken    string    // the line before, where it was prose and not at its end
	raised    bool      // an exception was printed
	engine    bool      // autograd's C++ engine was among the calls
	native    Traceback // C++'s calls, the innermost first
	config    int       // lines of a printed config file still expected
	iters     int64
	bars      int64
	states    int64
	lastIter  []byte
	lastState []byte
	lastBar   []byte
	lastMem   []byte
}

// NewReader returns a Reader that has seen nothing.
func NewReader() *Reader {
	return &Reader{run: Run{Settings: map[string]string{}}, stacks: map[int]*stack{}, noted: make([]int, len(notes)+len(talk)), said: said{line: -1}}
}

// Read reads a whole log.
func Read(src io.Reader) (*Log, error) {
	r := NewReader()
	buf := make([]byte, 256<<10)
	_, err := io.CopyBuffer(r, struct{ io.Reader }{src}, buf)
	return r.Finish(), err
}

// Write takes the next bytes of the output. It never fails and keeps no reference to p.
func (r *Reader) Write(p []byte) (int, error) {
	n := len(p)
	if !r.start && n > 0 {
		r.start = true
		if len(p) >= 2 && p[0] == 0xff && p[1] == 0xfe { // PowerShell redirects as UTF-16
			r.utf16, p = 1, p[2:]
		}
	}
	if r.utf16 != 0 {
		p = r.narrow(p)
	}
	r.gist.Write(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p
		if i >= 0 {
			part = p[:i]
		}
		for {
			j := bytes.IndexByte(part, '\r')
			if j < 0 {
				break
			}
			r.feed(part[:j])
			r.endLine(false)
			part = part[j+1:]
		}
		r.feed(part)
		if i < 0 {
			break
		}
		r.endLine(true)
		p = p[i+1:]
	}
	return n, nil
}

// narrow turns UTF-16 into bytes; what is not ASCII becomes '?'.
func (r *Reader) narrow(p []byte) []byte {
	out := make([]byte, 0, len(p)/2+1)
	for _, b := range p {
		if r.utf16 == 1 {
			out = append(out, b)
		} else if b != 0 && len(out) > 0 {
			out[len(out)-1] = '?'
		}
		r.utf16 = 3 - r.utf16
	}
	return out
}

// feed adds to the unfinished line and handles what is too long to wait for its end.
func (r *Reader) feed(p []byte) {
	for len(p) > 0 {
		take := min(len(p), maxPiece-len(r.line))
		r.line = append(r.line, p[:take]...)
		p = p[take:]
		if len(r.line) == maxPiece {
			r.piece()
			n := copy(r.line, r.line[maxPiece-overlap:])
			r.line, r.seen = r.line[:n], n
		}
	}
}

// endLine handles the finished line. A carriage return ends one too: progress bars and CRLF.
func (r *Reader) endLine(counted bool) {
	if len(r.line) > r.seen {
		r.piece()
	}
	if counted {
		r.lines++
	}
	if r.title == "" || r.heading(r.line) {
		r.title = string(bytes.TrimSpace(r.line[:min(len(r.line), maxCode)]))
	}
	if counted && r.bare(r.line) {
		r.title = "# " + r.title
	}
	r.point()
	r.wrap()
	if bytes.IndexByte(r.line, 'W') >= 0 && bytes.Contains(r.line, []byte("Warning: ")) { // the line below it is no failure's
		r.warned, r.above = true, r.above[:0]
	} else if r.warned {
		r.warned = false
	} else if n := len(r.line); n > 0 && r.line[n-1] != '^' && r.line[n-1] != '~' { // such only point at the line above
		r.above = r.above[:0]
		if n < maxCode && bytes.IndexByte(r.line, '(') >= 0 {
			r.above = append(r.above, r.line...)
		}
	}
	r.line, r.seen = r.line[:0], 0
}

// pointExpr is a line of prose that points at the next line of code: it is there that the run fails.
var pointExpr = lazy(`(?i)\b(?:this|following|the|next|that|below) (?:line|call|statement|command|part)\b[^.]{0,30}:?\s*$|\b(?:fails?|crash\w*|error|oom|happens|occurs|memory|stops|dies)\b[^.]{0,30}\b(?:here|at|line|in|on|with)\s*:\s*$|\b(?:fails?|crash\w*|error|oom|memory) at\s*$`)

// early is how many lines a report may have: prose is looked for in them.
const early = 1 << 14

// point keeps what the line of code shows that the prose above it pointed at.
func (r *Reader) point() {
	if r.lines > early {
		return
	}
	line := bytes.TrimSpace(r.line)
	if n := len(line); r.pointed && n > 2 && line[0] == '`' && line[1] != '`' && line[n-1] == '`' {
		line = line[1 : n-1]
	}
	if len(line) == 0 || len(line) > maxCode || line[0] == '`' {
		return
	}
	if r.pointed && line[0] != '#' {
		r.pointed = false
		if code, in, ok := bytes.Cut(line, []byte(" in ")); ok && bytes.HasSuffix(in, []byte(".py")) { // … in train.py
			line = code
		}
		if lostExpr().Match(line) {
			t := Traceback{{Code: string(line)}}
			r.run.Told.Phase = r.run.Told.Phase.plainer(heard{t.sight().or(t.computing()), 3})
		}
		return
	}
	if line[len(line)-1] == ':' || bytes.HasSuffix(line, []byte(" at")) || bytes.Contains(line, []byte("line")) {
		r.pointed = r.pointed || pointExpr().Match(line)
	}
}

// Finish ends the log and returns what was understood. The Reader must not be written to afterwards.
func (r *Reader) Finish() *Log {
	r.endLine(len(r.line) > 0)
	r.held = nil
	r.close()
	if r.last != nil {
		r.settle(r.last)
	}
	r.run.Progress.iteration(string(r.lastIter))
	r.run.Progress.bar(string(r.lastBar))
	r.run.Progress.status(string(stripPrefix(r.lastState)))
	r.run.Progress.Bar = barPhase(string(r.lastBar))
	r.run.Progress.Nameless = r.run.Progress.Bar == "" && namelessExpr().Match(r.lastBar)
	r.run.Progress.Loaded = r.run.Progress.Bar == "" && fullExpr().Match(r.lastBar)
	if !due(r.run.Progress.memories) {
		r.run.Progress.memory(string(r.lastMem))
	}
	if len(r.failures) == 0 && r.former != nil {
		return &Log{Failures: r.former.failures, Run: r.former.run, Lines: r.lines, gist: &r.gist}
	}
	r.run.Title = r.title
	if len(r.failures) == 0 {
		r.failures = r.announced()
	}
	l := &Log{Failures: r.failures, Run: r.run, Lines: r.lines, loose: r.loose(), cut: r.cut(), engine: r.engine, native: r.native, gist: &r.gist}
	if f := l.Failure(); f != nil && len(f.Trace) == 0 {
		if len(l.loose) > 0 {
			f.Trace = l.loose[0] // error reports print the stack below the message
		} else {
			f.Trace = l.repeated(f)
		}
	}
	return l
}

// loose are calls that no message followed, of the lowest rank first.
func (r *Reader) loose() []Traceback {
	var all []Traceback
	for _, s := range r.ranks() {
		if len(s.frames) > 0 && !s.spent && !(s.raised && s.other) {
			all = append(all, s.frames)
		}
	}
	if len(r.unused) > 0 {
		all = append(all, r.unused)
	}
	return all
}

// cut are the calls that the log ends in.
func (r *Reader) cut() []Traceback {
	var all []Traceback
	for _, s := range r.ranks() {
		if len(s.frames) > 0 && !s.raised && !s.spent && !s.other {
			all = append(all, s.frames)
		}
	}
	return all
}

// ranks are the tracebacks that are being printed, of the lowest rank first.
func (r *Reader) ranks() []*stack {
	var all []*stack
	for _, rank := range slices.Sorted(maps.Keys(r.stacks)) {
		all = append(all, r.stacks[rank])
	}
	return all
}

// Failed reports whether a memory failure was seen so far.
func (r *Reader) Failed() bool { return len(r.failures) > 0 || r.open != nil }
