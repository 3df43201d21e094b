package cli

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/snugml/snug/internal/term"
)

// drawTerminal draws a report's blocks for a person: wrapped to the width, tables aligned.
func drawTerminal(out *term.Stream, blocks []block) error {
	width := min(out.Width, 120)
	for i, b := range blocks {
		if b.heading != "" {
			if i > 0 {
				fmt.Fprintln(out)
			}
			fmt.Fprintln(out, out.Paint(term.Bold, b.heading))
		}
		for _, text := range b.text {
			wrapped(out, text, "  ", "  ", width)
		}
		for _, line := range b.code {
			fmt.Fprintln(out, "    "+out.Paint(term.Cyan, line))
		}
		if b.table != nil {
			if err := indented(out, b.table, width); err != nil {
				return err
			}
		}
		for n, item := range b.list {
			mark := "- "
			if b.ordered {
				mark = fmt.Sprintf("%d. ", n+1)
			}
			wrapped(out, item, "  "+mark, strings.Repeat(" ", 2+len(mark)), width)
		}
	}
	return nil
}

// wrapped prints text from the column of first on, its further lines under it.
func wrapped(out *term.Stream, text, first, rest string, width int) {
	for i, line := range term.Wrapped(text, width-len(first)) {
		fmt.Fprintln(out, []string{first, rest}[min(i, 1)]+line)
	}
}

// sideBySide is the least width at which a table's sentences stand beside its figures; below it they go under them.
const sideBySide = 100

// indented prints a table two columns to the right; piped, it is tab-separated as all are.
func indented(out *term.Stream, t *term.Table, width int) error {
	if !out.TTY {
		return out.Table(t)
	}
	narrow := *out
	narrow.Width = width - 2
	last := len(t.Columns) - 1
	if width >= sideBySide || t.Columns[last].Align != term.Wrap || last < 2 {
		for _, line := range t.Lines(&narrow) {
			fmt.Fprintln(out, "  "+strings.TrimRight(line, " "))
		}
		return nil
	}
	figures := &term.Table{Columns: t.Columns[:last]}
	for _, row := range t.Rows {
		figures.Add(row[:last]...)
	}
	for i, line := range figures.Lines(&narrow) {
		line = "  " + strings.TrimRight(line, " ")
		if i > 0 && strings.Join(figures.Rows[i-1][1:], "") == "" { // no figures: the sentence stands in their place
			wrapped(out, t.Rows[i-1][last], line+strings.Repeat(" ", max(0, 6-len(line))), "      ", width)
			continue
		}
		fmt.Fprintln(out, line)
		if i > 0 {
			wrapped(out, t.Rows[i-1][last], "      ", "      ", width)
		}
	}
	return nil
}

// drawMarkdown draws a report's blocks for pasting into an issue.
func drawMarkdown(out *term.Stream, blocks []block) error {
	for i, b := range blocks {
		if i > 0 {
			fmt.Fprintln(out)
		}
		if b.heading != "" {
			fmt.Fprintf(out, "### %s\n\n", b.heading)
		}
		for _, text := range b.text {
			fmt.Fprintf(out, "%s\n\n", ansi.Strip(text))
		}
		if len(b.code) > 0 {
			fmt.Fprintf(out, "```python\n%s\n```\n", strings.Join(b.code, "\n"))
		}
		if b.table != nil {
			markdownTable(out, b.table)
		}
		if b.table != nil && len(b.list) > 0 {
			fmt.Fprintln(out)
		}
		for n, item := range b.list {
			mark := "-"
			if b.ordered {
				mark = fmt.Sprintf("%d.", n+1)
			}
			fmt.Fprintf(out, "%s %s\n", mark, ansi.Strip(item))
		}
	}
	return nil
}

func markdownTable(out *term.Stream, t *term.Table) {
	row := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(strings.TrimSpace(ansi.Strip(c)), "|", `\|`)
		}
		fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
	}
	titles, rules := []string{}, []string{}
	for _, c := range t.Columns {
		titles = append(titles, c.Title)
		rule := "---"
		if c.Align == term.Right {
			rule = "---:"
		}
		rules = append(rules, rule)
	}
	row(titles)
	fmt.Fprintf(out, "| %s |\n", strings.Join(rules, " | "))
	for _, r := range t.Rows {
		row(append([]string(nil), r...))
	}
}
