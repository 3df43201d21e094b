package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// arg is an argument of an op under test: n floats, or given ints, or (n == 0) absent.
type arg struct {
	n        int
	ints     []int32
	positive bool
}

// opcase is an op with its arguments' sizes and its reference, which computes in place over all float arguments.
type opcase struct {
	code  program.Code
	attrs program.Attrs
	args  []arg
	ref   func(a [][]float64)
}

var testStep = program.Step{Seed: 99, Sample: 5, LR: 0.01, T: 3, LossScale: 1}

func dropoutOf(at program.Attrs) Dropout {
	return Dropout{P: at.Dropout, Seed: testStep.Seed, Site: uint32(at.Site), Sample: testStep.Sample}
}

// opcases are every op over shapes that no vector, tile or panel divides, and one that they do.
func opcases(rng *rand.Rand) (list []opcase) {
	for _, s := range []program.Attrs{
		{B: 2, T: 7, C: 15, NH: 3, OC: 37, V: 53},
		{B: 3, T: 33, C: 70, NH: 2, OC: 101, V: 261, Dropout: 0.2, Site: 5},
		{B: 1, T: 150, C: 64, NH: 1, OC: 192, V: 1031, Accumulate: true},
		{B: 2, T: 64, C: 128, NH: 2, OC: 64, V: 65, NoGrad: true},
	} {
		s.N, s.Scale = s.B*s.T, 0.03
		s.Beta1, s.Beta2, s.Eps, s.WeightDecay, s.GradClip = 0.9, 0.95, 1e-8, 0.1, 1
		list = append(list, tokenCases(rng, s)...)
		list = append(list, layerCases(s)...)
		list = append(list, matmulCases(s)...)
		list = append(list, updateCases(s)...)
	}
	for _, c := range list {
		if o, ok := c.overwriting(); ok {
			list = append(list, o)
		}
	}
	return list
}

// overwriting is the same case with the gradients of weights overwritten; not ok where the op adds to none.
func (c opcase) overwriting() (o opcase, ok bool) {
	adds := program.Op{Code: c.code, Attrs: c.attrs}
	c.attrs.Overwrite = true
	ref, op := c.ref, program.Op{Code: c.code, Attrs: c.attrs}
	c.ref = func(a [][]float64) {
		for i := range a {
			if adds.Reads(i) && !op.Reads(i) {
				clear(a[i])
			}
		}
		ref(a)
	}
	for i := range c.args {
		ok = ok || adds.Reads(i) && !op.Reads(i)
	}
	return c, ok && c.code != program.LossSum
}

func tokenCases(rng *rand.Rand, s program.Attrs) []opcase {
	idx, targets := make([]int32, s.N), make([]int32, s.N)
	for i := range idx {
		idx[i], targets[i] = int32(rng.IntN(s.V/2)), int32(rng.IntN(s.V+1))-1
	}
	d := dropoutOf(s)
	NC := s.N * s.C
	return []opcase{
		{program.EncoderForward, s, []arg{{n: NC}, {ints: idx}, {n: s.V * s.C}, {n: s.T * s.C}}, func(a [][]float64) {
			EncoderForward(a[0], idx, a[2], a[3], s.B, s.T, s.C, d)
		}},
		{program.EncoderBackward, s, []arg{{n: s.V * s.C}, {n: s.T * s.C}, {n: NC}, {ints: idx}}, func(a [][]float64) {
			EncoderBackward(a[0], a[1], a[2], idx, s.B, s.T, s.C, d)
		}},
		{program.Loss, s, []arg{{n: s.N}, {n: s.N * s.V}, {ints: targets}}, func(a [][]float64) {
			Loss(a[0], a[1], targets, s.N, s.V, s.Scale, !s.NoGrad)
		}},
		{program.LossSum, s, []arg{{n: 1}, {n: s.N}}, func(a [][]float64) { a[0][0] += dot(a[1], ones(s.N)) }},
	}
}

func layerCases(s program.Attrs) []opcase {
	d, NC, N, C, heads := dropoutOf(s), s.N*s.C, s.N, s.C, s.B*s.NH*s.T
	attention := func(a [][]float64) { // lse and out as forward leaves them
		AttentionForward(a[4], a[5], a[3], s.B, s.T, C, s.NH, d)
		AttentionBackward(a[0], a[2], a[3], a[4], a[5], s.B, s.T, C, s.NH, d)
	}
	return []opcase{
		{program.LayernormForward, s, []arg{{n: NC}, {n: N}, {n: N}, {n: NC}, {n: C}, {n: C}}, func(a [][]float64) {
			LayernormForward(a[0], a[1], a[2], a[3], a[4], a[5], N, C)
		}},
		{program.LayernormForward, s, []arg{{n: NC}, {n: N}, {n: N}, {n: NC}, {n: C}, {}}, func(a [][]float64) {
			LayernormForward(a[0], a[1], a[2], a[3], a[4], nil, N, C)
		}},
		{program.LayernormBackward, s, []arg{{n: NC}, {n: C}, {n: C}, {n: NC}, {n: NC}, {n: C}, {n: N}, {n: N, positive: true}}, func(a [][]float64) {
			LayernormBackward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], N, C, s.Accumulate)
		}},
		{program.LayernormBackward, s, []arg{{n: NC}, {n: C}, {}, {n: NC}, {n: NC}, {n: C}, {n: N}, {n: N, positive: true}}, func(a [][]float64) {
			LayernormBackward(a[0], a[1], nil, a[3], a[4], a[5], a[6], a[7], N, C, s.Accumulate)
		}},
		{program.ResidualForward, s, []arg{{n: NC}, {n: NC}, {n: NC}}, func(a [][]float64) {
			ResidualForward(a[0], a[1], a[2], s.B, s.T*C, d)
		}},
		{program.ResidualLayernormForward, s, []arg{{n: NC}, {n: NC}, {n: N}, {n: N}, {n: NC}, {n: NC}, {n: C}, {n: C}}, func(a [][]float64) {
			ResidualLayernormForward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s.B, s.T, C, d)
		}},
		{program.DropoutBackward, s, []arg{{n: NC}, {n: NC}}, func(a [][]float64) { DropoutBackward(a[0], a[1], s.B, s.T*C, d) }},
		{program.GeluForward, s, []arg{{n: NC}, {n: NC}}, func(a [][]float64) { GeluForward(a[0], a[1]) }},
		{program.GeluBackward, s, []arg{{n: NC}, {n: NC}, {n: NC}}, func(a [][]float64) { GeluBackward(a[0], a[1], a[2]) }},
		{program.AttentionForward, s, []arg{{n: NC}, {n: heads}, {n: 3 * NC}}, func(a [][]float64) {
			AttentionForward(a[0], a[1], a[2], s.B, s.T, C, s.NH, d)
		}},
		{program.AttentionBackward, s, []arg{{n: 3 * NC}, {n: heads}, {n: NC}, {n: 3 * NC}, {n: NC}, {n: heads}}, attention},
	}
}

func matmulCases(s program.Attrs) []opcase {
	N, C, OC := s.N, s.C, s.OC
	return []opcase{
		{program.MatmulForward, s, []arg{{n: N * OC}, {n: N * C}, {n: OC * C}, {n: OC}}, func(a [][]float64) {
			MatmulForward(a[0], a[1], a[2], a[3], N, C, OC)
		}},
		{program.MatmulForward, s, []arg{{n: N * OC}, {n: N * C}, {n: OC * C}, {}}, func(a [][]float64) {
			MatmulForward(a[0], a[1], a[2], nil, N, C, OC)
		}},
		{program.MatmulGeluForward, s, []arg{{n: N * OC}, {n: N * OC}, {n: N * C}, {n: OC * C}, {n: OC}}, func(a [][]float64) {
			MatmulGeluForward(a[0], a[1], a[2], a[3], a[4], N, C, OC)
		}},
		{program.MatmulGeluForward, s, []arg{{n: N * OC}, {}, {n: N * C}, {n: OC * C}, {n: OC}}, func(a [][]float64) {
			MatmulGeluForward(a[0], zeros(N*OC), a[2], a[3], a[4], N, C, OC)
		}},
		{program.MatmulBackwardInput, s, []arg{{n: N * C}, {n: N * OC}, {n: OC * C}}, func(a [][]float64) {
			MatmulBackwardInput(a[0], a[1], a[2], N, C, OC, s.Accumulate)
		}},
		{program.MatmulBackwardWeight, s, []arg{{n: OC * C}, {n: N * OC}, {n: N * C}}, func(a [][]float64) {
			MatmulBackwardWeight(a[0], a[1], a[2], N, C, OC)
		}},
		{program.BiasBackward, s, []arg{{n: OC}, {n: N * OC}}, func(a [][]float64) { BiasBackward(a[0], a[1], N, OC) }},
	}
}

func updateCases(s program.Attrs) []opcase {
	n := s.N * s.OC
	return []opcase{
		{program.GlobalNorm, s, []arg{{n: 1}, {n: n}, {n: 3}, {n: s.C}}, func(a [][]float64) { a[0][0] = GlobalNorm(a[1], a[2], a[3]) }},
		{program.AdamW, s, append([]arg{{n: 1, positive: true}, {n: n}, {}, {n: n}, {n: n, positive: true}, {n: n}},
			[]arg{{n: s.C}, {}, {n: s.C}, {n: s.C, positive: true}, {n: s.C}}...), func(a [][]float64) {
			for ; len(a) > 1; a = append(a[:1:1], a[6:]...) {
				AdamW(a[1], a[3], a[4], a[5], a[0][0], AdamWParams{LR: testStep.LR, T: testStep.T, Beta1: s.Beta1, Beta2: s.Beta2,
					Eps: s.Eps, WeightDecay: s.WeightDecay, GradClip: s.GradClip})
			}
		}},
		{program.Zero, s, []arg{{n: n}}, func(a [][]float64) { clear(a[0]) }},
		{program.Cast, s, []arg{{n: n}, {n: n}}, func(a [][]float64) { copy(a[0], a[1]) }},
	}
}

// program is the op alone, in one section.
func (c *opcase) program(x *Executor) *program.Program {
	p := &program.Program{Sections: make([]program.Section, 1)}
	op := program.Op{Code: c.code, Name: "op", Attrs: c.attrs, Scratch: program.Absent}
	for i, a := range c.args {
		switch {
		case a.ints != nil:
			op.Args = append(op.Args, p.Whole(p.Add(program.Persistent, trace.Input, trace.Int32, fmt.Sprint("arg", i), len(a.ints))))
		case a.n > 0:
			op.Args = append(op.Args, p.Whole(p.Add(program.Persistent, trace.Activation, trace.Float32, fmt.Sprint("arg", i), a.n)))
		default:
			op.Args = append(op.Args, program.Absent)
		}
	}
	p.Sections[0].Ops = []program.Op{op}
	p.AddScratch(x.Scratch)
	return p
}

// load puts random numbers into the arguments, the same in the program and in the reference's float64 copies.
// Everything that is not an argument is NaN.
func (c *opcase) load(t testing.TB, x *Executor, rng *rand.Rand) (ids []program.ID, ref [][]float64) {
	t.Helper()
	p := c.program(x)
	if err := x.Load(p.Place()); err != nil {
		t.Fatal(err)
	}
	for i := range x.arena {
		x.arena[i] = 0xff
	}
	ids, ref = make([]program.ID, len(c.args)), make([][]float64, len(c.args))
	for i, a := range c.args {
		ids[i] = p.Sections[0].Ops[0].Args[i].ID
		switch {
		case a.ints != nil:
			if err := x.SetInts(ids[i], a.ints); err != nil {
				t.Fatal(err)
			}
		case a.n > 0:
			v, w := make([]float32, a.n), make([]float64, a.n)
			for j := range v {
				v[j] = float32(rng.NormFloat64())
				if a.positive {
					v[j] = float32(math.Abs(rng.NormFloat64()) + 0.1)
				}
				w[j] = float64(v[j])
			}
			ref[i] = w
			if err := x.SetFloats(ids[i], v); err != nil {
				t.Fatal(err)
			}
		}
	}
	return ids, ref
}

// Every op, on every set of kernels, is what the reference says; and the bits do not depend on the threads.
func TestOpsAgainstReference(t *testing.T) {
	for _, set := range kernel.All() {
		for _, bf16 := range []bool{false, true} {
			if bf16 && set.BF16 == nil {
				continue
			}
			one, three := New(Options{Threads: 1, Kernels: set, BF16: bf16}), New(Options{Threads: 3, Kernels: set, BF16: bf16})
			t.Run(one.String(), func(t *testing.T) {
				for i, c := range opcases(rand.New(rand.NewPCG(7, 8))) {
					checkOp(t, fmt.Sprintf("case %d %v", i, c.code), &c, one, three)
				}
			})
			one.Close()
			three.Close()
		}
	}
}

func checkOp(t *testing.T, name string, c *opcase, one, three *Executor) {
	t.Helper()
	ids, want := c.load(t, one, rand.New(rand.NewPCG(9, 10)))
	if c.code == program.AttentionBackward { // out and lse are forward's
		AttentionForward(want[4], want[5], want[3], c.attrs.B, c.attrs.T, c.attrs.C, c.attrs.NH, dropoutOf(c.attrs))
	}
	start := make([][]float32, len(ids))
	for i := range want {
		for _, v := range want[i] {
			start[i] = append(start[i], float32(v))
		}
	}
	run := func(x *Executor) [][]float32 {
		ids, _ := c.load(t, x, rand.New(rand.NewPCG(9, 10)))
		got := make([][]float32, len(ids))
		for i := range ids {
			if start[i] == nil {
				continue
			}
			if err := x.SetFloats(ids[i], start[i]); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Run(0, testStep); err != nil {
			t.Fatal(err)
		}
		for i := range ids {
			if start[i] != nil {
				got[i] = make([]float32, len(start[i]))
				if err := x.Floats(ids[i], got[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		return got
	}
	got, again := run(one), run(three)
	c.ref(want)
	for i := range want {
		if c.code == program.AttentionBackward && i == 1 {
			continue // the op's own scratch
		}
		scale := 0.0
		for _, v := range want[i] {
			scale = max(scale, math.Abs(v))
		}
		tol := tolerance(one, c.code) * scale
		for j, w := range want[i] {
			if !(math.Abs(float64(got[i][j])-w) <= tol) {
				t.Errorf("%s: argument %d element %d is %g, want %g (+-%.2g)", name, i, j, got[i][j], w, tol)
				return
			}
			if got[i][j] != again[i][j] {
				t.Errorf("%s: argument %d element %d is %g on 1 thread, %g on 3", name, i, j, got[i][j], again[i][j])
				return
			}
		}
	}
}

// tolerance is how far an element may be off, in parts of its tensor's largest.
func tolerance(x *Executor, code program.Code) float64 {
	rounds := map[program.Code]bool{program.MatmulForward: true, program.MatmulGeluForward: true, program.MatmulBackwardInput: true,
		program.MatmulBackwardWeight: true, program.AttentionForward: true, program.AttentionBackward: true}
	if x.gemm.Bytes == 2 && rounds[code] {
		return 1.0 / 64
	}
	return 1.0 / (1 << 19)
}

// A tensor is filled in parts that start at multiples of FillPart; an int32 tensor is refused.
func TestFill(t *testing.T) {
	x := New(Options{Threads: 3})
	defer x.Close()
	p := &program.Program{}
	n := 3*program.FillPart + 7
	floats := p.Add(program.Persistent, trace.Activation, trace.Float32, "floats", n)
	ints := p.Add(program.Persistent, trace.Input, trace.Int32, "ints", n)
	if err := x.Load(p.Place()); err != nil {
		t.Fatal(err)
	}
	if err := x.Fill(floats, func(dst []float32, from int) {
		for i := range dst {
			dst[i] = float32(from + i + from%program.FillPart)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for i, v := range x.View(floats) {
		if v != float32(i) {
			t.Fatalf("element %d is %g", i, v)
		}
	}
	if err := x.Fill(ints, func([]float32, int) {}); err == nil {
		t.Error("an int32 tensor was filled with float32")
	}
}

func TestRunRefusesUnknownTokens(t *testing.T) {
	x := New(Options{Threads: 2})
	defer x.Close()
	at := program.Attrs{B: 1, T: 3, C: 4, N: 3, V: 5}
	for _, idx := range [][]int32{{0, 5, 1}, {-1, 0, 0}} {
		c := opcase{code: program.EncoderForward, attrs: at, args: []arg{{n: 12}, {ints: idx}, {n: 20}, {n: 12}}}
		c.load(t, x, rand.New(rand.NewPCG(1, 1)))
		if err := x.Run(0, testStep); err == nil {
			t.Errorf("tokens %v of a vocabulary of 5: no error", idx)
		}
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	x := New(Options{Threads: 2})
	defer x.Close()
	for i, c := range opcases(rand.New(rand.NewPCG(7, 8))) {
		c.load(t, x, rand.New(rand.NewPCG(1, 1)))
		if n := testing.AllocsPerRun(5, func() {
			if err := x.Run(0, testStep); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("case %d %v allocates %g times", i, c.code, n)
		}
	}
}
