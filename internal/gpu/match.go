package gpu

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/nearest"
	"github.com/snugml/snug/internal/units"
)

// Match finds the card that a person means: "rtx 3060", "3090ti", "A100-SXM4-80GB", "4070 mobile".
//
// Case, punctuation and brand words don't matter; every other word does, so "3060" is never the 3060 Ti, and a laptop's
// card must be asked for as one. Cards that differ only in clock and mounting (A100 80GB on PCIe or SXM) are one for
// planning: the slower is taken. What stays ambiguous is refused with the candidates, what is unknown with the nearest names.
func Match(query string) (Card, error) {
	words := wordsOf(query)
	if len(words) == 0 {
		return Card{}, fmt.Errorf("card %q: name one, such as \"rtx 3060\"", query)
	}
	var exact, desktop, all []Card
	for _, c := range Cards() {
		for _, name := range append([]string{c.Name}, c.Aliases...) {
			have := wordsOf(name)
			if sameModel(words, have) {
				exact = append(exact, c)
				break
			}
			if asksFor(words, have, c) {
				all = append(all, c)
				if !c.Laptop || slices.Contains(words, "laptop") {
					desktop = append(desktop, c)
				}
				break
			}
		}
	}
	for _, found := range [][]Card{exact, desktop, all} {
		if len(found) > 0 && interchangeable(found) {
			return slowest(found), nil
		}
	}
	if len(exact)+len(all) > 0 {
		return Card{}, &AmbiguousError{Query: query, Candidates: append(exact, all...)}
	}
	return Card{}, &UnknownError{Query: query, Nearest: nearestCards(words, 3)}
}

// ForDevice finds the card of a live device from the driver's name for it and the memory CUDA or NVML reports,
// which tells apart the cards that share a name (the 3080 with 10 and 12 GB).
func ForDevice(name string, total units.Bytes) (Card, bool) {
	if c, err := Match(name); err == nil && near(c, total) {
		return c, true
	}
	words := wordsOf(name)
	var best []Card
	for _, c := range Cards() {
		if near(c, total) && asksFor(words, wordsOf(c.Name), c) && c.Laptop == slices.Contains(words, "laptop") {
			best = append(best, c)
		}
	}
	if len(best) == 0 || !interchangeable(best) {
		return Card{}, false
	}
	return slowest(best), true
}

// near allows a tenth between the catalogue's memory and the device's: ECC takes a sixteenth, drivers a little more.
func near(c Card, total units.Bytes) bool {
	return math.Abs(float64(total-c.Memory)) <= 0.1*float64(c.Memory)
}

// AmbiguousError says that a name stands for several cards.
type AmbiguousError struct {
	Query      string
	Candidates []Card
}

func (e *AmbiguousError) Error() string {
	const most = 8
	if n := len(e.Candidates); n > most {
		return fmt.Sprintf("card %q is ambiguous: name its model, as in %s (%d cards)", e.Query, list(e.Candidates[:most]), n)
	}
	return fmt.Sprintf("card %q is ambiguous: choose one of %s", e.Query, list(e.Candidates))
}

// UnknownError says that no card has that name.
type UnknownError struct {
	Query   string
	Nearest []Card
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("card %q is unknown: nearest are %s; or give its memory with --vram", e.Query, list(e.Nearest))
}

func list(cards []Card) string {
	names := make([]string, len(cards))
	for i, c := range cards {
		names[i] = c.Name
		if size := fmt.Sprintf("%dGB", c.NominalGB); !strings.Contains(c.Name, size) {
			names[i] += " (" + size + ")"
		}
	}
	return strings.Join(names, ", ")
}

var (
	separators = regexp.MustCompile(`[^a-z0-9.]+`)
	// glued finds where people join words: rtx3060, 3060ti, 80gb, 4090d.
	glued = regexp.MustCompile(`^(rtx|gtx|titan|tesla|quadro|geforce|nvidia|jetson)?([a-z]?\d{1,4})(gib|gb|g|ti|super|laptop|mobile|d)?$`)
	// meanings maps a word to the catalogue's word for it; "" is a word that says nothing.
	meanings = map[string]string{
		"nvidia": "", "geforce": "", "gpu": "", "graphics": "", "card": "", "generation": "", "edition": "", "tesla": "",
		"mobile": "laptop", "notebook": "laptop", "maxq": "max", "q": "", "gib": "gb", "g": "gb",
		"sxm2": "sxm", "sxm3": "sxm", "sxm4": "sxm", "sxm5": "sxm",
	}
	optional = []string{"rtx", "gtx"}
)

// wordsOf splits a name into the words that tell cards apart: "NVIDIA GeForce RTX3060-Ti" is rtx, 3060, ti.
func wordsOf(name string) []string {
	var words []string
	add := func(w string) {
		if m, ok := meanings[w]; ok {
			w = m
		}
		switch n := len(words); {
		case w == "":
		case w == "gb" && n > 0 && strings.Trim(words[n-1], "0123456789") == "":
			words[n-1] += "gb"
		default:
			words = append(words, w)
		}
	}
	for _, w := range separators.Split(strings.ToLower(name), -1) {
		if m := glued.FindStringSubmatch(w); m != nil {
			for _, part := range m[1:] {
				if part != "" {
					add(part)
				}
			}
			continue
		}
		if w != "" {
			add(w)
		}
	}
	return words
}

// sameModel says that both names have the same words, the series' letters aside.
func sameModel(words, have []string) bool {
	return contains(have, words) && contains(words, without(have, optional))
}

// asksFor says that have is a card with every word asked for, whose own words, where they make it another model
// (Ti, Super, D, Max-Q, NVL), were asked for too. A size may be asked for though the name doesn't carry it.
func asksFor(words, have []string, c Card) bool {
	have = append(slices.Clone(have), fmt.Sprintf("%dgb", c.NominalGB))
	models := []string{"ti", "super", "d", "max", "nvl"}
	return contains(have, words) && contains(words, slices.DeleteFunc(slices.Clone(have), func(w string) bool { return !slices.Contains(models, w) }))
}

func contains(set, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(set, w) })
}

func without(words, drop []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return slices.Contains(drop, w) })
}

// interchangeable says that a plan for one of the cards is a plan for all.
func interchangeable(cards []Card) bool {
	return !slices.ContainsFunc(cards, func(c Card) bool {
		return c.NominalGB != cards[0].NominalGB || c.SMs != cards[0].SMs || c.Chip != cards[0].Chip
	})
}

func slowest(cards []Card) Card {
	return slices.MinFunc(cards, func(a, b Card) int {
		return cmp.Or(cmp.Compare(a.FP16(), b.FP16()), cmp.Compare(a.Bandwidth(), b.Bandwidth()))
	})
}

// nearestCards are the n whose words take the fewest edits from those asked for; of equals, the one with fewer words.
func nearestCards(words []string, n int) []Card {
	distance := map[string]int{}
	cards := Cards()
	for _, c := range cards {
		have := append(wordsOf(c.Name), fmt.Sprintf("%dgb", c.NominalGB))
		d := len(have)
		for _, w := range words {
			least := len(w)
			for _, h := range have {
				least = min(least, nearest.Distance(w, h))
			}
			d += 8 * least
		}
		distance[c.Name] = d
	}
	slices.SortStableFunc(cards, func(a, b Card) int { return cmp.Compare(distance[a.Name], distance[b.Name]) })
	return cards[:n]
}
