package plot

import (
	"fmt"
	"math"
	"strings"
)

// Style is how text may be drawn.
type Style struct {
	Width, Height int // of the whole drawing, in characters; at least 30 and 6 are used
	UTF8          bool
	// Paint colours text as series i; nil leaves it plain.
	Paint func(i int, text string) string
}

// cell is one character of the grid: the dots of each series in it.
type cell struct {
	dots  rune
	owner int
}

// Text draws the chart in characters: braille dots, eight a character, where the terminal has UTF-8, else one mark a character.
func (c *Chart) Text(st Style) string {
	st.Width, st.Height = max(st.Width, 30), max(st.Height, 6)
	if st.Paint == nil {
		st.Paint = func(_ int, text string) string { return text }
	}
	rows := st.Height - 3 // legend, axis, labels
	dots := st.Width
	if st.UTF8 {
		dots *= 2
	}
	s := c.fit(dots, max(3, st.Width/10), max(3, rows/2))
	margin := 0
	for _, v := range s.yTicks {
		margin = max(margin, len(label(v, s.yStep)))
	}
	columns := st.Width - margin - 2
	g := c.rasterise(s, columns, rows, st.UTF8)

	var b strings.Builder
	b.WriteString(strings.Repeat(" ", margin+2) + c.legend(s, dots, st) + "\n")
	labels := map[int]string{}
	for _, v := range s.yTicks {
		labels[rowOf(v, s, rows)] = label(v, s.yStep)
	}
	bar, tick := "|", "+"
	if st.UTF8 {
		bar, tick = "│", "┤"
	}
	for r, line := range g {
		mark := bar
		if labels[r] != "" {
			mark = tick
		}
		fmt.Fprintf(&b, "%*s %s%s\n", margin, labels[r], mark, strings.TrimRight(paintRow(line, st), " "))
	}
	c.textAxis(&b, s, margin, columns, st.UTF8)
	return b.String()
}

func rowOf(v float64, s scale, rows int) int {
	return int(math.Round((s.y1 - v) / (s.y1 - s.y0) * float64(rows-1)))
}

// rasterise marks every column's range of each series. A later series owns the characters it shares with an earlier one.
func (c *Chart) rasterise(s scale, columns, rows int, braille bool) [][]cell {
	dx, dy := 1, 1
	if braille {
		dx, dy = 2, 4
	}
	g := make([][]cell, rows)
	for r := range g {
		g[r] = make([]cell, columns)
	}
	w, h := columns*dx, rows*dy
	set := func(i, x, y int) {
		if x < 0 || x >= w || y < 0 || y >= h {
			return
		}
		p := &g[y/dy][x/dx]
		p.owner = i
		p.dots |= brailleDot(x%dx, y%dy)
	}
	place := func(col column) (int, int) {
		x := (col.x - s.x0) / (s.x1 - s.x0) * float64(w-1)
		y := (s.y1 - col.mean) / (s.y1 - s.y0) * float64(h-1)
		return int(math.Round(x)), int(math.Round(max(-1, min(float64(h), y)))) // what is outside leaves through the edge
	}
	for i, series := range c.Series {
		cols := thin(series, s.x0, s.x1, w)
		for k, col := range cols {
			x, y := place(col)
			set(i, x, y)
			if k == 0 {
				continue
			}
			x0, y0 := place(cols[k-1])
			segment(x0, y0, x, y, func(x, y int) { set(i, x, y) })
		}
	}
	return g
}

// segment visits the points between two, a step at a time along the longer side.
func segment(x0, y0, x1, y1 int, visit func(x, y int)) {
	n := max(abs(x1-x0), abs(y1-y0))
	for k := 1; k < n; k++ {
		f := float64(k) / float64(n)
		visit(x0+int(math.Round(f*float64(x1-x0))), y0+int(math.Round(f*float64(y1-y0))))
	}
}

func abs(x int) int { return max(x, -x) }

// brailleDot is the bit of the dot at column x (0, 1) and row y (0 to 3) in Unicode's braille patterns.
func brailleDot(x, y int) rune {
	return [2][4]rune{{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}[x][y]
}

var marks = []string{".", "o", "x", "+"}

// paintRow joins runs of characters of the same series, so that colours change as rarely as they can.
func paintRow(line []cell, st Style) string {
	var b, run strings.Builder
	owner := -1
	flush := func() {
		if owner >= 0 {
			b.WriteString(st.Paint(owner, run.String()))
		} else {
			b.WriteString(run.String())
		}
		run.Reset()
	}
	for _, p := range line {
		o, text := -1, " "
		if p.dots != 0 {
			o, text = p.owner, string(0x2800+p.dots)
			if !st.UTF8 {
				text = marks[p.owner%len(marks)]
			}
		}
		if o != owner {
			flush()
			owner = o
		}
		run.WriteString(text)
	}
	if owner >= 0 {
		flush()
	}
	return b.String()
}

// legend names the curves with their last values.
func (c *Chart) legend(sc scale, dots int, st Style) string {
	var parts []string
	for i, s := range c.Series {
		v := end(thin(s, sc.x0, sc.x1, dots))
		mark := "━"
		if !st.UTF8 {
			mark = marks[i%len(marks)]
		}
		parts = append(parts, st.Paint(i, fmt.Sprintf("%s %s %.4f", mark, s.Name, v)))
	}
	return strings.Join(parts, "  ")
}

// textAxis draws the x axis and its labels, leaving out those that would touch.
func (c *Chart) textAxis(b *strings.Builder, s scale, margin, columns int, utf8 bool) {
	line, tick, corner := "-", "+", "+"
	if utf8 {
		line, tick, corner = "─", "┬", "└"
	}
	axis := make([]string, columns)
	for i := range axis {
		axis[i] = line
	}
	labels := []byte(strings.Repeat(" ", margin+2+columns))
	free := 0
	for _, v := range s.xTicks {
		at := int(math.Round((v - s.x0) / (s.x1 - s.x0) * float64(columns-1)))
		if at < 0 || at >= columns {
			continue
		}
		text := label(v, s.xStep)
		from := min(margin+2+at-len(text)/2, len(labels)-len(text))
		if from < free {
			continue
		}
		axis[at] = tick
		copy(labels[from:], text)
		free = from + len(text) + 2
	}
	if name := c.XLabel; name != "" && len(labels)-free >= len(name) {
		copy(labels[len(labels)-len(name):], name)
	}
	fmt.Fprintf(b, "%*s %s%s\n", margin, "", corner, strings.Join(axis, ""))
	b.WriteString(strings.TrimRight(string(labels), " ") + "\n")
}
