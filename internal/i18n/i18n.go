// Package i18n owns the words of reports in English, German, Chinese, Japanese and Hindi.
//
// A message is an identifier with named values; the catalogue of a language has a sentence for every identifier.
// Numbers, sizes and shares are written here and nowhere else, so a report reads the same from end to end.
// It never decides what is said.
package i18n

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/snugml/snug/internal/units"
)

// Lang is a language that reports are written in.
type Lang string

const (
	English  Lang = "en"
	German   Lang = "de"
	Chinese  Lang = "zh"
	Japanese Lang = "ja"
	Hindi    Lang = "hi"
)

// Langs are the languages, in the order of the help.
var Langs = []Lang{English, German, Chinese, Japanese, Hindi}

// Args are a message's named values: sizes, shares, counts, or text that stays as it is.
type Args map[string]any

// Message is something to say, in whatever language.
type Message struct {
	ID   string
	Args Args
}

// M makes a message from its identifier and pairs of name and value.
func M(id string, pairs ...any) Message {
	m := Message{ID: id, Args: Args{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Args[pairs[i].(string)] = pairs[i+1]
	}
	return m
}

// Share is a part of a whole, from 0 to 1, said as a percentage.
type Share float64

// Choose is the language of --lang, or else of LC_ALL, LC_MESSAGES or LANG, or else English.
func Choose(flag string, env func(string) string) (Lang, error) {
	if flag != "" {
		if l, ok := parse(flag); ok {
			return l, nil
		}
		return English, fmt.Errorf("--lang=%s: no reports in that language: use en, de, zh, ja or hi", flag)
	}
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if v := env(name); v != "" {
			l, ok := parse(v)
			if !ok {
				l = English
			}
			return l, nil
		}
	}
	return English, nil
}

// parse reads "de", "de_DE.UTF-8" or "zh-Hans".
func parse(s string) (Lang, bool) {
	tag := strings.ToLower(s)
	if i := strings.IndexAny(tag, "_-.@"); i >= 0 {
		tag = tag[:i]
	}
	for _, l := range Langs {
		if tag == string(l) {
			return l, true
		}
	}
	return English, false
}

//go:embed messages/*.txt
var files embed.FS

// catalogues are read when a language is first used.
var catalogues = map[Lang]func() map[string]string{
	English: read(English), German: read(German), Chinese: read(Chinese), Japanese: read(Japanese), Hindi: read(Hindi),
}

func read(l Lang) func() map[string]string {
	return sync.OnceValue(func() map[string]string {
		raw, err := files.ReadFile("messages/" + string(l) + ".txt")
		if err != nil {
			panic("i18n: no messages for " + string(l))
		}
		sentences := map[string]string{}
		for _, line := range strings.Split(string(raw), "\n") {
			if id, text, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
				sentences[id] = text
			}
		}
		return sentences
	})
}

// Text says m in the language. A message the catalogue lacks shows its identifier, so that it is missed at once.
func (l Lang) Text(m Message) string {
	sentence, ok := catalogues[l]()[m.ID]
	if !ok {
		return "⟨" + m.ID + "⟩"
	}
	if len(m.Args) == 0 {
		return sentence
	}
	pairs := make([]string, 0, 2*len(m.Args))
	for name, v := range m.Args {
		pairs = append(pairs, "{"+name+"}", l.Value(v))
	}
	return strings.NewReplacer(pairs...).Replace(sentence)
}

// Value writes one value as the language does.
func (l Lang) Value(v any) string {
	switch v := v.(type) {
	case units.Bytes:
		return l.decimal(v.String())
	case Share:
		return l.decimal(strconv.FormatFloat(100*float64(v), 'f', 0, 64)) + l.percent()
	case int:
		return l.Count(int64(v))
	case int64:
		return l.Count(v)
	case float64:
		return l.decimal(strconv.FormatFloat(v, 'f', 2, 64))
	case Message:
		return l.Text(v)
	case []Message:
		parts := make([]string, len(v))
		for i, m := range v {
			parts[i] = l.Text(m)
		}
		return l.Sentences(parts)
	case string:
		return v
	}
	return fmt.Sprint(v)
}

// GiB writes a size in GiB with two decimals, as tables that compare memory do.
func (l Lang) GiB(b units.Bytes) string { return l.decimal(b.GiB()) }

// Count writes a whole number with its thousands apart.
func (l Lang) Count(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	if l == Hindi { // 1,23,456: three digits, then pairs
		if len(digits) <= 3 {
			return sign + digits
		}
		head, tail := digits[:len(digits)-3], digits[len(digits)-3:]
		return sign + group(head, 2, ",") + "," + tail
	}
	return sign + group(digits, 3, l.thousands())
}

func group(digits string, size int, mark string) string {
	first := len(digits) % size
	if first == 0 {
		first = min(size, len(digits))
	}
	out := digits[:first]
	for i := first; i < len(digits); i += size {
		out += mark + digits[i:i+size]
	}
	return out
}

func (l Lang) thousands() string {
	if l == German {
		return "."
	}
	return ","
}

func (l Lang) decimal(s string) string {
	if l == German {
		return strings.Replace(s, ".", ",", 1)
	}
	return s
}

func (l Lang) percent() string {
	if l == German {
		return "\u00a0%"
	}
	return "%"
}

// Sentences joins sentences to a paragraph.
func (l Lang) Sentences(list []string) string {
	if l == Chinese || l == Japanese {
		return strings.Join(list, "")
	}
	return strings.Join(list, " ")
}
