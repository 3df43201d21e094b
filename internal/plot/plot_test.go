package plot

import (
	"encoding/xml"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func curve(name string, n int, f func(i int) float64) Series {
	s := Series{Name: name}
	for i := range n {
		s.X, s.Y = append(s.X, float64(i)), append(s.Y, f(i))
	}
	return s
}

func falling(n int) *Chart {
	return &Chart{Title: "loss <of> a & b", XLabel: "iteration", YLabel: "loss", Series: []Series{
		curve("train", n, func(i int) float64 { return 1.3 + 2.9*math.Exp(-8*float64(i)/float64(n)) }),
		curve("val", n, func(i int) float64 { return 1.5 + 2.7*math.Exp(-8*float64(i)/float64(n)) }),
	}}
}

// charts are what a run can leave, good or bad.
var charts = map[string]*Chart{
	"nothing":        {Title: "none"},
	"an empty curve": {Series: []Series{{Name: "train"}}},
	"one point":      falling(1),
	"two points":     falling(2),
	"300":            falling(300),
	"100k":           falling(100_000),
	"constant":       {Series: []Series{curve("train", 50, func(int) float64 { return 2 })}},
	"zero":           {Series: []Series{curve("train", 50, func(int) float64 { return 0 })}},
	"diverged":       {Series: []Series{curve("train", 50, func(i int) float64 { return math.Exp(float64(i * 10)) })}},
	"all NaN":        {Series: []Series{curve("train", 50, func(int) float64 { return math.NaN() })}},
	"NaN at the end": {Series: []Series{curve("train", 50, func(i int) float64 { return 4 / float64(max(0, 30-i)) })}},
	"huge":           {Series: []Series{curve("train", 50, func(i int) float64 { return float64(i) * 1e300 })}},
	"six curves":     {Series: []Series{falling(3).Series[0], falling(4).Series[0], falling(5).Series[0], falling(6).Series[0], falling(7).Series[0], falling(8).Series[0]}},
}

// Whatever the values: the SVG is well-formed, small, and has no NaN in it; the text keeps to its width and height.
func TestEveryChartDraws(t *testing.T) {
	for name, c := range charts {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := c.SVG(&b); err != nil {
				t.Fatal(err)
			}
			dec := xml.NewDecoder(strings.NewReader(b.String()))
			for {
				if _, err := dec.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if strings.Contains(b.String(), "NaN") || strings.Contains(b.String(), "Inf") {
				t.Errorf("a coordinate is not finite: %s", b.String())
			}
			if b.Len() > 40_000 {
				t.Errorf("%d bytes", b.Len())
			}
			for _, st := range []Style{{Width: 80, Height: 14, UTF8: true}, {Width: 40, Height: 10}, {Width: 1, Height: 1}, {Width: 200, Height: 40, UTF8: true}} {
				lines := strings.Split(strings.TrimSuffix(c.Text(st), "\n"), "\n")
				if want := max(st.Height, 6); len(lines) != want {
					t.Errorf("%d lines, want %d", len(lines), want)
				}
				for _, line := range lines[1:] {
					if n := utf8.RuneCountInString(line); n > max(st.Width, 30) {
						t.Errorf("a line of %d characters in a width of %d: %q", n, st.Width, line)
					}
					if !st.UTF8 && len(line) != utf8.RuneCountInString(line) {
						t.Errorf("%q is not ASCII", line)
					}
				}
			}
		})
	}
}

func TestTextGolden(t *testing.T) {
	want := `   . train 1.3011  o val 1.5010
4 +o
  | o
  |  o
3 +   o
  |    oo
2 +     .oo
  |       .ooooooooooooooooooooo
  |            .................
  ++-------------+--------------
   0            50     iteration
`
	got := falling(100).Text(Style{Width: 32, Height: 11})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s\n%s", diff, got)
	}
}

func TestPaintIsGivenTheSeries(t *testing.T) {
	paint := func(i int, text string) string { return string(rune('A'+i)) + strings.TrimSpace(text) }
	got := falling(100).Text(Style{Width: 60, Height: 12, UTF8: true, Paint: paint})
	if !strings.Contains(got, "A") || !strings.Contains(got, "B") {
		t.Errorf("the series are not painted apart:\n%s", got)
	}
}

func TestTicksAreRoundAndInside(t *testing.T) {
	for _, c := range []struct{ lo, hi float64 }{{0, 1}, {1.3, 4.2}, {0, 600_000}, {-0.5, 0.5}, {1e-9, 2e-9}, {10.8, 11}, {0, 1e300}, {3.1, 3.2}} {
		for _, most := range []int{3, 6, 20} {
			at, step := ticks(c.lo, c.hi, most, 0)
			if len(at) < 1 || len(at) > most {
				t.Errorf("[%g, %g] has %d ticks, at most %d are wanted", c.lo, c.hi, len(at), most)
			}
			for _, v := range at {
				if v < c.lo-1e-6*step || v > c.hi+1e-6*step {
					t.Errorf("tick %g is outside [%g, %g]", v, c.lo, c.hi)
				}
			}
		}
	}
}

func TestLabels(t *testing.T) {
	for _, c := range []struct {
		v, step float64
		want    string
	}{{0, 1, "0"}, {1.5, 0.5, "1.5"}, {2, 0.5, "2.0"}, {500, 500, "500"}, {1000, 500, "1000"}, {1000, 1000, "1k"}, {20_000, 5000, "20k"},
		{12_500, 500, "12.5k"}, {1_500_000, 500_000, "1500k"}, {2e6, 1e6, "2M"}, {-0.1, 0.1, "-0.1"}, {0.25, 0.05, "0.25"}} {
		if got := label(c.v, c.step); got != c.want {
			t.Errorf("label(%g, step %g) = %q, want %q", c.v, c.step, got, c.want)
		}
	}
}

// Thinning keeps the ends where they are and every column's mean inside its range.
func TestThinKeepsTheEnds(t *testing.T) {
	s := curve("x", 100_000, func(i int) float64 { return math.Sin(float64(i)) })
	cols := thin(s, 0, 99_999, 313)
	if len(cols) > 313 || len(cols) < 300 {
		t.Errorf("%d columns", len(cols))
	}
	if cols[len(cols)-1].x != 99_999 {
		t.Errorf("the last column is at %g", cols[len(cols)-1].x)
	}
	for _, c := range cols {
		if !(c.low <= c.mean && c.mean <= c.high) {
			t.Errorf("mean %g outside [%g, %g]", c.mean, c.low, c.high)
		}
	}
}

// One spike must not flatten the curve.
func TestASpikeDoesNotSetTheScale(t *testing.T) {
	c := falling(5000)
	c.Series[0].Y[3000] = 1e6
	if s := c.fit(313, 7, 6); s.y1 > 20 {
		t.Errorf("the scale goes up to %g", s.y1)
	}
}
