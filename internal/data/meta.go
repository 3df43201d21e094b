package data

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/snugml/snug/internal/pickle"
)

// Meta is nanoGPT's meta.pkl: the vocabulary of data that is not GPT-2's tokens.
type Meta struct {
	VocabSize int
	Chars     *Chars // nil where the file has no itos
}

// maxMeta bounds the meta.pkl that is read: 65,536 characters with both tables take under 2 MiB.
const maxMeta = 64 << 20

// ReadMeta reads a meta.pkl. The file is data: a pickle with code in it is refused.
func ReadMeta(path string) (*Meta, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxMeta {
		return nil, fmt.Errorf("read %s: %d bytes, a meta.pkl has at most %d", path, info.Size(), maxMeta)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := ParseMeta(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return m, nil
}

// ParseMeta reads the bytes of a meta.pkl.
func ParseMeta(raw []byte) (*Meta, error) {
	v, _, err := pickle.Read(raw, pickle.Options{})
	if err != nil {
		return nil, err
	}
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("want a dict with vocab_size, got %T", v)
	}
	size, _ := d.Get("vocab_size")
	n, ok := size.(int64)
	if !ok || n < 1 || n > 1<<16 {
		return nil, fmt.Errorf("vocab_size is %v, want 1 to 65536", size)
	}
	m := &Meta{VocabSize: int(n)}
	itos, ok := d.Get("itos")
	if !ok {
		return m, nil
	}
	table, ok := itos.(*pickle.Dict)
	if !ok || table.Len() > int(n) {
		return nil, fmt.Errorf("itos is not a dict of at most vocab_size = %d", n)
	}
	chars := make([]string, n)
	for k, v := range table.All() {
		i, ok1 := k.(int64)
		c, ok2 := v.(string)
		if !ok1 || !ok2 || i < 0 || i >= n || c == "" {
			return nil, fmt.Errorf("itos maps %v to %.40q, want 0…%d to a character", k, fmt.Sprint(v), n-1)
		}
		chars[i] = c
	}
	m.Chars = NewChars(chars)
	return m, nil
}

// Write returns meta.pkl as nanoGPT's shakespeare_char/prepare.py has it: vocab_size, itos and stoi.
func (m *Meta) Write() ([]byte, error) {
	d, itos, stoi := pickle.NewDict(), pickle.NewDict(), pickle.NewDict()
	err := errors.Join(d.Set("vocab_size", int64(m.VocabSize)), d.Set("itos", itos), d.Set("stoi", stoi))
	for i, c := range m.Chars.text {
		err = errors.Join(err, itos.Set(int64(i), c), stoi.Set(c, int64(i)))
	}
	if err != nil {
		return nil, err
	}
	return pickle.Write(d)
}

// Chars is a vocabulary of characters: token i is the i-th of them.
type Chars struct {
	text []string
	ids  map[string]uint16
}

// NewChars returns the vocabulary in which token i is text[i]. An empty text is a token that nothing encodes to.
func NewChars(text []string) *Chars {
	c := &Chars{text: text, ids: make(map[string]uint16, len(text))}
	for i, s := range text {
		if s != "" {
			c.ids[s] = uint16(i)
		}
	}
	return c
}

// MarshalJSON writes the characters in the order of their tokens.
func (c *Chars) MarshalJSON() ([]byte, error) { return json.Marshal(c.text) }

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Chars) UnmarshalJSON(raw []byte) error {
	var text []string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	*c = *NewChars(text)
	return nil
}

// Len is the size of the vocabulary.
func (c *Chars) Len() int { return len(c.text) }

// EncodePrompt returns the tokens of a text, or the first character that the vocabulary lacks.
func (c *Chars) EncodePrompt(text string) ([]uint16, error) {
	ids := make([]uint16, 0, len(text))
	for at := 0; at < len(text); {
		_, size := utf8.DecodeRuneInString(text[at:])
		id, ok := c.ids[text[at:at+size]]
		if !ok {
			return nil, fmt.Errorf("encode: the data has no character %q: it has %s", text[at:at+size], c.sample())
		}
		ids = append(ids, id)
		at += size
	}
	return ids, nil
}

// AppendDecode appends the text of ids to dst.
func (c *Chars) AppendDecode(dst []byte, ids ...uint16) ([]byte, error) {
	for _, id := range ids {
		if int(id) >= len(c.text) {
			return dst, fmt.Errorf("decode token %d: the vocabulary has %d", id, len(c.text))
		}
		dst = append(dst, c.text[id]...)
	}
	return dst, nil
}

// sample names the vocabulary's characters, at most forty of them.
func (c *Chars) sample() string {
	if len(c.text) <= 40 {
		return fmt.Sprintf("%q", strings.Join(c.text, ""))
	}
	return fmt.Sprintf("%q and %d more", strings.Join(c.text[:40], ""), len(c.text)-40)
}
