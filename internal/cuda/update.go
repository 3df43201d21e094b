package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// The update's kernels take all tensors in one launch, each in blocks of its own.
const (
	normPiece  = 1 << 16 // elements of a block of norm_partial
	adamwPiece = 1 << 14 // elements of a block of adamw
	adamwGroup = 5       // arguments of one tensor of AdamW: param, master, m, v, grad
)

// entry is Entry of adamw.cu: one tensor.
type entry struct {
	param, master, m, v, grad uint64
	n                         int64
	first, half               int32
}

const entryBytes = int(unsafe.Sizeof(entry{}))

// entryTable is an op's list of tensors, in page-locked memory, and the blocks that they take together.
type entryTable struct {
	host            uintptr
	entries, blocks int
	unit, kernel    string
}

// adamwKernels are adamw.cu's, by what completes a parameter to its float32 value. A unit has the one for its elements alone.
var adamwKernels = map[trace.DType]string{"": "adamw", trace.Float32: "adamw_master", trace.Float32Low: "adamw_split"}

// updateScratch is the device's copy of the table and, for the norm, a sum of each block.
func updateScratch(op *program.Op) units.Bytes {
	if op.Code == program.AdamW {
		return units.Bytes((len(op.Args) - 1) / adamwGroup * entryBytes)
	}
	blocks := 0
	for _, g := range op.Args[1:] {
		blocks += ceil(g.Len, normPiece)
	}
	return units.Bytes((len(op.Args)-1)*entryBytes + 4*blocks)
}

// prepareTable lists the tensors of a GlobalNorm or an AdamW.
func (e *Executor) prepareTable(op *program.Op) error {
	var list []entry
	t := entryTable{unit: "adamw.f32"}
	add := func(x entry, g program.Arg, piece int) error {
		dtype := e.dtype(g)
		x.grad, x.n, x.first = uint64(e.ptr(g)), int64(g.Len), int32(t.blocks)
		if dtype != trace.Float32 {
			t.unit, x.half = e.unit("adamw", g), 1
		}
		if (x.param|x.master|x.m|x.v|x.grad)%16 != 0 {
			return fmt.Errorf("%s: a tensor does not start at a multiple of 16 bytes", op.Name)
		}
		list = append(list, x)
		t.blocks += ceil(g.Len, piece)
		return nil
	}
	args, group, piece := op.Args[1:], 1, normPiece
	if op.Code == program.AdamW {
		group, piece, t.unit = adamwGroup, adamwPiece, e.unit("adamw", args[0])
		t.kernel = adamwKernels[program.MasterOf(e.dtype(args[0]))]
	}
	for ; len(args) > 0; args = args[group:] {
		var x entry
		if op.Code == program.AdamW {
			at := func(i int) uint64 { return uint64(e.ptr(args[i])) }
			x = entry{param: at(0), master: at(1), m: at(2), v: at(3)}
			if err := e.checkMaster(args[0], args[1]); err != nil {
				return err
			}
		}
		if err := add(x, args[group-1], piece); err != nil {
			return err
		}
	}
	t.entries = len(list)
	var err error
	if t.host, err = e.drv.allocHost(len(list) * entryBytes); err != nil {
		return err
	}
	copy(unsafe.Slice((*entry)(*(*unsafe.Pointer)(unsafe.Pointer(&t.host))), len(list)), list)
	e.tables[op] = t
	return nil
}

// checkMaster says where master is not what completes param.
func (e *Executor) checkMaster(param, master program.Arg) error {
	var has trace.DType
	if !master.None() {
		has = e.dtype(master)
	}
	if want := program.MasterOf(e.dtype(param)); has != want {
		return fmt.Errorf("%s: its master is %q, it must be %q", e.layout.Tensors[param.ID].Name, has, want)
	}
	return nil
}

// table queues the copy of op's table to the device.
func (e *Executor) table(op *program.Op) (t entryTable, at Pointer, err error) {
	t = e.tables[op]
	at, _ = e.scratchPtr(op)
	return t, at, e.upload(at, t.host, t.entries*entryBytes)
}

func (e *Executor) globalNorm(op *program.Op, s program.Step) error {
	t, table, err := e.table(op)
	if err != nil {
		return err
	}
	partial := table + Pointer(t.entries*entryBytes)
	e.with().ptr(partial, table).int(t.entries)
	if err := e.launch(t.unit, "norm_partial", dim{x: t.blocks}, 512, 0); err != nil {
		return err
	}
	e.with().ptr(e.ptr(op.Args[0]), partial).int(t.blocks).float(s.LossScale)
	return e.launch(t.unit, "norm_final", dim{x: 1}, 1024, 0)
}

func (e *Executor) adamW(op *program.Op, s program.Step) error {
	t, table, err := e.table(op)
	if err != nil {
		return err
	}
	a, at := &op.Attrs, float64(s.T)
	step, root := s.LR/(1-math.Pow(a.Beta1, at)), math.Sqrt(1-math.Pow(a.Beta2, at))
	e.with().ptr(table, e.ptr(op.Args[0])).int(t.entries).
		float(s.LR, step, root, a.Beta1, a.Beta2, a.Eps, a.WeightDecay, a.GradClip, s.LossScale)
	return e.launch(t.unit, t.kernel, dim{x: t.blocks}, threads, 0)
}
