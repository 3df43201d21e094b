// Package config owns nanoGPT's settings and snug's own: one table of keys, types, defaults and help.
//
// It reads values from the command line and from nanoGPT's Python config files (as Starlark), checks them,
// and writes them back as Python. It never acts on a setting, and never touches a file it was not given.
package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/nearest"
	"github.com/snugml/snug/internal/units"
)

// Default returns train.py's defaults with snug's own.
func Default() Config { return defaultFor(Train) }

// DefaultFor returns the defaults as one command has them: sample.py's differ from train.py's.
func DefaultFor(cmd Commands) Config { return defaultFor(cmd) }

func defaultFor(cmd Commands) Config {
	var c Config
	for i := range Table {
		s := &Table[i]
		v := s.Default
		if cmd == Sample && s.Sample != nil {
			v = s.Sample
		}
		s.store(&c, v)
	}
	return c
}

// Lookup finds a setting by its key.
func Lookup(key string) (*Setting, bool) {
	i, ok := byKey[key]
	if !ok {
		return nil, false
	}
	return &Table[i], true
}

var byKey = func() map[string]int {
	m := make(map[string]int, len(Table))
	for i, s := range Table {
		m[s.Key] = i
	}
	return m
}()

// Keys lists the keys that a command reads, in the table's order.
func Keys(cmd Commands) []string {
	var keys []string
	for _, s := range Table {
		if s.Commands&cmd != 0 {
			keys = append(keys, s.Key)
		}
	}
	return keys
}

// UnknownKey is the error for a key that the table does not have, or that cmd does not read.
func UnknownKey(key string, cmd Commands) error {
	if s, ok := Lookup(key); ok && s.Commands&cmd == 0 {
		return fmt.Errorf("unknown key %s here: it belongs to snug %s", key, s.Commands)
	}
	if hint := nearest.Hint(key, Keys(cmd)); hint != "" {
		return fmt.Errorf("unknown key %s: %s", key, hint)
	}
	return fmt.Errorf("unknown key %s: --help lists the keys", key)
}

// String names the commands: "train, plan".
func (c Commands) String() string {
	var names []string
	for i, name := range commandNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Type is the Python type of the setting's values.
func (s *Setting) Type() string {
	switch s.Default.(type) {
	case int:
		return "int"
	case float64:
		return "float"
	case bool:
		return "bool"
	case units.Bytes:
		return "size"
	}
	return "str"
}

// Value is what c holds for the setting.
func (s *Setting) Value(c *Config) any {
	switch p := s.field(c).(type) {
	case *int:
		return *p
	case *float64:
		return *p
	case *bool:
		return *p
	case *string:
		return *p
	case *units.Bytes:
		return *p
	}
	panic("config: " + s.Key + " has a field of no known type")
}

func (s *Setting) store(c *Config, v any) {
	switch p := s.field(c).(type) {
	case *int:
		*p = v.(int)
	case *float64:
		*p = v.(float64)
	case *bool:
		*p = v.(bool)
	case *string:
		*p = v.(string)
	case *units.Bytes:
		*p = v.(units.Bytes)
	}
}

// Set gives key a value of its own type (a size may also come as a string such as "12GiB").
func (c *Config) Set(key string, v any) error {
	s, ok := Lookup(key)
	if !ok {
		return UnknownKey(key, ^Commands(0))
	}
	if text, ok := v.(string); ok && s.Type() == "size" {
		b, err := units.ParseBytes(text)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		v = b
	}
	if err := s.accept(v); err != nil {
		return err
	}
	s.store(c, v)
	c.set = maps.Clone(c.set) // copies of a Config do not share what was set
	if c.set == nil {
		c.set = map[string]bool{}
	}
	c.set[key] = true
	return nil
}

// SetLiteral gives key the value that Python's literal_eval reads from text, as nanoGPT's configurator does:
// the type must match exactly, and text that is no literal is a string.
func (c *Config) SetLiteral(key, text string) error {
	s, ok := Lookup(key)
	if !ok {
		return UnknownKey(key, ^Commands(0))
	}
	v := literal(text)
	if s.Type() == "size" {
		v = text
	}
	return c.Set(key, v)
}

// accept says whether v may be the setting's value.
func (s *Setting) accept(v any) error {
	if fmt.Sprintf("%T", v) != fmt.Sprintf("%T", s.Default) {
		hint := ""
		if n, ok := v.(int); ok && s.Type() == "float" {
			hint = fmt.Sprintf(": write %d.0", n)
		}
		if s.Type() == "bool" {
			hint = ": write True or False"
		}
		return fmt.Errorf("%s must be %s, not %s (%s)%s", s.Key, s.Type(), pythonType(v), Python(v), hint)
	}
	switch n := v.(type) {
	case int:
		return s.inRange(float64(n), v)
	case float64:
		if math.IsNaN(n) || math.IsInf(n, 0) {
			return fmt.Errorf("%s must be a finite number, not %v", s.Key, n)
		}
		return s.inRange(n, v)
	case string:
		if s.Choices != nil && !slices.Contains(s.Choices, n) {
			return fmt.Errorf("%s must be one of %s, not %q", s.Key, strings.Join(s.Choices, ", "), n)
		}
	}
	return nil
}

func (s *Setting) inRange(n float64, v any) error {
	if n < s.Min {
		return fmt.Errorf("%s must be at least %v, not %s", s.Key, s.Min, Python(v))
	}
	if s.Below != 0 && n >= s.Below {
		return fmt.Errorf("%s must be below %v, not %s", s.Key, s.Below, Python(v))
	}
	return nil
}

// IsSet says whether a file, a flag or a caller gave the key, or it stands at its default.
func (c *Config) IsSet(key string) bool { return c.set[key] }

// Check says whether the settings go together.
func (c *Config) Check() error {
	m := c.Model()
	if m.NEmbd%m.NHead != 0 {
		return fmt.Errorf("n_embd %d is not a multiple of n_head %d: try n_head=%d", m.NEmbd, m.NHead, divisorBelow(m.NEmbd, m.NHead))
	}
	if preset, ok := Presets[c.InitFrom]; ok && c.BlockSize > preset.BlockSize {
		return fmt.Errorf("block_size %d is longer than the %d positions of %s: use block_size=%d", c.BlockSize, preset.BlockSize, c.InitFrom, preset.BlockSize)
	}
	const largest = math.MaxInt64 / 64
	for _, p := range []struct {
		what    string
		factors []int
	}{
		{"batch_size * block_size * vocabulary", []int{c.BatchSize, m.BlockSize, m.VocabSize}},
		{"batch_size * block_size * 4 * n_embd * n_layer", []int{c.BatchSize, m.BlockSize, 4, m.NEmbd, m.NLayer}},
		{"vocabulary * n_embd", []int{m.VocabSize, m.NEmbd}},
		{"12 * n_embd * n_embd * n_layer", []int{12, m.NEmbd, m.NEmbd, m.NLayer}},
		{"batch_size * gradient_accumulation_steps * block_size", []int{c.BatchSize, c.GradientAccumulationSteps, m.BlockSize}},
	} {
		product := 1.0
		for _, f := range p.factors {
			product *= float64(f)
		}
		if product > largest {
			return fmt.Errorf("%s is %.3g, more than any machine can count (%.3g): make one of them smaller", p.what, product, float64(largest))
		}
	}
	return nil
}

// Model is the model the settings describe: a preset's sizes where init_from names one, cropped to block_size as nanoGPT does.
func (c *Config) Model() Model {
	if m, ok := Presets[c.InitFrom]; ok {
		m.BlockSize = min(m.BlockSize, c.BlockSize)
		m.Dropout = c.Dropout
		return m
	}
	m := Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias, Dropout: c.Dropout}
	if m.VocabSize == 0 {
		m.VocabSize = DefaultVocabSize
	}
	return m
}

// DefaultVocabSize is GPT-2's 50257 rounded up to a multiple of 64, as train.py does for data without meta.pkl.
const DefaultVocabSize = 50304

// EffectiveBatch is the number of sequences behind one update.
func (c *Config) EffectiveBatch() int { return c.BatchSize * c.GradientAccumulationSteps }

func divisorBelow(n, start int) int {
	for d := min(start, n); d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

// Map returns the settings that cmd reads, by key: what JSON shows. Sizes are bytes.
func (c *Config) Map(cmd Commands) map[string]any {
	m := map[string]any{}
	for i := range Table {
		if s := &Table[i]; s.Commands&cmd != 0 {
			m[s.Key] = s.Value(c)
		}
	}
	return m
}
