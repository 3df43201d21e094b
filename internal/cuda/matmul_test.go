package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// operands is a product in device memory of its own, with random operands.
type operands struct {
	matmul
	e   *Executor
	old []byte // D before
}

// newOperands fills A, B, D and, where wanted, a bias. It runs on the device's thread.
func newOperands(e *Executor, m matmul, bias bool) (*operands, error) {
	o := &operands{matmul: m, e: e}
	rng := rand.New(rand.NewPCG(1, uint64(m.M)))
	alloc := func(p *Pointer, n int, dtype trace.DType) (raw []byte, err error) {
		raw = make([]byte, n*int(dtype.Size()))
		block := make([]float32, min(n, 1000003)) // rows of no operand repeat
		for i := range block {
			block[i] = float32(rng.NormFloat64())
		}
		encode(raw[:len(block)*int(dtype.Size())], block, dtype)
		for have := len(block) * int(dtype.Size()); have < len(raw); have *= 2 {
			copy(raw[have:], raw[:have])
		}
		if *p, err = e.drv.alloc(units.Bytes(len(raw))); err != nil {
			return nil, err
		}
		return raw, e.drv.toDevice(*p, address(&raw[0]), len(raw), e.stream)
	}
	_, errA := alloc(&o.a, m.M*m.K, m.in)
	_, errB := alloc(&o.b, m.N*m.K, m.in)
	old, errD := alloc(&o.d, m.M*m.N, m.out)
	o.old = old
	var errBias, errSpace error
	if bias {
		_, errBias = alloc(&o.bias, m.N, m.in)
	}
	o.space = max(hopperScratch(m.M, m.N, m.K, hopperCard/2), Target{Major: 9, Blas: true}.workspace(), units.Bytes(splits(m.M, m.N, m.K)*m.M*m.N*4))
	o.workspace, errSpace = e.drv.alloc(o.space)
	return o, errors.Join(errA, errB, errD, errBias, errSpace, e.drv.synchronize(e.stream))
}

func (o *operands) free() (err error) {
	for _, p := range []Pointer{o.a, o.b, o.d, o.bias, o.workspace} {
		if p != 0 {
			err = errors.Join(err, o.e.drv.free(p))
		}
	}
	return err
}

// library multiplies with cuBLASLt, own with snug's kernels.
func (o *operands) library() error {
	return o.e.multiply(o.blasProduct(), o.b, o.a, o.d, o.bias, o.workspace, o.space)
}
func (o *operands) own() error { return o.e.own(&o.matmul) }

// result runs f from the first D, or from NaN where it does not add to it, with a poisoned workspace.
func (o *operands) result(f func() error) ([]byte, error) {
	d := o.e.Device
	start := d.drv.toDevice(o.d, address(&o.old[0]), len(o.old), d.stream)
	if !o.accumulate {
		start = d.drv.fill(o.d, 0xff, units.Bytes(len(o.old)), d.stream)
	}
	out := heap(make([]byte, len(o.old)))
	return out, errors.Join(start, d.drv.fill(o.workspace, 0xff, o.space, d.stream), f(),
		d.drv.toHost(address(&out[0]), o.d, len(out), d.stream), d.drv.synchronize(d.stream))
}

// Large products, whose tiles are many rounds of the card, or few and long, or cut by the edges, are cuBLASLt's; and the
// same bits every time.
func TestProductsAgainstLibrary(t *testing.T) {
	e := openTest(t, Options{})
	if !e.HasBlas() {
		t.Skip(e.Blas)
	}
	for _, s := range []struct{ M, N, K int }{
		{24, 136, 72}, {128, 256, 64}, {264, 520, 1000}, {5000, 4104, 200}, {6000, 3080, 520}, {8192, 768, 9000}, {776, 760, 16392}, {11000, 1000, 8200},
	} {
		for _, m := range []matmul{
			{layout: "nt", in: trace.BFloat16, out: trace.BFloat16},
			{layout: "nt", in: trace.Float16, out: trace.Float16},
			{layout: "nn", in: trace.BFloat16, out: trace.BFloat16},
			{layout: "nn", in: trace.BFloat16, out: trace.BFloat16, accumulate: true},
			{layout: "tn", in: trace.BFloat16, out: trace.Float32, accumulate: true},
			{layout: "tn", in: trace.Float16, out: trace.Float32},
			{layout: "tn", in: trace.BFloat16, out: trace.BFloat16, accumulate: true},
		} {
			m.M, m.N, m.K = s.M, s.N, s.K
			bias := m.layout == "nt" && m.in == trace.BFloat16
			t.Run(fmt.Sprintf("%s %dx%dx%d %s to %s accumulate=%v", m.layout, m.M, m.N, m.K, m.in, m.out, m.accumulate), func(t *testing.T) {
				if err := e.on(func() error { return compareProducts(t, e, m, bias) }); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// smallProducts runs Hopper's kernels where a cluster makes several tiles, little enough for compute-sanitizer: they are what the
// kernels of every card make, and the same bits every time.
func smallProducts(t *testing.T, e *Executor, dtype trace.DType) error {
	t.Helper()
	all := e.Multiprocessors
	e.Multiprocessors = 4 // two clusters
	defer func() { e.Multiprocessors = all }()
	for _, m := range []matmul{{layout: "nt", out: dtype}, {layout: "nn", out: dtype}, {layout: "nn", out: dtype, accumulate: true}, {layout: "tn", out: trace.Float32}} {
		m.M, m.N, m.K, m.in = 600, 264, 584, dtype
		o, err := newOperands(e, m, m.layout == "nt")
		if err != nil {
			return err
		}
		defer o.free()
		if !e.onHopper(&o.matmul) {
			continue
		}
		if err := o.compare(t, o.own, func() error { return e.ownMMA(&o.matmul) }); err != nil {
			return err
		}
	}
	return nil
}

// A product's sums over K are cut where tiles alone would leave a last round nearly empty, and only there.
func TestHopperSplit(t *testing.T) {
	for _, c := range []struct {
		name    string
		M, N, K int
		want    hopperWork
	}{
		{"17.5 rounds", 32768, 2304, 768, hopperWork{1152, 1152, 0, 0}},
		{"1.5 long rounds", 8192, 768, 50304, hopperWork{96, 66, 2, 358}},
		{"2.6 long rounds", 11000, 1000, 8200, hopperWork{172, 132, 1, 79}},
		{"few tiles, long sums", 768, 768, 32768, hopperWork{9, 0, 7, 70}},
		{"few tiles, short sums", 768, 768, 768, hopperWork{9, 9, 0, 0}},
		{"as many tiles as clusters", 11 * 256, 6 * 256, 50304, hopperWork{66, 66, 0, 0}},
		{"one tile", 8, 8, 8, hopperWork{1, 1, 0, 0}},
	} {
		if got := hopperSplit(c.M, c.N, c.K, hopperCard/2); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	// Whatever is cut, no cluster has more than `length` steps of it, and no part is empty.
	for tiles := 1; tiles < 140; tiles++ {
		for steps := 1; steps < 400; steps += 7 {
			w := hopperSplit(256*tiles, 256, 64*steps, hopperCard/2)
			cut, helpers := w.tiles-w.whole, hopperCard/2-w.parts*(w.tiles-w.whole)
			if share := steps - w.parts*w.length; cut > 0 && (w.parts < 1 || share < 0 || share > 0 && cut*share > helpers*w.length) {
				t.Fatalf("%d tiles of %d steps: %+v", tiles, steps, w)
			}
		}
	}
}

func compareProducts(t *testing.T, e *Executor, m matmul, bias bool) error {
	o, err := newOperands(e, m, bias)
	if err != nil {
		return err
	}
	defer o.free()
	if _, err := e.plan(o.blasProduct(), o.b, o.a, o.d, o.bias, o.workspace, o.space); err != nil {
		return err
	}
	return o.compare(t, o.own, o.library)
}

// compare holds what f makes against another's, and against itself.
func (o *operands) compare(t *testing.T, f, other func() error) error {
	t.Helper()
	m := &o.matmul
	want, err := o.result(other)
	if err != nil {
		return err
	}
	got, err := o.result(f)
	if err != nil {
		return err
	}
	again, err := o.result(f)
	if err != nil {
		return err
	}
	if !slices.Equal(got, again) {
		t.Error("a second run gives other bits")
	}
	x, y := make([]float32, m.M*m.N), make([]float32, m.M*m.N)
	decode(x, got, m.out)
	decode(y, want, m.out)
	diff, norm, largest, bad := 0.0, 0.0, 0.0, 0
	for i := range y {
		norm, largest = norm+float64(y[i])*float64(y[i]), max(largest, math.Abs(float64(y[i])))
	}
	eps := epsilon[m.out]
	if m.out == trace.Float32 {
		eps = 1e-4 // sums of thousands of products, in another order
	}
	for i := range y {
		d := float64(x[i]) - float64(y[i])
		diff += d * d
		if !(math.Abs(d) <= 4*eps*largest) {
			if bad == 0 {
				t.Errorf("row %d, column %d is %g, want %g", i/m.N, i%m.N, x[i], y[i])
			}
			bad++
		}
	}
	if bad > 0 || !(math.Sqrt(diff) <= eps*math.Sqrt(norm)) {
		t.Errorf("%d of %d elements are off; relative error of all %.2g, allowed %.2g", bad, len(y), math.Sqrt(diff/norm), eps)
	}
	return nil
}

// BenchmarkMatmul times every product of a step of GPT-2 124M at 32,768 tokens (the head's at 8,192), snug's own and
// cuBLASLt's in turn: TFLOP/s of both, and their ratio.
func BenchmarkMatmul(b *testing.B) {
	e := openTest(b, Options{})
	if !e.HasBlas() {
		b.Skip(e.Blas)
	}
	for _, layer := range []struct {
		name     string
		N, C, OC int
	}{{"attn.c_attn", 32768, 768, 2304}, {"attn.c_proj", 32768, 768, 768}, {"mlp.c_fc", 32768, 768, 3072}, {"mlp.c_proj", 32768, 3072, 768}, {"lm_head", 8192, 768, 50304}} {
		for _, m := range []matmul{
			{layout: "nt", out: trace.BFloat16, M: layer.N, N: layer.OC, K: layer.C},
			{layout: "nn", out: trace.BFloat16, M: layer.N, N: layer.C, K: layer.OC},
			{layout: "tn", out: trace.Float32, M: layer.OC, N: layer.C, K: layer.N, accumulate: true},
			{layout: "tn", out: trace.BFloat16, M: layer.OC, N: layer.C, K: layer.N, accumulate: true},
		} {
			m.in = trace.BFloat16
			b.Run(fmt.Sprintf("%s/%s/%s", layer.name, m.layout, m.out), func(b *testing.B) {
				if err := e.on(func() error { return raceProducts(b, e, m) }); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// raceProducts reports medians over b.N rounds.
func raceProducts(b *testing.B, e *Executor, m matmul) error {
	o, err := newOperands(e, m, false)
	if err != nil {
		return err
	}
	defer o.free()
	if _, err := e.plan(o.blasProduct(), o.b, o.a, o.d, o.bias, o.workspace, o.space); err != nil {
		return err
	}
	var rates [2][]float64
	b.ResetTimer()
	for range b.N {
		for i, f := range []func() error{o.own, o.library} {
			ms, err := e.measure(3, math.Inf(1), f)
			if err != nil {
				return err
			}
			rates[i] = append(rates[i], 2*float64(m.M)*float64(m.N)*float64(m.K)/ms/1e9)
		}
	}
	for i := range rates {
		slices.Sort(rates[i])
	}
	own, library := rates[0][b.N/2], rates[1][b.N/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(own, "TFLOP/s")
	b.ReportMetric(library, "cuBLASLt-TFLOP/s")
	b.ReportMetric(own/library, "of-cuBLASLt")
	return nil
}
