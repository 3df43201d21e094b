package cuda

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/bundle"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// A sequence that grows by many rows, then by few, then by one has PyTorch's logits after each.
func TestGenerationAgainstPyTorch(t *testing.T) {
	openTest(t, Options{})
	far := map[trace.DType]float64{trace.Float32: 1e-4, trace.Float16: 0.01, trace.BFloat16: 0.05}
	for _, o := range []Options{{}, {Generic: true, OwnBlas: true}} {
		e := openTest(t, o)
		for name, b := range bundles(t) {
			if b.Logits == nil {
				continue
			}
			for _, dtype := range testDTypes {
				t.Run(fmt.Sprintf("generic=%v,own=%v,%s,%s", o.Generic, o.OwnBlas, name, dtype), func(t *testing.T) {
					T := b.Config.BlockSize
					rows := []int{max(1, T/2), 2, 1}
					g := loadGeneration(t, e, b, dtype, rows)
					x, _ := b.Batch(0, 0)
					for at := 0; at < T; {
						pass := g.Passes[slices.IndexFunc(g.Passes, func(p gpt.Pass) bool { return p.Rows <= T-at })]
						got := extend(t, e, g, pass, at, x)
						at += pass.Rows
						if far, d := far[dtype], relative(got, b.Logits[(at-1)*g.Model.VocabSize:][:g.Model.VocabSize]); !(d <= far) {
							t.Fatalf("after %d rows the logits are %.2g from PyTorch's, allowed %.2g", at, d, far)
						}
					}
				})
			}
		}
	}
}

// loadGeneration places the bundle's model in a poisoned arena.
func loadGeneration(t *testing.T, e *Executor, b *bundle.Bundle, dtype trace.DType, rows []int) *gpt.Generation {
	t.Helper()
	c := b.Config
	g, err := gpt.BuildGeneration(gpt.Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias}, dtype, rows...)
	if err != nil {
		t.Fatal(err)
	}
	g.AddScratch(e.Scratch)
	if err := e.Load(g.Place()); err != nil {
		t.Fatal(err)
	}
	if err := e.Poison(); err != nil {
		t.Fatal(err)
	}
	for _, p := range g.Params {
		if err := e.SetFloats(p.Weight, b.Param[p.Name]); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// extend runs one pass from position at on and returns its logits.
func extend(t *testing.T, e *Executor, g *gpt.Generation, p gpt.Pass, at int, x []int32) []float32 {
	t.Helper()
	logits := make([]float32, g.Model.VocabSize)
	for _, do := range []func() error{
		func() error { return e.SetInts(g.Idx, x[at:][:p.Rows]) },
		func() error { return e.Run(p.Body, program.Step{Pos: at}) },
		func() error { return e.Run(p.Head, program.Step{}) },
		func() error { return e.Floats(g.Logits, logits) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	return logits
}

// generateAll launches every pass of a generation, at the end of the context.
func generateAll(e *Executor, m gpt.Model, dtype trace.DType) error {
	g, err := gpt.BuildGeneration(m, dtype, 1, m.BlockSize)
	if err != nil {
		return err
	}
	g.AddScratch(e.Scratch)
	if err := e.Load(g.Place()); err != nil {
		return err
	}
	if err := e.SetInts(g.Idx, make([]int32, m.BlockSize)); err != nil { // Load leaves no tokens there
		return err
	}
	for _, p := range g.Passes {
		if err := errors.Join(e.Run(p.Body, program.Step{Pos: m.BlockSize - p.Rows}), e.Run(p.Head, program.Step{})); err != nil {
			return err
		}
	}
	return nil
}
