package example

import (
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/philox"
)

// ownText writes a text of about size bytes: a workshop's log book about memory and training. It is made from sentence
// frames and word lists, drawn by counter, so it is the same everywhere and takes no room in the program.
func ownText(size int) string {
	w := &writer{}
	for chapter := 1; w.out.Len() < size; chapter++ {
		fmt.Fprintf(&w.out, "CHAPTER %d. %s\n\n", chapter, title(w.pick(topics)))
		for range 5 {
			w.paragraph()
		}
	}
	return w.out.String()
}

// writer draws words by a running counter.
type writer struct {
	out  strings.Builder
	next uint32
}

func (w *writer) draw(n int) int {
	w.next++
	return int(philox.Block([4]uint32{w.next}, philox.Key(1337))[0] % uint32(n))
}

func (w *writer) pick(list []string) string { return list[w.draw(len(list))] }

// paragraph is four to seven sentences, broken into lines of at most 72 columns.
func (w *writer) paragraph() {
	var words []string
	for range 4 + w.draw(4) {
		words = append(words, strings.Fields(w.sentence())...)
	}
	column := 0
	for _, word := range words {
		if column > 0 && column+1+len(word) > 72 {
			w.out.WriteByte('\n')
			column = 0
		}
		if column > 0 {
			w.out.WriteByte(' ')
			column++
		}
		w.out.WriteString(word)
		column += len(word)
	}
	w.out.WriteString("\n\n")
}

// sentence fills a frame: each {name} is a word of that list.
func (w *writer) sentence() string {
	frame := w.pick(frames)
	var s strings.Builder
	for {
		before, rest, found := strings.Cut(frame, "{")
		s.WriteString(before)
		if !found {
			break
		}
		name, after, _ := strings.Cut(rest, "}")
		s.WriteString(w.pick(lists[name]))
		frame = after
	}
	text := s.String()
	return strings.ToUpper(text[:1]) + text[1:]
}

func title(s string) string { return strings.ToUpper(s) }

var topics = []string{"of weights and their keeping", "of the long evening run", "of things too large", "of small steps", "of the rates of learning",
	"of what was forgotten", "of the measuring of memory", "of patience", "of gradients", "of the reading of old books", "of errors and their causes",
	"of the two halves of a batch", "of noise", "of the first hour", "of the last hour", "of attention"}

var lists = map[string][]string{
	"who":   {"the engineer", "the apprentice", "the old teacher", "my neighbour", "the visitor", "the night watch", "the printer", "the clerk", "her brother", "the mathematician"},
	"thing": {"the model", "the machine", "the small engine", "the matrix", "the table of weights", "the long tensor", "the batch", "the lamp", "the notebook", "the loss"},
	"part":  {"the first layer", "the last layer", "a single row", "the middle column", "the softmax", "the embedding", "one head of six", "the residual stream", "the bias", "the norm"},
	"place": {"in the cellar", "on the upper shelf", "beside the window", "in a narrow cache", "at the far end of the hall", "in the second drawer", "under the stairs", "near the door"},
	"time":  {"at noon", "before dawn", "after the third step", "in the evening", "on the tenth day", "when the rain came", "at the end of the week", "once more", "in the first hour"},
	"verb":  {"measured", "carried", "repaired", "counted", "doubled", "halved", "cooled", "weighed", "described", "rewrote"},
	"adj":   {"quiet", "heavy", "slow", "exact", "narrow", "patient", "bright", "uneven", "honest", "shallow", "steep", "gentle"},
	"fact": {"nothing is lost when it is written down", "a small step is still a step", "the sum of the parts is the whole", "what is kept must be paid for",
		"the same seed gives the same run", "a number without a unit is a rumour", "memory that is named can be planned", "the largest tensor comes last",
		"no one remembers a run that was not saved", "half of the work is in the reading", "an error is only a message that came early"},
	"number": {"two", "three", "four", "six", "eight", "nine", "twelve", "sixteen", "thirty", "sixty-four", "a hundred", "a thousand"},
	"unit":   {"steps", "hours", "rows", "pages", "numbers", "sequences", "tokens", "drawers"},
}

var frames = []string{
	"{time}, {who} {verb} {thing}, and found it {adj}.",
	"{who} said that {fact}.",
	"{thing} stood {place}, {adj} and {adj}, for {number} {unit}.",
	"we {verb} {part} {time}, because {fact}.",
	"it took {number} {unit} before {thing} grew {adj} again.",
	"{part} was {adj}, but {part} was not.",
	"\"Is {thing} {adj}?\" asked {who}. \"It was {adj} {time},\" said {who}.",
	"if {thing} is too large, {who} keeps only {part} and makes the rest anew.",
	"{who} wrote {number} {unit} into the book, and {verb} each of them {time}.",
	"there is no {adj} way to carry {thing}; {fact}.",
	"{place} lay {number} {unit}, which {who} had {verb} and then forgotten.",
	"when the loss fell by {number} parts, {who} was {adj} and {who} was silent.",
	"{fact}, and so {who} went to {part} and {verb} it once more.",
	"of {number} {unit} only {number} were {adj}.",
	"remember, said {who}, that {fact}, and that {fact}.",
	"{time} {thing} was moved {place}, where it was {adj} and did no harm.",
	"{who} and {who} {verb} {part} together, {number} {unit} each.",
	"the gradient came down like water, {adj} at first and then {adj}.",
	"\"How many {unit}?\" asked {who}. \"{number}, and {number} more {time}.\"",
	"nobody had {verb} {thing} since {who} left it {place}.",
}
