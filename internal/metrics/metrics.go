// Package metrics owns what a run writes about itself: metrics.jsonl, and TensorBoard's event files.
//
// metrics.jsonl has one JSON object a line: an iteration's, or an estimate's. A line is one write, so a killed run leaves
// at most a torn last line, which readers skip and the next run removes. The package measures nothing and draws nothing.
package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/units"
)

// Names in out_dir.
const (
	Name     = "metrics.jsonl"
	PrevName = "metrics.prev.jsonl"
)

// Float is a float64 whose NaN and infinities are JSON's null, so that a diverged run's file is still JSON.
type Float float64

// MarshalJSON writes the shortest form that reads back to the same bits.
func (f Float) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(f))
}

// UnmarshalJSON reads a number, or null as NaN.
func (f *Float) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Float(math.NaN())
		return nil
	}
	return json.Unmarshal(b, (*float64)(f))
}

// Iter is one iteration. MFU and VramProcess are left out where they are not known.
type Iter struct {
	Iter        int         `json:"iter"`
	Loss        Float       `json:"loss"`
	LR          Float       `json:"lr"`
	GradNorm    Float       `json:"grad_norm"`
	DtMs        Float       `json:"dt_ms"`
	TokensPerS  Float       `json:"tokens_per_s"`
	MFU         Float       `json:"mfu,omitzero"`
	VramProcess units.Bytes `json:"vram_process,omitzero"`
}

// Eval is one estimate of the loss on both splits.
type Eval struct {
	Iter      int   `json:"iter"`
	TrainLoss Float `json:"train_loss"`
	ValLoss   Float `json:"val_loss"`
}

// Log appends to metrics.jsonl.
type Log struct{ f *os.File }

// Create begins a log. An older one at path is kept as prev.
func Create(path, prev string) (*Log, error) {
	if err := os.Rename(path, prev); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("begin %s: %w", path, err)
	}
	return open(path)
}

// Resume goes on with a log at iteration iter: what an interrupted run wrote from there on will be written again, so it
// goes, and so does a torn last line. The file is replaced whole, so a kill loses none of it.
func Resume(path string, iter int) (*Log, error) {
	old, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("go on with %s: %w", path, err)
	}
	defer old.Close()
	tmp := path + ".tmp"
	if err := keepBefore(old, tmp, iter); err != nil {
		os.Remove(tmp)
		return nil, fmt.Errorf("go on with %s: %w", path, err)
	}
	old.Close() // Windows replaces no open file
	if err := durable.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("go on with %s: %w", path, err)
	}
	return open(path)
}

// keepBefore copies the lines before iteration iter. An estimate at iter itself belongs to the checkpoint, and stays.
func keepBefore(old io.Reader, tmp string, iter int) error {
	f, err := os.Create(tmp)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	if _, err := scan(old, func(line []byte, l line) {
		if at := l.Iter.Iter; at < iter || at == iter && l.ValLoss.set {
			w.Write(line)
			w.WriteByte('\n')
		}
	}); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

func open(path string) (*Log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("open metrics: %w", err)
	}
	return &Log{f}, nil
}

// Iter appends an iteration.
func (l *Log) Iter(m Iter) error { return l.append(m) }

// Eval appends an estimate and syncs: what it says was seen stays.
func (l *Log) Eval(m Eval) error {
	if err := l.append(m); err != nil {
		return err
	}
	return l.f.Sync()
}

func (l *Log) append(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	if _, err := l.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}

// Close syncs and closes.
func (l *Log) Close() error { return errors.Join(l.f.Sync(), l.f.Close()) }

// Series is a whole log.
type Series struct {
	Iters   []Iter
	Evals   []Eval
	Skipped int // lines that are not metrics: a torn end, or an edit gone wrong
}

// Read reads a log. Lines that cannot be read are counted and skipped.
func Read(path string) (*Series, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer f.Close()
	return read(f)
}

func read(r io.Reader) (*Series, error) {
	s := &Series{}
	skipped, err := scan(r, func(_ []byte, l line) {
		if l.ValLoss.set {
			s.Evals = append(s.Evals, Eval{l.Iter.Iter, l.TrainLoss.Float, l.ValLoss.Float})
			return
		}
		l.Iter.Loss = l.Loss.Float
		s.Iters = append(s.Iters, l.Iter)
	})
	s.Skipped = skipped
	return s, err
}

// line is either kind of line: an estimate's has val_loss.
type line struct {
	Iter
	Loss      present `json:"loss"`
	TrainLoss present `json:"train_loss"`
	ValLoss   present `json:"val_loss"`
}

// present is a number that knows whether the line had it, be it null.
type present struct {
	Float
	set bool
}

func (p *present) UnmarshalJSON(b []byte) error {
	p.set = true
	return p.Float.UnmarshalJSON(b)
}

// maxLine bounds a line: a good one has about 200 bytes.
const maxLine = 64 << 10

// scan gives each whole line that is a metric to f, and counts the others.
func scan(r io.Reader, f func(raw []byte, l line)) (skipped int, err error) {
	b := bufio.NewReaderSize(r, maxLine)
	for {
		raw, err := b.ReadSlice('\n')
		switch {
		case err == io.EOF:
			if len(raw) > 0 {
				skipped++
			}
			return skipped, nil
		case err == bufio.ErrBufferFull:
			for err == bufio.ErrBufferFull {
				_, err = b.ReadSlice('\n')
			}
			skipped++
			if err == io.EOF {
				return skipped, nil
			}
			if err != nil {
				return skipped, fmt.Errorf("read metrics: %w", err)
			}
			continue
		case err != nil:
			return skipped, fmt.Errorf("read metrics: %w", err)
		}
		var l line
		raw = bytes.TrimSpace(raw)
		if json.Unmarshal(raw, &l) != nil || l.Iter.Iter < 0 || !l.Loss.set && !l.ValLoss.set {
			skipped++
			continue
		}
		f(raw, l)
	}
}
