package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Options choose how an Executor computes, never what.
type Options struct {
	Threads int         // 0: one for each processor
	BF16    bool        // matmuls round their factors to bfloat16, where the processor is faster at it
	Kernels *kernel.Set // nil: the fastest that the processor can run
}

// Executor runs programs on the CPU. All its tensors are float32 or int32.
//
// Load turns every op into phases of independent pieces with their slices bound, so a step walks lists and allocates nothing.
type Executor struct {
	k        *kernel.Set
	gemm     *kernel.Gemm
	pool     *pool
	memory   []byte // as taken
	arena    []byte // memory, aligned
	layout   *program.Layout
	sections [][]phase
	stream   bool         // the model is larger than the caches: what the update writes goes past them
	step     program.Step // of the section that runs
	err      error        // the first fault of the section that runs
}

var _ program.Executor = (*Executor)(nil)

// New makes an executor; its threads wait until the first Run.
func New(o Options) *Executor {
	x := &Executor{k: o.Kernels}
	if x.k == nil {
		x.k = kernel.Best()
	}
	x.gemm = x.k.F32
	if o.BF16 && x.k.BF16 != nil {
		x.gemm = x.k.BF16
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	x.pool = newPool(o.Threads)
	return x
}

// String names the kernels and the threads: "amx-bf16, 2 threads".
func (x *Executor) String() string {
	return fmt.Sprintf("%s, %d threads", x.gemm.Name, x.pool.threads)
}

// Scratch is the workspace that op needs beside its arguments.
func (x *Executor) Scratch(op *program.Op) units.Bytes {
	if f := table[op.Code].scratch; f != nil {
		return units.Bytes(f(x, op))
	}
	return 0
}

// Load takes the arena of l and binds every op.
func (x *Executor) Load(l *program.Layout) error {
	for i := range l.Tensors {
		switch d := l.Tensors[i].DType; d {
		case trace.Float32, trace.Int32, trace.UInt8:
		default:
			return fmt.Errorf("load: %s is %s, the CPU holds float32", l.Tensors[i].Name, d)
		}
	}
	if err := x.release(); err != nil {
		return err
	}
	memory, err := takeMemory(int(l.Size) + program.Align)
	if err != nil {
		return fmt.Errorf("load: take %v of memory: %w", l.Size, err)
	}
	x.memory, x.arena, x.layout = memory, aligned(memory)[:l.Size], l
	x.stream = updated(l) > streamBytes
	for s := range l.Sections {
		x.sections = append(x.sections, x.bind(l.Sections[s].Ops))
	}
	return nil
}

// streamBytes is how much an update must touch before its stores go past the caches.
const streamBytes = 64 * units.MiB

// streams reports whether stores to all of these may go past the caches, which need aligned addresses.
func (x *Executor) streams(outputs ...[]float32) bool {
	for _, t := range outputs {
		if uintptr(unsafe.Pointer(unsafe.SliceData(t)))%64 != 0 {
			return false
		}
	}
	return x.stream
}

// updated is the bytes that AdamW writes in l's program.
func updated(l *program.Layout) (sum units.Bytes) {
	for _, s := range l.Sections {
		for i := range s.Ops {
			if s.Ops[i].Code != program.AdamW {
				continue
			}
			for p := 1; p < len(s.Ops[i].Args); p += 5 {
				sum += units.Bytes(3 * 4 * s.Ops[i].Args[p].Len)
			}
		}
	}
	return sum
}

// bind turns ops into phases. A run of ops of one kind that touch only tensors of their own (zeroing, AdamW) is one phase.
func (x *Executor) bind(ops []program.Op) (list []phase) {
	for i := 0; i < len(ops); {
		code, end := ops[i].Code, i+1
		phases := table[code].bind(&binding{x, &ops[i]})
		for ; table[code].apart && end < len(ops) && ops[end].Code == code; end++ {
			phases = append(phases, table[code].bind(&binding{x, &ops[end]})...)
		}
		if table[code].apart {
			phases = []phase{merge(phases...)}
		}
		for _, ph := range phases {
			if ph.n > 0 {
				list = append(list, ph)
			}
		}
		i = end
	}
	return list
}

// Taken is the size of the arena.
func (x *Executor) Taken() units.Bytes { return units.Bytes(len(x.arena)) }

// Run runs a section and returns when it is done.
func (x *Executor) Run(section int, s program.Step) error {
	x.step, x.err = s, nil
	x.pool.walk(x.sections[section])
	return x.err
}

// SetFloats writes the head of a float32 tensor.
func (x *Executor) SetFloats(id program.ID, src []float32) error {
	if err := x.fits("set", id, trace.Float32, len(src)); err != nil {
		return err
	}
	copy(slice[float32](x, program.Arg{ID: id, Len: len(src)}), src)
	return nil
}

// SetInts writes the head of an int32 tensor.
func (x *Executor) SetInts(id program.ID, src []int32) error {
	if err := x.fits("set", id, trace.Int32, len(src)); err != nil {
		return err
	}
	copy(slice[int32](x, program.Arg{ID: id, Len: len(src)}), src)
	return nil
}

// Fill has a float32 tensor written in parts by the team.
func (x *Executor) Fill(id program.ID, fill func(dst []float32, from int)) error {
	if err := x.fits("fill", id, trace.Float32, 0); err != nil {
		return err
	}
	t := x.View(id)
	const part = program.FillPart
	x.pool.walk([]phase{{ceil(len(t), part), func(i, _ int) { fill(t[i*part:min((i+1)*part, len(t))], i*part) }}})
	return nil
}

// Floats reads the head of a float32 tensor.
func (x *Executor) Floats(id program.ID, dst []float32) error {
	if err := x.fits("read", id, trace.Float32, len(dst)); err != nil {
		return err
	}
	copy(dst, slice[float32](x, program.Arg{ID: id, Len: len(dst)}))
	return nil
}

// Later reads at once: Run has returned, so its work is done.
func (x *Executor) Later(dst []float32, ids ...program.ID) (wait func() error, err error) {
	for i, id := range ids {
		if err := x.Floats(id, dst[i:i+1]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// View is a float32 tensor itself, for those who would only copy it.
func (x *Executor) View(id program.ID) []float32 {
	return slice[float32](x, program.Arg{ID: id, Len: x.layout.Tensors[id].Len()})
}

func (x *Executor) fits(verb string, id program.ID, d trace.DType, n int) error {
	if x.layout == nil {
		return errors.New(verb + ": no program is loaded")
	}
	if id < 0 || int(id) >= len(x.layout.Tensors) {
		return fmt.Errorf("%s: tensor %d of %d", verb, id, len(x.layout.Tensors))
	}
	t := &x.layout.Tensors[id]
	if t.DType != d || n > t.Len() {
		return fmt.Errorf("%s %s: %d elements of %s, it has %d of %s", verb, t.Name, n, d, t.Len(), t.DType)
	}
	return nil
}

// Close gives the arena back and ends the threads.
func (x *Executor) Close() error {
	x.pool.close()
	return x.release()
}

func (x *Executor) release() error {
	memory := x.memory
	x.memory, x.arena, x.layout, x.sections = nil, nil, nil, nil
	if memory == nil {
		return nil
	}
	return returnMemory(memory)
}

// slice is the elements of a.
func slice[E float32 | int32 | byte](x *Executor, a program.Arg) []E {
	var e E
	size := int(unsafe.Sizeof(e))
	at := int(x.layout.Offset[a.ID]) + a.Offset*size
	b := x.arena[at:][:a.Len*size]
	return unsafe.Slice((*E)(ptr(b)), a.Len)
}

// aligned is b from its first aligned byte on.
func aligned(b []byte) []byte {
	return b[-uintptr(ptr(b))&(program.Align-1):]
}

// binding is an op whose arguments are being bound.
type binding struct {
	*Executor
	*program.Op
}

// f and i32 are argument n, nil where it is absent.
func (b *binding) f(n int) []float32 {
	if b.Args[n].None() {
		return nil
	}
	return slice[float32](b.Executor, b.Args[n])
}

func (b *binding) i32(n int) []int32 { return slice[int32](b.Executor, b.Args[n]) }

func (b *binding) scratch() []byte {
	if b.Op.Scratch.None() {
		return nil
	}
	return slice[byte](b.Executor, b.Op.Scratch)
}

// dropout is the op's mask in the step that runs.
func (b *binding) dropout() Dropout {
	return Dropout{P: b.Attrs.Dropout, Seed: b.step.Seed, Site: uint32(b.Attrs.Site), Sample: b.step.Sample}
}
