package prepare

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

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
