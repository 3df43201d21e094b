package gpt

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// Generation is a model run forward on one sequence, some rows at a time, as a program: each layer keeps the keys and
// values of the rows before.
type Generation struct {
	*program.Program
	Model  Model
	Params []Param // their Weight alone is there

	Idx    program.ID // int32 (most rows), written before each pass
	Logits program.ID // (V), of the last row, after a head
	Passes []Pass     // the one with most rows first
}

// Pass is the sections of a run over Rows new positions; Step.Pos is the first one's.
type Pass struct {
	Rows int
	Body int // section: the rows join the caches
	Head int // section: Logits of the last row, after Body
}

// cached are a layer's keys and values, (T,C) each.
type cached struct{ keys, values program.Arg }

// BuildGeneration writes the passes over each of the given numbers of rows as a program in dtype.
func BuildGeneration(m Model, dtype trace.DType, rows ...int) (*Generation, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	m.Dropout = 0
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b int) int { return cmp.Compare(b, a) })
	rows = slices.Compact(rows)
	if most := rows[0]; rows[len(rows)-1] < 1 || most > m.BlockSize {
		return nil, fmt.Errorf("passes over %v rows: each must be 1 to block_size %d", rows, m.BlockSize)
	}
	b := &builder{Step: &Step{Program: &program.Program{}, Model: m, Policy: Policy{Weight: dtype, Activation: dtype}}, params: map[string]Param{}}
	for _, spec := range m.Specs() {
		p := Param{Spec: spec, Master: program.None, Grad: program.None, M: program.None, V: program.None}
		p.Weight = b.Add(program.Persistent, trace.Weight, dtype, spec.Name, spec.Shape...)
		b.Params, b.params[spec.Name] = append(b.Params, p), p
	}
	keep := func(name string, shape ...int) program.ID {
		return b.Add(program.Persistent, trace.Activation, dtype, name, shape...)
	}
	for l := range m.NLayer {
		b.caches = append(b.caches, cached{b.Whole(keep(fmt.Sprintf("h.%d.attn.keys", l), m.BlockSize, m.NEmbd)), b.Whole(keep(fmt.Sprintf("h.%d.attn.values", l), m.BlockSize, m.NEmbd))})
	}
	g := &Generation{Program: b.Program, Model: m, Params: b.Params, Logits: keep("logits", m.VocabSize)}
	g.Idx = b.Add(program.Persistent, trace.Input, trace.Int32, "idx", rows[0])
	b.Idx = g.Idx
	final := keep("ln_f", rows[0], m.NEmbd)
	for _, n := range rows {
		b.Model.BlockSize = n // a sequence of n rows, wherever it begins
		p := Pass{Rows: n}
		p.Body = b.section(fmt.Sprintf("rows_%d", n), "sample", 1, func() { b.pass(b.head(final, n*m.NEmbd)) })
		p.Head = b.section(fmt.Sprintf("head_%d", n), "sample", 1, func() {
			at := program.Attrs{N: 1, C: m.NEmbd, OC: m.VocabSize}
			last := program.Arg{ID: final, Offset: (n - 1) * m.NEmbd, Len: m.NEmbd}
			b.op(program.MatmulForward, "lm_head", at, b.Whole(g.Logits), last, b.weight("wte"), program.Absent)
		})
		g.Passes = append(g.Passes, p)
	}
	return g, g.Check()
}

// pass runs the layers over the section's rows and leaves their last layernorm in out.
func (b *builder) pass(out program.Arg) {
	x, ln := b.encoder()
	for l := range b.Model.NLayer {
		k, mlp := b.forward(l, x, ln, false)
		if l+1 < b.Model.NLayer {
			x, ln = b.nextLayer(l, k.mid, mlp)
			continue
		}
		b.residualInto(out, "ln_f", 0, k.mid, mlp)
	}
}
