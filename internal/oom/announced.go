package oom

import (
	"bytes"
	"strings"
)

// A report may hold a failure without its message: the paste ends inside the traceback, or the title is all there is. It is
// read as a failure that gives no number, where somebody says that memory ran out and no other exception is shown.

// onlySaid is the name of the wording of such a failure.
const onlySaid = "title"

// Announced reports whether f is only spoken of: its message is missing.
func (f *Failure) Announced() bool { return f.Dialect == onlySaid }

// spoken is how people say that memory ran out; those of hosts speak of the machine's own.
var (
	spoken = strings.Join([]string{
		`out[ _-]?of[ _-]?(?:the )?(?:\(?\w+\)? )?(?:mem+ory|vram)`, `\b(?:of )?out memory\b`, `\brun(?:s|ning) of memory\b`, `\bmemory (?:has |had )?(?:run|ran) out\b`, `\b(?:gpu|cuda|video) memory\b[^.\n]{0,40}\b(?:burst|explod|overflow)\w*`, `\bout of cuda\b`, `\b(?:wants?|tries|trying|tried|attempt\w*|needs?) to allocate [\d.]+ ?[kmgt]i?b\w* (?:of )?(?:ram|memory|vram)\b`, `\bout of (?:gpu|cuda|video|graphics) (?:space|ram)\b`, `(?:can'?t|can ?not|unable to|failed to|could not|couldn'?t) allocate (?:[\w.]+ ){0,3}(?:memory|vram)`, `\booms?\b`, `\boom-?'?(?:ed|ing|d)\b`, `\bmemory (?:error|overflow)`, `\black of (?:\w+ )?(?:memory|vram)\b`,
		`(?:not enough|insufficient|exceeds?) (?:\w+ )?(?:memory|vram)\b`,
		`显存(?:不足|不够|溢出|爆|超)`, `爆(?:了)?显存`, `GPU ?メモリ(?:が)?不足`, `メモリ(?:が)?(?:不足|足りな)`, `(?:zu wenig|kein|nicht gen[uü]g\w*) \w*speicher`, `speicher (?:reicht nicht|ist voll|geht aus)`,
		`메모리 ?부족`, `m[ée]moire insuffisante`, `memoria insuficiente`, `मेमोरी (?:खत्म|समाप्त|कम|की कमी)`, hosts,
	}, "|")
	hosts = `defaultcpuallocator|\boom (?:on|in|of) (?:cpu |system |host )?ram\b|\bram (?:oom|out[ -]of[ -]memory)\b|\bcpu (?:ram |memory )?(?:oom|out of memory|memory error)|(?:out of|not enough|insufficient) (?:cpu |system |host )?ram\b|内存(?:不足|不够|溢出|爆|过大|耗尽)|\bto allocate [\d.]+ ?[kmgt]i?b\w* (?:of )?ram\b|爆(?:了)?内存|arbeitsspeicher|\b(?:system|cpu|host) (?:ram|memory) (?:oom|out|exhaust)|\boom[- ]?kill|\bkill(?:ed|s)\b[^.\n]{0,20}\b(?:by|process)\b|\b(?:process|program|script) (?:\w+ ){0,3}killed\b|\bcomputer'?s? memory\b|\bfull of (?:my |the )?ram\b|\ball (?:of )?(?:my |the )?(?:available )?(?:system )?ram\b|\b(?:os|system|kernel) (?:\w+ )?kill|\bram (?:memory )?(?:is|was|gets|got) full\b|\bmessage\W+killed\b|\bkilled\W*$|\bkilled (?:right |just )?(?:at|when|while|during|after|on|in)\b|被(?:杀|kill)`

	// trouble may be another's than running out: it takes a cut traceback beside it.
	trouble = `\b(?:problems?|issues?|trouble) with (?:\w+ )?memory\b|\bmemory (?:problem|issue|trouble|limit|usage|leak|consumption|growth)|\berror\b[^.\n]{0,40}\bmemory\b`
	// claims are a reporter's own words for what happened.
	claims = `(?:\b(?:gets?|got|getting|sees?|saw|seeing|gives?|encounter\w*|hit|hits|faced?|facing|receiv\w+|r[ua]n(?:ning|s)?|throws?|raises?|crash\w*|fails?|met|meet|ends?|ended|exits?|exited|stops?|stopped|dies|died|results?|reports?|shows?|leads?|caus\w+|occurs?|happens?)\b|报|出现|导致)[^.\n]{0,40}(?:` + spoken + `)`

	// changeExpr is the title of a change, which tells of no failure.
	changeExpr  = lazy(`(?i)^# (?:\[[^\]]*\] *|\w+: *)?(?:fix|add|avoid|prevent|handle|reduce|improve|support|update|doc)\w*\b`)
	claimExpr   = lazy(`(?i)` + claims)
	cutExpr     = lazy(`(?i)` + spoken + `|` + trouble)
	spokenAlone = lazy(`(?i)out of memory|\boom\b`)
	titleExpr   = lazy(`(?i)` + spoken)
	hostsExpr   = lazy(`(?i)` + hosts + `|\bnumpy array\b[^.\n]{0,40}\b(?:instantiat|allocat|creat)\w*`)
	adviceExpr  = lazy(`(?i)\b(?:if|avoid\w*|prevent\w*|in case of|reduce|may|might|could|can\s|should|without|no|fix(?:es|ed)?|against)(?:\b|\s)[^.\n]{0,40}(?:` + spoken + `)`)
)

// otherEnd is a death that no lack of memory dies.
var otherEnd = lazy(`(?i)segmentation fault|sigsegv|sigterm|sigabrt|core dumped|bus error|signal: (?:aborted|terminated)`)

// mention keeps that a sentence says so; advice against it is none.
func (r *Run) mention(text string) {
	r.Told.Other = r.Told.Other || otherEnd().MatchString(text)
	if r.Told.Claim || !titleExpr().MatchString(text) || adviceExpr().MatchString(text) {
		return
	}
	r.Told.Host = r.Told.Host || hostsExpr().MatchString(text)
	r.Told.Memory, r.Told.Claim = true, claimExpr().MatchString(text)
}

var (
	// raisedExpr is an exception's own line: what a traceback ends with.
	raisedExpr = lazy(`^[\w.>\[\]: ]*\b[A-Z]\w*(?:Error|Exception): |^[\w.]*\b[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration)\s*$`)
	// headExpr is the exception that a notebook names above its calls.
	headExpr = lazy(`^\W*([\w.]*(?:Error|Exception|Interrupt))\s+Traceback \(most recent`)
	// otherExpr are a program's own mistakes: what led to them did not lead to a failure of memory.
	otherExpr = lazy(`\b(?:Attribute|Key|Type|Value|Name|Index|Assertion|FileNotFound|ModuleNotFound|Import|UnboundLocal)Error\b|KeyboardInterrupt`)
	// memoryRaises are those that memory may raise.
	memoryRaises = lazy(`OutOfMemory|Memory|Runtime|Exhausted|Internal|Accelerator|CUDA|Xla`)
)

// raise takes a line that may be an exception's.
func (s *stack) raise(line []byte, at int64) bool {
	if len(s.frames) == 0 || !raisedExpr().Match(line) && !raisedExpr().Match(bytes.TrimSpace(stripPrefix(line))) {
		return false
	}
	s.line, s.raised, s.other = at, true, s.other || otherExpr().Match(line)
	return true
}

// over reports whether a message so far below is not of these calls: another exception ended them.
func (s *stack) over(at int64) bool {
	const wrapped = 3 // lines that a message may be spread over
	return s.raised && s.other && at-s.line > wrapped
}

// begin starts a traceback at its head.
func (s *stack) begin(line []byte) {
	*s = stack{}
	if m := headExpr().FindSubmatch(line); m != nil {
		s.other = !memoryRaises().Match(m[1])
	}
}

// heading reports whether a line among a report's first is its title.
func (r *Reader) heading(line []byte) bool {
	const first = 6
	return r.lines <= first && r.config == 0 && bytes.HasPrefix(line, []byte("# ")) && !strings.HasPrefix(r.title, "# ")
}

// bareExpr is a sentence that may be a title: no command, call, bar or line of a log.
var bareExpr = lazy(`^[\[\w'"\x60\p{Han}\p{Hiragana}\p{Katakana}][^=|#$>{};]*$`)

// wordsExpr is a sentence that may hold a setting: batch=1 is still too much.
var wordsExpr = lazy(`^[\w\p{Han}][^|#$>{};]*$`)

// logExpr begins a line that a program printed.
var logExpr = lazy(`^(?:\[?\d{2,4}[-/:.]\d|[IWEF]\d{4} |Traceback|File |python\d?\b|(?:INFO|WARNING|WARN|DEBUG|ERROR)\b|\w+:\d+:|[\w.]*(?:Error|Exception)\b)`)

// markupExpr begins a line that only a report has.
var markupExpr = lazy("^(?:```|\\*\\*\\w|#{1,4} |> |!\\[|<details|<img)")

// bare reports whether the first line is a title that nothing marks as one: a sentence, and a blank line or a report's markup below it.
func (r *Reader) bare(line []byte) bool {
	const longest = 200
	return r.lines == 2 && (len(bytes.TrimSpace(line)) == 0 || markupExpr().Match(line)) && len(r.title) <= longest && strings.ContainsRune(r.title, ' ') &&
		(bareExpr().MatchString(r.title) || titleExpr().MatchString(r.title) && wordsExpr().MatchString(r.title)) && !logExpr().MatchString(r.title)
}

// announced is the failure that a report's title or its sentences name, where its message is cut off or left out.
func (r *Reader) announced() []*Failure {
	var calls []Traceback
	for _, s := range r.ranks() {
		if len(s.frames) > 0 && !s.other {
			calls = append(calls, s.frames)
		}
	}
	heads := strings.HasPrefix(r.title, "# ")
	if r.run.Told.Other && !spokenAlone().MatchString(r.title) {
		return nil
	}
	titled := titleExpr().MatchString(r.title) && (heads || !adviceExpr().MatchString(r.title))
	switch {
	case len(calls) > 0 && (titled || r.run.Told.Memory || heads && cutExpr().MatchString(r.title)):
	case heads && !r.raised && !changeExpr().MatchString(r.title) && (titled || r.run.Told.Claim || r.run.Told.Memory && failsExpr().MatchString(r.title)):
	default:
		return nil
	}
	f := &Failure{Dialect: onlySaid, Kind: Device, Message: r.title, Line: 1}
	if r.run.Told.Host || r.run.Told.Phase.doing == Data || told(r.title).doing == Data || hostsExpr().MatchString(r.title) {
		f.Kind = Host
	}
	if len(calls) > 0 {
		f.Trace = calls[0]
		if f.Trace.sight().doing == Data && f.Trace.within("torch/utils/data/") {
			f.Kind = Host // what feeds the model works on the machine
		}
	}
	f.Facts.Framework = voice(f)
	return []*Failure{f}
}
