package term

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/snugml/snug/internal/units"
)

var eighths = []rune(" ▏▎▍▌▋▊▉█")

// Bar draws a share from 0 to 1 over width columns, in eighths of a column where the stream can.
func (s *Stream) Bar(share float64, width int) string {
	if math.IsNaN(share) {
		share = 0
	}
	share = max(0, min(1, share))
	if !s.UTF8 {
		full := int(math.Round(share * float64(width)))
		return strings.Repeat("#", full) + strings.Repeat(".", width-full)
	}
	n := int(math.Round(share * float64(width) * 8))
	b := strings.Repeat("█", n/8)
	if n%8 != 0 {
		b += string(eighths[n%8])
	}
	return b + strings.Repeat("·", width-(n+7)/8)
}

// Gauge draws value against limit on one bar of width columns that ends at the larger of the two:
// what is beyond the limit shows as ▒ (or !), so that an overflow is seen at once.
func (s *Stream) Gauge(value, limit units.Bytes, width int) string {
	if limit <= 0 || value <= limit {
		if limit <= 0 {
			limit = max(1, value)
		}
		return s.Paint(Green, s.Bar(float64(value)/float64(limit), width))
	}
	inside := int(math.Round(float64(limit) / float64(value) * float64(width)))
	full, over := "█", "▒"
	if !s.UTF8 {
		full, over = "#", "!"
	}
	return s.Paint(Green, strings.Repeat(full, inside)) + s.Paint(Red, strings.Repeat(over, width-inside))
}

// Progress shows long work on a stream: a bar that is redrawn on a terminal, a line now and then where it is piped.
type Progress struct {
	out     *Stream
	label   string
	total   int64
	from    int64 // done before the start
	start   time.Time
	drawn   time.Time
	now     func() time.Time
	every   time.Duration
	visible bool
}

// Progress starts a display of work with total steps (0 is unknown).
func (s *Stream) Progress(label string, total int64) *Progress {
	p := &Progress{out: s, label: label, total: total, now: time.Now, every: 100 * time.Millisecond}
	if !s.TTY {
		p.every = 10 * time.Second
	}
	p.start = p.now()
	p.drawn = p.start
	return p
}

// From says how much was done before, by a run that this one goes on from: the time left is reckoned from the rest.
func (p *Progress) From(done int64) { p.from = done }

// Set says how much is done; note stands at the end of the line.
func (p *Progress) Set(done int64, note string) {
	now := p.now()
	if now.Sub(p.drawn) < p.every {
		return
	}
	p.drawn = now
	p.draw(done, note, now)
}

func (p *Progress) draw(done int64, note string, now time.Time) {
	if p.total <= 0 {
		p.line(fmt.Sprintf("%s  %s", p.label, note))
		return
	}
	share := float64(done) / float64(p.total)
	left := ""
	if elapsed := now.Sub(p.start); done > p.from && done < p.total {
		left = units.Duration(time.Duration(float64(elapsed)*float64(p.total-done)/float64(done-p.from))) + " left"
	}
	tail := strings.TrimRight(fmt.Sprintf("%3.0f%%  %s  %s", share*100, note, left), " ")
	if !p.out.TTY {
		p.line(p.label + " " + tail)
		return
	}
	width := min(30, p.out.Width-Width(p.label)-Width(tail)-3)
	if width < 5 {
		p.line(p.label + " " + tail)
		return
	}
	p.line(p.label + " " + p.out.Paint(Cyan, p.out.Bar(share, width)) + " " + tail)
}

func (p *Progress) line(text string) {
	if !p.out.TTY {
		fmt.Fprintln(p.out, text)
		return
	}
	fmt.Fprint(p.out, "\r\x1b[K"+Truncate(text, p.out.Width-1))
	p.visible = true
}

// Clear removes the bar, so that something else can be printed; the next Set draws it again.
func (p *Progress) Clear() {
	if p.visible {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.visible = false
		p.drawn = time.Time{}
	}
}
