// Package plot draws curves: as an SVG file that reads well in light and dark, and as text for a terminal.
//
// It owns scales, ticks and thinning, so that two points and a million look right in the same space. It reads no file and
// knows nothing of training.
package plot

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Series is one curve. X rises; a Y that is NaN or infinite is a gap.
type Series struct {
	Name string
	X, Y []float64
}

// Chart is a title, axes and up to four curves, drawn in their order.
type Chart struct {
	Title          string
	XLabel, YLabel string
	Series         []Series
}

// column is what a series shows in one column of the drawing: the mean and the range of the points that fall in it.
type column struct {
	x, mean, low, high float64
}

// scale is the part of the plane that is drawn, and the ticks inside it.
type scale struct {
	x0, x1, y0, y1 float64
	xTicks, yTicks []float64
	xStep, yStep   float64
}

// finite leaves room for differences: twice the largest value is still a number.
func finite(v float64) bool { return math.Abs(v) < 1e300 }

// thin gathers the points of s between x0 and x1 into n columns. A column's x is the mean of its points', so the first
// and the last point stay at the ends. Columns without a finite point are absent.
func thin(s Series, x0, x1 float64, n int) []column {
	var out []column
	at, count := -1, 0.0
	for i, y := range s.Y {
		x := s.X[i]
		if !finite(y) || !finite(x) {
			continue
		}
		k := 0
		if x1 > x0 {
			k = int((x - x0) / (x1 - x0) * float64(n-1))
		}
		if k != at {
			out = append(out, column{x, y, y, y})
			at, count = k, 1
			continue
		}
		c := &out[len(out)-1]
		count++
		c.x += (x - c.x) / count
		c.mean += (y - c.mean) / count
		c.low, c.high = min(c.low, y), max(c.high, y)
	}
	return out
}

// fit finds the scale that shows every series, with about the given numbers of ticks.
//
// The top is the largest column mean, not the largest value: one spike must not flatten the curve. A spike of means is cut
// at twice the level that nine in ten of them stay under. The bottom leaves out one low value in fifty.
func (c *Chart) fit(columns, xTicks, yTicks int) scale {
	x0, x1 := math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for i, x := range s.X {
			if finite(x) && finite(s.Y[i]) {
				x0, x1 = min(x0, x), max(x1, x)
			}
		}
	}
	if x0 > x1 {
		x0, x1 = 0, 1
	}
	var means, lows []float64
	for _, s := range c.Series {
		for _, col := range thin(s, x0, x1, columns) {
			means, lows = append(means, col.mean), append(lows, col.low)
		}
	}
	y0, y1 := bounds(means)
	if len(lows) > 0 {
		y0 = min(y0, quantile(lows, 0.02))
	}
	if x0 == x1 {
		x0, x1 = x0-0.5, x1+0.5
	}
	pad := (y1 - y0) * 0.04
	s := scale{x0: x0, x1: x1, y0: y0 - pad, y1: y1 + pad}
	s.xTicks, s.xStep = ticks(s.x0, s.x1, xTicks, 1)
	s.yTicks, s.yStep = ticks(s.y0, s.y1, yTicks, 0)
	return s
}

// bounds is the range of values to show, never empty.
func bounds(v []float64) (low, high float64) {
	if len(v) == 0 {
		return 0, 1
	}
	low, high = v[0], v[0]
	for _, x := range v {
		low, high = min(low, x), max(high, x)
	}
	if common := quantile(v, 0.9); len(v) >= 20 && high-low > 4*(common-low) && common > low {
		high = low + 2*(common-low)
	}
	if high-low < 1e-9*max(math.Abs(high), 1) {
		pad := max(math.Abs(high)*0.05, 0.5)
		low, high = low-pad, high+pad
	}
	return low, high
}

// quantile is the value that a share q of v stays under.
func quantile(v []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(v))
	return sorted[int(q*float64(len(sorted)-1))]
}

// ticks are round numbers from lo to hi, 1, 2 or 5 times a power of ten apart: as close as most of them allow, but no
// closer than least.
func ticks(lo, hi float64, most int, least float64) (at []float64, step float64) {
	power := math.Pow(10, math.Floor(math.Log10((hi-lo)/float64(most))))
	for _, m := range []float64{1, 2, 5, 10, 20} {
		step = m * power
		first, last := math.Ceil(lo/step-1e-9), math.Floor(hi/step+1e-9)
		if step < least || last-first+1 > float64(most) {
			continue
		}
		for i := first; i <= last; i++ {
			at = append(at, i*step)
		}
		break
	}
	return at, step
}

// label prints a tick with the digits that its step needs, and large ones in thousands: 0.5, 1.25, 20k, 1.5M.
func label(v, step float64) string {
	if v != 0 && (math.Abs(v) >= 1e12 || step < 1e-5) {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	for _, u := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= 10*u.size || math.Abs(v) >= u.size && math.Mod(step, u.size) == 0 {
			return trimmed(v/u.size, step/u.size) + u.name
		}
	}
	return trimmed(v, step)
}

func trimmed(v, step float64) string {
	digits := 0
	for s := math.Abs(step); digits < 6 && math.Abs(s-math.Round(s)) > 1e-6; digits++ {
		s *= 10
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.TrimLeft(text, "-0.") == "" {
		return "0"
	}
	return text
}

// end is the mean of the last of columns, or NaN: one iteration's loss alone is noise.
func end(columns []column) float64 {
	if len(columns) == 0 {
		return math.NaN()
	}
	return columns[len(columns)-1].mean
}
