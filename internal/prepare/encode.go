package prepare

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snugml/snug/internal/bpe"
	"github.com/snugml/snug/internal/philox"
)

// The two splits, as indices of chunk.tokens.
const (
	train = iota
	val
)

// documents calls each with every document of a chunk of lines or rows, and its number.
func documents(c *chunk, field string, each func(number int64, text []byte) error) error {
	number := c.from.Document
	if c.source.Format == Parquet {
		start := 0
		for _, end := range c.rows {
			if err := each(number, c.data[start:end]); err != nil {
				return fmt.Errorf("row %d: %w", number-c.from.Document+c.from.Offset+1, err)
			}
			number, start = number+1, end
		}
		return nil
	}
	line := c.from.Line
	for text := range bytes.Lines(c.data) {
		if line++; line == 1 {
			text = bytes.TrimPrefix(text, []byte("\ufeff"))
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		text, err := fieldOf(text, field)
		if err == nil {
			err = each(number, text)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		number++
	}
	return nil
}

// fieldOf returns the text of one field of a JSON object.
func fieldOf(line []byte, field string) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("not JSON: %w at byte %d", err, syntax.Offset)
		}
		return nil, errors.New("not a JSON object")
	}
	raw, ok := object[field]
	if !ok {
		names := make([]string, 0, len(object))
		for name := range object {
			names = append(names, name)
		}
		slices.Sort(names)
		return nil, fmt.Errorf("no field %q: it has %s: use --field=…", field, strings.Join(names, ", "))
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("field %q is not text: %.40s", field, raw)
	}
	if text == nil {
		return nil, nil
	}
	return []byte(*text), nil
}

// inVal draws whether a document goes to val. The first always does, so that val is never empty.
func (r *run) inVal(number int64) bool {
	const domain = 0x70726570 // apart from what else draws by a seed
	w := philox.Block([4]uint32{uint32(number), uint32(number >> 32), 0, domain}, philox.Key(r.options.Seed))
	return number == 0 || float64(w[0]) < r.job.ValFraction*(1<<32)
}

// gpt2 returns a worker that encodes chunks to GPT-2's tokens.
//
// As nanoGPT's openwebtext has it, each document is followed by EndOfText; the one text that is split by position has
// none, as nanoGPT's shakespeare.
func (r *run) gpt2() func(*chunk) error {
	encoder := bpe.GPT2().NewEncoder()
	var ids []uint16
	return func(c *chunk) error {
		put := func(text []byte, split int, ends bool) {
			c.invalid += invalid(text)
			ids = encoder.Append(ids[:0], text)
			if ends {
				ids = append(ids, bpe.EndOfText)
			}
			c.tokens[split] = appendTokens(c.tokens[split], ids)
		}
		if c.source.Format != Text {
			return documents(c, r.job.Field, func(number int64, text []byte) error {
				put(text, r.splitOf(number), true)
				return nil
			})
		}
		text := newlines(c.data)
		if !r.job.ByPosition {
			put(text, r.splitOf(c.from.Document), c.ends)
		} else if c.val {
			put(text, val, false)
		} else {
			put(text, train, false)
		}
		return nil
	}
}

func (r *run) splitOf(number int64) int {
	if r.inVal(number) {
		return val
	}
	return train
}

func appendTokens(dst []byte, ids []uint16) []byte {
	dst = slices.Grow(dst, 2*len(ids))
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint16(dst, id)
	}
	return dst
}

// invalid counts the bytes that are not UTF-8.
func invalid(text []byte) int64 {
	if utf8.Valid(text) {
		return 0
	}
	n := int64(0)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			n++
		}
		text = text[size:]
	}
	return n
}

const takesAnyBytes = "convert it with iconv, or use --tokenizer=gpt2, which takes any bytes"

// firstInvalid is the place of the first byte that is not UTF-8, -1 if there is none.
func firstInvalid(text []byte) int {
	if utf8.Valid(text) {
		return -1
	}
	at := 0
	for {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
}

// eachText calls each with the text of a chunk as characters are counted: after each line or row stands a newline.
// Python would not read text that is not UTF-8 as characters, so it is refused.
func (r *run) eachText(c *chunk, each func(text []byte) error) error {
	if c.source.Format == Text {
		if at := firstInvalid(c.data); at >= 0 {
			return fmt.Errorf("byte 0x%02x at %d is not UTF-8: %s", c.data[at], c.from.Offset+int64(at), takesAnyBytes)
		}
		return each(newlines(c.data))
	}
	return documents(c, r.job.Field, func(_ int64, text []byte) error {
		if at := firstInvalid(text); at >= 0 {
			return fmt.Errorf("byte 0x%02x is not UTF-8: %s", text[at], takesAnyBytes)
		}
		return each(append(text[:len(text):len(text)], '\n'))
	})
}

// charSet is a set of characters.
type charSet [(utf8.MaxRune + 1) / 64]uint64

func (s *charSet) add(r rune)      { s[r/64] |= 1 << (r % 64) }
func (s *charSet) has(r rune) bool { return s[r/64]>>(r%64)&1 != 0 }

// tally returns a worker that counts the characters of chunks, and gathers in set which there are.
func (r *run) tally(set *charSet) func(*chunk) error {
	return func(c *chunk) error {
		c.chars = 0
		if r.job.Tokenizer == GPT2 {
			c.chars = countChars(c.data)
			return nil
		}
		return r.eachText(c, func(text []byte) error {
			c.chars += int64(utf8.RuneCount(text))
			for len(text) > 0 {
				if b := text[0]; b < utf8.RuneSelf {
					set.add(rune(b))
					text = text[1:]
					continue
				}
				char, size := utf8.DecodeRune(text)
				set.add(char)
				text = text[size:]
			}
			return nil
		})
	}
}

// characters returns a worker that encodes chunks to the numbers of their characters, all as train: where val begins
// is a matter of counting tokens.
func (r *run) characters(chars []rune) func(*chunk) error {
	var ascii [utf8.RuneSelf]uint16
	ids := make(map[rune]uint16, len(chars))
	for i, char := range chars {
		ids[char] = uint16(i)
		if char < utf8.RuneSelf {
			ascii[char] = uint16(i)
		}
	}
	return func(c *chunk) error {
		out := c.tokens[train]
		err := r.eachText(c, func(text []byte) error {
			for len(text) > 0 {
				id, size := uint16(0), 1
				if b := text[0]; b < utf8.RuneSelf {
					id = ascii[b]
				} else {
					var char rune
					char, size = utf8.DecodeRune(text)
					id = ids[char]
				}
				out = binary.LittleEndian.AppendUint16(out, id)
				text = text[size:]
			}
			return nil
		})
		c.tokens[train] = out
		return err
	}
}
