package i18n

import (
	"bufio"
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

var param = regexp.MustCompile(`\{(\w+)\}`)

func params(s string) []string {
	found := param.FindAllString(s, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// Every message exists in all five languages, with the same values in it, and in its own words.
func TestCatalogues(t *testing.T) {
	en := catalogues[English]()
	for _, l := range Langs {
		own := catalogues[l]()
		same := 0
		for id, text := range en {
			got, ok := own[id]
			if !ok {
				t.Errorf("%s has no %s", l, id)
				continue
			}
			if a, b := params(text), params(got); !slices.Equal(a, b) {
				t.Errorf("%s %s has %v, English has %v", l, id, b, a)
			}
			if got == text && len(strings.Fields(text)) > 3 && l != English {
				t.Errorf("%s %s is English: %q", l, id, got)
			}
			if got == text {
				same++
			}
		}
		for id := range own {
			if _, ok := en[id]; !ok {
				t.Errorf("%s has %s, English has not", l, id)
			}
		}
		if l != English && same > len(en)/5 {
			t.Errorf("%s says %d of %d messages as English does", l, same, len(en))
		}
	}
}

// A line of a catalogue is a message, a comment or empty, and no message stands twice.
func TestCatalogueForm(t *testing.T) {
	for _, l := range Langs {
		raw, err := files.ReadFile("messages/" + string(l) + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for s := bufio.NewScanner(bytes.NewReader(raw)); s.Scan(); {
			line := s.Text()
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			id, text, ok := strings.Cut(line, " = ")
			if !ok || text == "" || strings.TrimSpace(id) != id || seen[id] || strings.TrimSpace(text) != text {
				t.Errorf("%s: %q", l, line)
			}
			seen[id] = true
		}
	}
}

func TestChoose(t *testing.T) {
	env := func(pairs ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1]
				}
			}
			return ""
		}
	}
	for _, c := range []struct {
		flag string
		env  func(string) string
		want Lang
	}{
		{"", env(), English}, {"", env("LANG", "de_DE.UTF-8"), German}, {"", env("LANG", "C"), English},
		{"", env("LC_ALL", "ja_JP", "LANG", "de_DE"), Japanese}, {"", env("LC_ALL", "", "LANG", "hi_IN"), Hindi},
		{"", env("LC_ALL", "C.UTF-8", "LANG", "de_DE"), English}, {"zh", env("LANG", "de"), Chinese}, {"zh-Hans", env(), Chinese},
	} {
		if got, err := Choose(c.flag, c.env); err != nil || got != c.want {
			t.Errorf("Choose(%q) = %s, %v, want %s", c.flag, got, err, c.want)
		}
	}
	if _, err := Choose("fr", env()); err == nil || !strings.Contains(err.Error(), "en, de, zh, ja or hi") {
		t.Errorf("Choose(fr) = %v", err)
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		lang Lang
		v    any
		want string
	}{
		{English, units.Bytes(6592774799), "6.14 GiB"}, {German, units.Bytes(6592774799), "6,14 GiB"},
		{English, 65536, "65,536"}, {German, 65536, "65.536"}, {Hindi, 12345678, "1,23,45,678"}, {Hindi, 999, "999"}, {Chinese, 1000, "1,000"},
		{English, Share(0.874), "87%"}, {German, Share(0.874), "87\u00a0%"}, {German, 0.87, "0,87"}, {English, "logits", "logits"},
		{English, -1234, "-1,234"}, {English, 0, "0"}, {English, 100, "100"},
	} {
		if got := c.lang.Value(c.v); got != c.want {
			t.Errorf("%s %v = %q, want %q", c.lang, c.v, got, c.want)
		}
	}
}
