package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
)

// The drawing in CSS pixels. The margins hold the axis labels on the left and below, the curves' names on the right.
const (
	svgWidth, svgHeight                      = 800, 450
	plotLeft, plotRight, plotTop, plotBottom = 64, 690, 52, 396
	plotColumns, xTickCount, yTickCount      = 313, 7, 6 // a column every two pixels
	mostMarkers                              = 60
)

// palette is a set of colours: paper, ink, soft ink, grid, and four curves.
type palette struct {
	paper, ink, soft, grid string
	curves                 [4]string
}

// The light curves are Paul Tol's bright scheme, which stays apart for colour-blind readers; dark has lighter ones.
var (
	light = palette{"#ffffff", "#24292f", "#57606a", "#d8dee4", [4]string{"#4477aa", "#ee6677", "#228833", "#aa3377"}}
	dark  = palette{"#0d1117", "#e6edf3", "#9198a1", "#2a313c", [4]string{"#79b8ff", "#ff9492", "#56d364", "#d2a8ff"}}
)

// css names the colours as classes. CSS variables would be shorter, but librsvg and Inkscape draw them black.
func (p palette) css() string {
	var b strings.Builder
	fmt.Fprintf(&b, ".paper{fill:%s}text{fill:%s}.title{fill:%s}.grid{stroke:%s}.axis{stroke:%s}", p.paper, p.soft, p.ink, p.grid, p.soft)
	for i, c := range p.curves {
		fmt.Fprintf(&b, ".line%d{stroke:%s}.fill%d{fill:%s}", i, c, i, c)
	}
	return b.String()
}

func style() string {
	return `text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}.title{font-size:16px;font-weight:600}.name{font-weight:600}` +
		`.value{font-weight:400}.grid,.axis,.line{fill:none}.line{stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.band{opacity:.22}` + "\n" +
		light.css() + "\n@media(prefers-color-scheme:dark){" + dark.css() + "}\n"
}

// SVG writes the chart as a file of its own. Where a column holds many points, their range is a pale band behind the mean.
func (c *Chart) SVG(w io.Writer) error {
	var b bytes.Buffer
	d := &drawing{b: &b, s: c.fit(plotColumns, xTickCount, yTickCount)}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", svgWidth, svgHeight, svgWidth, svgHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escape(c.Title), style())
	fmt.Fprintf(&b, `<rect class="paper" width="%d" height="%d"/>`+"\n", svgWidth, svgHeight)
	fmt.Fprintf(&b, `<text class="title" x="%d" y="28">%s</text>`+"\n", plotLeft, escape(c.Title))
	d.axes(c)
	fmt.Fprintf(&b, `<clipPath id="plot"><rect x="%d" y="%d" width="%d" height="%d"/></clipPath>`+"\n", plotLeft-3, plotTop-3, plotRight-plotLeft+6, plotBottom-plotTop+6)
	b.WriteString(`<g clip-path="url(#plot)">` + "\n")
	for i, s := range c.Series {
		d.curve(s, i)
	}
	b.WriteString("</g>\n")
	d.names(c.Series)
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

type drawing struct {
	b *bytes.Buffer
	s scale
}

func (d *drawing) x(v float64) float64 {
	return plotLeft + (v-d.s.x0)/(d.s.x1-d.s.x0)*(plotRight-plotLeft)
}

func (d *drawing) y(v float64) float64 {
	return plotBottom - (v-d.s.y0)/(d.s.y1-d.s.y0)*(plotBottom-plotTop)
}

func (d *drawing) axes(c *Chart) {
	for _, v := range d.s.yTicks {
		y := math.Round(d.y(v)) + 0.5
		fmt.Fprintf(d.b, `<path class="grid" d="M%d %.1fH%d"/>`, plotLeft, y, plotRight)
		fmt.Fprintf(d.b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft-10, y+4, label(v, d.s.yStep))
	}
	for _, v := range d.s.xTicks {
		x := math.Round(d.x(v)) + 0.5
		fmt.Fprintf(d.b, `<path class="axis" d="M%.1f %dv5"/>`, x, plotBottom)
		fmt.Fprintf(d.b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, plotBottom+20, label(v, d.s.xStep))
	}
	fmt.Fprintf(d.b, `<path class="axis" d="M%d %.1fH%d"/>`+"\n", plotLeft, plotBottom+0.5, plotRight)
	fmt.Fprintf(d.b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotRight)/2, svgHeight-14, escape(c.XLabel))
	fmt.Fprintf(d.b, `<text x="18" y="%d" text-anchor="middle" transform="rotate(-90 18 %d)">%s</text>`+"\n", (plotTop+plotBottom)/2, (plotTop+plotBottom)/2, escape(c.YLabel))
}

func (d *drawing) curve(s Series, i int) {
	columns := thin(s, d.s.x0, d.s.x1, plotColumns)
	if len(columns) == 0 {
		return
	}
	i %= len(light.curves)
	if len(s.Y) > 2*len(columns) {
		fmt.Fprintf(d.b, `<path class="band fill%d" d="`, i)
		for k, c := range columns {
			d.point(k == 0, c.x, c.high)
		}
		for k := len(columns) - 1; k >= 0; k-- {
			d.point(false, columns[k].x, columns[k].low)
		}
		d.b.WriteString("Z\"/>\n")
	}
	fmt.Fprintf(d.b, `<path class="line line%d" d="`, i)
	for k, c := range columns {
		d.point(k == 0, c.x, c.mean)
	}
	d.b.WriteString("\"/>\n")
	if len(s.Y) > mostMarkers {
		return
	}
	for _, c := range columns {
		fmt.Fprintf(d.b, `<circle class="fill%d" cx="%.1f" cy="%.1f" r="3"/>`+"\n", i, d.x(c.x), d.y(c.mean))
	}
}

// point extends a path. Heights far outside are brought near: some renderers lose precision beyond.
func (d *drawing) point(first bool, x, y float64) {
	op := byte('L')
	if first {
		op = 'M'
	}
	fmt.Fprintf(d.b, "%c%.1f %.1f", op, d.x(x), max(-svgHeight, min(2*svgHeight, d.y(y))))
}

// names puts each curve's name and last value beside its end, pushed apart where ends meet.
func (d *drawing) names(series []Series) {
	type place struct {
		i    int
		y, v float64
	}
	var ends []place
	for i, s := range series {
		if v := end(thin(s, d.s.x0, d.s.x1, plotColumns)); finite(v) {
			ends = append(ends, place{i, max(plotTop, min(plotBottom, d.y(v))), v})
		}
	}
	sort.SliceStable(ends, func(a, b int) bool { return ends[a].y < ends[b].y })
	const gap = 34
	for k := range ends {
		if k > 0 {
			ends[k].y = max(ends[k].y, ends[k-1].y+gap)
		}
	}
	for k := len(ends) - 1; k >= 0; k-- {
		limit := float64(plotBottom - 12)
		if k < len(ends)-1 {
			limit = ends[k+1].y - gap
		}
		ends[k].y = min(ends[k].y, limit)
	}
	for _, e := range ends {
		fmt.Fprintf(d.b, `<text class="name fill%d" x="%d" y="%.1f">%s<tspan class="value" x="%d" dy="16">%.4f</tspan></text>`+"\n",
			e.i%len(light.curves), plotRight+12, e.y, escape(series[e.i].Name), plotRight+12, e.v)
	}
}

func escape(s string) string {
	var b bytes.Buffer
	xml.EscapeText(&b, []byte(s)) // a bytes.Buffer does not fail
	return b.String()
}
