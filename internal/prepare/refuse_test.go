package prepare

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/bpe"
)

func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string { return writeFile(t, filepath.Join(dir, name), []byte(content)) }
	whole := gzipped(t, []byte(prose(1, 100000)))
	damaged := parquetOf(t, []string{"a", "b"})
	footer := len(damaged) - 8 - int(binary.LittleEndian.Uint32(damaged[len(damaged)-8:]))
	copy(damaged[4:], bytes.Repeat([]byte{0xff}, footer-4))
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no file":            {Options{Inputs: []string{filepath.Join(dir, "nowhere.txt")}}, "no such file"},
		"an empty folder":    {Options{Inputs: []string{t.TempDir()}}, "no .txt, .jsonl or .parquet"},
		"an empty file":      {Options{Inputs: []string{file("e.txt", "")}}, "0 characters"},
		"not JSON":           {Options{Inputs: []string{file("a.jsonl", "{\"text\": \"a\"}\n\nnope\n")}}, "a.jsonl: line 3: not JSON"},
		"a JSON list":        {Options{Inputs: []string{file("l.jsonl", "[1]\n")}}, "line 1: not a JSON object"},
		"no such field":      {Options{Inputs: []string{file("b.jsonl", "{\"body\": \"a\", \"id\": 1}\n")}}, `line 1: no field "text": it has body, id: use --field`},
		"a field of numbers": {Options{Inputs: []string{file("c.jsonl", "{\"text\": 7}\n")}}, `field "text" is not text: 7`},
		"one document":       {Options{Inputs: []string{file("d.jsonl", "{\"text\": \"a\"}\n")}}, "train.bin would be empty: 1 documents"},
		"not Parquet":        {Options{Inputs: []string{file("a.parquet", "hello")}}, "not a Parquet file"},
		"damaged Parquet":    {Options{Inputs: []string{file("b.parquet", string(damaged))}}, "b.parquet"},
		"no such column":     {Options{Inputs: []string{file("c.parquet", string(parquetOf(t, []string{"a"})))}, Field: "body"}, `no column "body": it has id, text`},
		"a column of ints":   {Options{Inputs: []string{filepath.Join(dir, "c.parquet")}, Field: "id"}, `column "id" is INT`},
		"gzip cut short":     {Options{Inputs: []string{file("a.txt.gz", string(whole[:len(whole)/2]))}}, "unexpected EOF"},
		"no gzip":            {Options{Inputs: []string{file("b.txt.gz", "plain text")}}, "b.txt.gz: its name says that it is compressed, and it is not"},
		"UTF-16":             {Options{Inputs: []string{file("u.txt", "\xff\xfeh\x00i\x00")}}, "UTF-16"},
		"bytes as chars":     {Options{Inputs: []string{file("x.txt", "abc\r\n\xff")}, Tokenizer: Char}, "byte 0xff at 5 is not UTF-8"},
		"an odd fraction":    {Options{Inputs: []string{file("y.txt", "abc")}, ValFraction: 1}, "--val_fraction=1"},
		"a tokenizer":        {Options{Inputs: []string{file("y.txt", "abc")}, Tokenizer: "words"}, "use gpt2 or char"},
		"nothing":            {Options{}, "no input"},
	} {
		t.Run(name, func(t *testing.T) {
			o := c.o
			o.Format = Auto
			if o.Tokenizer == "" {
				o.Tokenizer = GPT2
			}
			if o.Field == "" {
				o.Field = "text"
			}
			o.Out = filepath.Join(t.TempDir(), "out")
			_, err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			for _, file := range []string{"train.bin", "val.bin", "meta.pkl"} {
				if _, err := os.Stat(filepath.Join(o.Out, file)); err == nil {
					t.Errorf("%s was written", file)
				}
			}
		})
	}
}

// FuzzText: any file, cut into chunks anyhow, gives the tokens of its text whole.
func FuzzText(f *testing.F) {
	f.Add([]byte("hello\r\nworld \r\r\n x"), 0.3)
	f.Add([]byte(prose(1, 300)), 0.5)
	f.Fuzz(func(t *testing.T, content []byte, fraction float64) {
		if !(fraction > 0 && fraction < 1) || len(content) > 4096 || utf16(content) ||
			bytes.HasPrefix(content, gzipMagic) || bytes.HasPrefix(content, zstdMagic) {
			return
		}
		dir := t.TempDir()
		o := Options{Inputs: []string{writeFile(t, filepath.Join(dir, "a.txt"), content)}, Out: filepath.Join(dir, "out"),
			Tokenizer: GPT2, Format: Auto, ValFraction: fraction, Threads: 1, chunk: 1024}
		text := newlines(bytes.Clone(content))
		n := countChars(content)
		cut := afterChars(text, int64(float64(n)*(1-fraction)))
		_, err := Run(t.Context(), o)
		if cut == 0 || cut == len(text) {
			if err == nil {
				t.Error("an empty split was written")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for split, want := range map[string][]byte{"train.bin": text[:cut], "val.bin": text[cut:]} {
			if got := tokens(t, filepath.Join(o.Out, split)); !slices.Equal(got, bpe.GPT2().Encode(string(want))) {
				t.Errorf("%s of %q: %v", split, content, got)
			}
		}
	})
}

// FuzzFieldOf: no line makes it panic.
func FuzzFieldOf(f *testing.F) {
	f.Add([]byte(`{"text": "a\ud83d"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if text, err := fieldOf(line, "text"); err == nil && !json.Valid(line) {
			t.Errorf("%q gave %q", line, text)
		}
	})
}
