// Package nearest owns the answer to a misspelt name: which known names the person may have meant.
package nearest

import (
	"slices"
	"strings"
)

// Names returns up to three of known that are close enough to word to be worth naming, the closest first.
//
// Close means at most a third of the letters differ (insertions, deletions, replacements and swaps of
// neighbours count one each), or one is a prefix of the other.
func Names(word string, known []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	w := fold(word)
	for _, name := range known {
		n := fold(name)
		d := Distance(w, n)
		if d <= max(len(w), len(n))/3 {
			close = append(close, candidate{name, d})
		} else if len(w) >= 3 && strings.HasPrefix(n, w) {
			close = append(close, candidate{name, len(n)})
		}
	}
	slices.SortStableFunc(close, func(a, b candidate) int { return a.distance - b.distance })
	var names []string
	for _, c := range close[:min(3, len(close))] {
		names = append(names, c.name)
	}
	return names
}

// Hint is the tail of an error message: "did you mean batch_size?", or "" when nothing is close.
func Hint(word string, known []string) string {
	names := Names(word, known)
	if len(names) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(names, " or ") + "?"
}

// fold makes spellings that differ only in case, dashes and underscores equal.
func fold(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s))
}

// Distance is the optimal string alignment distance of a and b, in bytes.
func Distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, prev[j]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], prev2[j-2]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
