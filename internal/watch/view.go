package watch

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/units"
)

// Lines draws the state on out's width. With height 0 everything is drawn; else at most that many lines, the process
// list cut first: it is the part that grows without bound.
func (s *State) Lines(out *term.Stream, height int) []string {
	var lines []string
	title := "driver " + s.Now.Driver
	if s.Now.CUDA != "" {
		title += ", CUDA up to " + s.Now.CUDA
	}
	lines = append(lines, out.Paint(term.Dim, ends(out, title, s.Now.Time.Format("15:04:05"))))
	dense := height > 0 && len(s.Now.Devices)*4 > height/2
	for _, d := range s.Now.Devices {
		lines = append(lines, s.device(out, d, dense)...)
	}
	for _, r := range s.Runs {
		lines = append(lines, s.run(out, r)...)
	}
	var tail []string
	if s.Err != nil {
		tail = append(tail, out.Paint(term.Red, "! "+s.Err.Error()))
	}
	for _, f := range s.Flags() {
		tail = append(tail, out.Paint(term.Yellow, "! "+f.Text))
	}
	lines = append(lines, s.processLines(out, height-len(lines)-wrappedHeight(out, tail)-1, height == 0)...)
	if len(tail) > 0 {
		lines = append(lines, "")
	}
	for _, t := range tail {
		lines = append(lines, term.Wrapped(t, out.Width)...)
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	return lines
}

func wrappedHeight(out *term.Stream, texts []string) int {
	n := 0
	for _, t := range texts {
		n += len(term.Wrapped(t, out.Width))
	}
	return n
}

// ends puts two texts at the two ends of a line.
func ends(out *term.Stream, left, right string) string {
	gap := out.Width - term.Width(left) - term.Width(right)
	if gap < 1 || right == "" {
		return term.Truncate(left, out.Width)
	}
	return left + strings.Repeat(" ", gap) + right
}

func (s *State) device(out *term.Stream, d gpu.Device, dense bool) []string {
	name := fmt.Sprintf("GPU %s  %s", d.Label(), strings.TrimPrefix(d.Name, "NVIDIA "))
	if d.Fault != "" {
		return []string{ends(out, name, out.Paint(term.Red, "no answer"))}
	}
	memory := fmt.Sprintf("%s of %s", d.Used.GiB(), d.Total.GiB())
	if dense {
		width := max(5, out.Width-term.Width(name)-31)
		return []string{ends(out, name, fmt.Sprintf("%s %23s %4s", bar(out, d, min(width, 30)), memory, percent(d)))}
	}
	lines := []string{"", ends(out, out.Paint(term.Bold, name), load(d))}
	lines = append(lines, beside(out, memory, func(width int) string { return bar(out, d, width) }))
	if h := s.devices[d.UUID]; len(h) > 1 {
		width := max(5, out.Width-term.Width(memory)-2)
		lines = append(lines, out.Paint(term.Dim, term.Truncate(spark(out, h, d.Total, width)+"  "+span(h, width), out.Width)))
	}
	return lines
}

// beside puts a drawing in what a text leaves of the line, and only the text where that is too little.
func beside(out *term.Stream, text string, draw func(width int) string) string {
	width := out.Width - term.Width(text) - 2
	if width < 5 {
		return term.Truncate(text, out.Width)
	}
	return draw(width) + "  " + text
}

// bar shows the used share, red when the card is nearly full.
func bar(out *term.Stream, d gpu.Device, width int) string {
	share := 0.0
	if d.Total > 0 {
		share = float64(d.Used) / float64(d.Total)
	}
	style := term.Green
	switch {
	case share > 1-fullShare:
		style = term.Red
	case share > 0.9:
		style = term.Yellow
	}
	return out.Paint(style, out.Bar(share, width))
}

func percent(d gpu.Device) string {
	if d.Percent == nil {
		return ""
	}
	return fmt.Sprintf("%d%%", *d.Percent)
}

// load is what the card does besides holding memory, as far as the driver tells.
func load(d gpu.Device) string {
	var parts []string
	if d.Percent != nil {
		parts = append(parts, "busy "+percent(d))
	}
	if d.Milliwatts != nil {
		power := fmt.Sprintf("%.0f W", float64(*d.Milliwatts)/1e3)
		if d.LimitMW != nil {
			power = fmt.Sprintf("%.0f of %.0f W", float64(*d.Milliwatts)/1e3, float64(*d.LimitMW)/1e3)
		}
		parts = append(parts, power)
	}
	if d.Celsius != nil {
		parts = append(parts, fmt.Sprintf("%d °C", *d.Celsius))
	}
	return strings.Join(parts, "  ")
}

// run draws what a run says of itself, and its predicted memory against the measured.
func (s *State) run(out *term.Stream, r runs.Run) []string {
	var facts []string
	if r.Iteration != nil {
		facts = append(facts, fmt.Sprintf("iter %d", *r.Iteration))
	}
	if r.Loss != nil {
		facts = append(facts, fmt.Sprintf("loss %.4f", *r.Loss))
	}
	if r.StepSeconds != nil {
		facts = append(facts, seconds(*r.StepSeconds)+" a step")
	}
	if r.Attempt > 1 {
		facts = append(facts, fmt.Sprintf("attempt %d", r.Attempt))
	}
	right := strings.Join(facts, "  ")
	left := term.Truncate("run  "+r.Command, max(10, out.Width-term.Width(right)-2))
	lines := []string{"", ends(out, out.Paint(term.Bold, left), right)}
	held, known := s.Held(r)
	if !known && r.Measured != nil {
		held, known = *r.Measured, true
	}
	if r.Predicted == nil || !known {
		return lines
	}
	text := fmt.Sprintf("holds %s, predicted %s", held.GiB(), r.Predicted.GiB())
	return append(lines, beside(out, text, func(width int) string { return out.Gauge(held, *r.Predicted, width) }))
}

// processLines lists holders of memory, the largest first on each card, in at most room lines.
func (s *State) processLines(out *term.Stream, room int, all bool) []string {
	t := &term.Table{Columns: []term.Column{{Title: "GPU"}, {Title: "pid", Align: term.Right}, {Title: "memory", Align: term.Right},
		{Title: "age", Align: term.Right}, {Title: "command"}}}
	for _, d := range s.Now.Devices {
		if d.MIG {
			continue
		}
		for _, p := range d.Processes {
			t.Add(d.Label(), fmt.Sprint(p.PID), p.Holds(), p.Runs(s.Now.Time), cmp.Or(p.Command, "?"))
		}
	}
	if len(t.Rows) == 0 || !all && room < 3 {
		return nil
	}
	lines := append([]string{""}, t.Lines(out)...)
	if !all && len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1], out.Paint(term.Dim, fmt.Sprintf("… and %d more", left)))
	}
	for i := range lines {
		lines[i] = term.Truncate(lines[i], out.Width)
	}
	return lines
}

var blocks = []rune("▁▂▃▄▅▆▇█")

// spark draws the newest samples, one a column, on a scale from 0 to total. Without UTF-8 it draws digits 0 to 7.
func spark(out *term.Stream, h []Sample, total units.Bytes, width int) string {
	h = h[max(0, len(h)-width):]
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", width-len(h)))
	for _, x := range h {
		level := 0
		if total > 0 {
			level = int(float64(x.Memory) / float64(total) * float64(len(blocks)))
		}
		level = max(0, min(len(blocks)-1, level))
		if out.UTF8 {
			b.WriteRune(blocks[level])
		} else {
			fmt.Fprintf(&b, "%d", level)
		}
	}
	return b.String()
}

// span is the time the drawn history covers.
func span(h []Sample, width int) string {
	h = h[max(0, len(h)-width):]
	return "last " + units.Duration(h[len(h)-1].Time.Sub(h[0].Time))
}
