package oom

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	failures []*Failure
	last     *pending // the newest message past maxFailures, not read yet
	windows  int

	line    []byte // the unfinished line
	seen    int    // how much of it an earlier piece showed already
	scratch []byte
	hits    []hit
	lines   int64
	start   bool // whether the first bytes were looked at
	utf16   int  // 0 no; 1 or 2: little endian, at an even or an odd byte

	former   *Reader // the run before this one in the same log
	open     *pending
	stacks   map[int]*stack
	noted    []int // how often each note was tried: a word that stands on every line is not read for ever
	config   int   // lines of a printed config file still expected
	iters    int64
	bars     int64
	lastIter []byte
	lastBar  []byte
	lastMem  []byte
}

// pending is a message being collected: the line with its anchor and those after it.
type pending struct {
	text  strings.Builder
	rules []int
	line  int64
	lines int
	rank  *int
	trace Traceback
}

// stack is the traceback one rank is printing.
type stack struct {
	frames   Traceback
	wantCode bool // the source line of the last call comes next
	spent    bool // its exception was printed: the next call starts another traceback
}

// Log is all that a Reader understood.
type Log struct {
	Failures []*Failure // in the order of the log
	Run      Run
	Lines    int64
}

// NewReader returns a Reader that has seen nothing.
func NewReader() *Reader {
	return &Reader{run: Run{Settings: map[string]string{}}, stacks: map[int]*stack{}, noted: make([]int, len(notes))}
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
	r.line, r.seen = r.line[:0], 0
}

// Finish ends the log and returns what was understood. The Reader must not be written to afterwards.
func (r *Reader) Finish() *Log {
	r.endLine(true)
	r.close()
	if r.last != nil {
		r.settle(r.last)
	}
	r.run.Progress.iteration(string(r.lastIter))
	r.run.Progress.bar(string(r.lastBar))
	r.run.Progress.Loading = bytes.Contains(r.lastBar, []byte("checkpoint shards")) && !bytes.Contains(r.lastBar, []byte("100%"))
	r.run.Progress.memory(string(r.lastMem))
	if len(r.failures) == 0 && r.former != nil {
		return &Log{Failures: r.former.failures, Run: r.former.run, Lines: r.lines}
	}
	l := &Log{Failures: r.failures, Run: r.run, Lines: r.lines}
	if f := l.Failure(); f != nil && len(f.Trace) == 0 {
		f.Trace = r.orphans() // error reports print the stack below the message
	}
	return l
}

// orphans are calls that no message followed.
func (r *Reader) orphans() Traceback {
	for _, s := range r.stacks {
		if len(s.frames) > 0 && !s.spent {
			return s.frames
		}
	}
	return nil
}

// Phase is where the run failed: from the calls it was inside of, or from the last thing it showed.
func (l *Log) Phase() Phase {
	f := l.Failure()
	if f == nil {
		return UnknownPhase
	}
	if phase := f.Trace.Phase(); phase != UnknownPhase || !l.Run.Progress.Loading {
		return phase
	}
	return Load
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
	w := min(len(f.Sizes), 3) * 4
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

// Failed reports whether a memory failure was seen so far.
func (r *Reader) Failed() bool { return len(r.failures) > 0 || r.open != nil }

// The literals the scanner looks for: the dialects' anchors, then the notes', then the structure's.
const (
	litTraceback = iota
	litFrameCode
	litFrameRich
	litIter
	litBar
	litBarSlow
	litDict
	litMemory
	litChained
	litCount
)

var structure = [litCount]string{
	litTraceback: "traceback (most recent call last)", litFrameCode: "--> ", litFrameRich: "❱", litIter: "iter ",
	litBar: "it/s", litBarSlow: "s/it", litDict: "{'loss'", litMemory: "mem", litChained: "during handling of the above",
}

// lexicon is the scanner and what its literals stand for.
type lexicon struct {
	*scanner
	anchors int // literals below this are dialects' anchors
	notes   int // literals below this are notes' anchors
	calls   int // literals below this are call forms' anchors
	exprs   []*regexp.Regexp
}

var words = sync.OnceValue(func() lexicon {
	var literals []string
	for _, d := range dialects {
		literals = append(literals, d.anchor)
	}
	l := lexicon{anchors: len(literals)}
	for _, n := range notes {
		literals = append(literals, n.anchor)
		l.exprs = append(l.exprs, regexp.MustCompile(n.expr))
	}
	l.notes = len(literals)
	for _, c := range callForms {
		literals = append(literals, c.anchor)
	}
	l.calls = len(literals)
	l.scanner = newScanner(append(literals, structure[:]...))
	return l
})

var (
	ansiExpr   = lazy("\x1b(?:\\[[0-9;:?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")
	rankExpr   = lazy(`^(?:[\s>│|]|[\w.-]+: )*(?:\[(?:rank|default)(\d{1,5})\]:?|\[\d+,(\d{1,5})\]<std\w+>:|\([\w ]*rank=(\d{1,5}) pid=\d+\))`)
	prefixExpr = lazy(`^(?:\s*(?:\[(?:rank|default)\d+\]:?|[\w.-]+: \[rank\d+\]:|\[\d+,\d+\]<std\w+>:|\([\w ]+(?:rank=\d+ )?pid=\d+\)|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*Z?|\[\d{4}-\d\d-\d\d[^\]]{0,40}\]|(?:INFO|ERROR|WARNING|CRITICAL)\b[:\s]|[>│|]) ?)+`)
	bufferExpr = lazy(`empty_strided(?:_cuda)?\(\(([\d, ]+)\), \([\d, ]*\)(?:, device='\w+'[^,]*)?, (?:dtype=)?torch\.(\w+)`)
)

// piece handles one line, or one piece of a line that is too long.
func (r *Reader) piece() {
	line := r.line
	if bytes.IndexByte(line, 0x1b) >= 0 {
		r.scratch = append(r.scratch[:0], ansiExpr().ReplaceAll(line, nil)...)
		line = r.scratch
	}
	r.hits = words().scan(line, r.hits[:0])
	if len(r.hits) == 0 && r.open == nil && r.config == 0 && !r.wantsCode() {
		return
	}
	seen := min(r.seen, len(line))
	if escaped(line) {
		for _, part := range bytes.Split(unescape(line), []byte{'\n'}) {
			r.hits = words().scan(part, r.hits[:0])
			r.handle(part, 0)
		}
		return
	}
	r.handle(line, seen)
}

// escaped reports whether a line is a traceback printed as a quoted string: JSON logs and repr().
func escaped(line []byte) bool {
	return bytes.Contains(line, []byte(`\n  File `)) || bytes.Contains(line, []byte(`\n    `)) && bytes.Contains(line, []byte(`\nTraceback`))
}

func unescape(line []byte) []byte {
	return []byte(strings.NewReplacer(`\\n`, "\n", `\n`, "\n", `\"`, `"`, `\t`, "\t", `\u001b`, "").Replace(string(line)))
}

func (r *Reader) wantsCode() bool {
	for _, s := range r.stacks {
		if s.wantCode {
			return true
		}
	}
	return false
}

// handle acts on the literals found in a line, in their order.
func (r *Reader) handle(line []byte, seen int) {
	rank := rankOf(line)
	s := r.stack(rank)
	anchored := -1 // where on this line the open message starts
	framed := false
	source := s.wantCode && bytes.HasPrefix(stripPrefix(line), []byte("  ")) // a source line may speak of memory too
	w := words()
	r.continueMessage(line[seen:], rank)
	for _, h := range r.hits {
		if h.end <= seen {
			continue
		}
		switch {
		case h.literal < w.anchors && source:
		case h.literal < w.anchors:
			anchored = r.anchor(line, h, rank, s, anchored)
		case h.literal < w.notes:
			r.note(line, h, h.literal-w.anchors)
		case h.literal < w.calls:
			framed = framed || plausible(line, h) && s.push(callForms[h.literal-w.notes], string(line[seen:]))
		default:
			r.structural(h.literal-w.calls, line, s)
		}
	}
	if s.wantCode && !framed {
		s.code(string(line))
	}
	if r.config > 0 {
		r.config--
		r.run.assign(string(line))
	}
}

// plausible spares log lines that only name a source file ("train.py:123] …") the expression for calls.
func plausible(line []byte, h hit) bool {
	rest := bytes.TrimLeft(line[h.end:min(len(line), h.end+16)], "0123456789")
	return line[h.end-1] != ':' || bytes.HasPrefix(rest, []byte(" in ")) || bytes.HasPrefix(rest, []byte(", in "))
}

// rankOf is the rank a line is prefixed with, nil without.
func rankOf(line []byte) *int {
	head := line[:min(len(line), 80)]
	if !bytes.Contains(head, []byte("rank")) && !bytes.Contains(head, []byte("[default")) && !bytes.Contains(head, []byte("]<std")) {
		return nil
	}
	m := rankExpr().FindSubmatch(head)
	for i := 1; i < len(m); i++ {
		if len(m[i]) > 0 {
			return number(string(m[i]))
		}
	}
	return nil
}

func (r *Reader) stack(rank *int) *stack {
	key := -1
	if rank != nil {
		key = *rank
		r.run.Ranks = max(r.run.Ranks, min(key, 1<<20)+1)
	}
	s := r.stacks[key]
	if s == nil {
		if len(r.stacks) >= maxRanks {
			clear(r.stacks)
		}
		s = &stack{}
		r.stacks[key] = s
	}
	return s
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
	r.close()
	start := max(0, h.end-len(dialects[h.literal].anchor)-before)
	r.open = &pending{rules: []int{h.literal}, line: r.lines + 1, lines: 1, rank: rank}
	if !s.spent {
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

// continueMessage adds a line to the open message, until it is long enough.
func (r *Reader) continueMessage(line []byte, rank *int) {
	o := r.open
	if o == nil || rank != nil && (o.rank == nil || *o.rank != *rank) || len(bytes.TrimSpace(line)) == 0 {
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
	for i, l := range lines {
		lines[i] = string(stripPrefix([]byte(l)))
	}
	f := matchMessage(strings.Join(lines, "\n"), slices.Compact(o.rules))
	if f == nil {
		return
	}
	f.Line, f.Trace, f.Facts.Rank = o.line, o.trace, o.rank
	if f.Buffer == nil {
		f.Buffer = f.Trace.buffer()
	}
	if n := len(r.failures); n > 0 && r.failures[n-1].Message == f.Message && len(f.Trace) <= len(r.failures[n-1].Trace) {
		return
	}
	r.failures = append(r.failures, f)
}

// note takes what a line tells of the run.
func (r *Reader) note(line []byte, h hit, id int) {
	const reach, enough = 400, 512
	if r.noted[id]++; r.noted[id] > enough {
		return
	}
	start := max(0, h.end-reach)
	m := words().exprs[id].FindStringSubmatch(string(line[start:min(len(line), h.end+reach)]))
	if m == nil || len(r.run.Settings) > 256 {
		return
	}
	n := notes[id]
	if n.starts {
		r.renew()
		r.config = 0
	}
	before := r.run.ConfigFile
	n.take(&r.run, m)
	if n.starts && r.run.ConfigFile != before {
		r.config = 200 // nanoGPT prints the file it read
	}
}

// renew begins another run in the same log: its settings and failures are its own.
func (r *Reader) renew() {
	if !r.Failed() {
		return
	}
	r.close()
	former := &Reader{run: r.run, failures: r.failures, former: r.former}
	if len(former.failures) == 0 {
		return
	}
	former.former = nil
	r.former = former
	r.run, r.failures, r.last = Run{Settings: map[string]string{}}, nil, nil
	clear(r.stacks)
}

// structural acts on a literal of the log's structure.
func (r *Reader) structural(lit int, line []byte, s *stack) {
	switch lit {
	case litTraceback:
		r.close()
		*s = stack{}
	case litChained:
		r.close()
	case litFrameCode, litFrameRich:
		if m := codeExpr().FindSubmatch(line); m != nil {
			if n := len(s.frames); n > 0 && s.frames[n-1].Code != "" {
				s.frames = s.frames.push(Frame{}) // the call's own line was broken
			}
			s.code(string(m[1]))
		}
	case litIter:
		r.iters++
		r.lastIter = append(r.lastIter[:0], line[:min(len(line), 200)]...)
		if due(r.iters) {
			r.run.Progress.iteration(string(r.lastIter))
		}
	case litBar, litBarSlow:
		r.bars++
		r.lastBar = append(r.lastBar[:0], line[:min(len(line), 400)]...)
		if due(r.bars) {
			r.run.Progress.bar(string(r.lastBar))
		}
	case litDict:
		if dictExpr().Match(line) {
			r.run.Trainer = "huggingface"
		}
	case litMemory:
		r.memory(line)
	}
}

func (r *Reader) memory(line []byte) {
	p := &r.run.Progress
	p.memories++
	r.lastMem = append(r.lastMem[:0], line[:min(len(line), 400)]...)
	if due(p.memories) && r.open == nil {
		p.memory(string(r.lastMem))
	}
}

// push adds the calls printed in a line.
func (s *stack) push(form callForm, line string) bool {
	frames := form.calls(line)
	if len(frames) == 0 {
		return false
	}
	if s.spent {
		*s = stack{}
	}
	for _, f := range frames {
		s.frames = s.frames.push(f)
	}
	s.wantCode = frames[len(frames)-1].Code == ""
	return true
}

// code keeps the source line under a call.
func (s *stack) code(line string) {
	line = strings.TrimSpace(string(stripPrefix([]byte(line))))
	if line == "" || strings.Trim(line, "^~ ") == "" || len(s.frames) == 0 {
		return
	}
	s.wantCode = false
	if f := &s.frames[len(s.frames)-1]; f.Code == "" {
		f.Code = line[:min(len(line), maxCode)]
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
