package oom

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
)

var rules = sync.OnceValue(compileDialects)

// maxGap is how far apart two clauses of one message may stand: room for "Including non-PyTorch memory, ", or for
// the prefix of a library's next line.
const maxGap = 120

// maxClause is more than any clause is long.
const maxClause = 400

// matchMessage explains a piece of log by the dialects whose anchors it holds, and keeps the one that explains most.
func matchMessage(text string, candidates []int) *Failure {
	var best *Failure
	most := -1
	for _, id := range candidates {
		r := rules()[id]
		if !r.guard().MatchString(text) || r.dialect.unless != "" && r.unless().MatchString(text) {
			continue
		}
		f := r.read(text)
		if n := len(f.found); (n > 0 || !r.detailed) && n > most {
			best, most = f.failure(r.dialect), n
		}
	}
	return best
}

// reading is what the clauses of one message gave.
type reading struct {
	found map[string]string
	other []Holder
	text  string
}

// read follows the clauses from the anchor on. Text wrapped inside a word is tried unwrapped too.
func (r rule) read(text string) reading {
	best := r.follow(text)
	if strings.Contains(text, "\n") {
		if joined := r.follow(unwrap.Replace(text)); len(joined.found) > len(best.found) {
			best = joined
		}
	}
	return best
}

// unwrap joins lines that a terminal broke, with its backslash where it printed one.
var unwrap = strings.NewReplacer("\\\n", "", "\n", "")

// follow chains clauses: each next one starts at most maxGap after the end of the last.
func (r rule) follow(text string) reading {
	got := reading{found: map[string]string{}, text: text}
	at := max(0, strings.Index(strings.ToLower(text), r.anchor))
	end := at + len(r.anchor) + maxGap
	if r.leading {
		at = 0
	}
	for {
		expr, loc := r.nearest(text, at, end)
		if loc == nil {
			return got
		}
		got.take(expr, text[at:], loc)
		at += loc[1]
		end = at + maxGap
	}
}

// nearest is the clause that starts first in text[at:end], the longest of those that start together.
func (r rule) nearest(text string, at, end int) (*regexp.Regexp, []int) {
	if at >= len(text) {
		return nil, nil
	}
	text = text[:min(len(text), end+maxClause)]
	lower := strings.ToLower(text[at:])
	var expr *regexp.Regexp
	var best []int
	for _, c := range r.clauses {
		if !strings.Contains(lower, c.word) {
			continue
		}
		loc := c.expr().FindStringSubmatchIndex(text[at:])
		if loc == nil || at+loc[0] > end {
			continue
		}
		if best == nil || loc[0] < best[0] || loc[0] == best[0] && loc[1] > best[1] {
			expr, best = c.expr(), loc
		}
	}
	return expr, best
}

// take keeps a clause's fields; the first mention of a field wins.
func (g *reading) take(expr *regexp.Regexp, text string, loc []int) {
	value := map[string]string{}
	for i, name := range expr.SubexpNames() {
		if name != "" && loc[2*i] >= 0 {
			value[name] = text[loc[2*i]:loc[2*i+1]]
		}
	}
	if size, ok := parseSize(value["other"]); ok {
		if pid, err := strconv.Atoi(value["pid"]); err == nil {
			g.other = append(g.other, Holder{pid, size.Bytes})
		}
	}
	for name, v := range value {
		if _, seen := g.found[name]; !seen {
			g.found[name] = v
		}
	}
}

// failure turns the fields into facts.
func (g reading) failure(d *dialect) *Failure {
	f := &Failure{Dialect: d.name, Kind: d.kind, Device: d.device, Message: oneLine(g.text), Sizes: map[string]Size{}}
	f.Facts.Framework = Name(d.framework)
	f.Facts.Others = g.other
	f.Facts.GPU = number(g.found["gpu"])
	for name, field := range f.Facts.sizes() {
		if size, ok := parseSize(g.found[name]); ok {
			*field = &size.Bytes
			f.Sizes[name] = size
		}
	}
	if v, ok := g.found["tried_bytes"]; ok {
		if size, ok := parseSize(v + " bytes"); ok {
			f.Facts.Tried, f.Sizes["tried"] = &size.Bytes, size
		}
	}
	if shape := dims(g.found["shape"]); shape != nil {
		f.Buffer = &Buffer{shape, g.found["dtype"]}
	}
	f.Facts.claimProcess()
	return f
}

// claimProcess finds this process among the listed ones. Inside a container the driver's process numbers are the
// host's, so PyTorch cannot tell its own and lists it as another: the one whose memory is PyTorch's plus a context.
func (f *Facts) claimProcess() {
	if f.Process != nil || f.Allocated == nil || len(f.Others) == 0 {
		return
	}
	own := *f.Allocated
	if f.ReservedUnallocated != nil {
		own += *f.ReservedUnallocated
	}
	const context = 2 << 30 // a CUDA context and the libraries' workspaces stay under this
	for i, o := range f.Others {
		if slack := o.Memory - own; slack >= -own/200 && slack <= context {
			memory := o.Memory
			f.Process = &memory
			f.Others = append(append([]Holder(nil), f.Others[:i]...), f.Others[i+1:]...)
			return
		}
	}
}

func number(s string) *int {
	if n, err := strconv.Atoi(s); err == nil {
		return &n
	}
	return nil
}

// dims reads "65536, 50304" or "500,17,17,4032"; nil when it is no shape.
func dims(s string) []int {
	var shape []int
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 || len(shape) == 16 {
			return nil
		}
		shape = append(shape, n)
	}
	return shape
}

// oneLine joins the lines of a message and drops what follows it.
func oneLine(text string) string {
	const longest = 1200
	s := strings.Join(strings.Fields(text), " ")
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}
