package bpe

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/tiktoken-go/tokenizer/codec"
)

// TestVocabularyIsOpenAIs: the SHA-256 that tiktoken demands of the r50k_base.tiktoken file it downloads.
func TestVocabularyIsOpenAIs(t *testing.T) {
	const published = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
	h := sha256.New()
	for id, text := range GPT2().tokens {
		fmt.Fprintf(h, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(text)), id)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != published {
		t.Errorf("vocabulary has SHA-256 %s, OpenAI's is %s", got, published)
	}
}

type goldenCase struct {
	Text string
	IDs  []uint16
}

func golden(t testing.TB) []goldenCase {
	t.Helper()
	data, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func TestSameTokensAsTiktoken(t *testing.T) {
	e := GPT2().NewEncoder()
	for _, c := range golden(t) {
		for range 2 { // the second time from the cache
			if got := e.Append(nil, []byte(c.Text)); !slices.Equal(got, c.IDs) {
				t.Errorf("%.80q:\n got %v\nwant %v", c.Text, got, c.IDs)
			}
		}
		back, err := GPT2().AppendDecode(nil, c.IDs...)
		if err != nil || string(back) != c.Text {
			t.Errorf("decode(%v) = %.80q, %v, want %.80q", c.IDs, back, err, c.Text)
		}
	}
}

func TestPrompt(t *testing.T) {
	v := GPT2()
	for text, want := range map[string][]uint16{
		"":                     nil,
		"<|endoftext|>":        {EndOfText},
		"hello<|endoftext|>":   {31373, EndOfText},
		"<|endoftext|>hello a": {EndOfText, 31373, 257},
	} {
		if got, err := v.EncodePrompt(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("EncodePrompt(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	if got := v.Encode("<|endoftext|>"); slices.Contains(got, EndOfText) {
		t.Errorf("Encode takes the mark in a text for the token: %v", got)
	}
	if text, err := v.AppendDecode(nil, EndOfText); err != nil || string(text) != EndOfTextMark {
		t.Errorf("decode(EndOfText) = %q, %v", text, err)
	}
	if _, err := v.AppendDecode(nil, VocabSize); err == nil {
		t.Error("a token beyond the vocabulary was decoded")
	}
}

// TestLongPieceIsShortPiece: both ways to merge give the same tokens at every length around the limit between them.
func TestLongPieceIsShortPiece(t *testing.T) {
	e := GPT2().NewEncoder()
	for _, unit := range []string{"a", "ab", "the", "=", "日", "qz'", "-=", "\xff"} {
		for n := 2; n <= scanLimit; n++ {
			piece := []byte(strings.Repeat(unit, n))[:n]
			short := slices.Clone(e.merge(nil, piece))
			if long := e.long.merge(nil, piece, e.vocab); !slices.Equal(short, long) {
				t.Errorf("%q: %v by scanning, %v by heap", piece, short, long)
			}
		}
	}
}

// FuzzCut: a text cut at Cut encodes to what the whole does.
func FuzzCut(f *testing.F) {
	for _, c := range golden(f) {
		f.Add([]byte(c.Text), 7)
	}
	e := GPT2().NewEncoder()
	f.Fuzz(func(t *testing.T, text []byte, seen int) {
		if len(text) == 0 {
			return
		}
		head := text[:uint(seen)%uint(len(text)+1)] // what a reader has when it must cut
		cut := GPT2().Cut(head)
		if cut < 0 || cut > len(head) {
			t.Fatalf("Cut = %d in %d bytes", cut, len(head))
		}
		parts := e.Append(e.Append(nil, text[:cut]), text[cut:])
		if whole := e.Append(nil, text); !slices.Equal(parts, whole) {
			t.Errorf("%q cut at %d: %v, whole %v", text, cut, parts, whole)
		}
	})
}

// FuzzEncode: the same tokens as github.com/tiktoken-go/tokenizer, and decoding gives the text back, for any bytes.
func FuzzEncode(f *testing.F) {
	for _, c := range golden(f) {
		f.Add([]byte(c.Text))
	}
	f.Add([]byte("a\xff\xfe b\xe2\x82"))
	peer := codec.NewR50kBase()
	e := GPT2().NewEncoder()
	f.Fuzz(func(t *testing.T, text []byte) {
		got := e.Append(nil, text)
		back, err := GPT2().AppendDecode(nil, got...)
		if err != nil || !bytes.Equal(back, text) {
			t.Fatalf("decode(encode(%q)) = %q, %v", text, back, err)
		}
		if newerUnicode(string(text)) {
			return
		}
		ids, _, err := peer.Encode(string(text))
		if err != nil {
			t.Skip(err)
		}
		if back, err := peer.Decode(ids); err != nil || back != string(text) {
			return // the peer replaces what is not UTF-8, and drops U+007F
		}
		if !slices.EqualFunc(got, ids, func(a uint16, b uint) bool { return uint(a) == b }) {
			t.Errorf("%q: %v, tiktoken-go %v", text, got, ids)
		}
	})
}

// newerUnicode reports whether text holds a character that tiktoken's Unicode version classes otherwise than Go's,
// which the peer follows.
func newerUnicode(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return GPT2().classes.rune(r) != goClass(r) })
}

func goClass(r rune) class {
	switch {
	case unicode.Is(unicode.L, r):
		return letter
	case unicode.Is(unicode.N, r):
		return number
	case unicode.Is(unicode.White_Space, r):
		return space
	}
	return other
}

// TestClassesFollowUnicode: the table differs from Go's Unicode only where one of the two is newer.
func TestClassesFollowUnicode(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		ours, theirs := GPT2().classes.rune(r), goClass(r)
		if ours != theirs && ours != other && theirs != other {
			t.Errorf("%U is class %d, in Unicode %s it is %d", r, ours, unicode.Version, theirs)
		}
		if r < 0x1c80 && ours != theirs {
			t.Errorf("%U is class %d, Go's is %d", r, ours, theirs)
		}
	}
}

// corpus is real English text that comes with Go, or golden texts where Go's source is not installed.
func corpus(b *testing.B) []byte {
	for _, root := range []string{os.Getenv("GOROOT"), "/usr/local/go", "/usr/lib/go"} {
		if data, err := os.ReadFile(root + "/src/testdata/Isaac.Newton-Opticks.txt"); err == nil {
			return data
		}
	}
	var all []byte
	for _, c := range golden(b) {
		all = append(all, c.Text...)
	}
	return bytes.Repeat(all, 20)
}

func benchmarkTexts(b *testing.B) map[string][]byte {
	var mixed []byte
	for _, c := range golden(b)[:70] {
		mixed = append(append(mixed, c.Text...), '\n')
	}
	return map[string][]byte{"opticks": corpus(b), "mixed": bytes.Repeat(mixed, 50)}
}

func BenchmarkEncode(b *testing.B) {
	for name, text := range benchmarkTexts(b) {
		b.Run("by=snug/text="+name, func(b *testing.B) {
			e := GPT2().NewEncoder()
			var ids []uint16
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				ids = e.Append(ids[:0], text)
			}
		})
		b.Run("by=tiktoken-go/text="+name, func(b *testing.B) {
			peer := codec.NewR50kBase()
			s := string(text)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, _, err := peer.Encode(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		newGPT2()
	}
}
