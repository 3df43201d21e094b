package sample

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/bpe"
	"github.com/snugml/snug/internal/bundle"
	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/data"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/safetensors"
	"github.com/snugml/snug/internal/trace"
)

func bundles(t *testing.T) map[string]*bundle.Bundle {
	t.Helper()
	paths, _ := filepath.Glob("../gpt/testdata/bundle_*.safetensors")
	if len(paths) == 0 {
		t.Fatal("no bundles")
	}
	out := map[string]*bundle.Bundle{}
	for _, path := range paths {
		b, err := bundle.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = b
	}
	return out
}

// onCPU is a device that ends with the test.
func onCPU(t testing.TB, threads int, k *kernel.Set) Device {
	x := cpu.New(cpu.Options{Threads: threads, Kernels: k})
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return Device{Exec: x, DType: trace.Float32}
}

// run appends tokens to m's context, from position n on.
func run(t testing.TB, m *Model, n int, tokens ...uint16) []float32 {
	t.Helper()
	m.n = n
	if err := m.forward(tokens); err != nil {
		t.Fatal(err)
	}
	return m.logits
}

func modelOf(t testing.TB, b *bundle.Bundle, threads int, k *kernel.Set, rows ...int) *Model {
	t.Helper()
	c := b.Config
	s := &checkpoint.State{Model: gpt.Model{NLayer: c.NLayer, NHead: c.NHead, NEmbd: c.NEmbd, BlockSize: c.BlockSize, VocabSize: c.VocabSize, Bias: c.Bias}}
	for _, spec := range s.Model.Specs() {
		s.Params = append(s.Params, safetensors.F32Tensor(spec.Name, b.Param[spec.Name], b.Shapes[spec.Name]...))
	}
	m, err := newModel(s, onCPU(t, threads, k), append(rows, 1))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tokens(x []int32) []uint16 {
	out := make([]uint16, len(x))
	for i, v := range x {
		out[i] = uint16(v)
	}
	return out
}

// The logits of every position are PyTorch's, on every set of kernels.
func TestLogitsArePyTorchs(t *testing.T) {
	for name, b := range bundles(t) {
		for _, k := range kernel.All() {
			t.Run(name+"/"+k.Name, func(t *testing.T) {
				x, _ := b.Batch(0, 0)
				T, V := b.Config.BlockSize, b.Config.VocabSize
				var rows []int
				for n := range T {
					rows = append(rows, n+1)
				}
				m := modelOf(t, b, 2, k, rows...)
				for seq := range b.Config.BatchSize {
					ids := tokens(x[seq*T:][:T])
					for i := range ids {
						for v, got := range run(t, m, 0, ids[:i+1]...) {
							want := b.Logits[(seq*T+i)*V+v]
							if !(math.Abs(float64(got-want)) <= 2e-5*max(1, math.Abs(float64(want)))) {
								t.Fatalf("sequence %d, position %d, token %d: %g, PyTorch has %g", seq, i, v, got, want)
							}
						}
					}
				}
			})
		}
	}
}

// Token by token through the cache, or all at once: the same logits to rounding, and the same bits on any number of threads.
func TestCachedLogitsEqualTheFullForward(t *testing.T) {
	for name, m := range map[string]func(threads, rows int) (*Model, []uint16){
		"a bundle": func(threads, rows int) (*Model, []uint16) {
			b := bundles(t)["bundle_bias.safetensors"]
			x, _ := b.Batch(0, 0)
			return modelOf(t, b, threads, nil, min(rows, b.Config.BlockSize)), tokens(x[:b.Config.BlockSize])
		},
		"longer than a chunk": func(threads, rows int) (*Model, []uint16) {
			ids := make([]uint16, chunk+77)
			for i := range ids {
				ids[i] = uint16(i * i % 97)
			}
			return longContext(t, 16, len(ids), threads, min(rows, len(ids))), ids
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, ids := m(1, math.MaxInt)
			full := run(t, first, 0, ids...)
			for _, rows := range []int{1, 4, 5, 50, chunk} {
				var bits []float32
				for _, threads := range []int{1, 2, 7} {
					model, _ := m(threads, rows)
					got := run(t, model, 0, ids...)
					if bits == nil {
						bits = got
					}
					if !slices.Equal(bits, got) {
						t.Errorf("%d tokens at once: other bits on %d threads", rows, threads)
					}
				}
				for v, want := range full {
					if !(math.Abs(float64(bits[v]-want)) <= 1e-5*max(1, math.Abs(float64(want)))) {
						t.Fatalf("%d tokens at once, token %d: %g, the full forward has %g", rows, v, bits[v], want)
					}
				}
			}
		})
	}
}

// longContext is a random model whose context is longer than a chunk.
func longContext(t testing.TB, C, T, threads int, rows ...int) *Model {
	t.Helper()
	m := gpt.Model{NLayer: 2, NHead: 2, NEmbd: C, BlockSize: T, VocabSize: 97, Bias: true}
	s, seed := &checkpoint.State{Model: m}, uint32(1)
	for _, spec := range m.Specs() {
		x := make([]float32, spec.Len())
		for i := range x {
			seed = seed*1664525 + 1013904223
			x[i] = (float32(seed>>8)/(1<<24) - 0.5) * 0.5
			if spec.One {
				x[i]++
			}
		}
		shape := make([]int64, len(spec.Shape))
		for i, d := range spec.Shape {
			shape[i] = int64(d)
		}
		s.Params = append(s.Params, safetensors.F32Tensor(spec.Name, x, shape...))
	}
	model, err := newModel(s, onCPU(t, threads, nil), append(rows, 1))
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func generate(t testing.TB, g *Generator, n int) (out []uint16) {
	t.Helper()
	if err := g.Sample(context.Background(), n, func(id uint16) error { out = append(out, id); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

// nanoGPT's generate, word for word: crop to block_size, run everything, take the last logits.
func TestGenerationIsNanoGPTs(t *testing.T) {
	const T = 40
	m, plain := longContext(t, 16, T, 2, passRows(T, T, 2*T)...), longContext(t, 16, T, 2)
	for name, prompt := range map[string][]uint16{"short": {1, 2, 3}, "as long as the context": make([]uint16, T), "longer": make([]uint16, 3*T)} {
		t.Run(name, func(t *testing.T) {
			o := Options{MaxNewTokens: 2*T + 5, Temperature: 0.9, TopK: 20, Seed: 7}
			g, err := NewGenerator(m, prompt, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{0, 3} {
				var want []uint16
				d := newDrawer(m.VocabSize, o)
				ids := slices.Clone(prompt)
				for i := range o.MaxNewTokens {
					id, err := d.next(run(t, plain, 0, ids[max(0, len(ids)-T):]...), n, i)
					if err != nil {
						t.Fatal(err)
					}
					ids, want = append(ids, id), append(want, id)
				}
				if diff := cmp.Diff(want, generate(t, g, n)); diff != "" {
					t.Errorf("sample %d: %s", n, diff)
				}
			}
		})
	}
}

func TestSamplesDifferAndRepeat(t *testing.T) {
	m := longContext(t, 16, 40, 2)
	o := Options{MaxNewTokens: 20, Temperature: 1, Seed: 1}
	g, _ := NewGenerator(m, []uint16{5}, o)
	a, b := generate(t, g, 0), generate(t, g, 1)
	if slices.Equal(a, b) {
		t.Error("two samples are the same")
	}
	if !slices.Equal(a, generate(t, g, 0)) {
		t.Error("a sample is another the second time")
	}
	o.Seed = 2
	h, _ := NewGenerator(m, []uint16{5}, o)
	if slices.Equal(a, generate(t, h, 0)) {
		t.Error("another seed gives the same sample")
	}
}

func TestBadPrompts(t *testing.T) {
	m := longContext(t, 16, 40, 2)
	for name, c := range map[string]struct {
		prompt []uint16
		o      Options
	}{"empty": {nil, Options{Temperature: 1}}, "beyond the vocabulary": {[]uint16{97}, Options{Temperature: 1}}, "cold": {[]uint16{1}, Options{Temperature: -1}},
		"no temperature": {[]uint16{1}, Options{Temperature: math.NaN()}}} {
		if _, err := NewGenerator(m, c.prompt, c.o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestStopsWithItsContext(t *testing.T) {
	g, _ := NewGenerator(longContext(t, 16, 40, 2), []uint16{5}, Options{MaxNewTokens: 100, Temperature: 1})
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	err := g.Sample(ctx, 0, func(uint16) error {
		if n++; n == 3 {
			cancel()
		}
		return nil
	})
	if n != 3 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d tokens, error %v", n, err)
	}
}

// A million draws follow the softmax, token by token.
func TestDrawsFollowTheProbabilities(t *testing.T) {
	logits := []float32{1, 0, 2, -1, 2, 3, float32(math.Inf(-1))}
	for name, c := range map[string]struct {
		o    Options
		keep []int
	}{
		"all":         {Options{Temperature: 0.7}, []int{0, 1, 2, 3, 4, 5}},
		"top 2, tied": {Options{Temperature: 1, TopK: 2}, []int{2, 4, 5}},
		"top 100":     {Options{Temperature: 1, TopK: 100}, []int{0, 1, 2, 3, 4, 5}},
		"greedy":      {Options{Temperature: 0}, []int{5}},
		"top 1":       {Options{Temperature: 5, TopK: 1}, []int{5}},
		"padded":      {Options{Temperature: 1, Vocabulary: 3}, []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			const draws = 200_000
			d := newDrawer(len(logits), c.o)
			seen := make([]float64, len(logits))
			for i := range draws {
				id, err := d.next(logits, i%5, i)
				if err != nil {
					t.Fatal(err)
				}
				seen[id]++
			}
			want, sum := make([]float64, len(logits)), 0.0
			for _, id := range c.keep {
				want[id] = 1
				if c.o.Temperature > 0 {
					want[id] = math.Exp(float64(logits[id]) / c.o.Temperature)
				}
				sum += want[id]
			}
			for id := range want {
				p := want[id] / sum
				if got := seen[id] / draws; !(math.Abs(got-p) <= 5*math.Sqrt(p*(1-p)/draws)) {
					t.Errorf("token %d is drawn with frequency %.4f, its probability is %.4f", id, got, p)
				}
			}
		})
	}
	if _, err := (&drawer{probs: make([]float64, 1), o: Options{Temperature: 1}}).next([]float32{float32(math.NaN())}, 0, 0); err == nil {
		t.Error("NaN was drawn from")
	}
}

func TestLargest(t *testing.T) {
	seed := uint32(1)
	for n := 1; n < 200; n++ {
		v := make([]float32, n)
		for i := range v {
			seed = seed*1664525 + 1013904223
			v[i] = float32(seed >> 28) // many ties
		}
		sorted := slices.Sorted(slices.Values(v))
		for _, k := range []int{1, n/2 + 1, n} {
			if got := largest(slices.Clone(v), k); got != sorted[n-k] {
				t.Fatalf("the %d-th largest of %d is %g, want %g", k, n, got, sorted[n-k])
			}
		}
	}
}

func TestTextIsWholeCharacters(t *testing.T) {
	gpt2 := bpe.GPT2()
	const text = "naïve 日本語 🙂🙃 e\u0301\n"
	var b strings.Builder
	w := &Text{W: &b, Tok: gpt2}
	last := ""
	for _, id := range gpt2.Encode(text) {
		if err := w.Write(id); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, b.String()) || !strings.HasPrefix(b.String(), last) {
			t.Fatalf("%q is written so far", b.String())
		}
		last = b.String()
	}
	if err := w.End(); err != nil || b.String() != text {
		t.Errorf("%q, error %v", b.String(), err)
	}
}

func TestTextReplacesWhatIsNoText(t *testing.T) {
	chars := data.NewChars([]string{"a", "\x1b", "\n", "\t", "\x00", "\u009b", "\xf0\x9f", "é"})
	for name, c := range map[string]struct {
		terminal bool
		ids      []uint16
		want     string
	}{
		"to a file":               {false, []uint16{0, 1, 2, 3, 4, 0}, "a\x1b\n\t\x00a"},
		"to a terminal":           {true, []uint16{0, 1, 2, 3, 4, 5, 0}, "a\ufffd\n\t\ufffd\ufffda"},
		"half a character":        {false, []uint16{0, 6, 7}, "a\ufffd\ufffdé"},
		"half one at the end":     {false, []uint16{0, 6}, "a\ufffd\ufffd"},
		"a character over tokens": {false, []uint16{7, 7}, "éé"},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			w := &Text{W: &b, Tok: chars, Terminal: c.terminal}
			for _, id := range c.ids {
				if err := w.Write(id); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.End(); err != nil || b.String() != c.want {
				t.Errorf("%q, want %q, error %v", b.String(), c.want, err)
			}
		})
	}
}

// A text needs a pass of one row, its prompt's chunks, and block_size's where it outgrows them; any length is made of them.
func TestPassRows(t *testing.T) {
	for _, c := range []struct {
		T, from, to int
		want        []int
	}{
		{1024, 1, 500, []int{1, 1}},
		{1024, 700, 900, []int{1, 256, 188}},
		{1024, 700, 1100, []int{1, 256, 188, 256}},
		{40, 3, 100, []int{1, 3, 40}},
		{300, 900, 950, []int{1, 256, 44, 256, 44}},
	} {
		if got := passRows(c.T, c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("block_size %d, %d to %d tokens: %v, want %v", c.T, c.from, c.to, got, c.want)
		}
	}
}

func BenchmarkToken(b *testing.B) {
	m := longContext(b, 384, 256, 2)
	run(b, m, 0, make([]uint16, 128)...)
	for b.Loop() {
		run(b, m, 128, 1)
	}
}

func BenchmarkPrompt(b *testing.B) {
	m := longContext(b, 384, 256, 2, 256)
	for b.Loop() {
		run(b, m, 0, make([]uint16, 256)...)
	}
	b.ReportMetric(float64(b.N)*256/b.Elapsed().Seconds(), "tok/s")
}
