package oom

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// The literals the scanner looks for: the dialects' anchors, then the notes', then the structure's.
const (
	litTraceback = iota
	litFrameCode
	litFrameRich
	litIter
	litBar
	litBarSlow
	litBarTask
	litBarBegun
	litBarCut
	litDict
	litMemory
	litChained
	litEngine
	litAnomaly
	litGradient
	litNative
	litRaised
	litException
	litInterrupt
	litCount
)

var structure = [litCount]string{
	litTraceback: "traceback (most recent call last)", litFrameCode: "--> ", litFrameRich: "❱", litIter: "iter ",
	litBar: "it/s", litBarSlow: "s/it", litBarTask: "task/s", litBarBegun: ", elapsed: 0s", litBarCut: "%|", litDict: "{'loss'", litMemory: "mem", litChained: "during handling of the above",
	litEngine: "autograd::engine", litAnomaly: "traceback of forward call that caused the error", litGradient: "_backward_out_cuda", litNative: "   0x", litRaised: "error", litException: "exception", litInterrupt: "interrupt",
}

// statusWords mark lines that may say what the program is doing.
var statusWords = []string{"eval", "valid", "val:", "val ", "[val", "[train", "upscaling", "rendering", "denoising", "restoring", "merging", "moving ", "building model", "creating model", "processing ", "performing", "train:", "loss", "epoch(", "test", "loading", "generating", "sampling", "transcribing", "predicting", "compiling", "training", "decoding", "capturing", "exporting", "saving", "initializing", "running ", "start", "begin", "epoch", "_loop"}

// lexicon is the scanner and what its literals stand for.
type lexicon struct {
	*scanner
	anchors int // literals below this are dialects' anchors
	notes   int // literals below this are notes' anchors
	calls   int // literals below this are call forms' anchors
	structs int // literals below this are the structure's
	exprs   []func() *regexp.Regexp
}

var words = sync.OnceValue(func() lexicon {
	var literals []string
	for _, d := range dialects {
		literals = append(literals, d.anchor)
	}
	l := lexicon{anchors: len(literals)}
	for _, n := range notes {
		literals = append(literals, n.anchor)
		l.exprs = append(l.exprs, lazy(n.expr))
	}
	literals = append(literals, talk...)
	l.notes = len(literals)
	for _, c := range callForms {
		literals = append(literals, c.anchor)
	}
	l.calls = len(literals)
	literals = append(literals, structure[:]...)
	l.structs = len(literals)
	l.scanner = newScanner(append(literals, statusWords...))
	return l
})

var (
	ansiExpr   = lazy("\x1b(?:\\[[0-9;:?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[@-Z\\\\-_])")
	rankExpr   = lazy(`^(?:[\s>│|]|[\w.-]+: )*(?:\[(?:rank|default)(\d{1,5})\]:?|\[\d+,(\d{1,5})\]<std\w+>:|\([\w ]*rank=(\d{1,5}) pid=\d+\))`)
	prefixExpr = lazy(`^(?:\s*(?:\[(?:rank|default)\d+\]:?|[\w.-]+: \[rank\d+\]:|\[\d+,\d+\]<std\w+>:|\([\w ]+(?:rank=\d+ )?pid=\d+\)|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*Z?|\[\d{4}-\d\d-\d\d[^\]]{0,40}\]|\d\d-\d\d \d\d:\d\d:\d\d|\[\w+\.py:\d+\]|-? ?[\w. ]{1,40} - (?:INFO|ERROR|WARNING|DEBUG) -|(?:INFO|DEBUG):[\w.]+:|(?:INFO|ERROR|WARNING|CRITICAL)\b[:\s]|[>│|]) ?)+`)
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
	if r.open == nil && r.config == 0 && len(r.held) == 0 && !mayWrap(line) && !r.wantsCode() {
		if len(r.hits) == 0 {
			return
		}
		if r.onlyStates() {
			r.status(line)
			return
		}
	}
	seen := min(r.seen, len(line))
	if line, seen = r.join(line, seen); line == nil {
		return
	}
	if escaped(line) {
		for _, part := range bytes.Split(unescape(line), []byte{'\n'}) {
			r.hits = words().scan(part, r.hits[:0])
			r.handle(part, 0)
		}
		return
	}
	r.handle(line, seen)
}

// heldExpr is the beginning of a call that goes on in the next line: a terminal or a box was too narrow for it.
var heldExpr = lazy(`\bFile(?:\s+"[^"]{0,400})?$|\bFile "[^"]{1,400}",(?: line(?: \d+,(?: in)?)?)?$`)

// mayWrap is a quick look for such a line.
func mayWrap(line []byte) bool {
	if bytes.IndexByte(line, 'F') < 0 || !bytes.Contains(line, []byte("File")) {
		return false
	}
	i := bytes.LastIndex(line, []byte("File"))
	rest := bytes.TrimLeft(line[i+4:], " \t│")
	return len(rest) == 0 || rest[0] == '"'
}

// onlyStates reports that a line holds nothing but words for what is going on, notes that were read often enough, and an
// error's name where no calls stand above it.
func (r *Reader) onlyStates() bool {
	w := words()
	calling := false
	for _, s := range r.printing {
		calling = calling || len(s.frames) > 0
	}
	return !slices.ContainsFunc(r.hits, func(h hit) bool {
		switch {
		case h.literal >= w.structs:
			return false
		case h.literal >= w.anchors && h.literal < w.notes:
			return !r.worn(h.literal - w.anchors)
		}
		return calling || h.literal < w.calls+litRaised
	})
}

// worn reports that a note was tried often enough: its word stands on every line.
func (r *Reader) worn(id int) bool {
	const enough = 512
	return r.noted[id] > enough && (id >= len(notes) || !notes[id].starts)
}

// join puts a wrapped call's lines together: nil while it is not whole.
func (r *Reader) join(line []byte, seen int) ([]byte, int) {
	const most = 4 // lines that a call may be spread over
	if len(r.held) > 0 {
		line = append(append(r.held, ' '), bytes.TrimSpace(stripPrefix(line))...)
		r.held, seen = nil, 0
		r.hits = words().scan(line, r.hits[:0])
		r.joined++
	} else {
		r.joined = 0
	}
	head := bytes.TrimRight(line, " \t│")
	if r.joined < most && len(head) < maxCode && mayWrap(head) && heldExpr().Match(head) {
		r.held = bytes.Clone(head)
		return nil, 0
	}
	return line, seen
}

// escaped reports whether a line is a traceback printed as a quoted string: JSON logs and repr().
func escaped(line []byte) bool {
	if bytes.IndexByte(line, '\\') < 0 {
		return false
	}
	return bytes.Contains(line, []byte(`\n  File `)) || bytes.Contains(line, []byte(`\n    `)) && bytes.Contains(line, []byte(`\nTraceback`))
}

// unescape undoes the quoting, twice where a quoted string was quoted again.
func unescape(line []byte) []byte {
	for range 2 {
		line = []byte(strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`, `\t`, "\t", `\u001b`, "").Replace(string(line)))
		if !escaped(line) {
			break
		}
	}
	return line
}

func (r *Reader) wantsCode() bool {
	for _, s := range r.printing {
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
	framed, stated := false, false
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
			if r.windows < maxFailures {
				s.lost(r.above)
			}
			anchored = r.anchor(line, h, rank, s, anchored)
		case h.literal < w.notes:
			r.note(line, h, h.literal-w.anchors)
		case h.literal < w.calls:
			framed = framed || plausible(line, h) && s.push(callForms[h.literal-w.notes], string(line[seen:]), r.above)
		case h.literal < w.structs:
			r.structural(h.literal-w.calls, line, s)
		default:
			stated = true
		}
	}
	if s.wantCode && !framed {
		s.code(string(line))
	} else if stated && !framed {
		r.status(line)
	}
	if r.config > 0 {
		r.config--
		r.run.assign(string(line))
	}
}

// plausible spares log lines that only name a source file ("train.py:123] …") the expression for calls.
func plausible(line []byte, h hit) bool {
	rest := line[h.end:min(len(line), h.end+16)]
	for len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
		rest = rest[1:]
	}
	return line[h.end-1] != ':' || line[h.end-2] == ':' || bytes.HasPrefix(rest, []byte(" in ")) || bytes.HasPrefix(rest, []byte(", in ")) ||
		bytes.Equal(bytes.TrimSpace(rest), []byte(":")) || bytes.HasPrefix(rest, []byte(": ")) && bytes.HasSuffix(bytes.TrimSpace(line), []byte("Error"))
}

// rankOf is the rank a line is prefixed with, nil without.
func rankOf(line []byte) *int {
	head := line[:min(len(line), 80)]
	bracket := bytes.IndexByte(head, ']') >= 0
	if !bytes.Contains(head, []byte("rank")) && !(bracket && (bytes.Contains(head, []byte("[default")) || bytes.Contains(head, []byte("]<std")))) {
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

// forget ends the tracebacks that are being printed.
func (r *Reader) forget() {
	clear(r.stacks)
	clear(r.printing)
	r.printing = r.printing[:0]
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
			r.forget()
		}
		s = &stack{}
		r.stacks[key], r.printing = s, append(r.printing, s)
	}
	return s
}

// reach is how much of a line is read before and after a note's literal.
const reach = 400

// note takes what a line tells of the run.
func (r *Reader) note(line []byte, h hit, id int) {
	if r.noted[id]++; r.worn(id) {
		return
	}
	if id >= len(notes) {
		r.prose(line, h)
		return
	}
	start := max(0, h.end-reach)
	m := words().exprs[id]().FindStringSubmatch(string(line[start:min(len(line), h.end+reach)]))
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
	r.forget()
}

// structural acts on a literal of the log's structure.
func (r *Reader) structural(lit int, line []byte, s *stack) {
	switch lit {
	case litTraceback:
		r.close()
		s.begin(line)
	case litChained:
		r.close()
	case litFrameCode, litFrameRich:
		if m := codeExpr().FindSubmatch(line); m != nil {
			if n := len(s.frames); n == 0 || s.frames[n-1].Code != "" {
				s.frames = s.frames.push(Frame{}) // the call's own line was broken
			}
			s.code(string(m[1]))
		}
	case litEngine, litGradient, litAnomaly:
		r.engine = true
	case litNative:
		if m := nativeExpr().FindSubmatch(line); m != nil && len(r.native) < maxNative {
			r.native = append(r.native, Frame{Func: string(m[1])})
		}
	case litRaised, litInterrupt, litException:
		r.raised = s.raise(line, r.lines) || r.raised
	case litIter:
		r.iters++
		r.lastIter = append(r.lastIter[:0], line[:min(len(line), 200)]...)
		if due(r.iters) {
			r.run.Progress.iteration(string(r.lastIter))
		}
	case litBar, litBarSlow, litBarTask, litBarBegun, litBarCut:
		r.bars++
		r.lastBar = append(r.lastBar[:0], line[:min(len(line), 400)]...)
		if due(r.bars) {
			r.run.Progress.bar(string(r.lastBar))
		}
	case litDict:
		if dictExpr().Match(line) {
			r.run.Trainer, r.run.Progress.Status = "huggingface", Forward
		}
	case litMemory:
		r.memory(line)
	}
}

func (r *Reader) status(line []byte) {
	r.states++
	r.lastState = append(r.lastState[:0], line[:min(len(line), 200)]...)
	if due(r.states) {
		r.run.Progress.status(string(stripPrefix(r.lastState)))
	}
}

func (r *Reader) memory(line []byte) {
	p := &r.run.Progress
	p.memories++
	r.lastMem = append(r.lastMem[:0], line[:min(len(line), 400)]...)
	if due(p.memories) {
		p.memory(string(r.lastMem))
	}
}
