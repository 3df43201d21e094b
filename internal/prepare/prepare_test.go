package prepare

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"github.com/snugml/snug/internal/bpe"
	"github.com/snugml/snug/internal/data"
)

// prose is n bytes of made-up text with long words, several alphabets and all kinds of white space.
func prose(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 0))
	words := []string{"the", "quick", "naïve", "Straße", "日本語", "don't", "3.14", "…", "🙂", "antidisestablishmentarianism", "=====", "x"}
	spaces := []string{" ", " ", " ", " ", " ", "\n", "\n\n", "  ", "\t", "\u3000"}
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteString(spaces[r.IntN(len(spaces))])
	}
	return b.String()
}

func writeFile(t testing.TB, path string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gzipped(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return z.EncodeAll(b, nil)
}

func jsonl(t testing.TB, field string, docs []string) []byte {
	var out bytes.Buffer
	for i, d := range docs {
		line, err := json.Marshal(map[string]any{"id": i, field: d})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(line, '\n'))
		if i%7 == 0 {
			out.WriteString("\n  \n")
		}
	}
	return out.Bytes()
}

func parquetOf(t testing.TB, docs []string) []byte {
	type row struct {
		ID   int64   `parquet:"id"`
		Text *string `parquet:"text,optional"`
	}
	var out bytes.Buffer
	w := parquet.NewGenericWriter[row](&out, parquet.MaxRowsPerRowGroup(37))
	for i, d := range docs {
		r := row{ID: int64(i), Text: &d}
		if d == "" {
			r.Text = nil
		}
		if _, err := w.Write([]row{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func prepare(t testing.TB, o Options) *Result {
	t.Helper()
	if o.Tokenizer == "" {
		o.Tokenizer = GPT2
	}
	if o.Format == "" {
		o.Format = Auto
	}
	if o.Field == "" {
		o.Field = "text"
	}
	if o.chunk == 0 {
		o.chunk = 8 << 10
	}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(o.Out, workDir)); err == nil {
		t.Errorf("the work folder is left behind")
	}
	return res
}

func tokens(t testing.TB, path string) []uint16 {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]uint16, len(raw)/2)
	for i := range ids {
		ids[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return ids
}

// decoded is a split's text, each document ended by the mark.
func decoded(t testing.TB, path string) string {
	text, err := bpe.GPT2().AppendDecode(nil, tokens(t, path)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOneTextIsSplitByPosition: as nanoGPT's shakespeare, the two parts of the text are encoded each by itself.
func TestOneTextIsSplitByPosition(t *testing.T) {
	text := prose(1, 100<<10) // several chunks
	chars := []rune(text)
	cut := int(float64(len(chars)) * (1 - 0.1))
	for name, content := range map[string][]byte{
		"a.txt":     []byte(text),
		"a.txt.gz":  gzipped(t, []byte(text)),
		"a.txt.zst": zstandard(t, []byte(text)),
		"crlf.txt":  []byte(strings.ReplaceAll(text, "\n", "\r\n")),
		"cr.md":     []byte(strings.ReplaceAll(text, "\n", "\r")),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			res := prepare(t, Options{Inputs: []string{writeFile(t, filepath.Join(dir, name), content)}, Out: filepath.Join(dir, "out"), Threads: 3})
			for split, want := range map[string]string{"train.bin": string(chars[:cut]), "val.bin": string(chars[cut:])} {
				if got := tokens(t, filepath.Join(dir, "out", split)); !slices.Equal(got, bpe.GPT2().Encode(want)) {
					t.Errorf("%s: %d tokens differ from encoding the text whole", split, len(got))
				}
			}
			if res.SplitBy != "position" || res.Documents != 1 || res.ValFraction != 0.1 {
				t.Errorf("result %+v", res)
			}
		})
	}
}

// TestDocuments: every document comes out once, whole, in order, followed by the mark, whatever file it was in.
func TestDocuments(t *testing.T) {
	var docs []string
	for i := range 300 {
		docs = append(docs, prose(uint64(i), 1+i*37%900))
	}
	docs[5], docs[6], docs[7] = "", strings.Repeat("long ", 10000), "a\r\nb \\ \" \u2028 end"
	dir := t.TempDir()
	reference := ""
	for name, content := range map[string][]byte{
		"a.jsonl":     jsonl(t, "text", docs),
		"a.jsonl.gz":  gzipped(t, jsonl(t, "text", docs)),
		"a.jsonl.zst": zstandard(t, jsonl(t, "text", docs)),
		"a.parquet":   parquetOf(t, docs),
	} {
		out := filepath.Join(dir, "out-"+name)
		res := prepare(t, Options{Inputs: []string{writeFile(t, filepath.Join(dir, name), content)}, Out: out, Threads: 4, Seed: 9})
		got := [2]string{decoded(t, filepath.Join(out, "train.bin")), decoded(t, filepath.Join(out, "val.bin"))}
		var at [2]int
		inVal := 0
		for i, d := range docs {
			d += bpe.EndOfTextMark
			switch {
			case strings.HasPrefix(got[0][at[0]:], d):
				at[0] += len(d)
			case strings.HasPrefix(got[1][at[1]:], d):
				at[1] += len(d)
				inVal++
			default:
				t.Fatalf("%s: document %d is in neither split where it should be", name, i)
			}
		}
		if at[0] != len(got[0]) || at[1] != len(got[1]) {
			t.Errorf("%s: more than the documents was written", name)
		}
		if inVal < 12 || inVal > 50 || res.Documents != 300 {
			t.Errorf("%s: %d of %d documents in val, want about 30 of 300", name, inVal, res.Documents)
		}
		if both := got[0] + "\x00" + got[1]; reference == "" {
			reference = both
		} else if both != reference {
			t.Errorf("%s: the same documents gave another data set", name)
		}
	}
}

func TestFolderOfTexts(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "in", "b.txt"), []byte("second"))
	writeFile(t, filepath.Join(dir, "in", "a.txt"), []byte("first"))
	writeFile(t, filepath.Join(dir, "in", "sub", "c.txt.gz"), gzipped(t, []byte("third")))
	writeFile(t, filepath.Join(dir, "in", "picture.png"), []byte{0x89})
	writeFile(t, filepath.Join(dir, "in", ".hidden.txt"), []byte("hidden"))
	writeFile(t, filepath.Join(dir, "in", ".git", "x.txt"), []byte("hidden"))
	out := filepath.Join(dir, "out")
	res := prepare(t, Options{Inputs: []string{filepath.Join(dir, "in")}, Out: out, ValFraction: 1e-9})
	if got := decoded(t, filepath.Join(out, "val.bin")); got != "first<|endoftext|>" {
		t.Errorf("val is %q", got)
	}
	if got := decoded(t, filepath.Join(out, "train.bin")); got != "second<|endoftext|>third<|endoftext|>" {
		t.Errorf("train is %q", got)
	}
	if res.Files != 3 {
		t.Errorf("%d files, want 3", res.Files)
	}
}

// TestCharacters: nanoGPT's shakespeare_char: the sorted characters are the tokens, val is the last tenth.
func TestCharacters(t *testing.T) {
	text := prose(2, 50<<10)
	chars := []rune(text)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	in := writeFile(t, filepath.Join(dir, "a.txt"), []byte(strings.ReplaceAll(text, "\n", "\r\n")))
	res := prepare(t, Options{Inputs: []string{in}, Out: out, Tokenizer: Char, Threads: 3})
	meta, err := data.ReadMeta(filepath.Join(out, "meta.pkl"))
	if err != nil {
		t.Fatal(err)
	}
	set := slices.Compact(slices.Sorted(slices.Values(chars)))
	if meta.VocabSize != len(set) || res.VocabSize != len(set) {
		t.Errorf("vocabulary of %d, want %d", meta.VocabSize, len(set))
	}
	ids := append(tokens(t, filepath.Join(out, "train.bin")), tokens(t, filepath.Join(out, "val.bin"))...)
	if len(ids) != len(chars) {
		t.Fatalf("%d tokens, want %d", len(ids), len(chars))
	}
	for i, id := range ids {
		if set[id] != chars[i] {
			t.Fatalf("character %d is %q, want %q", i, set[id], chars[i])
		}
	}
	if want := int64(float64(len(chars)) * 0.9); res.TrainTokens != want {
		t.Errorf("%d train tokens, want %d", res.TrainTokens, want)
	}
	t.Run("documents end in a newline", func(t *testing.T) {
		out := filepath.Join(dir, "docs")
		prepare(t, Options{Inputs: []string{writeFile(t, filepath.Join(dir, "d.jsonl"), jsonl(t, "text", []string{"ab", "ba", "é"}))}, Out: out, Tokenizer: Char})
		ids := append(tokens(t, filepath.Join(out, "train.bin")), tokens(t, filepath.Join(out, "val.bin"))...)
		if want := []uint16{1, 2, 0, 2, 1, 0, 3, 0}; !slices.Equal(ids, want) {
			t.Errorf("tokens %v, want %v", ids, want)
		}
	})
}

func TestStdin(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		in     []byte
		format Format
		want   string
	}{
		"text":    {[]byte("hello world"), Auto, "hello wor"},
		"gzip":    {gzipped(t, []byte("hello world")), Auto, "hello wor"},
		"records": {append([]byte("\ufeff"), jsonl(t, "text", []string{"a", "b"})...), JSONL, "b<|endoftext|>"}, // with Windows' mark
	} {
		out := filepath.Join(dir, name)
		prepare(t, Options{Inputs: []string{"-"}, Stdin: bytes.NewReader(c.in), Format: c.format, Out: out, ValFraction: 0.15})
		if got := decoded(t, filepath.Join(out, "train.bin")); got != c.want {
			t.Errorf("%s: train is %q, want %q", name, got, c.want)
		}
	}
}

func TestInvalidBytesAreKept(t *testing.T) {
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "a.txt"), []byte("caf\xe9 \xff\xfe end of it"))
	out := filepath.Join(dir, "out")
	res := prepare(t, Options{Inputs: []string{in}, Out: out})
	if got := decoded(t, filepath.Join(out, "train.bin")) + decoded(t, filepath.Join(out, "val.bin")); got != "caf\xe9 \xff\xfe end of it" {
		t.Errorf("text is %q", got)
	}
	if res.Invalid != 3 {
		t.Errorf("%d bytes are not UTF-8, want 3", res.Invalid)
	}
}

func BenchmarkPrepare(b *testing.B) {
	dir := b.TempDir()
	text := []byte(prose(1, 8<<20))
	in := writeFile(b, filepath.Join(dir, "a.txt"), text)
	b.SetBytes(int64(len(text)))
	for i := 0; b.Loop(); i++ {
		prepare(b, Options{Inputs: []string{in}, Out: filepath.Join(dir, fmt.Sprint(i)), chunk: chunkSize})
	}
}
