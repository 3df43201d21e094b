package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/units"
)

// block is one part of a report; the terminal and Markdown draw it each in its own way.
type block struct {
	heading string
	text    []string // paragraphs
	list    []string
	ordered bool
	table   *term.Table
	code    []string
}

// report prints the diagnosis: problem, causes, fixes, recommended configuration, what to expect, what is unknown.
func (o *doctorOptions) report(out *term.Stream, d *oom.Diagnosis, holders []string) error {
	w := writer{l: o.lang, d: d, out: out, holders: holders}
	blocks := append(w.problem(), w.budget()...)
	blocks = append(blocks, w.causes(), w.fixes())
	blocks = append(blocks, w.configuration(o)...)
	blocks = append(blocks, w.expectations()...)
	blocks = append(blocks, w.unknown()...)
	if o.markdown {
		return drawMarkdown(out, blocks)
	}
	return drawTerminal(out, blocks)
}

// writer says one diagnosis in one language.
type writer struct {
	l       i18n.Lang
	d       *oom.Diagnosis
	out     *term.Stream
	holders []string // who holds the card's memory now, where it is this machine's
}

func (w *writer) say(id string, pairs ...any) string { return w.l.Text(i18n.M(id, pairs...)) }

func (w *writer) problem() []block {
	d, f := w.d, w.d.Failure.Facts
	b := block{heading: w.say("section.problem"), text: []string{w.headline(), w.tensor()}}
	if d.Config != nil && d.Tensor.Name == "logits" && len(d.Tensor.Shape) > 1 {
		m := d.Config.Model()
		if tokens := d.Config.BatchSize * m.BlockSize; tokens == d.Tensor.Shape[0] {
			b.text = append(b.text, w.say("problem.tokens", "tokens", tokens, "batch", d.Config.BatchSize, "block", m.BlockSize, "vocab", m.VocabSize))
		}
	}
	if d.Same != nil {
		b.text = append(b.text, w.say("problem.simulated", "allocated", d.Same.Allocated))
	}
	for _, doubt := range d.Doubts {
		b.text = append(b.text, w.say("problem.doubt."+doubt.What, "log", doubt.Log, "settings", doubt.Settings))
	}
	if f.Rank != nil {
		b.text = append(b.text, w.say("problem.rank", "rank", *f.Rank, "count", d.Others+1))
	}
	return []block{b}
}

// frameworks are the names as their makers write them.
var frameworks = map[oom.Name]string{"pytorch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "paddle": "Paddle", "cupy": "CuPy", "onnxruntime": "ONNX Runtime", "numpy": "NumPy"}

func (w *writer) headline() string {
	f := w.d.Failure.Facts
	name, ok := frameworks[f.Framework]
	if !ok {
		name = w.say("unknown_framework")
	}
	args := []any{"framework", name, "phase", w.d.Where()}
	switch {
	case w.d.Failure.Announced():
		return w.say("problem.announced", args...)
	case w.d.Failure.Kind == oom.Host && f.Tried != nil:
		return w.say("problem.host_tried", append(args, "tried", *f.Tried)...)
	case w.d.Failure.Kind == oom.Host:
		return w.say("problem.host", args...)
	case w.d.Failure.Kind == oom.Library:
		return w.say("problem.library", args...)
	case f.Tried != nil && f.Limit != nil && f.GPU != nil && f.Allocated != nil && w.d.Budget.Unused != nil:
		left := max(0, *f.Limit-*f.Allocated-*w.d.Budget.Unused)
		return w.say("problem.capped", append(args, "tried", *f.Tried, "limit", *f.Limit, "left", left, "gpu", *f.GPU)...)
	case f.Tried != nil && f.Free != nil && f.GPU != nil:
		return w.say("problem.device", append(args, "tried", *f.Tried, "free", *f.Free, "gpu", *f.GPU)...)
	case f.Tried != nil:
		return w.say("problem.tried", append(args, "tried", *f.Tried)...)
	}
	return w.say("problem.plain", args...)
}

func (w *writer) tensor() string {
	t := w.d.Tensor
	args := []any{"name", string(t.Name), "shape", dimsText(t.Shape), "dtype", string(t.DType), "bytes", t.Bytes}
	switch {
	case t.Certainty == oom.UnknownTensor:
		return w.say("problem.tensor.unknown")
	case t.Name == "":
		return w.say("problem.tensor.shape", args...)
	}
	return w.say("problem.tensor."+string(t.Certainty), args...)
}

// dimsText writes a shape as people say it: 65536 x 50304.
func dimsText(shape []int) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = fmt.Sprint(n)
	}
	return strings.Join(parts, " x ")
}

// budget is the card's memory when it ran out: a table of what the message tells, with bars on a terminal.
func (w *writer) budget() []block {
	b := w.d.Budget
	if b.Total == nil && b.Allocated == nil {
		return nil
	}
	whole := w.d.Room
	if b.Total != nil {
		whole = *b.Total
	}
	t := &term.Table{Columns: []term.Column{{Title: ""}, {Title: "GiB", Align: term.Right}, {Title: ""}}}
	add := func(indent int, label string, v *units.Bytes) {
		if v == nil {
			return
		}
		share := 0.0
		if whole > 0 {
			share = min(1, float64(*v)/float64(whole))
		}
		t.Add(strings.Repeat("  ", indent)+label, strings.TrimSuffix(w.l.GiB(*v), " GiB"), strings.TrimRight(w.out.Bar(share, 24), " "))
	}
	add(0, w.say("budget.total"), b.Total)
	add(0, w.say("budget.limit"), w.d.Failure.Facts.Limit)
	add(0, w.say("budget.free"), b.Free)
	add(0, w.say("budget.others"), b.Others)
	for _, o := range w.d.Failure.Facts.Others {
		add(1, w.say("budget.pid", "pid", fmt.Sprint(o.PID)), &o.Memory)
	}
	add(0, w.say("budget.process"), b.Process)
	add(1, w.say("budget.non_pytorch"), b.NonPyTorch)
	add(1, w.say("budget.unused"), b.Unused)
	add(1, w.say("budget.allocated"), b.Allocated)
	var list []string
	for _, c := range b.Categories {
		if held := c.Held; held >= 5*units.MiB {
			add(2, "≈ "+w.say("category."+string(c.Category)), &held)
			list = []string{w.say("budget.simulated")}
		}
	}
	add(0, w.say("budget.tried"), w.d.Failure.Facts.Tried)
	return []block{{heading: w.say("section.budget"), table: t, list: list}}
}

func (w *writer) causes() block {
	b := block{heading: w.say("section.causes"), ordered: true}
	for i, f := range w.d.Causes {
		if i > 0 && f.Weight < 20 || i == 5 {
			break
		}
		b.list = append(b.list, w.label(w.out.Paint(term.Bold, w.say("cause."+string(f.Cause))), w.l.Value(f.Evidence)))
	}
	return b
}

// label is a few words and what is said of them.
func (w *writer) label(label, text string) string {
	return w.l.Text(i18n.M("label", "label", label, "text", text))
}

func (w *writer) fixes() block {
	numeric := false
	for _, f := range w.d.Fixes {
		numeric = numeric || f.Peak != nil
	}
	b := block{heading: w.say("section.fixes")}
	t := &term.Table{Columns: []term.Column{{Title: w.say("table.number"), Align: term.Right}}}
	if numeric {
		t.Columns = append(t.Columns, term.Column{Title: w.say("table.effective"), Align: term.Right}, term.Column{Title: w.say("table.peak"), Align: term.Right},
			term.Column{Title: w.say("table.fits")}, term.Column{Title: w.say("table.speed"), Align: term.Right})
	}
	t.Columns = append(t.Columns, term.Column{Title: w.say("table.change"), Align: term.Wrap})
	for i, f := range w.d.Fixes {
		row := []string{fmt.Sprint(i + 1)}
		if numeric {
			row = append(row, w.figures(f)...)
		}
		text := w.label(w.l.Text(f.Do), w.l.Text(f.Effect))
		if typed := fixText(f); typed != "" {
			text = w.out.Paint(term.Cyan, typed) + "  " + text
		}
		t.Add(append(row, text)...)
	}
	b.table = t
	b.list = w.notes(numeric)
	return b
}

// figures are a fix's cells: the effective batch, the peak, whether it fits, the speed.
func (w *writer) figures(f oom.Fix) []string {
	cells := []string{"", "", "", ""}
	if f.EffectiveBatch > 0 {
		cells[0] = w.l.Value(f.EffectiveBatch)
	}
	if f.Peak != nil {
		cells[1] = w.l.GiB(f.Peak.Reserved)
	}
	if f.Fits != nil {
		cells[2] = w.out.Paint(term.Red, w.say("fits.no"))
		if *f.Fits {
			cells[2] = w.out.Paint(term.Green, w.say("fits.yes"))
		}
	}
	if f.Speed > 0 {
		cells[3] = w.l.Value(i18n.Share(f.Speed))
	}
	return cells
}

// fixText is a fix as it is typed: settings as flags, variables as they are.
func fixText(f oom.Fix) string {
	var parts []string
	for _, key := range sortedKeys(f.Changes) {
		parts = append(parts, key+"="+config.Python(f.Changes[key]))
	}
	for key, v := range f.Env {
		parts = append(parts, key+"="+v)
	}
	if f.Patch {
		parts = append(parts, "--patch")
	}
	return strings.Join(parts, " ")
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// notes are what the table cannot say: against what peaks are held, and why some advice is not in it.
func (w *writer) notes(numeric bool) []string {
	d := w.d
	var notes []string
	note := func(on bool, id string, pairs ...any) {
		if on {
			notes = append(notes, w.say(id, pairs...))
		}
	}
	outcome, target := d.Simulated()
	note(numeric && d.Room > 0, "note.limit", "room", d.Room)
	note(outcome != nil && target.Assumed, "note.assumed_card", "card", target.Card.Name)
	note(slices.ContainsFunc(d.Fixes, func(f oom.Fix) bool { return f.Fits != nil && !*f.Fits }), "note.fits_not")
	if unused := d.Budget.Unused; unused != nil {
		advised := strings.Contains(d.Failure.Message, "expandable_segments") && !d.Alloc.Expandable
		note(advised && !hasKind(d, "expandable_segments"), "note.expandable_no", "unused", *unused)
	}
	if gpu := d.Failure.Facts.GPU; gpu != nil {
		note(len(w.holders) > 0, "note.holders", "gpu", *gpu, "list", strings.Join(w.holders, ", "))
	}
	note(outcome == nil && d.Failure.Kind == oom.Device, "note.unsimulated")
	note(d.Phase == oom.Eval && d.Config != nil, "note.eval_less")
	note(outcome != nil && d.Config.Compile, "note.compile_mode")
	note(d.Run.SlowAttn, "note.slow_attention")
	note(d.Run.OldScaler, "note.gradscaler")
	note(d.Run.FewSMs, "note.few_sms")
	return notes
}

func hasKind(d *oom.Diagnosis, kind string) bool {
	return slices.ContainsFunc(d.Fixes, func(f oom.Fix) bool { return f.Kind == kind })
}

// bestFix is the row that --apply takes: the first that fits and is a matter of settings.
func bestFix(d *oom.Diagnosis) int {
	for i, f := range d.Fixes {
		if f.Fits != nil && *f.Fits && len(f.Changes) > 0 {
			return i
		}
	}
	return -1
}

func (w *writer) configuration(o *doctorOptions) []block {
	best := bestFix(w.d)
	if best < 0 {
		return nil
	}
	f := w.d.Fixes[best]
	return []block{{heading: w.say("section.config"), code: w.configLines(f)},
		{text: []string{w.say("config.command")}, code: []string{commandLine(w.d, f, o.files)}},
		{text: []string{w.say("config.apply")}}}
}

// configLines are the settings of a fix as a config file has them, with what they were.
func (w *writer) configLines(f oom.Fix) []string {
	var lines []string
	width := 0
	for _, key := range sortedKeys(f.Changes) {
		line := key + " = " + config.Python(f.Changes[key])
		lines = append(lines, line)
		width = max(width, len(line))
	}
	for i, key := range sortedKeys(f.Changes) {
		if row, ok := config.Lookup(key); ok {
			lines[i] += strings.Repeat(" ", width-len(lines[i])) + "  # " + w.say("config.was", "value", config.Python(row.Value(w.d.Config)))
		}
	}
	return lines
}

// commandLine is a fix as nanoGPT takes it.
func commandLine(d *oom.Diagnosis, f oom.Fix, files []string) string {
	words := []string{"python", "train.py"}
	if len(files) > 0 {
		words = append(words, files...)
	} else if d.Run.ConfigFile != "" {
		words = append(words, d.Run.ConfigFile)
	}
	for key, v := range f.Env {
		words = append([]string{key + "=" + v}, words...)
	}
	for _, key := range sortedKeys(f.Changes) {
		words = append(words, "--"+key+"="+fmt.Sprint(pythonWord(f.Changes[key])))
	}
	return strings.Join(words, " ")
}

// pythonWord is a value as nanoGPT's command line takes it: strings without quotes.
func pythonWord(v any) string { return strings.Trim(config.Python(v), "'") }

func (w *writer) expectations() []block {
	d := w.d
	if outcome, _ := d.Simulated(); outcome == nil {
		return nil
	}
	b := block{heading: w.say("section.expect")}
	best := bestFix(d)
	if best < 0 {
		b.text = []string{w.say("expect.nothing")}
		return []block{b}
	}
	f := d.Fixes[best]
	b.list = append(b.list, w.say("expect.peak", "peak", f.Peak.Reserved, "phase", w.say("simulated."+f.Peak.Phase), "room", d.Room))
	if f.Speed > 0 {
		b.list = append(b.list, w.say("expect.speed", "speed", i18n.Share(f.Speed)))
	}
	for i, other := range d.Fixes {
		if strings.HasSuffix(other.Kind, "_safe") {
			b.list = append(b.list, w.say("expect.safe", "row", i+1))
		}
	}
	b.list = append(b.list, w.say("expect.watch"))
	return []block{b}
}

func (w *writer) unknown() []block {
	asks := w.d.Asks()
	if len(asks) == 0 {
		return nil
	}
	b := block{heading: w.say("section.unknown")}
	for _, m := range asks {
		b.list = append(b.list, w.l.Text(m))
	}
	return []block{b}
}
