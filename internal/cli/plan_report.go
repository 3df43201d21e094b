package cli

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// planReport is a plan as JSON shows it; the terminal's report is drawn from the same fields.
type planReport struct {
	Engine      string           `json:"engine"`
	Config      map[string]any   `json:"config"`
	Device      *planDevice      `json:"device"`
	Limit       *units.Bytes     `json:"limit"`
	Phases      []planPhase      `json:"phases"`
	Peak        fit.Peak         `json:"peak"`
	Context     units.Bytes      `json:"context"`
	Margin      units.Bytes      `json:"margin"`
	Breakdown   []planTensor     `json:"breakdown"`
	Failure     *planFailure     `json:"failure,omitempty"`
	Fits        *bool            `json:"fits"`
	Suggestions []planSuggestion `json:"suggestions"`
	Notes       []string         `json:"notes,omitempty"`

	cfg     config.Config
	target  fit.Target
	verdict string
	command string
}

type planDevice struct {
	Name    string      `json:"name"`
	Total   units.Bytes `json:"total"`
	Assumed bool        `json:"assumed,omitempty"` // stands for a device known only by its memory
}

type planPhase struct {
	Name          string      `json:"name"`
	PeakAllocated units.Bytes `json:"peak_allocated"`
	PeakReserved  units.Bytes `json:"peak_reserved"`
}

type planTensor struct {
	Name     string         `json:"name"`
	Category trace.Category `json:"category"`
	Shape    []int          `json:"shape"`
	DType    trace.DType    `json:"dtype"`
	Bytes    units.Bytes    `json:"bytes"`
}

type planFailure struct {
	Phase     string      `json:"phase"`
	Stage     string      `json:"stage"`
	Tensor    planTensor  `json:"tensor"`
	Tried     units.Bytes `json:"tried"`
	Allocated units.Bytes `json:"allocated"`
	Reserved  units.Bytes `json:"reserved"`
}

type planSuggestion struct {
	Kind           fit.Kind          `json:"kind"`
	Changes        map[string]any    `json:"changes"`
	Env            map[string]string `json:"env,omitempty"`
	Patch          string            `json:"patch,omitempty"`
	SameTraining   bool              `json:"same_training"`
	Safe           bool              `json:"safe,omitempty"`
	EffectiveBatch int               `json:"effective_batch"`
	Peak           fit.Peak          `json:"peak"`
	Fits           bool              `json:"fits"`
	RelativeSpeed  float64           `json:"relative_speed"`
	Why            string            `json:"why"`
}

func newPlanReport(o planOptions, t fit.Target, out *fit.Outcome) *planReport {
	p := &planReport{
		Engine: "torch", Config: o.config.Map(config.Plan), Peak: out.Peak, Context: out.Context, Margin: out.Margin,
		Suggestions: []planSuggestion{}, cfg: o.config, target: t, verdict: out.Verdict(t),
		command: strings.Join(append([]string{"python train.py"}, o.files...), " "),
	}
	p.device(t, out.Fits)
	for _, ph := range out.Result.Phases {
		if ph.Name == "init" { // what it leaves is in every later phase
			continue
		}
		p.Phases = append(p.Phases, planPhase{ph.Name, ph.PeakAllocated, ph.PeakReserved})
	}
	p.Breakdown = breakdown(out.Result.Ledger())
	if f := out.Failure; f != nil {
		p.Failure = &planFailure{Phase: f.Phase, Stage: f.Stage, Tensor: tensorOf(f.Tensor, f.Tensor.Bytes), Tried: f.Tried, Allocated: f.Allocated, Reserved: f.Reserved}
	}
	return p
}

// device fills in what is known of the device; without one there is no limit and no verdict.
func (p *planReport) device(t fit.Target, fits bool) {
	if t.Limit == 0 {
		return
	}
	p.Device = &planDevice{Name: t.Card.Name, Total: t.Card.Memory, Assumed: t.Assumed}
	p.Limit, p.Fits = &t.Limit, &fits
}

func breakdown(l trace.Ledger) []planTensor {
	tensors := make([]planTensor, len(l))
	for i, e := range l {
		tensors[i] = tensorOf(e.Tensor, e.Held)
	}
	return tensors
}

func tensorOf(t trace.Tensor, held units.Bytes) planTensor {
	return planTensor{t.Name, t.Category, t.Shape, t.DType, held}
}

func (p *planReport) suggest(found []fit.Suggestion) {
	for _, s := range found {
		changes := s.Changes
		if changes == nil {
			changes = map[string]any{}
		}
		p.Suggestions = append(p.Suggestions, planSuggestion{Kind: s.Kind, Changes: changes, Env: s.Env, Patch: s.Patch,
			SameTraining: s.SameTraining, Safe: s.Safe, EffectiveBatch: s.EffectiveBatch, Peak: s.Outcome.Peak,
			Fits: s.Outcome.Fits, RelativeSpeed: s.RelativeSpeed, Why: s.Why})
	}
}

// best is the first suggestion that fits by settings alone, or nil.
func (p *planReport) best() *planSuggestion {
	for i := range p.Suggestions {
		if s := &p.Suggestions[i]; s.Fits && len(s.Changes) > 0 && s.Patch == "" && len(s.Env) == 0 {
			return s
		}
	}
	return nil
}

// snippet is the best settings as lines of a config file: the changes, none where all fits as it is or nothing does.
func (p *planReport) snippet() string {
	if p.Fits == nil || *p.Fits {
		return ""
	}
	best := p.best()
	if best == nil {
		return ""
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(best.Changes)) {
		row, _ := config.Lookup(key)
		fmt.Fprintf(&b, "%s = %s  # was %s\n", key, config.Python(best.Changes[key]), config.Python(row.Value(&p.cfg)))
	}
	return b.String()
}

// headline is the run in a few words.
func (p *planReport) headline() string {
	m := p.cfg.Model()
	mode := "eager"
	if p.cfg.Compile {
		mode = "compiled"
	}
	if p.Engine == "native" {
		mode = "snug"
	}
	return fmt.Sprintf("%d layers, %d wide, %d tokens, vocabulary %d; batch %d x %d = %d; %s, %s",
		m.NLayer, m.NEmbd, m.BlockSize, m.VocabSize, p.cfg.BatchSize, p.cfg.GradientAccumulationSteps, p.cfg.EffectiveBatch(), p.cfg.DType, mode)
}

// report draws the plan for a person.
func (p *planReport) report(out *term.Stream) error {
	wrapLines(out, term.Bold, p.headline())
	if p.Device != nil {
		fmt.Fprintln(out, p.deviceLine())
	}
	style := term.Green
	if p.Fits != nil && !*p.Fits {
		style = term.Red
	}
	fmt.Fprintln(out)
	wrapLines(out, style, p.verdict)
	if f := p.Failure; f != nil {
		where := f.Phase
		if f.Stage != f.Phase {
			where += ", " + f.Stage
		}
		for _, line := range term.Wrapped(fmt.Sprintf("it fails in %s: %s for %s %s with %s allocated and %s reserved",
			where, f.Tried, f.Tensor.Name, shapeText(f.Tensor), f.Allocated, f.Reserved), out.Width) {
			fmt.Fprintln(out, line)
		}
	}
	fmt.Fprintln(out)
	if err := p.phaseTable(out); err != nil {
		return err
	}
	fmt.Fprintln(out)
	wrapLines(out, "", fmt.Sprintf("Alive at the peak (%s, %s allocated)", p.Peak.Phase, p.Peak.Allocated.GiB()))
	if err := out.Table(p.largest(out, 10)); err != nil {
		return err
	}
	for _, n := range p.Notes {
		fmt.Fprintf(out, "\n%s\n", strings.Join(term.Wrapped(n, out.Width), "\n"))
	}
	return p.suggestionTable(out)
}

// wrapLines prints text in a style, on a terminal broken to its width.
func wrapLines(out *term.Stream, style term.Style, text string) {
	lines := []string{text}
	if out.TTY {
		lines = term.Wrapped(text, out.Width)
	}
	for _, line := range lines {
		fmt.Fprintln(out, out.Paint(style, line))
	}
}

func (p *planReport) deviceLine() string {
	line := fmt.Sprintf("%s, %s", p.Device.Name, p.Device.Total.GiB())
	if p.Device.Assumed {
		return fmt.Sprintf("within %s (speeds as on a %s)", p.Limit.GiB(), p.Device.Name)
	}
	if *p.Limit != p.Device.Total {
		line += ", of which " + p.Limit.GiB()
	}
	return line
}

// phaseTable shows each phase against the limit, and what the driver charges the process at the most.
func (p *planReport) phaseTable(out *term.Stream) error {
	var limit units.Bytes
	if p.Limit != nil {
		limit = *p.Limit
	}
	width := max(10, min(40, out.Width-46))
	t := &term.Table{Columns: []term.Column{{Title: "phase"}, {Title: "allocated", Align: term.Right}, {Title: "reserved", Align: term.Right}, {Title: "process", Align: term.Right}, {Title: ""}}}
	top := p.Peak.Process
	for _, ph := range p.Phases {
		process := ph.PeakReserved + p.Context
		bar := gaugeTo(out, process, limit, max(top, limit), width)
		t.Add(ph.Name, ph.PeakAllocated.GiB(), ph.PeakReserved.GiB(), process.GiB(), bar)
	}
	if !out.TTY || out.Width < 56 { // no room for bars
		t.Drop(4)
	}
	if out.TTY && out.Width < 46 { // nor for what the process has and the tensors do not
		t.Drop(2)
	}
	return out.Table(t)
}

// gaugeTo is a gauge on a scale that ends at top, so that the phases of one plan compare by length.
func gaugeTo(out *term.Stream, value, limit, top units.Bytes, width int) string {
	if top <= 0 {
		return ""
	}
	w := max(1, int(float64(width)*float64(value)/float64(top)+0.5))
	if limit <= 0 || value <= limit {
		return out.Gauge(value, value, w)
	}
	return out.Gauge(value, limit, w)
}

var layerNumber = regexp.MustCompile(`\bh\.\d+\.`)

// largest lists the n largest tensors at the peak, those of equal layers together, and the rest as one line.
// On a narrow terminal long names are cut and the category is left out.
func (p *planReport) largest(out *term.Stream, n int) *term.Table {
	type group struct {
		planTensor
		count int
		total units.Bytes
	}
	var groups []*group
	index := map[string]*group{}
	for _, t := range p.Breakdown {
		t.Name = layerNumber.ReplaceAllString(t.Name, "h.*.")
		key := t.Name + shapeText(t)
		g := index[key]
		if g == nil {
			g = &group{planTensor: t}
			index[key] = g
			groups = append(groups, g)
		}
		g.count++
		g.total += t.Bytes
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return int(max(-1, min(1, b.total-a.total))) })
	table := &term.Table{Columns: []term.Column{{Title: "tensor"}, {Title: "count", Align: term.Right}, {Title: "total", Align: term.Right}, {Title: "each"}, {Title: "for"}}}
	columns, room := len(table.Columns), 0 // room for a name; 0 is any
	switch {
	case out.TTY && out.Width < 60:
		columns, room = 3, max(12, out.Width-20)
	case out.TTY && out.Width < 100:
		columns, room = 4, max(12, out.Width-46)
	}
	table.Columns = table.Columns[:columns]
	add := func(name string, count int, total units.Bytes, each, category string) {
		if room > 0 {
			name = term.Truncate(name, room)
		}
		table.Add([]string{name, fmt.Sprint(count), total.GiB(), each, category}[:columns]...)
	}
	var rest units.Bytes
	others := 0
	for i, g := range groups {
		if i >= n {
			rest += g.total
			others += g.count
			continue
		}
		add(g.Name, g.count, g.total, shapeText(g.planTensor), string(g.Category))
	}
	if others > 0 {
		add("everything else", others, rest, "", "")
	}
	return table
}

func shapeText(t planTensor) string {
	dims := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		dims[i] = fmt.Sprint(d)
	}
	return fmt.Sprintf("(%s) %s", strings.Join(dims, ", "), t.DType)
}

// suggestionTable shows what fits, and the best as a config snippet and as a command line.
func (p *planReport) suggestionTable(out *term.Stream) error {
	if len(p.Suggestions) == 0 {
		return nil
	}
	for _, part := range []struct {
		title string
		same  bool
	}{{"Fits, and trains the same model the same way", true}, {"Fits, but changes training", false}} {
		t := &term.Table{Columns: []term.Column{{Title: "change"}, {Title: "process", Align: term.Right}, {Title: "speed*", Align: term.Right}, {Title: "why", Align: term.Wrap}}}
		narrow := out.TTY && out.Width < 80
		if narrow { // the change beside its reason, where lines break
			t.Drop(0)
		}
		for _, s := range p.Suggestions {
			if s.SameTraining != part.same {
				continue
			}
			cells := []string{changeText(s), s.Peak.Process.GiB(), fmt.Sprintf("%.2fx", s.RelativeSpeed), s.Why}
			if narrow {
				cells = []string{cells[1], cells[2], cells[0] + ": " + s.Why}
			}
			t.Add(cells...)
		}
		if len(t.Rows) == 0 {
			continue
		}
		title := part.title
		if !p.Suggestions[0].Fits {
			title = "Nothing fits; the least it can take"
		}
		fmt.Fprintln(out)
		wrapLines(out, term.Bold, title)
		if err := out.Table(t); err != nil {
			return err
		}
	}
	wrapLines(out, "", "* an estimate, against the settings as given on a card where they fit")
	if text := p.snippet(); text != "" {
		fmt.Fprintln(out)
		wrapLines(out, term.Bold, "The best, for your config file or command line")
		fmt.Fprintf(out, "\n%s\n%s\n", indent(text), indent(p.commandLine()))
	}
	return nil
}

func (p *planReport) commandLine() string {
	line := p.command
	best := p.best()
	for _, key := range slices.Sorted(maps.Keys(best.Changes)) {
		line += fmt.Sprintf(" --%s=%s", key, config.Python(best.Changes[key]))
	}
	return line
}

func changeText(s planSuggestion) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(s.Changes)) {
		parts = append(parts, fmt.Sprintf("%s=%s", key, config.Python(s.Changes[key])))
	}
	for _, v := range s.Env {
		parts = append(parts, v)
	}
	if s.Patch != "" {
		parts = append(parts, s.Patch)
	}
	text := strings.Join(parts, " ")
	if s.Safe {
		text += " (extra safe)"
	}
	return text
}

func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ") + "\n"
}
