//go:build linux

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// standIn opens an executor on a stand-in for the driver.
func standIn(t *testing.T, o Options) *Executor {
	t.Helper()
	cudatest.StandIn(t)
	d, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	e := NewExecutor(d)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// onBoth runs a test on the stand-in, and on a GPU where there is one.
func onBoth(t *testing.T, f func(t *testing.T, e *Executor)) {
	t.Run("stand-in", func(t *testing.T) { f(t, standIn(t, Options{})) })
	t.Run("GPU", func(t *testing.T) { f(t, openTest(t, Options{})) })
}

// loadTensors places and loads a program of nothing but tensors.
func loadTensors(t *testing.T, e *Executor, dtypes []trace.DType, n int) []program.ID {
	t.Helper()
	p := &program.Program{}
	var ids []program.ID
	for i, d := range dtypes {
		name := fmt.Sprint("t", i)
		if d == trace.Float32Low {
			ids = append(ids, p.AddMaster(trace.Optimizer, name, p.Add(program.Persistent, trace.Weight, trace.BFloat16, name+".weight", n)))
			continue
		}
		ids = append(ids, p.Add(program.Persistent, trace.Activation, d, name, n))
	}
	if err := e.Load(p.Place()); err != nil {
		t.Fatal(err)
	}
	return ids
}

// Numbers come back as their dtype holds them, through more staging than the ring has at once.
func TestTensorsRoundTrip(t *testing.T) {
	e := standIn(t, Options{})
	n := 5*stageBytes + 7
	ids := loadTensors(t, e, append(testDTypes, trace.Int32), n)
	src, ints := make([]float32, n), make([]int32, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range src {
		src[i], ints[i] = float32(rng.NormFloat64()), rng.Int32()
	}
	for i, dtype := range testDTypes {
		if err := e.SetFloats(ids[i], src); err != nil {
			t.Fatal(err)
		}
		got, want := make([]float32, n), make([]float64, n)
		if err := e.Floats(ids[i], got); err != nil {
			t.Fatal(err)
		}
		for j := range want {
			want[j] = float64(src[j])
		}
		round(want, dtype)
		for j := range got {
			if float64(got[j]) != want[j] {
				t.Fatalf("%s: element %d of %d is %g, want %g", dtype, j, n, got[j], want[j])
			}
		}
	}
	if err := e.SetInts(ids[0], ints); err == nil {
		t.Errorf("ints were written to a %s tensor", testDTypes[0])
	}
	if err := e.SetInts(ids[3], ints); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 1)
	if err := e.Poison(); err != nil {
		t.Fatal(err)
	}
	if err := e.Floats(ids[0], got); err != nil || !math.IsNaN(float64(got[0])) {
		t.Errorf("a poisoned tensor holds %g (%v), want NaN", got[0], err)
	}
}

// A buffer takes no other part while one that was read into it is still being taken out, however long that lasts.
func TestReadWaitsForItsBuffers(t *testing.T) {
	e := standIn(t, Options{})
	n := 40 * stageBytes / 4
	ids := loadTensors(t, e, []trace.DType{trace.Int32}, n)
	ints := make([]int32, n)
	for i := range ints {
		ints[i] = int32(i)
	}
	if err := e.SetInts(ids[0], ints); err != nil {
		t.Fatal(err)
	}
	var others, wrong atomic.Int64
	if err := e.on(func() error {
		return e.stage.read(e.place(ids[0]), n, func(buf []byte, to int) {
			others.Add(1)
			for spin := 0; to == 0 && (others.Load() < int64(len(e.stage.slots)/2) || spin < 10000); spin++ {
				runtime.Gosched()
			}
			for i := 0; i < len(buf); i += 4096 {
				if got := int(binary.LittleEndian.Uint32(buf[i:])); got != to+i/4 {
					wrong.Store(int64(to + 1))
				}
			}
		})
	}); err != nil {
		t.Fatal(err)
	}
	if at := wrong.Load(); at != 0 {
		t.Errorf("the part from element %d on was overwritten while it was read", at-1)
	}
	if got := others.Load(); got != 40 {
		t.Errorf("%d parts of 40 were read", got)
	}
}

// A tensor is filled in parts that start at multiples of FillPart, more of them than there are buffers; only float32 values can be.
func TestFill(t *testing.T) { onBoth(t, fillsEveryPart) }

func fillsEveryPart(t *testing.T, e *Executor) {
	n := 5*stageBytes + 7
	ids := loadTensors(t, e, []trace.DType{trace.Float32, trace.Float32Low, trace.BFloat16}, n)
	for _, id := range ids[:2] {
		var crooked atomic.Int64
		if err := e.Fill(id, func(dst []float32, from int) {
			if from%program.FillPart != 0 {
				crooked.Store(int64(from))
			}
			for i := range dst {
				dst[i] = float32(from + i)
			}
		}); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, n)
		if err := e.Floats(id, got); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != float32(i) {
				t.Fatalf("%s: element %d of %d is %g", e.layout.Tensors[id].DType, i, n, got[i])
			}
		}
		if from := crooked.Load(); from != 0 {
			t.Errorf("a part starts at %d", from)
		}
	}
	if err := e.Fill(ids[2], func([]float32, int) {}); err == nil {
		t.Error("a bfloat16 tensor was filled with float32")
	}
}

// A scalar is read as it was when the read was queued, whatever is queued behind it, and not before it is waited for.
func TestLaterReadsWhatWasQueuedBefore(t *testing.T) { onBoth(t, laterReadsWhatWasQueuedBefore) }

func laterReadsWhatWasQueuedBefore(t *testing.T, e *Executor) {
	ids := loadTensors(t, e, []trace.DType{trace.Float32, trace.Float32, trace.BFloat16}, 3)
	set := func(x, y float32) {
		t.Helper()
		if err := errors.Join(e.SetFloats(ids[0], []float32{x}), e.SetFloats(ids[1], []float32{y})); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		x := float32(i)
		set(x, -x)
		var got [2]float32
		wait, err := e.Later(got[:], ids[0], ids[1])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Later(make([]float32, 1), ids[0]); err == nil {
			t.Error("a second read was queued before the first was taken")
		}
		set(100, 200)
		if err := wait(); err != nil || got != [2]float32{x, -x} {
			t.Errorf("read %v (%v), want %v and %v", got, err, x, -x)
		}
	}
	if _, err := e.Later(make([]float32, 1), ids[2]); err == nil {
		t.Error("a bfloat16 tensor was read as float32")
	}
}

// A snapshot shows what the work queued before it leaves, though nobody waited for that work; it takes its time beside work
// that changes other tensors; there is one at a time; and the arena is not given back under it.
func TestSnapshotShowsWhatWasQueuedBefore(t *testing.T) { onBoth(t, snapshotShowsWhatWasQueuedBefore) }

func snapshotShowsWhatWasQueuedBefore(t *testing.T, e *Executor) {
	n := 9*stageBytes/4 + 7 // more than the ring has at once
	ids := loadTensors(t, e, []trace.DType{trace.Float32, trace.BFloat16, trace.Float32Low, trace.Float32}, n)
	set := func(id program.ID, x float32) {
		t.Helper()
		if err := e.SetFloats(id, slices.Repeat([]float32{x}, n)); err != nil {
			t.Fatal(err)
		}
	}
	var last func() error
	for i := range 3 {
		set(ids[0], float32(i))
		set(ids[1], float32(-i))
		set(ids[2], float32(i)+1.0/1024)
		dst := [][]float32{make([]float32, n), make([]float32, n), make([]float32, n)}
		wait, err := e.Snapshot(ids[:3], dst)
		if err != nil {
			t.Fatal(err)
		}
		set(ids[3], 7)
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		for k, want := range []float32{float32(i), float32(-i), float32(i) + 1.0/1024} {
			for j, got := range dst[k] {
				if got != want {
					t.Fatalf("snapshot %d: element %d of tensor %d is %v, want %v", i, j, k, got, want)
				}
			}
		}
		last = wait
	}
	if err := last(); err != nil {
		t.Errorf("a second wait: %v", err)
	}
}

// While a snapshot is under way there is no second one, and the arena stays.
func TestSnapshotIsAlone(t *testing.T) { onBoth(t, snapshotIsAlone) }

func snapshotIsAlone(t *testing.T, e *Executor) {
	ids := loadTensors(t, e, []trace.DType{trace.Float32}, 10)
	hold, held := make(chan struct{}), make(chan struct{})
	go e.copies.on(func() error { close(held); <-hold; return nil }) // the thread of the copies is busy
	<-held
	dst := [][]float32{make([]float32, 10)}
	if err := e.SetFloats(ids[0], slices.Repeat([]float32{3}, 10)); err != nil {
		t.Fatal(err)
	}
	wait, err := e.Snapshot(ids, dst)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Snapshot(ids, dst); err == nil || !strings.Contains(err.Error(), "under way") {
		t.Errorf("a second snapshot: %v", err)
	}
	unloaded := make(chan error)
	go func() { unloaded <- e.on(e.unload) }()
	select {
	case err := <-unloaded:
		t.Errorf("the arena was given back under a snapshot: %v", err)
		close(hold)
	default:
		close(hold)
		if err := <-unloaded; err != nil {
			t.Error(err)
		}
	}
	if err := wait(); err != nil || dst[0][9] != 3 {
		t.Errorf("%v, %v", err, dst[0])
	}
}

// The arena is what the plan says; a larger one than the card has fails with the driver's own words and both numbers.
func TestLoadTakesWhatWasPlanned(t *testing.T) {
	e := standIn(t, Options{})
	loadTensors(t, e, []trace.DType{trace.Float32}, 1<<20)
	free, total, err := e.Memory()
	if err != nil || total-free != e.Taken() {
		t.Errorf("%v taken on the card (%v), the plan has %v", total-free, err, e.Taken())
	}
	p := &program.Program{}
	p.Add(program.Persistent, trace.Activation, trace.UInt8, "large", 13<<30)
	err = e.Load(p.Place())
	var failed *Error
	if !errors.As(err, &failed) || failed.Name != "CUDA_ERROR_OUT_OF_MEMORY" || !strings.Contains(err.Error(), "13.00 GiB") || !strings.Contains(err.Error(), "--vram") {
		t.Errorf("13 GiB on a card of 12: %v", err)
	}
	if free, total, err := e.Memory(); !errors.Is(failed, program.ErrNoMemory) || free != total || e.Taken() != 0 {
		t.Errorf("after it %v of %v are free (%v), %v count as taken", free, total, err, e.Taken())
	}
}

// Every launch of every op, for GPT-2's sizes, nanoGPT's examples and odd ones, in every dtype, keeps an RTX 3060's limits.
func TestLaunchesFitSmallCards(t *testing.T) {
	models := []gpt.Model{
		{NLayer: 2, NHead: 12, NEmbd: 768, BlockSize: 128, VocabSize: 5032},
		{NLayer: 1, NHead: 25, NEmbd: 1600, BlockSize: 64, VocabSize: 264, Bias: true},
		{NLayer: 1, NHead: 20, NEmbd: 1920, BlockSize: 64, VocabSize: 72},
		{NLayer: 1, NHead: 6, NEmbd: 384, BlockSize: 256, VocabSize: 65, Dropout: 0.2},
		{NLayer: 1, NHead: 4, NEmbd: 128, BlockSize: 64, VocabSize: 65, Bias: true},
		{NLayer: 2, NHead: 3, NEmbd: 15, BlockSize: 7, VocabSize: 37, Bias: true, Dropout: 0.1},
		{NLayer: 1, NHead: 1, NEmbd: 8, BlockSize: 5, VocabSize: 3},
	}
	for _, own := range []bool{false, true} {
		e := standIn(t, Options{OwnBlas: own})
		for _, dtype := range testDTypes {
			for i, m := range models {
				if m.NEmbd > 1024 && (own || dtype != trace.BFloat16) {
					continue // a gigabyte each: once is enough
				}
				policy := gpt.Policy{MicroBatch: 2, EvalBatch: 2, LossChunk: 50, Weight: dtype, Activation: dtype, Gradient: trace.Float32,
					Recompute: []gpt.Recompute{gpt.RecomputeBlock, gpt.RecomputeNone}}
				if i%2 == 1 {
					policy.MicroBatch, policy.Gradient = 3, dtype
				}
				step, err := gpt.Build(m, gpt.Shape{Batch: 3, EvalBatch: 3}, policy)
				if err != nil {
					t.Fatal(err)
				}
				step.AddScratch(e.Scratch)
				if err := e.Load(step.Place()); err != nil {
					t.Fatal(err)
				}
				for section := range step.Sections {
					if err := e.Run(section, program.Step{LR: 1e-3, T: 1}); err != nil {
						t.Errorf("model %d, own=%v, %s: %v", i, own, dtype, err)
					}
				}
				if err := generateAll(e, m, dtype); err != nil {
					t.Errorf("model %d, own=%v, %s: %v", i, own, dtype, err)
				}
			}
		}
	}
}

// A device is found by its number or by NVML's name for it; the error says how many there are.
func TestOpenPicksDevices(t *testing.T) {
	e := standIn(t, Options{})
	for _, c := range []struct {
		name string
		o    Options
		want string // of the error; empty: opens
	}{
		{"by its UUID", Options{UUID: e.UUID}, ""},
		{"an unknown UUID", Options{UUID: "GPU-0"}, "none of CUDA's 1 devices"},
		{"a number too high", Options{Ordinal: 1}, "no device 1, CUDA sees 1"},
	} {
		d, err := Open(c.o)
		if err == nil {
			d.Close()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Where cuBLASLt is missing snug's own products serve, and Info says why.
func TestWithoutBlas(t *testing.T) {
	e := standIn(t, Options{})
	if !strings.HasPrefix(e.Blas, "cuBLASLt 120400") {
		t.Errorf("with the library there: %q", e.Blas)
	}
	if err := os.Remove(filepath.Join(os.Getenv(LibraryPath), blasNames[0])); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.blas != nil && strings.Contains(d.Blas, os.Getenv(LibraryPath)) {
		t.Errorf("without the library: %q", d.Blas)
	}
}

// The second start takes the algorithms of the first, and times anew what the file does not hold or holds wrongly.
func TestAlgorithmsAreRemembered(t *testing.T) {
	cache := t.TempDir()
	e := standIn(t, Options{Cache: cache})
	c := matmulCases(program.Attrs{B: 1, T: 16, N: 16, C: 16, OC: 32})[1]
	vals := c.inputs(rand.New(rand.NewPCG(1, 1)), trace.BFloat16)
	runCase(t, e, &c, trace.BFloat16, vals)
	files, _ := filepath.Glob(filepath.Join(cache, "cublaslt-120400-Stand-in-3060-12040.json"))
	if len(files) != 1 {
		t.Fatalf("%d files for this card, driver and library, want 1", len(files))
	}
	reopen := func() *algorithms { return e.openAlgorithms(cache) }
	p := product{m: 32, n: 16, k: 16, transA: true, in: trace.BFloat16, out: trace.BFloat16, align: 16}
	if reopen().find(p) == nil {
		t.Errorf("%v is not remembered", p)
	}
	p.m = 40
	if reopen().find(p) != nil {
		t.Errorf("%v was never timed", p)
	}
	for _, broken := range []string{"", "{", `{"x":"AA=="}`, "[]", "null"} {
		if err := os.WriteFile(files[0], []byte(broken), 0o644); err != nil {
			t.Fatal(err)
		}
		p.m = 32
		if reopen().find(p) != nil {
			t.Errorf("a file of %q gave an algorithm", broken)
		}
		reopen().add(p, nil)
	}
}

// A hasty load times nothing and remembers nothing; the next one that is not finds the algorithms anew.
func TestHastyRemembersNothing(t *testing.T) {
	e := standIn(t, Options{Cache: t.TempDir()})
	c := matmulCases(program.Attrs{B: 1, T: 16, N: 16, C: 16, OC: 32})[1]
	vals := c.inputs(rand.New(rand.NewPCG(1, 1)), trace.BFloat16)
	p := product{m: 32, n: 16, k: 16, transA: true, in: trace.BFloat16, out: trace.BFloat16, align: 16}
	for _, hasty := range []bool{true, false, true} {
		e.Hasty(hasty)
		known := e.blas.memory.find(p) != nil
		runCase(t, e, &c, trace.BFloat16, vals)
		if got := e.blas.memory.find(p) != nil; got != (known || !hasty) {
			t.Errorf("hasty %v: the algorithm is remembered: %v, before: %v", hasty, got, known)
		}
	}
}

// Products whose rows are not aligned go to the library where it is no slower than snug's own kernel, which the stand-in's clock
// says of all; where the own kernel was found to be faster, nothing may be timed, or numbers are float32, they do not.
func TestCrookedRows(t *testing.T) {
	odd := program.Attrs{B: 1, T: 16, N: 16, C: 16, OC: 65}
	for name, c := range map[string]struct {
		dtype        trace.DType
		hasty, slow  bool
		at           program.Attrs
		viaLibrary   bool
		isRemembered bool
	}{
		"no slower":           {trace.BFloat16, false, false, odd, true, true},
		"found to be slower":  {trace.BFloat16, false, true, odd, false, true},
		"nothing is timed":    {trace.BFloat16, true, false, odd, false, false},
		"float32":             {trace.Float32, false, false, odd, false, false},
		"aligned all the way": {trace.BFloat16, false, false, program.Attrs{B: 1, T: 16, N: 16, C: 16, OC: 64}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			e := standIn(t, Options{Cache: cache})
			e.Hasty(c.hasty)
			p := product{m: c.at.OC, n: 16, k: 16, transA: true, in: c.dtype, out: c.dtype, align: 16}
			if c.slow {
				e.blas.memory.add(p, own)
				if err := e.blas.memory.save(); err != nil {
					t.Fatal(err)
				}
				e.blas.memory = e.openAlgorithms(cache)
			}
			op := matmulCases(c.at)[1]
			runCase(t, e, &op, c.dtype, op.inputs(rand.New(rand.NewPCG(1, 1)), c.dtype))
			m := e.matmulOf(&e.layout.Sections[0].Ops[0])
			if m.blasProduct() != p {
				t.Fatalf("the product is %v, want %v", m.blasProduct(), p)
			}
			if got := e.viaBlas(&m); got != c.viaLibrary {
				t.Errorf("via the library: %v, want %v", got, c.viaLibrary)
			}
			if again := e.openAlgorithms(cache); (again.find(p) != nil) != (c.isRemembered && !c.slow) || again.isOwn(p) != c.slow {
				t.Errorf("remembered: an algorithm %v, the own kernel %v", again.find(p) != nil, again.isOwn(p))
			}
		})
	}
}

// What a plan counts without the device is what the device asks for.
func TestScratchWithoutDevice(t *testing.T) {
	op := &program.Op{Code: program.MatmulBackwardWeight, Attrs: program.Attrs{N: 16384, C: 768, OC: 768}}
	for _, c := range []struct {
		target Target
		want   units.Bytes
	}{{Target{9, true}, 32 * units.MiB}, {Target{8, true}, 4 * units.MiB}, {Target{8, false}, units.Bytes(splits(768, 768, 16384) * 768 * 768 * 4)},
		{Target{9, false}, (hopperCard/2 + 9) * hopperSlot}} {
		if got := c.target.Scratch(op); got != c.want {
			t.Errorf("%+v: %v, want %v", c.target, got, c.want)
		}
	}
}

// Cards take the machine code that was made for them, and where the driver refuses it the PTX that it compiles itself.
func TestArchiveOfCards(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		generic      bool
		want         string
	}{
		{8, 0, false, genericArchive}, {8, 6, false, smallArchive}, {8, 9, false, smallArchive}, {9, 0, false, hopperArchive},
		{9, 0, true, genericArchive}, {10, 0, false, genericArchive}, {12, 0, false, genericArchive}, {8, 6, true, genericArchive},
	} {
		if got := archiveOf(c.major, c.minor, c.generic); got != c.want {
			t.Errorf("compute capability %d.%d, generic %v: %s, want %s", c.major, c.minor, c.generic, got, c.want)
		}
	}
	e := standIn(t, Options{})
	if e.target != smallArchive {
		t.Fatalf("the stand-in of compute capability %d.%d takes %s", e.Major, e.Minor, e.target)
	}
	const unit = "adamw.bf16"
	e.files[unit] = []byte{0} // which the stand-in refuses
	if err := e.on(func() error { return e.load(unit) }); err != nil || e.target != genericArchive {
		t.Errorf("refused machine code: %v, then %s", err, e.target)
	}
}

// Page-locked memory is taken with the first arena and serves the later ones; what is read through it is theirs.
func TestHostMemoryIsTakenOnce(t *testing.T) {
	e := standIn(t, Options{})
	m := gpt.Model{NLayer: 1, NHead: 2, NEmbd: 32, BlockSize: 16, VocabSize: 40}
	var first uintptr
	for _, batch := range []int{1, 3} {
		step, err := gpt.Build(m, gpt.Shape{Batch: batch}, gpt.Policy{MicroBatch: batch, LossChunk: 16, Weight: trace.Float32, Activation: trace.Float32, Gradient: trace.Float32, Recompute: gpt.Uniform(gpt.RecomputeNone)})
		if err != nil {
			t.Fatal(err)
		}
		step.AddScratch(e.Scratch)
		if err := e.Load(step.Place()); err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = e.stage.memory
		}
		if e.stage.memory != first || first == 0 {
			t.Errorf("batch %d: page-locked memory at %#x, before at %#x", batch, e.stage.memory, first)
		}
		want, got := []float32{float32(batch)}, make([]float32, 1)
		if err := e.SetFloats(step.Params[0].Weight, want); err != nil {
			t.Fatal(err)
		}
		if err := e.Floats(step.Params[0].Weight, got); err != nil || got[0] != want[0] {
			t.Errorf("batch %d: %v, %v", batch, got, err)
		}
	}
}
