package term

import (
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Align is how a column's cells stand.
type Align int

const (
	Left Align = iota
	Right
	Wrap // left, and broken at spaces to fit the width: at most one column, the last
)

// Column is a table's column.
type Column struct {
	Title string
	Align Align
}

// Table is rows under columns.
type Table struct {
	Columns []Column
	Rows    [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Drop takes a column out of a table whose rows are whole.
func (t *Table) Drop(column int) {
	t.Columns = slices.Delete(t.Columns, column, column+1)
	for i := range t.Rows {
		t.Rows[i] = slices.Delete(t.Rows[i], column, column+1)
	}
}

// Width is how many columns of a terminal text takes: wide characters count two, combining marks and colours none.
//
// It counts as the C library's wcwidth does, which terminals follow: a vowel sign of Devanagari takes a column of its own.
func Width(text string) int { return ansi.StringWidthWc(text) }

// Table writes t: aligned on a terminal, tab-separated (with colours removed) where it is piped.
func (s *Stream) Table(t *Table) error {
	var b strings.Builder
	if !s.TTY {
		titles := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			titles[i] = c.Title
		}
		for _, row := range append([][]string{titles}, t.Rows...) {
			b.WriteString(ansi.Strip(strings.Join(row, "\t")) + "\n")
		}
	} else {
		for _, line := range t.Lines(s) {
			b.WriteString(line + "\n")
		}
	}
	_, err := fmt.Fprint(s.Writer, b.String())
	return err
}

const (
	gutter    = 2
	narrowest = 24 // a wrapped column that would be narrower goes under its row
)

// Lines lays t out for the stream's width: a header line, then the rows.
func (t *Table) Lines(s *Stream) []string {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = Width(c.Title)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], Width(row[i]))
		}
	}
	last := len(t.Columns) - 1
	if last >= 0 && t.Columns[last].Align == Wrap {
		before := 0
		for _, w := range widths[:last] {
			before += w + gutter
		}
		room := s.Width - before
		if room < min(widths[last], narrowest) {
			return t.under(s)
		}
		widths[last] = min(widths[last], room)
	}
	header := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		header[i] = s.Paint(Dim, c.Title)
	}
	var lines []string
	for _, row := range append([][]string{header}, t.Rows...) {
		lines = append(lines, t.layout(row, widths)...)
	}
	return lines
}

// under lays t out with its last column below the rows, for narrow terminals.
func (t *Table) under(s *Stream) []string {
	last := len(t.Columns) - 1
	head := &Table{Columns: t.Columns[:last]}
	for _, row := range t.Rows {
		head.Add(row[:last]...)
	}
	lines := head.Lines(s)
	all := lines[:1:1]
	for i, row := range t.Rows {
		all = append(all, lines[i+1])
		for _, part := range Wrapped(row[last], s.Width-2*gutter) {
			all = append(all, strings.Repeat(" ", 2*gutter)+part)
		}
	}
	return all
}

func (t *Table) layout(row []string, widths []int) []string {
	var b strings.Builder
	indent := 0
	for i, cell := range row {
		pad := max(0, widths[i]-Width(cell))
		switch {
		case t.Columns[i].Align == Right:
			b.WriteString(strings.Repeat(" ", pad) + cell)
		case t.Columns[i].Align == Wrap:
			parts := Wrapped(cell, widths[i])
			lines := []string{b.String() + parts[0]}
			for _, p := range parts[1:] {
				lines = append(lines, strings.Repeat(" ", indent)+p)
			}
			return lines
		default:
			b.WriteString(cell + strings.Repeat(" ", pad))
		}
		b.WriteString(strings.Repeat(" ", gutter))
		indent += widths[i] + gutter
	}
	return []string{strings.TrimRight(b.String(), " ")}
}

// Wrapped breaks text at spaces, and inside words that are longer than width (or have no spaces, as Chinese has none).
func Wrapped(text string, width int) []string {
	lines := strings.Split(ansi.WrapWc(text, max(1, width), ""), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ") // a space kept at a break would stand past the width
	}
	return lines
}

// Truncate cuts text to width columns, with … where something was cut.
func Truncate(text string, width int) string { return ansi.TruncateWc(text, max(1, width), "…") }
