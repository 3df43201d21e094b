package sample

import (
	"io"
	"unicode"
	"unicode/utf8"
)

// Tokenizer turns text into tokens and back: GPT-2's (bpe.Vocab) or a data set's characters (data.Chars).
type Tokenizer interface {
	EncodePrompt(text string) ([]uint16, error)
	AppendDecode(dst []byte, ids ...uint16) ([]byte, error)
}

// Text writes tokens as text as they come. A character may be spread over tokens: its bytes wait until it is whole.
// Bytes that never become one are written as U+FFFD, as Python's errors="replace" does.
type Text struct {
	W   io.Writer
	Tok Tokenizer
	// Terminal also replaces control characters but newline and tab: a model must not steer the terminal.
	Terminal bool

	wait []byte
	out  []byte
}

// Write appends tokens.
func (t *Text) Write(ids ...uint16) (err error) {
	if t.wait, err = t.Tok.AppendDecode(t.wait, ids...); err != nil {
		return err
	}
	return t.flush(false)
}

// End writes what still waits.
func (t *Text) End() error { return t.flush(true) }

func (t *Text) flush(all bool) error {
	b := t.wait
	t.out = t.out[:0]
	for len(b) > 0 {
		if !all && !utf8.FullRune(b) {
			break
		}
		r, size := utf8.DecodeRune(b)
		if t.Terminal && unicode.IsControl(r) && r != '\n' && r != '\t' {
			r = utf8.RuneError
		}
		t.out = utf8.AppendRune(t.out, r)
		b = b[size:]
	}
	t.wait = append(t.wait[:0], b...)
	if len(t.out) == 0 {
		return nil
	}
	_, err := t.W.Write(t.out)
	return err
}
