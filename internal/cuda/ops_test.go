package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// openTest opens a device, or skips: SNUG_REQUIRE_GPU=1 makes the skip a failure.
func openTest(t testing.TB, o Options) *Executor {
	t.Helper()
	d, err := Open(o)
	if err != nil {
		if os.Getenv("SNUG_REQUIRE_GPU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	e := NewExecutor(d)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// kind is what an argument holds.
type kind int

const (
	elem     kind = iota // the element type under test
	float                // fp32
	positive             // fp32, above zero
	master               // what completes the argument before it to fp32; absent where that is fp32 itself
	ints
)

type arg struct {
	kind kind
	n    int // 0: absent
	ints []int32
}

func el(n int) arg  { return arg{elem, n, nil} }
func fl(n int) arg  { return arg{float, n, nil} }
func pos(n int) arg { return arg{positive, n, nil} }
func tok(v []int32) arg {
	return arg{ints, len(v), v}
}

// opcase is an op with its arguments and cpu's reference for it, over all its float arguments.
type opcase struct {
	code  program.Code
	attrs program.Attrs
	args  []arg
	ref   func(a [][]float64)
}

var testStep = program.Step{Seed: 99 << 33, Sample: 5, LR: 0.01, T: 3, LossScale: 1}

func dropoutOf(at program.Attrs) cpu.Dropout {
	return cpu.Dropout{P: at.Dropout, Seed: testStep.Seed, Site: uint32(at.Site), Sample: testStep.Sample}
}

// shapes: odd in every direction; multiples of 8 and no tile; head sizes of each instance; one that fills tiles.
var shapes = []program.Attrs{
	{B: 2, T: 7, C: 15, NH: 3, OC: 37, V: 53},
	{B: 3, T: 33, C: 70, NH: 2, OC: 101, V: 261, Dropout: 0.2, Site: 5},
	{B: 1, T: 150, C: 64, NH: 1, OC: 192, V: 1032, Accumulate: true},
	{B: 2, T: 65, C: 128, NH: 4, OC: 64, V: 65, NoGrad: true},
	{B: 2, T: 129, C: 128, NH: 2, OC: 128, V: 264, Dropout: 0.1, Site: 7},
	{B: 1, T: 77, C: 192, NH: 2, OC: 320, V: 264, Dropout: 0.3, Site: 4},
	{B: 2, T: 130, C: 160, NH: 2, OC: 72, V: 520},
	{B: 1, T: 300, C: 256, NH: 2, OC: 256, V: 2056, Accumulate: true},
	{B: 2, T: 257, C: 384, NH: 6, OC: 384, V: 136},
	{B: 1, T: 100, C: 256, NH: 2, OC: 128, V: 136, Dropout: 0.25, Site: 1},
	{B: 1, T: 40, C: 2304, NH: 36, OC: 136, V: 72},
	{B: 4, T: 136, C: 128, NH: 2, OC: 65, V: 65, Dropout: 0.2, Site: 3},
}

func opcases(rng *rand.Rand) (list []opcase) {
	for _, s := range shapes {
		s.N, s.Scale = s.B*s.T, 0.03
		s.Beta1, s.Beta2, s.Eps, s.WeightDecay, s.GradClip = 0.9, 0.95, 1e-8, 0.1, 1
		list = append(list, tokenCases(rng, s)...)
		list = append(list, layerCases(s)...)
		list = append(list, matmulCases(s)...)
		list = append(list, updateCases(s)...)
	}
	list = append(list, rowCases(rng)...)
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
		idx[i], targets[i] = int32(rng.IntN(s.V/4)), int32(rng.IntN(s.V+1))-1
	}
	d, NC := dropoutOf(s), s.N*s.C
	return []opcase{
		{program.EncoderForward, s, []arg{el(NC), tok(idx), el(s.V * s.C), el(s.T * s.C)}, func(a [][]float64) {
			cpu.EncoderForward(a[0], idx, a[2], a[3], s.B, s.T, s.C, d)
		}},
		{program.EncoderBackward, s, []arg{fl(s.V * s.C), fl(s.T * s.C), el(NC), tok(idx)}, func(a [][]float64) {
			cpu.EncoderBackward(a[0], a[1], a[2], idx, s.B, s.T, s.C, d)
		}},
		{program.Loss, s, []arg{fl(s.N), el(s.N * s.V), tok(targets)}, func(a [][]float64) {
			cpu.Loss(a[0], a[1], targets, s.N, s.V, s.Scale, !s.NoGrad)
		}},
		{program.LossSum, s, []arg{fl(1), fl(s.N)}, func(a [][]float64) {
			for _, v := range a[1] {
				a[0][0] += v
			}
		}},
	}
}

// rowCases are rows of every length that layernorm and loss have a kernel for, and more of them than run at once.
func rowCases(rng *rand.Rand) (list []opcase) {
	for _, s := range []program.Attrs{
		{B: 5, T: 460, C: 640, Accumulate: true},
		{B: 2, T: 67, C: 768, Dropout: 0.2, Site: 2},
		{B: 1, T: 190, C: 1000, Accumulate: true},
		{B: 1, T: 131, C: 1280},
		{B: 3, T: 33, C: 1528, Accumulate: true},
		{B: 1, T: 70, C: 1792},
	} {
		s.N, s.NH = s.B*s.T, 1
		for _, c := range layerCases(s) {
			switch c.code {
			case program.LayernormForward, program.LayernormBackward, program.ResidualLayernormForward:
				list = append(list, c)
			}
		}
	}
	for _, s := range []program.Attrs{{B: 1, T: 300, C: 8, V: 32776}, {B: 1, T: 5, C: 8, V: 32776, NoGrad: true}, {B: 1, T: 40, C: 8, V: 5032}} {
		s.N, s.Scale = s.B*s.T, 0.03
		for _, c := range tokenCases(rng, s) {
			if c.code == program.Loss {
				list = append(list, c)
			}
		}
	}
	return list
}

func layerCases(s program.Attrs) []opcase {
	d, NC, N, C, heads := dropoutOf(s), s.N*s.C, s.N, s.C, s.B*s.NH*s.T
	return []opcase{
		{program.LayernormForward, s, []arg{el(NC), fl(N), fl(N), el(NC), el(C), el(C)}, func(a [][]float64) {
			cpu.LayernormForward(a[0], a[1], a[2], a[3], a[4], a[5], N, C)
		}},
		{program.LayernormForward, s, []arg{el(NC), fl(N), fl(N), el(NC), el(C), {}}, func(a [][]float64) {
			cpu.LayernormForward(a[0], a[1], a[2], a[3], a[4], nil, N, C)
		}},
		{program.LayernormBackward, s, []arg{el(NC), fl(C), fl(C), el(NC), el(NC), el(C), fl(N), pos(N)}, func(a [][]float64) {
			cpu.LayernormBackward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], N, C, s.Accumulate)
		}},
		{program.LayernormBackward, s, []arg{el(NC), fl(C), {}, el(NC), el(NC), el(C), fl(N), pos(N)}, func(a [][]float64) {
			cpu.LayernormBackward(a[0], a[1], nil, a[3], a[4], a[5], a[6], a[7], N, C, s.Accumulate)
		}},
		{program.ResidualForward, s, []arg{el(NC), el(NC), el(NC)}, func(a [][]float64) {
			cpu.ResidualForward(a[0], a[1], a[2], s.B, s.T*C, d)
		}},
		{program.ResidualLayernormForward, s, []arg{el(NC), el(NC), fl(N), fl(N), el(NC), el(NC), el(C), el(C)}, func(a [][]float64) {
			cpu.ResidualLayernormForward(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], s.B, s.T, C, d)
		}},
		{program.DropoutBackward, s, []arg{el(NC), el(NC)}, func(a [][]float64) { cpu.DropoutBackward(a[0], a[1], s.B, s.T*C, d) }},
		{program.GeluForward, s, []arg{el(NC), el(NC)}, func(a [][]float64) { cpu.GeluForward(a[0], a[1]) }},
		{program.GeluBackward, s, []arg{el(NC), el(NC), el(NC)}, func(a [][]float64) { cpu.GeluBackward(a[0], a[1], a[2]) }},
		{program.AttentionForward, s, []arg{el(NC), fl(heads), el(3 * NC)}, func(a [][]float64) {
			cpu.AttentionForward(a[0], a[1], a[2], s.B, s.T, C, s.NH, d)
		}},
		{program.AttentionBackward, s, []arg{el(3 * NC), fl(heads), el(NC), el(3 * NC), el(NC), fl(heads)}, func(a [][]float64) {
			cpu.AttentionBackward(a[0], a[2], a[3], a[4], a[5], s.B, s.T, C, s.NH, d)
		}},
	}
}

func matmulCases(s program.Attrs) []opcase {
	N, C, OC := s.N, s.C, s.OC
	return []opcase{
		{program.MatmulForward, s, []arg{el(N * OC), el(N * C), el(OC * C), el(OC)}, func(a [][]float64) {
			cpu.MatmulForward(a[0], a[1], a[2], a[3], N, C, OC)
		}},
		{program.MatmulForward, s, []arg{el(N * OC), el(N * C), el(OC * C), {}}, func(a [][]float64) {
			cpu.MatmulForward(a[0], a[1], a[2], nil, N, C, OC)
		}},
		{program.MatmulGeluForward, s, []arg{el(N * OC), el(N * OC), el(N * C), el(OC * C), el(OC)}, func(a [][]float64) {
			cpu.MatmulGeluForward(a[0], a[1], a[2], a[3], a[4], N, C, OC)
		}},
		{program.MatmulGeluForward, s, []arg{el(N * OC), {}, el(N * C), el(OC * C), {}}, func(a [][]float64) {
			cpu.MatmulGeluForward(a[0], make([]float64, N*OC), a[2], a[3], nil, N, C, OC)
		}},
		{program.MatmulBackwardInput, s, []arg{el(N * C), el(N * OC), el(OC * C)}, func(a [][]float64) {
			cpu.MatmulBackwardInput(a[0], a[1], a[2], N, C, OC, s.Accumulate)
		}},
		{program.MatmulBackwardWeight, s, []arg{fl(OC * C), el(N * OC), el(N * C)}, func(a [][]float64) {
			cpu.MatmulBackwardWeight(a[0], a[1], a[2], N, C, OC)
		}},
		halfGradient(s),
		{program.BiasBackward, s, []arg{fl(OC), el(N * OC)}, func(a [][]float64) { cpu.BiasBackward(a[0], a[1], N, OC) }},
	}
}

// halfGradient is a weight's gradient in the element type, written once.
func halfGradient(s program.Attrs) opcase {
	s.Overwrite = true
	return opcase{program.MatmulBackwardWeight, s, []arg{el(s.OC * s.C), el(s.N * s.OC), el(s.N * s.C)}, func(a [][]float64) {
		clear(a[0])
		cpu.MatmulBackwardWeight(a[0], a[1], a[2], s.N, s.C, s.OC)
	}}
}

func updateCases(s program.Attrs) []opcase {
	n := s.N * s.OC
	h := cpu.AdamWParams{LR: testStep.LR, T: testStep.T, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps, WeightDecay: s.WeightDecay, GradClip: s.GradClip}
	return []opcase{
		{program.GlobalNorm, s, []arg{fl(1), fl(n), fl(3), fl(s.C)}, func(a [][]float64) { a[0][0] = cpu.GlobalNorm(a[1], a[2], a[3]) }},
		{program.GlobalNorm, s, []arg{fl(1), fl(s.C), el(n), fl(3), el(s.OC)}, func(a [][]float64) {
			a[0][0] = cpu.GlobalNorm(a[1], a[2], a[3], a[4])
		}},
		{program.AdamW, s, slices.Concat([]arg{pos(1)}, adam(n, fl(n)), adam(3, el(3)), adam(s.C, fl(s.C)), adam(s.OC*s.C, el(s.OC*s.C))), func(a [][]float64) {
			for i := 1; i < len(a); i += 5 {
				value := a[i]
				if a[i+1] != nil {
					value = a[i+1]
				}
				cpu.AdamW(value, a[i+2], a[i+3], a[i+4], a[0][0], h)
				copy(a[i], value)
			}
		}},
		{program.Zero, s, []arg{el(n)}, func(a [][]float64) { clear(a[0]) }},
		{program.Cast, s, []arg{el(n), fl(n)}, func(a [][]float64) { copy(a[0], a[1]) }},
		{program.Cast, s, []arg{fl(n), el(n)}, func(a [][]float64) { copy(a[0], a[1]) }},
	}
}

// adam is a tensor of n elements as AdamW takes it.
func adam(n int, grad arg) []arg { return []arg{el(n), {master, n, nil}, fl(n), pos(n), grad} }

// in is the case with weights in dtype.
func (c opcase) in(dtype trace.DType) opcase {
	c.args = slices.Clone(c.args)
	for i, a := range c.args {
		if a.kind == master && program.MasterOf(dtype) == "" {
			c.args[i] = arg{}
		}
	}
	return c
}

// program is the op alone, in one section.
func (c *opcase) program(e *Executor, dtype trace.DType) *program.Program {
	p := &program.Program{Sections: make([]program.Section, 1)}
	op := program.Op{Code: c.code, Name: "op", Attrs: c.attrs, Scratch: program.Absent}
	types := map[kind]trace.DType{elem: dtype, float: trace.Float32, positive: trace.Float32, ints: trace.Int32}
	for i, a := range c.args {
		id, name := program.None, fmt.Sprint("arg", i)
		switch {
		case a.kind == master:
			id = p.AddMaster(trace.Optimizer, name, op.Args[i-1].ID)
		case a.n > 0:
			id = p.Add(program.Persistent, trace.Activation, types[a.kind], name, a.n)
		}
		op.Args = append(op.Args, p.Whole(id))
	}
	p.Sections[0].Ops = []program.Op{op}
	p.AddScratch(e.Scratch)
	return p
}

// inputs are random, rounded to what the device will hold.
func (c *opcase) inputs(rng *rand.Rand, dtype trace.DType) [][]float64 {
	vals := make([][]float64, len(c.args))
	for i, a := range c.args {
		if a.n == 0 || a.kind == ints {
			continue
		}
		vals[i] = make([]float64, a.n)
		for j := range vals[i] {
			x := float32(rng.NormFloat64())
			if a.kind == positive {
				x = float32(math.Abs(rng.NormFloat64()) + 0.1)
			}
			vals[i][j] = float64(x)
		}
		if a.kind == elem {
			round(vals[i], dtype)
		}
	}
	if c.code == program.AttentionBackward { // out and lse are forward's
		a := c.attrs
		cpu.AttentionForward(vals[4], vals[5], vals[3], a.B, a.T, a.C, a.NH, dropoutOf(a))
		round(vals[4], dtype)
	}
	return vals
}

// round rounds to dtype and back.
func round(v []float64, dtype trace.DType) {
	buf := make([]byte, 4)
	one := make([]float32, 1)
	for i := range v {
		b := buf[:dtype.Size()]
		encode(b, []float32{float32(v[i])}, dtype)
		decode(one, b, dtype)
		v[i] = float64(one[0])
	}
}

// runCase runs c on e from vals and returns what every float argument holds afterwards.
func runCase(t *testing.T, e *Executor, c *opcase, dtype trace.DType, vals [][]float64) [][]float32 {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := c.program(e, dtype)
	must(e.Load(p.Place()))
	must(e.Poison())
	op := &p.Sections[0].Ops[0]
	for i, a := range c.args {
		switch {
		case a.n == 0 || a.kind != ints && !op.Reads(i): // stays poisoned
		case a.kind == ints:
			must(e.SetInts(op.Args[i].ID, a.ints))
		default:
			v := make([]float32, a.n)
			for j := range v {
				v[j] = float32(vals[i][j])
			}
			must(e.SetFloats(op.Args[i].ID, v))
		}
	}
	must(e.Run(0, testStep))
	got := make([][]float32, len(c.args))
	for i, a := range c.args {
		if a.n > 0 && a.kind != ints {
			got[i] = make([]float32, a.n)
			must(e.Floats(op.Args[i].ID, got[i]))
		}
	}
	return got
}

// epsilon is the distance from 1 to the next number of a dtype.
var epsilon = map[trace.DType]float64{trace.BFloat16: 1.0 / 128, trace.Float16: 1.0 / 1024, trace.Float32: 1.0 / (1 << 18)}

// check compares every argument: each element within 4 epsilon of the tensor's largest, all together within epsilon.
func (c *opcase) check(t *testing.T, name string, dtype trace.DType, got [][]float32, want [][]float64) {
	t.Helper()
	for i := range got {
		if got[i] == nil || c.code == program.AttentionBackward && i == 1 {
			continue
		}
		largest, diff, norm := 0.0, 0.0, 0.0
		for _, w := range want[i] {
			largest, norm = max(largest, math.Abs(w)), norm+w*w
		}
		tol, bad := 4*epsilon[dtype]*largest, -1
		for j, w := range want[i] {
			d := float64(got[i][j]) - w
			diff += d * d
			if bad < 0 && !(math.Abs(d) <= tol) {
				bad = j
			}
		}
		if bad >= 0 || !(math.Sqrt(diff) <= epsilon[dtype]*math.Sqrt(norm)+1e-30) {
			at := max(bad, 0)
			t.Errorf("%s: argument %d (%s), element %d of %d is %g, want %g (+-%.2g); relative error of all %.2g, allowed %.2g",
				name, i, (&program.Op{Code: c.code}).Param(i).Name, at, len(want[i]), got[i][at], want[i][at], tol,
				math.Sqrt(diff/norm), epsilon[dtype])
			return
		}
	}
}

var testDTypes = []trace.DType{trace.BFloat16, trace.Float16, trace.Float32}

// reference is a case in one element type: its inputs and what cpu makes of them, in float64.
type reference struct {
	opcase
	name       string
	dtype      trace.DType
	vals, want [][]float64
}

// references computes every case in every element type, on all processors.
func references() []reference {
	var list []reference
	for _, dtype := range testDTypes {
		for i, c := range opcases(rand.New(rand.NewPCG(7, 8))) {
			list = append(list, reference{opcase: c.in(dtype), name: fmt.Sprintf("%s, case %d %v %s", dtype, i, c.code, shapeOf(c.attrs)), dtype: dtype})
		}
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range list {
		group.Go(func() error {
			r := &list[i]
			r.vals = r.inputs(rand.New(rand.NewPCG(9, uint64(i))), r.dtype)
			for _, v := range r.vals {
				r.want = append(r.want, slices.Clone(v))
			}
			r.ref(r.want)
			return nil
		})
	}
	group.Wait()
	return list
}

// Every op, in every element type, with the library's and with snug's own products, with the kernels for this card and
// with those for any, is what cpu's reference says in float64; what it writes was NaN before; a second run gives the same bits.
func TestOpsAgainstReference(t *testing.T) {
	openTest(t, Options{}) // skips before the references are computed
	list := references()
	for _, o := range []Options{{}, {Generic: true, OwnBlas: true}, {OwnBlas: true}} {
		t.Run(fmt.Sprintf("generic=%v,own=%v", o.Generic, o.OwnBlas), func(t *testing.T) {
			e := openTest(t, o)
			for _, r := range list {
				got := runCase(t, e, &r.opcase, r.dtype, r.vals)
				again := runCase(t, e, &r.opcase, r.dtype, r.vals)
				r.check(t, r.name, r.dtype, got, r.want)
				for i := range got {
					for j := range got[i] {
						if math.Float32bits(got[i][j]) != math.Float32bits(again[i][j]) {
							t.Errorf("%s: argument %d element %d is %g, then %g", r.name, i, j, got[i][j], again[i][j])
							break
						}
					}
				}
			}
		})
	}
}

func shapeOf(a program.Attrs) string {
	return fmt.Sprintf("B=%d T=%d C=%d NH=%d OC=%d V=%d p=%g", a.B, a.T, a.C, a.NH, a.OC, a.V, a.Dropout)
}
