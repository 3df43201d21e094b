package sample

import (
	"fmt"
	"slices"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/safetensors"
	"github.com/snugml/snug/internal/trace"
)

// Device is where a model runs: an executor and the dtype of weights and keys there. Loading gives the executor its arena;
// it stays its owner's to close.
type Device struct {
	Exec  program.Executor
	DType trace.DType
}

// Model is a GPT with one context: the keys and values of the positions so far.
type Model struct {
	gpt.Model
	exec   program.Executor
	gen    *gpt.Generation
	n      int       // positions in the context
	logits []float32 // (V), of the last of them
	idx    []int32
}

// chunk is how many tokens of a long text go through at once.
const chunk = 256

// NewModel loads the parameters of s for texts that grow from `from` to `to` tokens.
func NewModel(s *checkpoint.State, d Device, from, to int) (*Model, error) {
	return newModel(s, d, passRows(s.Model.BlockSize, from, to))
}

func newModel(s *checkpoint.State, d Device, rows []int) (*Model, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	g, err := gpt.BuildGeneration(s.Model, d.DType, rows...)
	if err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	g.AddScratch(d.Exec.Scratch)
	m := &Model{Model: s.Model, exec: d.Exec, gen: g, logits: make([]float32, s.Model.VocabSize), idx: make([]int32, g.Passes[0].Rows)}
	if err := d.Exec.Load(g.Place()); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	return m, m.fill(s)
}

// passRows are the passes that a text needs as it grows from `from` to `to` tokens: one row for each new token; the
// prompt's window whole, in chunks; and block_size rows likewise where the text outgrows them.
func passRows(T, from, to int) []int {
	rows := []int{1}
	lengths := []int{min(from, T)}
	if to > T {
		lengths = append(lengths, T)
	}
	for _, n := range lengths {
		if n >= chunk {
			rows = append(rows, chunk)
		}
		if n%chunk > 0 {
			rows = append(rows, n%chunk)
		}
	}
	return rows
}

// fill gives the parameters their values.
func (m *Model) fill(s *checkpoint.State) error {
	byName := make(map[string]safetensors.Tensor, len(s.Params))
	for _, t := range s.Params {
		byName[t.Name] = t
	}
	var buf []float32
	for _, p := range m.gen.Params {
		buf = slices.Grow(buf[:0], p.Len())[:p.Len()]
		if err := byName[p.Name].Floats(buf); err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		if err := m.exec.SetFloats(p.Weight, buf); err != nil {
			return fmt.Errorf("sample: %w", err)
		}
	}
	return nil
}

// forward appends tokens to the context and leaves the logits of the last one. There must be room for them.
//
// Which rows come together changes the order of sums, never the sums: cached and fresh logits agree to rounding.
func (m *Model) forward(tokens []uint16) error {
	for len(tokens) > 0 {
		pass := m.pass(len(tokens))
		for i, id := range tokens[:pass.Rows] {
			m.idx[i] = int32(id)
		}
		if err := m.exec.SetInts(m.gen.Idx, m.idx[:pass.Rows]); err != nil {
			return err
		}
		if err := m.exec.Run(pass.Body, program.Step{Pos: m.n}); err != nil {
			return err
		}
		m.n += pass.Rows
		if tokens = tokens[pass.Rows:]; len(tokens) == 0 {
			if err := m.exec.Run(pass.Head, program.Step{}); err != nil {
				return err
			}
		}
	}
	return m.exec.Floats(m.gen.Logits, m.logits)
}

// pass is the one with most rows of those that n tokens fill.
func (m *Model) pass(n int) gpt.Pass {
	for _, p := range m.gen.Passes {
		if p.Rows <= n {
			return p
		}
	}
	panic("sample: no pass of one row")
}
