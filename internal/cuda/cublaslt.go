package cuda

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// blas is cuBLASLt: matrix products whose algorithm is chosen by timing, once for each shape.
type blas struct {
	calls   [blasCalls]uintptr
	handle  uintptr
	version int
	check   func(what string, code int32) error
	one     *float32
	zero    *float32
	plans   map[product]*plan
	crooked map[product]bool // of products whose rows are not aligned: the library is faster than snug's own kernel
	memory  *algorithms
	hasty   bool // take the library's first choice instead of timing its choices
}

const (
	ltCreate = iota
	ltDestroy
	ltGetVersion
	ltMatmulDescCreate
	ltMatmulDescSetAttribute
	ltMatrixLayoutCreate
	ltMatmulPreferenceCreate
	ltMatmulPreferenceDestroy
	ltMatmulPreferenceSetAttribute
	ltMatmulAlgoGetHeuristic
	ltMatmul
	ltGetStatusName
	ltGetStatusString
	blasCalls
)

var blasSymbols = []string{"cublasLtCreate", "cublasLtDestroy", "cublasLtGetVersion", "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
	"cublasLtMatrixLayoutCreate", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulPreferenceSetAttribute",
	"cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul", "cublasLtGetStatusName", "cublasLtGetStatusString"}

// workspace is what one product may use beside its operands: NVIDIA's advice for Hopper, and for the cards before it.
func (t Target) workspace() units.Bytes {
	if t.Major >= 9 {
		return 32 * units.MiB
	}
	return 4 * units.MiB
}

// openBlas opens cuBLASLt where it is found; without it snug's own kernels serve, and Info.Blas says why.
func (d *Device) openBlas(lib library, err error, cache string) {
	b := &blas{plans: map[product]*plan{}, crooked: map[product]bool{}, one: fresh[float32](), zero: fresh[float32]()}
	*b.one = 1
	if err == nil {
		err = lib.symbols(b.calls[:], blasSymbols)
	}
	if err == nil {
		b.check = b.status
		// cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
		h := fresh[uintptr]()
		err = b.check("cublasLtCreate", call(b.calls[ltCreate], address(h)))
		b.handle = *h
	}
	if err != nil {
		d.Blas = fmt.Sprintf("snug's own matmuls: %v: set %s to its folder", err, LibraryPath)
		return
	}
	// size_t cublasLtGetVersion(void)
	b.version = int(callPointer(b.calls[ltGetVersion]))
	d.blas, d.Blas = b, fmt.Sprintf("cuBLASLt %d (%s)", b.version, lib.path)
	b.memory = d.openAlgorithms(cache)
}

// close: cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle).
func (b *blas) close() { call(b.calls[ltDestroy], b.handle) }

// status turns a cublasStatus_t into nil or an *Error: const char *cublasLtGetStatusName(cublasStatus_t), …String likewise.
func (b *blas) status(what string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: what, Code: code, Name: goString(callPointer(b.calls[ltGetStatusName], uintptr(code))),
		Text: goString(callPointer(b.calls[ltGetStatusString], uintptr(code)))}
}

// product is one shape of matrix product in cuBLASLt's column-major terms: D (m,n) = op(A) op(B) [+ D], summed over k.
type product struct {
	m, n, k        int
	transA, transB bool
	in, out        trace.DType
	bias           bool
	accumulate     bool
	align          int // bytes that every operand's address is a multiple of
}

// The library's enumerations.
const (
	compute32F     = 68
	descTransA     = 3
	descTransB     = 4
	descEpilogue   = 7
	descBias       = 8
	epilogueBias   = 4
	prefWorkspace  = 1
	prefReduction  = 3 // which ways of adding up a product's parts are allowed
	inComputeType  = 2 // in the compute type, through the workspace
	prefAlignA     = 5
	heuristicBytes = 96 // cublasLtMatmulHeuristicResult_t: algo [64], workspaceSize, state, wavesCount, reserved [16]
	candidatesMost = 12
)

var cudaTypes = map[trace.DType]uintptr{trace.Float32: 0, trace.Float16: 2, trace.BFloat16: 14}

// plan is a product's descriptors and its chosen algorithm.
type plan struct {
	desc, a, b, d uintptr
	algo          []byte
	first         bool // the library's first choice, not the fastest of all
}

// describe makes the descriptors of p.
func (b *blas) describe(p product) (*plan, error) {
	pl := &plan{}
	out := fresh[uintptr]()
	// cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale)
	if err := b.check("cublasLtMatmulDescCreate", call(b.calls[ltMatmulDescCreate], address(out), compute32F, cudaTypes[trace.Float32])); err != nil {
		return nil, err
	}
	pl.desc = *out
	set := func(attribute uintptr, value uint32) error {
		// cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, attribute, const void *buf, size_t bytes)
		v := fresh[uint32]()
		*v = value
		return b.check("cublasLtMatmulDescSetAttribute", call(b.calls[ltMatmulDescSetAttribute], pl.desc, attribute, address(v), 4))
	}
	trans := func(t bool) uint32 {
		if t {
			return 1
		}
		return 0
	}
	if err := set(descTransA, trans(p.transA)); err != nil {
		return nil, err
	}
	if err := set(descTransB, trans(p.transB)); err != nil {
		return nil, err
	}
	if p.bias {
		if err := set(descEpilogue, epilogueBias); err != nil {
			return nil, err
		}
	}
	layout := func(dst *uintptr, dtype trace.DType, rows, cols int) error {
		// cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64 rows, uint64 cols, int64 ld)
		err := b.check("cublasLtMatrixLayoutCreate", call(b.calls[ltMatrixLayoutCreate], address(out), cudaTypes[dtype], uintptr(rows), uintptr(cols), uintptr(rows)))
		*dst = *out
		return err
	}
	swap := func(t bool, rows, cols int) (int, int) {
		if t {
			return cols, rows
		}
		return rows, cols
	}
	rows, cols := swap(p.transA, p.m, p.k)
	if err := layout(&pl.a, p.in, rows, cols); err != nil {
		return nil, err
	}
	rows, cols = swap(p.transB, p.k, p.n)
	if err := layout(&pl.b, p.in, rows, cols); err != nil {
		return nil, err
	}
	return pl, layout(&pl.d, p.out, p.m, p.n)
}

// heuristics asks for algorithms, the most promising first.
func (b *blas) heuristics(p product, pl *plan, workspace units.Bytes) ([][]byte, error) {
	pref := fresh[uintptr]()
	// cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
	if err := b.check("cublasLtMatmulPreferenceCreate", call(b.calls[ltMatmulPreferenceCreate], address(pref))); err != nil {
		return nil, err
	}
	defer call(b.calls[ltMatmulPreferenceDestroy], *pref)
	ws := fresh[uint64]()
	*ws = uint64(workspace)
	// cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, attribute, const void *buf, size_t bytes)
	if err := b.check("cublasLtMatmulPreferenceSetAttribute", call(b.calls[ltMatmulPreferenceSetAttribute], *pref, prefWorkspace, address(ws), 8)); err != nil {
		return nil, err
	}
	mask := fresh[uint32]()
	*mask = inComputeType
	// A 16-bit gradient is rounded once: its parts are never added up in 16 bits.
	if p.transB && p.out != trace.Float32 {
		if err := b.check("cublasLtMatmulPreferenceSetAttribute", call(b.calls[ltMatmulPreferenceSetAttribute], *pref, prefReduction, address(mask), 4)); err != nil {
			return nil, err
		}
	}
	align := fresh[uint32]()
	*align = uint32(p.align)
	for operand := uintptr(0); operand < 4; operand++ {
		if err := b.check("cublasLtMatmulPreferenceSetAttribute", call(b.calls[ltMatmulPreferenceSetAttribute], *pref, prefAlignA+operand, address(align), 4)); err != nil {
			return nil, err
		}
	}
	results, found := heap(make([]byte, candidatesMost*heuristicBytes)), fresh[int32]()
	// cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, desc, A, B, C, D layouts, pref, int requested, results *, int *found)
	err := b.check("cublasLtMatmulAlgoGetHeuristic", call(b.calls[ltMatmulAlgoGetHeuristic], b.handle, pl.desc, pl.a, pl.b, pl.d, pl.d, *pref,
		candidatesMost, address(&results[0]), address(found)))
	if err != nil {
		return nil, fmt.Errorf("%v: %w", p, err)
	}
	var all [][]byte
	for i := range int(*found) {
		all = append(all, heap(results[i*heuristicBytes:(i+1)*heuristicBytes]))
	}
	return all, nil
}

// multiply queues one product. bias is 0 where p has none.
func (b *blas) multiply(p product, pl *plan, algo []byte, A, B, D, bias, workspace Pointer, space units.Bytes, stream uintptr) error {
	if p.bias {
		v := fresh[uint64]()
		*v = uint64(bias)
		if err := b.check("cublasLtMatmulDescSetAttribute", call(b.calls[ltMatmulDescSetAttribute], pl.desc, descBias, address(v), 8)); err != nil {
			return err
		}
	}
	beta := b.zero
	if p.accumulate {
		beta = b.one
	}
	// cublasStatus_t cublasLtMatmul(handle, desc, const void *alpha, const void *A, layout A, const void *B, layout B, const void *beta,
	//     const void *C, layout C, void *D, layout D, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream)
	return b.check("cublasLtMatmul", call(b.calls[ltMatmul], b.handle, pl.desc, address(b.one), uintptr(A), pl.a, uintptr(B), pl.b, address(beta),
		uintptr(D), pl.d, uintptr(D), pl.d, address(&algo[0]), uintptr(workspace), uintptr(space), stream))
}

// multiply runs p with the fastest algorithm, which it finds by timing where p is new.
func (d *Device) multiply(p product, A, B, D, bias, workspace Pointer, space units.Bytes) error {
	if d.tape != nil && d.tape.dry {
		return nil
	}
	pl, err := d.plan(p, A, B, D, bias, workspace, space)
	if err != nil {
		return err
	}
	if err := d.blas.multiply(p, pl, pl.algo, A, B, D, bias, workspace, space, d.stream); err != nil || !d.sync {
		return err
	}
	if err := d.drv.synchronize(d.stream); err != nil {
		return fmt.Errorf("%v: %w", p, err)
	}
	return nil
}

// plan finds the fastest algorithm for p: the remembered one where it still runs, else by timing each candidate on these
// operands, whose contents it spoils.
func (d *Device) plan(p product, A, B, D, bias, workspace Pointer, space units.Bytes) (*plan, error) {
	if pl := d.blas.plans[p]; pl != nil && (!pl.first || d.blas.hasty) {
		return pl, nil
	}
	pl, err := d.blas.describe(p)
	if err != nil {
		return nil, err
	}
	run := func(algo []byte) error {
		return d.blas.multiply(p, pl, algo, A, B, D, bias, workspace, space, d.stream)
	}
	if algo := d.blas.memory.find(p); algo != nil && run(algo) == nil {
		pl.algo = algo
		d.blas.plans[p] = pl
		return pl, nil
	}
	algos, err := d.blas.heuristics(p, pl, space)
	if err != nil {
		return nil, err
	}
	if d.blas.hasty && len(algos) > 0 && run(algos[0]) == nil {
		pl.algo, pl.first = algos[0], true
		d.blas.plans[p] = pl
		return pl, nil
	}
	fastest, last := math.Inf(1), errors.New("the library knows none")
	for _, algo := range algos {
		ms, err := d.measure(3, 1.2*fastest, func() error { return run(algo) })
		if err != nil {
			last = err
		} else if ms < fastest {
			fastest, pl.algo = ms, algo
		}
	}
	if pl.algo == nil {
		return nil, fmt.Errorf("none of %d algorithms runs %v: %w", len(algos), p, last)
	}
	d.blas.plans[p] = pl
	d.blas.memory.add(p, pl.algo)
	return pl, nil
}

// measure is the median milliseconds of f on the device, after one run to warm up; the first one's where that takes longer than
// hopeless.
func (d *Device) measure(times int, hopeless float64, f func() error) (float64, error) {
	if err := f(); err != nil {
		return 0, err
	}
	start, err := d.drv.newEvent()
	if err != nil {
		return 0, err
	}
	defer d.drv.do(cuEventDestroy, start)
	end, err := d.drv.newEvent()
	if err != nil {
		return 0, err
	}
	defer d.drv.do(cuEventDestroy, end)
	all := make([]float64, times)
	for i := range all {
		if err := d.drv.record(start, d.stream); err != nil {
			return 0, err
		}
		if err := f(); err != nil {
			return 0, err
		}
		if err := d.drv.record(end, d.stream); err != nil {
			return 0, err
		}
		if err := d.drv.synchronize(d.stream); err != nil {
			return 0, err
		}
		if all[i], err = d.drv.elapsed(start, end); err != nil {
			return 0, err
		}
		if i == 0 && all[0] > hopeless {
			return all[0], nil
		}
	}
	sort.Float64s(all)
	return all[times/2], nil
}
