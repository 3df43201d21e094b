package metrics

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func iteration(i int) Iter {
	return Iter{Iter: i, Loss: Float(4 - float64(i)/10), LR: 6e-4, GradNorm: 1.25, DtMs: 44.1, TokensPerS: 17_000, VramProcess: 1 << 30}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func begin(t *testing.T, iters int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), Name)
	l := must[*Log](t)(Create(path, filepath.Join(filepath.Dir(path), PrevName)))
	for i := range iters {
		if i%5 == 0 {
			if err := l.Eval(Eval{i, 4, 4.5}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Iter(iteration(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhatIsWrittenReadsBack(t *testing.T) {
	s := must[*Series](t)(Read(begin(t, 11)))
	if len(s.Iters) != 11 || len(s.Evals) != 3 || s.Skipped != 0 {
		t.Fatalf("%d iterations, %d estimates, %d skipped", len(s.Iters), len(s.Evals), s.Skipped)
	}
	if diff := cmp.Diff(iteration(7), s.Iters[7]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Eval{10, 4, 4.5}, s.Evals[2]); diff != "" {
		t.Error(diff)
	}
}

// The keys are part of snug's interface.
func TestKeys(t *testing.T) {
	path := begin(t, 1)
	raw := must[[]byte](t)(os.ReadFile(path))
	want := `{"iter":0,"train_loss":4,"val_loss":4.5}
{"iter":0,"loss":4,"lr":0.0006,"grad_norm":1.25,"dt_ms":44.1,"tokens_per_s":17000,"vram_process":1073741824}
`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Error(diff)
	}
}

func TestADivergedRunIsStillJSON(t *testing.T) {
	path := begin(t, 0)
	l := must[*Log](t)(Resume(path, 0))
	bad := iteration(0)
	bad.Loss, bad.GradNorm = Float(math.NaN()), Float(math.Inf(1))
	if err := l.Iter(bad); err != nil {
		t.Fatal(err)
	}
	if err := l.Eval(Eval{1, Float(math.NaN()), Float(math.NaN())}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	raw := must[[]byte](t)(os.ReadFile(path))
	if !bytes.Contains(raw, []byte(`"loss":null`)) {
		t.Errorf("file = %s", raw)
	}
	s := must[*Series](t)(Read(path))
	bad.GradNorm = Float(math.NaN())
	want := &Series{Iters: []Iter{bad}, Evals: []Eval{{1, Float(math.NaN()), Float(math.NaN())}}}
	if diff := cmp.Diff(want, s, cmp.Comparer(func(a, b Float) bool { return a == b || a != a && b != b })); diff != "" {
		t.Error(diff)
	}
}

// A run that is resumed at iteration 7 writes 7 and later again: the file has each iteration once.
func TestResumeHasEachIterationOnce(t *testing.T) {
	path := begin(t, 11)
	f := must[*os.File](t)(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))
	f.WriteString(`{"iter":11,"loss":3.`) // killed in the middle of a line
	f.Close()
	if s := must[*Series](t)(Read(path)); s.Skipped != 1 || len(s.Iters) != 11 {
		t.Fatalf("torn file: %d iterations, %d skipped", len(s.Iters), s.Skipped)
	}
	l := must[*Log](t)(Resume(path, 5))
	for i := 5; i < 9; i++ {
		if err := l.Iter(iteration(i)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	s := must[*Series](t)(Read(path))
	if len(s.Iters) != 9 || len(s.Evals) != 2 || s.Skipped != 0 {
		t.Fatalf("%d iterations, %d estimates, %d skipped", len(s.Iters), len(s.Evals), s.Skipped)
	}
	for i, m := range s.Iters {
		if m.Iter != i {
			t.Errorf("line %d is iteration %d", i, m.Iter)
		}
	}
}

func TestANewRunKeepsTheOldLog(t *testing.T) {
	path := begin(t, 3)
	prev := filepath.Join(filepath.Dir(path), PrevName)
	must[*Log](t)(Create(path, prev)).Close()
	if s := must[*Series](t)(Read(prev)); len(s.Iters) != 3 {
		t.Errorf("%d iterations in the old log", len(s.Iters))
	}
	if s := must[*Series](t)(Read(path)); len(s.Iters) != 0 {
		t.Errorf("%d iterations in the new log", len(s.Iters))
	}
}

func TestLinesThatAreNoMetricsAreSkipped(t *testing.T) {
	for name, c := range map[string]struct {
		text         string
		good, skippd int
	}{
		"empty":         {"", 0, 0},
		"blank line":    {"\n", 0, 1},
		"not JSON":      {"hello\n{\"iter\":1,\"loss\":2}\n", 1, 1},
		"another thing": {"{\"a\":1}\n", 0, 1},
		"negative":      {"{\"iter\":-1,\"loss\":2}\n", 0, 1},
		"CRLF":          {"{\"iter\":1,\"loss\":2}\r\n", 1, 0},
		"very long":     {strings.Repeat("x", 5*maxLine) + "\n{\"iter\":1,\"loss\":2}\n", 1, 1},
		"long and torn": {strings.Repeat("x", 5*maxLine), 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := read(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Iters) != c.good || s.Skipped != c.skippd {
				t.Errorf("%d read, %d skipped, want %d and %d", len(s.Iters), s.Skipped, c.good, c.skippd)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"iter":0,"train_loss":4,"val_loss":4.5}` + "\n" + `{"iter":0,"loss":null}` + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := read(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(raw, []byte("\n")) + 1; len(s.Iters)+len(s.Evals)+s.Skipped > lines {
			t.Fatalf("%d + %d + %d of %d lines", len(s.Iters), len(s.Evals), s.Skipped, lines)
		}
	})
}

// The record's framing and fields, byte by byte. That TensorBoard reads the file was checked with TensorBoard 2.21.
func TestEventRecords(t *testing.T) {
	dir := t.TempDir()
	e := must[*Events](t)(newEvents(dir, 2, func() time.Time { return time.Unix(1_700_000_000, 0) }))
	if err := e.Write(300, Scalar{"val/loss", 1.5}); err != nil {
		t.Fatal(err)
	}
	e.Close()
	paths, _ := filepath.Glob(filepath.Join(dir, "events.out.tfevents.1700000000.*"))
	if len(paths) != 1 {
		t.Fatalf("files %v", paths)
	}
	raw := must[[]byte](t)(os.ReadFile(paths[0]))
	var records [][]byte
	for len(raw) > 0 {
		n := binary.LittleEndian.Uint64(raw)
		if got := binary.LittleEndian.Uint32(raw[8:]); got != maskedCRC(raw[:8]) {
			t.Fatalf("length CRC %x", got)
		}
		records = append(records, raw[12:12+n])
		if got := binary.LittleEndian.Uint32(raw[12+n:]); got != maskedCRC(raw[12:12+n]) {
			t.Fatalf("data CRC %x", got)
		}
		raw = raw[16+n:]
	}
	if len(records) != 3 {
		t.Fatalf("%d records", len(records))
	}
	time := "\x09\x00\x00\x00\x40\xfc\x54\xd9\x41"
	for i, want := range []string{
		time + "\x10\x00\x1a\x0dbrain.Event:2",
		time + "\x10\x03\x3a\x02\x08\x01",
		time + "\x10\xac\x02\x2a\x11\x0a\x0f\x0a\x08val/loss\x15\x00\x00\xc0\x3f",
	} {
		if string(records[i]) != want {
			t.Errorf("record %d is %q, want %q", i, records[i], want)
		}
	}
	// RFC 3720's CRC-32C of 32 zero bytes is 8a9136aa; rotated right by 15, plus a282ead8.
	if got := maskedCRC(make([]byte, 32)); got != 0xfd7fffa {
		t.Errorf("masked CRC of zeros is %x", got)
	}
}
