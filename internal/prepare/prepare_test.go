package prepare

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestThreadsAndInterruptionsChangeNothing: the output is the same by one thread and by many, and when the run is
// stopped over and over.
func TestThreadsAndInterruptionsChangeNothing(t *testing.T) {
	dir := t.TempDir()
	var docs []string
	for i := range 200 {
		docs = append(docs, prose(uint64(i), 400))
	}
	text := []byte(strings.ReplaceAll(prose(7, 100<<10), "\n", "\r\n"))
	for name, c := range map[string]struct {
		inputs    map[string][]byte
		tokenizer string
	}{
		"one text":      {map[string][]byte{"a.txt": text}, GPT2},
		"one gzip":      {map[string][]byte{"a.txt.gz": gzipped(t, text)}, GPT2},
		"documents":     {map[string][]byte{"a.txt": text, "b.jsonl": jsonl(t, "text", docs[:100]), "c.parquet": parquetOf(t, docs[100:])}, GPT2},
		"characters":    {map[string][]byte{"a.txt.zst": zstandard(t, text), "b.jsonl": jsonl(t, "text", docs)}, Char},
		"one long word": {map[string][]byte{"a.txt": bytes.Repeat([]byte("acgt"), 20<<10)}, GPT2},
	} {
		t.Run(name, func(t *testing.T) {
			in := filepath.Join(dir, name)
			for file, content := range c.inputs {
				writeFile(t, filepath.Join(in, file), content)
			}
			o := Options{Inputs: []string{in}, Tokenizer: c.tokenizer, Format: Auto, Field: "text", Threads: 1, Out: filepath.Join(in, "one"), chunk: 16 << 10}
			prepare(t, o)
			o.Threads, o.Out = 5, filepath.Join(in, "five")
			prepare(t, o)
			o.Out, o.SaveEvery = filepath.Join(in, "stopped"), time.Nanosecond // which is before every chunk
			stops := 0
			for ; ; stops++ {
				ctx, cancel := context.WithCancel(t.Context())
				o.Report = func(stage string, _, _, _ int64) {
					if stage == "counting" && stops > 0 {
						return // counting begins again when it is stopped: once is enough
					}
					cancel()
				}
				res, err := Run(ctx, o)
				cancel()
				if err == nil {
					if stops > 0 && !res.Resumed {
						t.Error("the last run does not say that it went on")
					}
					break
				}
				if !errors.Is(err, ErrStopped) || stops > 1000 {
					t.Fatal(err)
				}
			}
			if stops < 3 {
				t.Errorf("stopped %d times: the test means to stop more often", stops)
			}
			for _, file := range []string{"train.bin", "val.bin", "meta.pkl"} {
				want, err := os.ReadFile(filepath.Join(in, "one", file))
				if file == "meta.pkl" && c.tokenizer == GPT2 {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, other := range []string{"five", "stopped"} {
					if got, err := os.ReadFile(filepath.Join(in, other, file)); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s of %q: %d bytes, want the same %d (%v)", file, other, len(got), len(want), err)
					}
				}
			}
		})
	}
}

// TestKilled: whatever a kill leaves of the token files beyond the journal is cut off, and a journal that says more
// than the files hold is not believed.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "a.txt"), []byte(prose(3, 150<<10)))
	o := Options{Inputs: []string{in}, Tokenizer: GPT2, Format: Auto, Field: "text", Threads: 2, Out: filepath.Join(dir, "whole"), chunk: 8 << 10}
	prepare(t, o)
	want := tokens(t, filepath.Join(dir, "whole", "train.bin"))
	for name, damage := range map[string]func(work string) error{
		"tokens beyond the journal": func(work string) error {
			f, err := os.OpenFile(filepath.Join(work, "train.part"), os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("torn")
			return err
		},
		"tokens missing": func(work string) error { return os.Truncate(filepath.Join(work, "train.part"), 100) },
		"journal torn":   func(work string) error { return os.Truncate(filepath.Join(work, "state.json"), 20) },
		"nothing":        func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.Out, o.SaveEvery = filepath.Join(dir, name), time.Nanosecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.Report = func(stage string, _, _, tokens int64) {
				if stage == "encoding" && tokens > 10000 {
					cancel()
				}
			}
			if _, err := Run(ctx, o); !errors.Is(err, ErrStopped) {
				t.Fatal(err)
			}
			if err := damage(filepath.Join(o.Out, workDir)); err != nil {
				t.Fatal(err)
			}
			o.Report = nil
			res := prepare(t, o)
			if got := tokens(t, filepath.Join(o.Out, "train.bin")); !slices.Equal(got, want) {
				t.Errorf("%d tokens, want the same %d", len(got), len(want))
			}
			if res.Resumed != (name == "nothing" || name == "tokens beyond the journal") {
				t.Errorf("resumed: %v", res.Resumed)
			}
		})
	}
	t.Run("before the last rename", func(t *testing.T) {
		out := filepath.Join(dir, "whole")
		j, err := openJournal(out)
		if err != nil {
			t.Fatal(err)
		}
		sources, err := expand([]string{in}, Auto)
		if err != nil {
			t.Fatal(err)
		}
		j.state = state{Complete: true, Counted: true, Job: job{Version: journalVersion, Tokenizer: GPT2, Field: "text", ValFraction: 0.1, ByPosition: true, Sources: sources}}
		j.state.Bytes[train] = int64(2 * len(want))
		if err := j.save(); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(out, "val.bin"), j.part(val)); err != nil {
			t.Fatal(err)
		}
		j.close()
		o := o
		if res, err := Run(t.Context(), o); err != nil || !res.Resumed {
			t.Fatal(res, err)
		}
		if _, err := os.Stat(filepath.Join(out, "val.bin")); err != nil {
			t.Error(err)
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

func TestKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "a.txt"), []byte("hello world"))
	out := filepath.Join(dir, "out")
	writeFile(t, filepath.Join(out, "meta.pkl"), []byte("mine"))
	o := Options{Inputs: []string{in}, Out: out, Tokenizer: GPT2, Format: Auto}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("error %v, want advice to overwrite", err)
	}
	if got, err := os.ReadFile(filepath.Join(out, "meta.pkl")); err != nil || string(got) != "mine" {
		t.Errorf("meta.pkl is %q, %v", got, err)
	}
	o.Overwrite = true
	prepare(t, o)
	if _, err := os.Stat(filepath.Join(out, "meta.pkl")); err == nil {
		t.Error("the meta.pkl of the data set before is still there")
	}
	unlock, err := openJournal(out)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock.close()
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "another snug prepare") {
		t.Errorf("error %v, want that another run is there", err)
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

func BenchmarkPrepare(b *testing.B) {
	dir := b.TempDir()
	text := []byte(prose(1, 8<<20))
	in := writeFile(b, filepath.Join(dir, "a.txt"), text)
	b.SetBytes(int64(len(text)))
	for i := 0; b.Loop(); i++ {
		prepare(b, Options{Inputs: []string{in}, Out: filepath.Join(dir, fmt.Sprint(i)), chunk: chunkSize})
	}
}
