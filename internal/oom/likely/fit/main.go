// Fit makes likely.txt from labelled reports: fit FOLDER... > likely.txt
//
// A folder holds labels.json, {"001": {"phase": ["eval"], "shows": true}, …}, and the reports, 001.txt …. What is fitted is a
// softmax over the words' weights (multinomial logistic regression, L2), every phase counting the same however many reports
// show it, first over all words that three reports have, then again over the best of them. How well it does on reports that
// it was not fitted to goes to standard error: in ten parts, each guessed from the other nine.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/oom/likely"
)

const (
	least  = 3    // reports that must have a word
	most   = 3000 // words in the table
	ridge  = 10.0 // the weight of the squared weights
	rounds = 400  // of gradient descent
	parts  = 10
)

var phases = []string{"backward", "compile", "data", "eval", "forward", "init", "load", "optimizer", "sample", "save"}

// report is a labelled one: its words, and the phases that are right.
type report struct {
	words map[string]bool
	right map[string]bool
}

func main() {
	var all []report
	for _, folder := range os.Args[1:] {
		found, err := read(folder)
		if err != nil {
			fmt.Fprintln(os.Stderr, "fit:", err)
			os.Exit(1)
		}
		all = append(all, found...)
	}
	if len(all) < parts {
		fmt.Fprintf(os.Stderr, "fit: %d labelled reports, at least %d are needed: fit FOLDER...\n", len(all), parts)
		os.Exit(2)
	}
	check(os.Stderr, all)
	write(os.Stdout, fit(all))
}

// read reads a folder's reports that show their phase, in order.
func read(folder string) ([]report, error) {
	raw, err := os.ReadFile(filepath.Join(folder, "labels.json"))
	if err != nil {
		return nil, err
	}
	var labels map[string]struct {
		Phase []string
		Shows bool
	}
	if err := json.Unmarshal(raw, &labels); err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	var all []report
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		l := labels[name]
		if !l.Shows {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, name+".txt"))
		if err != nil {
			return nil, err
		}
		var g likely.Gist
		g.Write(text)
		r := report{g.Words(), map[string]bool{}}
		for _, p := range l.Phase {
			if !slices.Contains(phases, p) {
				return nil, fmt.Errorf("%s: report %s is labelled %q, not one of %s", folder, name, p, strings.Join(phases, " "))
			}
			r.right[p] = true
		}
		all = append(all, r)
	}
	return all, nil
}

// check prints how many guesses are right on reports left out of the fit, by the least chance that is told.
func check(w io.Writer, all []report) {
	type guess struct {
		chance float64
		right  bool
	}
	var guesses []guess
	for part := range parts {
		var rest, left []report
		for i, r := range all {
			if i%parts == part {
				left = append(left, r)
			} else {
				rest = append(rest, r)
			}
		}
		t := fit(rest)
		for _, r := range left {
			phase, chance := t.Guess(r.words, "")
			guesses = append(guesses, guess{chance, r.right[phase]})
		}
	}
	for _, enough := range []float64{0, 0.3, 0.4, 0.5, 0.6, 0.8} {
		told, right := 0, 0
		for _, g := range guesses {
			if g.chance >= enough {
				told++
				if g.right {
					right++
				}
			}
		}
		fmt.Fprintf(w, "chance >= %.1f: %d of %d told, %d right\n", enough, told, len(all), right)
	}
}

// fit fits a table.
func fit(all []report) *likely.Table {
	count := map[string]int{}
	for _, r := range all {
		for w := range r.words {
			count[w]++
		}
	}
	var words []string
	for w, n := range count {
		if n >= least {
			words = append(words, w)
		}
	}
	slices.Sort(words)
	t := descend(all, words)
	weighs := func(w string) float64 {
		top := 0.0
		for _, x := range t.Weight[w] {
			top = max(top, math.Abs(x))
		}
		return top * math.Sqrt(float64(count[w]))
	}
	slices.SortStableFunc(words, func(a, b string) int { return cmp.Compare(weighs(b), weighs(a)) })
	words = slices.Clone(words[:min(most, len(words))])
	slices.Sort(words)
	return descend(all, words)
}

// descend minimises the cross entropy of the right phases plus ridge/2 |weights|^2, by gradient descent with momentum.
func descend(all []report, words []string) *likely.Table {
	at := map[string]int{}
	for i, w := range words {
		at[w] = i
	}
	P, W := len(phases), len(words)
	docs, target, price := make([][]int, len(all)), make([][]float64, len(all)), make([]float64, len(all))
	share := make([]float64, P) // of the reports
	for d, r := range all {
		for w := range r.words {
			if i, ok := at[w]; ok {
				docs[d] = append(docs[d], i)
			}
		}
		slices.Sort(docs[d])
		target[d] = make([]float64, P)
		for i, p := range phases {
			if r.right[p] {
				target[d][i] = 1 / float64(len(r.right))
				share[i] += target[d][i]
			}
		}
	}
	for d := range all {
		for i := range P {
			if target[d][i] > 0 {
				price[d] += target[d][i] * float64(len(all)) / (float64(P) * share[i])
			}
		}
	}
	x, v, g := make([]float64, (W+1)*P), make([]float64, (W+1)*P), make([]float64, (W+1)*P) // the last row is the bias
	rate := 0.0
	for _, doc := range docs {
		rate = max(rate, float64(len(doc)))
	}
	rate = 4 / (rate * float64(len(all)) / 4) // a step that the curvature allows
	p := make([]float64, P)
	for range rounds {
		for i := range x {
			g[i] = ridge * x[i]
		}
		for d, doc := range docs {
			copy(p, x[W*P:])
			for _, w := range doc {
				for i := range P {
					p[i] += x[w*P+i]
				}
			}
			top, sum := slices.Max(p), 0.0
			for i := range p {
				p[i] = math.Exp(p[i] - top)
				sum += p[i]
			}
			for i := range p {
				p[i] = price[d] * (p[i]/sum - target[d][i])
				g[W*P+i] += p[i]
			}
			for _, w := range doc {
				for i := range P {
					g[w*P+i] += p[i]
				}
			}
		}
		for i := range x {
			v[i] = 0.9*v[i] - rate*g[i]
			x[i] += v[i]
		}
	}
	t := &likely.Table{Phases: phases, Bias: x[W*P:], Weight: map[string][]float64{}}
	for i, w := range words {
		t.Weight[w] = x[i*P:][:P]
	}
	return t
}

// write prints a table as Parse reads it.
func write(w io.Writer, t *likely.Table) {
	row := func(word string, weights []float64) {
		fmt.Fprint(w, word)
		for _, x := range weights {
			fmt.Fprintf(w, " %.2f", x+0) // no -0.00
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, strings.Join(t.Phases, " "))
	row("-", t.Bias)
	for _, word := range slices.Sorted(maps.Keys(t.Weight)) {
		row(word, t.Weight[word])
	}
}
