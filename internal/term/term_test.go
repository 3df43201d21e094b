package term

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/snugml/snug/internal/units"
)

func stream(tty bool, width int) (*Stream, *bytes.Buffer) {
	var b bytes.Buffer
	return &Stream{Writer: &b, TTY: tty, Width: width, UTF8: true}, &b
}

// Columns line up whatever the script: Chinese and Japanese take two columns a character, Devanagari's marks none.
func TestTableAligns(t *testing.T) {
	s, b := stream(true, 40)
	table := &Table{Columns: []Column{{"name", Left}, {"size", Right}, {"why", Wrap}}}
	table.Add("logits", "6.14 GiB", "the batch is too large for the card you have")
	table.Add("显存不足", "1 B", "短")
	table.Add("मेमोरी", "22 B", "कारण")
	if err := s.Table(table); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimRight(b.String(), "\n"), "\n") {
		if w := Width(line); w > 40 {
			t.Errorf("line %d is %d columns wide: %q", i, w, line)
		}
		if strings.Contains(line, " B") || strings.Contains(line, "GiB") {
			head, _, _ := strings.Cut(line, "B")
			if w := Width(head); w != 17 {
				t.Errorf("line %d: size ends at column %d, want 17: %q", i, w, line)
			}
		}
	}
}

func TestNarrowTablePutsTheLastColumnUnderItsRow(t *testing.T) {
	s, b := stream(true, 30)
	table := &Table{Columns: []Column{{"change", Left}, {"why", Wrap}}}
	table.Add("batch_size=4", "half of it leaves room for others")
	table.Add("compile=False", "slower")
	if err := s.Table(table); err != nil {
		t.Fatal(err)
	}
	if want := "change\nbatch_size=4\n    half of it leaves room for\n    others\ncompile=False\n    slower\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestTablePiped(t *testing.T) {
	s, b := stream(false, 40)
	table := &Table{Columns: []Column{{"name", Left}, {"why", Wrap}}}
	table.Add("\x1b[31ma\x1b[0m", strings.Repeat("long ", 30))
	if err := s.Table(table); err != nil {
		t.Fatal(err)
	}
	if want := "name\twhy\na\t" + strings.Repeat("long ", 30) + "\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestBar(t *testing.T) {
	s, _ := stream(true, 80)
	for share, want := range map[float64]string{0: "····", 1: "████", 0.5: "██··", 0.3125: "█▎··", 2: "████", -1: "····"} {
		if got := s.Bar(share, 4); got != want {
			t.Errorf("Bar(%v) = %q, want %q", share, got, want)
		}
	}
	if got := s.Gauge(2*units.GiB, units.GiB, 8); got != "████▒▒▒▒" {
		t.Errorf("Gauge over the limit = %q", got)
	}
	s.UTF8 = false
	if got := s.Bar(0.5, 4) + s.Gauge(2, 1, 4); got != "##..##!!" {
		t.Errorf("plain bars = %q", got)
	}
}

func TestProgressFitsTheWidth(t *testing.T) {
	for _, width := range []int{20, 40, 80, 200} {
		s, b := stream(true, width)
		p := s.Progress("prepare", 100)
		clock := p.start
		p.now = func() time.Time { clock = clock.Add(time.Second); return clock }
		for i := range int64(101) {
			p.Set(i, "12.3 MB/s")
		}
		for _, line := range strings.Split(b.String(), "\r\x1b[K") {
			if Width(line) >= width {
				t.Errorf("width %d: %q", width, line)
			}
		}
	}
}

func TestPipedProgressIsSparse(t *testing.T) {
	s, b := stream(false, 80)
	p := s.Progress("prepare", 100)
	clock := p.start
	p.now = func() time.Time { clock = clock.Add(time.Second); return clock }
	for i := range int64(100) {
		p.Set(i, "")
	}
	if n := strings.Count(b.String(), "\n"); n != 10 || strings.Contains(b.String(), "\r") {
		t.Errorf("%d lines in 100 s: %q", n, b.String())
	}
}

// TestTimeLeftOfResumedWork: half was there before, a quarter took 25 s, so a quarter is left and takes as long.
func TestTimeLeftOfResumedWork(t *testing.T) {
	s, b := stream(false, 80)
	p := s.Progress("prepare", 100)
	p.From(50)
	clock := p.start.Add(25 * time.Second)
	p.now = func() time.Time { return clock }
	p.Set(75, "")
	if !strings.Contains(b.String(), "25.0 s left") {
		t.Errorf("%q, want 25.0 s left", b.String())
	}
}

func TestOpenRespectsTheEnvironment(t *testing.T) {
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	if !utf8Locale(env(nil)) || utf8Locale(env(map[string]string{"LANG": "C"})) || !utf8Locale(env(map[string]string{"LC_ALL": "de_DE.UTF-8", "LANG": "C"})) {
		t.Error("utf8Locale is wrong")
	}
	s := &Stream{Color: false}
	if s.Paint(Red, "x") != "x" {
		t.Error("painted without colours")
	}
	s.Color = true
	if s.Paint(Red, "x") != "\x1b[31mx\x1b[0m" {
		t.Error("not painted")
	}
}

// Widths as glibc's wcwidth and tmux have them.
func TestWidth(t *testing.T) {
	for text, want := range map[string]int{
		"logits": 6, "日本語": 6, "परिणाम": 6, "अन्य प्रोसेस, डेस्कटॉप": 17, "für": 3, "\x1b[31mred\x1b[0m": 3, "": 0,
	} {
		if got := Width(text); got != want {
			t.Errorf("Width(%q) = %d, want %d", text, got, want)
		}
		for _, line := range Wrapped(strings.Repeat(text+" ", 20), 30) {
			if w := Width(line); w > 30 {
				t.Errorf("Wrapped(%q) has a line of %d columns", text, w)
			}
		}
	}
}

// A line breaks at spaces on a terminal, never inside colours, and stays one line where it is piped.
func TestLine(t *testing.T) {
	const text = "snug: open data: no folder data/openwebtext"
	for name, c := range map[string]struct {
		tty   bool
		width int
		want  string
	}{
		"piped":  {false, 20, text + "\n"},
		"wide":   {true, 80, text + "\n"},
		"exact":  {true, len(text), text + "\n"},
		"narrow": {true, 30, "snug: open data: no folder\n  data/openwebtext\n"},
	} {
		var b strings.Builder
		s := &Stream{Writer: &b, TTY: c.tty, Width: c.width}
		s.Line(text)
		if b.String() != c.want {
			t.Errorf("%s: %q, want %q", name, b.String(), c.want)
		}
	}
}
