package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Executor runs programs on a device: one allocation of the planned size, one stream, no wait inside a section.
// It implements program.Executor and program.Snapshotter.
type Executor struct {
	*Device
	layout *program.Layout
	arena  Pointer
	taken  units.Bytes
	stage  staging
	later  stageSlot // the scalars under way to the host; used until they are taken
	shot   snapshot
	tables map[*program.Op]entryTable
	maps   map[matrix]*tensorMap // of the products' operands in this arena
	graphs []graph               // a section each
	nodes  int                   // of all graphs
	values sync.Pool             // *[stageBytes / 4]float32, before they are split into halves
}

// NewExecutor makes an executor on an open device. Close closes the device too.
func NewExecutor(d *Device) *Executor {
	return &Executor{Device: d, maps: map[matrix]*tensorMap{}, values: sync.Pool{New: func() any { return new([stageBytes / 4]float32) }}}
}

// Scratch is the workspace that op needs beside its arguments.
func (e *Executor) Scratch(op *program.Op) units.Bytes {
	return Target{Major: e.Major, Blas: e.blas != nil}.Scratch(op)
}

// Load takes the arena, loads every kernel that l's ops use, and finds the fastest algorithm of every product.
func (e *Executor) Load(l *program.Layout) error {
	return e.on(func() error {
		if err := e.unload(); err != nil {
			return err
		}
		err := e.take(l)
		if err == nil {
			return nil
		}
		if undo := e.unload(); undo != nil {
			err = fmt.Errorf("%w; and %w", err, undo)
		}
		if errors.Is(err, program.ErrNoMemory) {
			return fmt.Errorf("load: %w: set --vram lower, or free memory on %s", err, e.Name)
		}
		return fmt.Errorf("load: %w", err)
	})
}

func (e *Executor) take(l *program.Layout) (err error) {
	if e.arena, err = e.drv.alloc(l.Size); err != nil {
		return err
	}
	e.layout, e.taken, e.tables, e.graphs = l, l.Size, map[*program.Op]entryTable{}, make([]graph, len(l.Sections))
	if err := e.openHost(); err != nil {
		return err
	}
	// Algorithms are timed on small numbers (0.0115 in bf16 and fp32), not on whatever lay there.
	if err := e.drv.fill(e.arena, 0x3c, l.Size, e.stream); err != nil {
		return err
	}
	for s := range l.Sections {
		for i := range l.Sections[s].Ops {
			if err := e.prepare(&l.Sections[s].Ops[i]); err != nil {
				return err
			}
		}
	}
	if e.blas != nil {
		_ = e.blas.memory.save() // a folder that cannot be written is no reason not to run
	}
	return e.drv.synchronize(e.stream)
}

// Hasty makes Load take the library's first choice of an algorithm for products that it has not timed yet, until it is off again.
func (e *Executor) Hasty(on bool) {
	if e.blas != nil {
		e.blas.hasty = on
	}
}

// openHost takes what copies need on the host, once: it serves every arena.
func (e *Executor) openHost() error {
	if e.stage.drv != nil {
		return nil
	}
	err := e.stage.open(e.drv, e.stream)
	if err == nil {
		err = e.shot.open(e.Device)
	}
	if err == nil {
		err = e.later.open(e.drv, laterMost*4)
	}
	if err != nil {
		err = errors.Join(err, e.closeHost())
	}
	return err
}

func (e *Executor) closeHost() error {
	if e.stage.drv == nil {
		return nil
	}
	return errors.Join(e.stage.close(), e.later.close(e.drv), e.shot.close(e.drv))
}

// Taken is the size of the arena as it was taken.
func (e *Executor) Taken() units.Bytes { return e.taken }

// Run queues a section: as a graph from its second run on, where it can be one.
func (e *Executor) Run(section int, s program.Step) error {
	return e.on(func() error {
		if s.LossScale == 0 {
			s.LossScale = 1
		}
		return e.queue(section, s)
	})
}

// launchAll queues a section's ops one by one.
func (e *Executor) launchAll(sec *program.Section, s program.Step) error {
	for i := range sec.Ops {
		op := &sec.Ops[i]
		e.timer.begin(e.Device, op)
		if err := ops[op.Code](e, op, s); err != nil {
			return opError(sec, i, err)
		}
		e.timer.end(e.Device)
	}
	return nil
}

// opError says at which op of a section err happened.
func opError(sec *program.Section, i int, err error) error {
	op := &sec.Ops[i]
	return fmt.Errorf("run %s, op %d, %s %s: %w", sec.Name, i, op.Name, op.Code, err)
}

// Poison fills the arena with NaN in every dtype, so that a read of what nothing wrote shows.
func (e *Executor) Poison() error {
	return e.on(func() error { return e.drv.fill(e.arena, 0xff, e.taken, e.stream) })
}

// SetFloats writes the head of a tensor, converted to its dtype.
func (e *Executor) SetFloats(id program.ID, src []float32) error {
	t := &e.layout.Tensors[id]
	return e.on(func() error {
		return e.stage.write(e.place(id), len(src), func(dst []byte, from int) { encode(dst, src[from:], t.DType) })
	})
}

// Fill has a tensor of float32 values written in parts, each into page-locked memory, while others are on their way to the device.
func (e *Executor) Fill(id program.ID, fill func(dst []float32, from int)) error {
	t := &e.layout.Tensors[id]
	part := map[trace.DType]func(dst []byte, from int){
		trace.Float32: func(dst []byte, from int) {
			fill(unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(dst))), len(dst)/4), from)
		},
		trace.Float32Low: func(dst []byte, from int) {
			values := e.values.Get().(*[stageBytes / 4]float32)
			fill(values[:len(dst)/4], from)
			splitAll(dst, values[:])
			e.values.Put(values)
		},
	}[t.DType]
	if part == nil {
		return fmt.Errorf("fill %s: it is %s", t.Name, t.DType)
	}
	return e.on(func() error { return e.stage.write(e.place(id), t.Len(), part) })
}

// SetInts writes the head of an int32 tensor.
func (e *Executor) SetInts(id program.ID, src []int32) error {
	t := &e.layout.Tensors[id]
	if t.DType != trace.Int32 || len(src) > t.Len() {
		return fmt.Errorf("write %d ints to %s: it has %d of %s", len(src), t.Name, t.Len(), t.DType)
	}
	return e.on(func() error {
		return e.stage.write(e.place(id), len(src), func(dst []byte, from int) {
			copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&src[from])), len(dst)))
		})
	})
}

// Floats reads a tensor's first len(dst) elements, after all work queued before.
func (e *Executor) Floats(id program.ID, dst []float32) error {
	t := &e.layout.Tensors[id]
	return e.on(func() error {
		return e.stage.read(e.place(id), len(dst), func(src []byte, to int) { decode(dst[to:], src, t.DType) })
	})
}

// laterMost is how many scalars Later reads at once.
const laterMost = 16

// Later queues a copy of each scalar into page-locked memory, and an event behind them for wait.
func (e *Executor) Later(dst []float32, ids ...program.ID) (wait func() error, err error) {
	err = e.on(func() error {
		if e.later.used || len(ids) > laterMost {
			return fmt.Errorf("read %d tensors later: a read is under way, or they are more than %d", len(ids), laterMost)
		}
		for i, id := range ids {
			if t := &e.layout.Tensors[id]; t.DType != trace.Float32 {
				return fmt.Errorf("read %s later: it is %s", t.Name, t.DType)
			}
			if err := e.drv.toHost(e.later.memory+uintptr(4*i), e.tensor(id), 4, e.stream); err != nil {
				return err
			}
		}
		e.later.used = true
		return e.drv.record(e.later.event, e.stream)
	})
	return func() error {
		return e.on(func() error {
			e.later.used = false
			err := e.drv.do(cuEventSynchronize, e.later.event)
			if err == nil {
				decode(dst, e.later.bytes(4*len(ids)), trace.Float32)
			}
			return err
		})
	}, err
}

// Close gives the arena and the device back.
func (e *Executor) Close() error {
	err := e.on(func() error { return errors.Join(e.unload(), e.closeHost()) })
	if closed := e.Device.Close(); err == nil {
		err = closed
	}
	return err
}

// unload waits for what is queued and gives back what Load took.
func (e *Executor) unload() error {
	if e.arena == 0 {
		return nil
	}
	e.shot.finish()
	err := errors.Join(e.drv.synchronize(e.copied), e.drv.synchronize(e.stream))
	for i := range e.graphs {
		err = errors.Join(err, e.graphs[i].close(e.drv))
	}
	err = errors.Join(err, e.drv.free(e.arena))
	for _, t := range e.tables {
		err = errors.Join(err, e.drv.freeHost(t.host))
	}
	clear(e.maps)
	e.arena, e.taken, e.nodes, e.later.used = 0, 0, 0, false
	return err
}

// tensor is where a tensor lies.
func (e *Executor) tensor(id program.ID) Pointer { return e.arena + Pointer(e.layout.Offset[id]) }

// place is where what Floats and SetFloats call a tensor lies: with Float32Low also what it completes, the upper half of its values.
func (e *Executor) place(id program.ID) place {
	t := &e.layout.Tensors[id]
	p := place{[]Pointer{e.tensor(id)}, int(t.DType.Size())}
	if t.DType == trace.Float32Low {
		p.at = []Pointer{e.tensor(t.Completes), e.tensor(id)}
	}
	return p
}

// ptr is where an argument lies, 0 where it is absent.
func (e *Executor) ptr(a program.Arg) Pointer {
	if a.None() {
		return 0
	}
	return e.tensor(a.ID) + Pointer(int64(a.Offset)*e.layout.Tensors[a.ID].DType.Size())
}

// dtype is the element type of an argument.
func (e *Executor) dtype(a program.Arg) trace.DType { return e.layout.Tensors[a.ID].DType }

// unit is the compilation of a source for an argument's element type.
func (e *Executor) unit(name string, a program.Arg) string {
	return name + "." + elements[e.dtype(a)].suffix
}

// scratchPtr is an op's workspace.
func (e *Executor) scratchPtr(op *program.Op) (Pointer, units.Bytes) {
	if op.Scratch.None() {
		return 0, 0
	}
	return e.ptr(op.Scratch), units.Bytes(op.Scratch.Len)
}
