// Package likely guesses in which phase a run failed from the words of its log or report, where no call, line or sentence
// shows it. It owns the words and their weights, which fit makes from labelled reports, and knows nothing of tracebacks.
package likely

import (
	_ "embed"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// keep is how much of each end of a text is read: a report is shorter, and a long log tells what it did at its ends.
const keep = 16 << 10

// Gist is the two ends of a text. The zero value is empty; it is an io.Writer that never fails.
type Gist struct {
	head, tail []byte
}

// Write takes the next bytes of the text.
func (g *Gist) Write(p []byte) (int, error) {
	n := len(p)
	if free := keep - len(g.head); free > 0 {
		take := min(free, len(p))
		g.head, p = append(g.head, p[:take]...), p[take:]
	}
	if len(p) >= keep {
		g.tail = append(g.tail[:0], p[len(p)-keep:]...)
	} else {
		if over := len(g.tail) + len(p) - keep; over > 0 {
			g.tail = g.tail[:copy(g.tail, g.tail[over:])]
		}
		g.tail = append(g.tail, p...)
	}
	return n, nil
}

// Words are the distinct words of the text, and once more, after the letter of their place, those of its first line (t), of its last
// lines (e), and of Python's calls: their functions (f), files (p) and source lines (c), and all of these in the two innermost (i).
func (g *Gist) Words() map[string]bool {
	words := map[string]bool{}
	add := func(place, text string) { split(text, func(w string) { words[place+w] = true }) }
	text := string(g.head) + string(g.tail)
	add("", text)
	title, _, _ := strings.Cut(text, "\n")
	add("t:", title)
	add("e:", text[max(0, len(text)-ending):])
	calls := callExpr().FindAllStringSubmatch(text, -1)
	for n, c := range calls {
		file := c[1][strings.LastIndexAny(c[1], `/\`)+1:]
		add("f:", c[2])
		add("p:", file)
		add("c:", c[3])
		if n >= len(calls)-2 {
			add("i:", file+" "+c[2]+" "+c[3])
		}
	}
	return words
}

// ending is how many bytes the last lines are taken for.
const ending = 400

// callExpr is a call of a Python traceback and its source line.
var callExpr = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`File "([^"\n]+)", line \d+, in (\S+)\n[ \t]*([^\n]*)`)
})

// split calls add for each word of a text, in lower case and without its ending: runs of Latin letters, parted where lower
// case turns to upper (EvalLoop), and each letter of a script that writes without spaces.
func split(text string, add func(string)) {
	start, before := -1, rune(0)
	end := func(i int) {
		if start >= 0 && i-start > 1 {
			add(stem(strings.ToLower(text[start:i])))
		}
		start = -1
	}
	for i, c := range text {
		switch {
		case c < utf8.RuneSelf && unicode.IsLetter(c):
			if unicode.IsUpper(c) && unicode.IsLower(before) {
				end(i)
			}
			if start < 0 {
				start = i
			}
		case unicode.In(c, unicode.Han, unicode.Hiragana, unicode.Katakana):
			end(i)
			add(string(c))
		default:
			end(i)
		}
		before = c
	}
	end(len(text))
}

// endings are cut off where four letters stay.
var endings = []string{"ing", "ion", "ed", "s", "e"}

func stem(w string) string {
	for _, e := range endings {
		if len(w) >= len(e)+4 && strings.HasSuffix(w, e) {
			return w[:len(w)-len(e)]
		}
	}
	return w
}

// Table is a weight for each word and phase; the phase whose weights sum to the most is the likeliest.
type Table struct {
	Phases []string
	Bias   []float64
	Weight map[string][]float64
}

// bias is the word under which a table's file holds what each phase has without any word.
const bias = "-"

//go:embed likely.txt
var embedded string

var table = sync.OnceValue(func() *Table {
	t, err := Parse(embedded)
	if err != nil {
		panic("likely.txt: " + err.Error())
	}
	return t
})

// Parse reads a table: a line of phases, then a line a word, its weights in their order.
func Parse(text string) (*Table, error) {
	t := &Table{Weight: map[string][]float64{}}
	for n, line := range strings.Split(strings.TrimSpace(text), "\n") {
		fields := strings.Fields(line)
		if n == 0 {
			t.Phases = fields
			continue
		}
		if len(fields) != len(t.Phases)+1 {
			return nil, fmt.Errorf("line %d has %d fields, not %d", n+1, len(fields), len(t.Phases)+1)
		}
		weights := make([]float64, len(t.Phases))
		for i, f := range fields[1:] {
			w, err := strconv.ParseFloat(f, 64)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", n+1, err)
			}
			weights[i] = w
		}
		if fields[0] == bias {
			t.Bias = weights
		} else {
			t.Weight[fields[0]] = weights
		}
	}
	if t.Bias == nil {
		return nil, fmt.Errorf("no line %q", bias)
	}
	return t, nil
}

// Guess is the likeliest phase of a text with these words, and its chance among all of them. The phase that the text shows, "" for
// none, is Shown times as likely as they say.
func (t *Table) Guess(words map[string]bool, shown string) (phase string, chance float64) {
	p := t.Chances(words)
	best, sum := 0, 0.0
	for i := range p {
		if t.Phases[i] == shown {
			p[i] *= Shown
		}
		sum += p[i]
		if p[i] > p[best] {
			best = i
		}
	}
	return t.Phases[best], p[best] / sum
}

// Chances are exp(sum of weights), over their sum: one for each phase.
func (t *Table) Chances(words map[string]bool) []float64 {
	p := append([]float64(nil), t.Bias...)
	for w := range words {
		for i, x := range t.Weight[w] {
			p[i] += x
		}
	}
	top, sum := math.Inf(-1), 0.0
	for _, x := range p {
		top = max(top, x)
	}
	for i, x := range p {
		p[i] = math.Exp(x - top)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// A guess is told from a chance of Enough on, twice what one of ten phases has by itself; from Probable on it is right in nine of
// ten reports that the table was not fitted to, below it in about half.
const (
	Enough   = 0.2
	Probable = 0.4
)

// Shown is how many times as likely as its words say a phase is that the calls, lines or sentences of a log show. Of 503 reports that
// neither was made for, the words outweighed a whole traceback at that in 9: they were right in 6, and no right phase was lost.
const Shown = 12

// Guess is the likeliest phase of the text and its chance, "" where none is likely enough; shown is as the table's Guess has it.
func (g *Gist) Guess(shown string) (phase string, chance float64) {
	if phase, chance = table().Guess(g.Words(), shown); chance < Enough {
		return "", 0
	}
	return phase, chance
}
