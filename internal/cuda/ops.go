package cuda

import (
	"fmt"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// ops holds every op of the program; arguments are in the order of its Spec.
var ops = [program.Codes]func(e *Executor, op *program.Op, s program.Step) error{
	program.EncoderForward:           (*Executor).encoderForward,
	program.EncoderBackward:          (*Executor).encoderBackward,
	program.LayernormForward:         (*Executor).layernormForward,
	program.LayernormBackward:        (*Executor).layernormBackward,
	program.ResidualForward:          (*Executor).residualForward,
	program.ResidualLayernormForward: (*Executor).residualLayernormForward,
	program.DropoutBackward:          (*Executor).dropoutBackward,
	program.MatmulForward:            (*Executor).matmulForward,
	program.MatmulGeluForward:        (*Executor).matmulGeluForward,
	program.MatmulBackwardInput:      (*Executor).matmulBackwardInput,
	program.MatmulBackwardWeight:     (*Executor).matmulBackwardWeight,
	program.BiasBackward:             (*Executor).biasBackward,
	program.GeluForward:              (*Executor).geluForward,
	program.GeluBackward:             (*Executor).geluBackward,
	program.AttentionForward:         (*Executor).attentionForward,
	program.AttentionBackward:        (*Executor).attentionBackward,
	program.AttentionCached:          (*Executor).attentionCached,
	program.Loss:                     (*Executor).loss,
	program.LossSum:                  (*Executor).lossSum,
	program.GlobalNorm:               (*Executor).globalNorm,
	program.AdamW:                    (*Executor).adamW,
	program.Zero:                     (*Executor).zero,
	program.Cast:                     (*Executor).cast,
}

const threads = 256 // of the elementwise kernels

// Target is what the workspace depends on beside an op's shape, so that a plan can be made without the device.
type Target struct {
	Major int  // of the compute capability
	Blas  bool // cuBLASLt multiplies
}

// Scratch is the workspace that op needs beside its arguments.
func (t Target) Scratch(op *program.Op) units.Bytes {
	a := &op.Attrs
	switch op.Code {
	case program.MatmulForward, program.MatmulGeluForward, program.MatmulBackwardInput, program.MatmulBackwardWeight:
		return t.productScratch(op)
	case program.LayernormBackward:
		blocks, _ := layernormGrid(a.N, a.C)
		return units.Bytes(blocks * 2 * a.C * 4)
	case program.EncoderBackward:
		return encoderScratch(a)
	case program.BiasBackward:
		_, groups := biasGroups(a.N)
		return units.Bytes(groups * a.OC * 4)
	case program.GlobalNorm, program.AdamW:
		return updateScratch(op)
	}
	return 0
}

// prepare loads what op will need: the fastest algorithm of a product, attention's kernels, the table of an update.
func (e *Executor) prepare(op *program.Op) error {
	switch op.Code {
	case program.MatmulForward, program.MatmulGeluForward, program.MatmulBackwardInput, program.MatmulBackwardWeight:
		return e.prepareProduct(op)
	case program.AttentionForward, program.AttentionBackward:
		return e.load(e.attentionUnit(op)) // which head size is used, Overhead does not know
	case program.GlobalNorm, program.AdamW:
		return e.prepareTable(op)
	}
	return nil
}

// packed is the name of the kernel for rows of width elements: the one for 16-byte packs where all of them start at one,
// else the one for single elements; and how many elements a thread takes.
func (e *Executor) packed(name string, width int, a program.Arg) (string, int) {
	w := int(16 / e.dtype(a).Size())
	if width%w == 0 && e.ptr(a)%16 == 0 {
		return name, w
	}
	return name + "_1", 1
}

func (e *Executor) encoderForward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	name, w := e.packed("encoder_forward", a.C, x[0])
	wpe := e.ptr(x[3]) + Pointer(int64(s.Pos*a.C)*e.dtype(x[3]).Size())
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2]), wpe).int(a.N, a.T, a.C).dropout(a, s)
	return e.launch(e.unit("encoder", x[0]), name, dim{x: ceil(a.N*a.C/w, threads)}, threads, 0)
}

func (e *Executor) encoderBackward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	unit := e.unit("encoder", x[2])
	name, w := e.packed("encoder_backward_wpe", a.C, x[2])
	e.with().ptr(e.ptr(x[1]), e.ptr(x[2])).int(a.B, a.T, a.C, flag(a.Overwrite)).dropout(a, s)
	if err := e.launch(unit, name, dim{x: ceil(a.T*a.C/w, 32)}, 256, 0); err != nil {
		return err
	}
	segments := encoderSegments(a)
	segment, places := ceil(a.N, segments), 4*segments*a.V
	first, _ := e.scratchPtr(op)
	count, partial := first+Pointer(places), first+Pointer(2*places)
	if err := e.fill(first, 0x7f, units.Bytes(places)); err != nil {
		return err
	}
	if err := e.fill(count, 0, units.Bytes(places)); err != nil {
		return err
	}
	e.with().ptr(first, count, e.ptr(x[3])).int(a.N, a.V, segment)
	if err := e.launch(unit, "encoder_backward_count", dim{x: ceil(a.N, threads)}, threads, 0); err != nil {
		return err
	}
	block := threads
	if a.V <= 2048 { // few tokens, each with many rows: larger blocks
		block = 2 * threads
	}
	name, w = e.packed("encoder_backward_wte", a.C, x[2])
	lanes := max(1, block/(a.C/w))
	e.with().ptr(e.ptr(x[0]), partial, e.ptr(x[2]), e.ptr(x[3]), first, count).int(a.N, a.T, a.C, segment).dropout(a, s)
	if err := e.launch(unit, name, dim{a.V, segments, 1}, block, (lanes-1)*a.C*4); err != nil || segments == 1 {
		return err
	}
	e.with().ptr(e.ptr(x[0]), partial, count).int(a.V, a.C, segments)
	return e.launch(unit, "encoder_backward_sum", dim{x: ceil(a.V*a.C, threads)}, threads, 0)
}

// encoderSegments is in how many parts the places of each token are added up: more where few tokens have many places each.
func encoderSegments(a *program.Attrs) int { return max(1, min(16, 1024/a.V)) }

// encoderScratch is a token's first place and count in each segment, and the segments' sums where there are several.
func encoderScratch(a *program.Attrs) units.Bytes {
	s := encoderSegments(a)
	n := 2 * s * a.V
	if s > 1 {
		n += s * a.V * a.C
	}
	return units.Bytes(4 * n)
}

// rowPacks is how many packs of 16 bytes a lane holds of a row of C elements; 0 where a row is no whole packs or has more than 7
// a lane, and is done by single elements.
func (e *Executor) rowPacks(C int, a program.Arg) int {
	w := int(16 / e.dtype(a).Size())
	if packs := ceil(C, 32*w); C%w == 0 && packs <= 7 {
		return packs
	}
	return 0
}

// rowKernel is the layernorm kernel for rows of C elements.
func (e *Executor) rowKernel(name string, C int, a program.Arg) string {
	if packs := e.rowPacks(C, a); packs > 0 {
		return fmt.Sprintf("%s_p%d", name, packs)
	}
	return name + "_1"
}

const rowWarps = 4 // warps, so rows, of a layernorm block

func (e *Executor) layernormForward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2]), e.ptr(x[3]), e.ptr(x[4]), e.ptr(x[5])).int(a.N, a.C)
	return e.launch(e.unit("layernorm", x[0]), e.rowKernel("layernorm_forward", a.C, x[0]), dim{x: ceil(a.N, rowWarps)}, rowWarps*32, 0)
}

func (e *Executor) residualLayernormForward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2]), e.ptr(x[3]), e.ptr(x[4]), e.ptr(x[5]), e.ptr(x[6]), e.ptr(x[7])).int(a.N, a.T, a.C).dropout(a, s)
	return e.launch(e.unit("layernorm", x[0]), e.rowKernel("residual_layernorm_forward", a.C, x[0]), dim{x: ceil(a.N, rowWarps)}, rowWarps*32, 0)
}

// layernormGrid is how layernorm_backward is launched where it goes by single elements: warps a block, fewer where their sums
// would not fit a small card's shared memory, and at most as many blocks as run at once on 132 multiprocessors. Nor has the
// kernel for packs more blocks.
func layernormGrid(N, C int) (blocks, warps int) {
	warps = max(1, min(rowWarps, (96<<10)/(8*C)))
	resident := 4
	if C > 768 {
		resident = 3
	}
	if C > 1280 {
		resident = 2
	}
	return min(ceil(N, warps), 132*resident), warps
}

// backwardWarps is the warps of a block of layernorm_backward, by a lane's packs: one block fills a multiprocessor.
var backwardWarps = [8]int{0, 16, 16, 16, 12, 12, 8, 8}

// backwardShared is its dynamic shared memory: a row of three tensors a warp.
func backwardShared(packs int) int { return backwardWarps[packs] * 3 * packs * 512 }

func (e *Executor) layernormBackward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	unit := e.unit("layernorm", x[0])
	partial, _ := e.scratchPtr(op)
	blocks, warps := layernormGrid(a.N, a.C)
	shared := warps * 2 * a.C * 4
	if packs := e.rowPacks(a.C, x[0]); packs > 0 {
		warps, shared = backwardWarps[packs], backwardShared(packs)
		blocks = min(blocks, ceil(a.N, warps), e.Multiprocessors)
	}
	e.with().ptr(e.ptr(x[0]), partial, e.ptr(x[3]), e.ptr(x[4]), e.ptr(x[5]), e.ptr(x[6]), e.ptr(x[7])).int(a.N, a.C, flag(a.Accumulate))
	if err := e.launch(unit, e.rowKernel("layernorm_backward", a.C, x[0]), dim{x: blocks}, warps*32, shared); err != nil {
		return err
	}
	e.with().ptr(e.ptr(x[1]), e.ptr(x[2]), partial).int(blocks, a.C, flag(a.Overwrite))
	return e.launch(unit, "layernorm_backward_weight", dim{x: ceil(2*a.C, 32)}, 1024, 0)
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sequence is the elements of one sequence in a tensor of n elements: the index that dropout counts in.
func sequence(a *program.Attrs) int { return max(1, a.T*a.C) }

func (e *Executor) residualForward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	name, w := e.packed("residual_forward", sequence(a), x[0])
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2])).int(x[0].Len, sequence(a)).dropout(a, s)
	return e.launch(e.unit("elementwise", x[0]), name, dim{x: ceil(x[0].Len/w, threads)}, threads, 0)
}

func (e *Executor) dropoutBackward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	name, w := e.packed("dropout_backward", sequence(a), x[0])
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1])).int(x[0].Len, sequence(a)).dropout(a, s)
	return e.launch(e.unit("elementwise", x[0]), name, dim{x: ceil(x[0].Len/w, threads)}, threads, 0)
}

func (e *Executor) geluForward(op *program.Op, s program.Step) error {
	return e.gelu(op.Args[0], e.ptr(op.Args[1]))
}

// gelu writes out = gelu(pre); pre may be out.
func (e *Executor) gelu(out program.Arg, pre Pointer) error {
	e.with().ptr(e.ptr(out), pre).int(out.Len)
	return e.launch(e.unit("elementwise", out), "gelu_forward", dim{x: ceil(out.Len, e.geluBlock(out))}, threads, 0)
}

func (e *Executor) geluBackward(op *program.Op, s program.Step) error {
	x := op.Args
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2])).int(x[0].Len)
	return e.launch(e.unit("elementwise", x[0]), "gelu_backward", dim{x: ceil(x[0].Len, e.geluBlock(x[0]))}, threads, 0)
}

// geluBlock is the elements that a block of the GELU kernels does: two packs of 16 bytes a thread.
func (e *Executor) geluBlock(a program.Arg) int { return 2 * threads * int(16/e.dtype(a).Size()) }

// biasGroups splits N rows into at most 64 groups, each summed by its own blocks.
func biasGroups(N int) (rows, groups int) {
	rows = max(64, ceil(N, 64))
	return rows, ceil(N, rows)
}

func (e *Executor) biasBackward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	unit := e.unit("elementwise", x[1])
	name, w := e.packed("bias_backward", a.OC, x[1])
	partial, _ := e.scratchPtr(op)
	rows, groups := biasGroups(a.N)
	e.with().ptr(partial, e.ptr(x[1])).int(a.N, a.OC, rows)
	if err := e.launch(unit, name, dim{x: ceil(a.OC, 32*w), y: groups}, 256, 0); err != nil {
		return err
	}
	e.with().ptr(e.ptr(x[0]), partial).int(groups, a.OC, flag(a.Overwrite))
	return e.launch(unit, "bias_backward_sum", dim{x: ceil(a.OC, 128)}, 128, 0)
}

func (e *Executor) loss(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2])).int(a.N, a.V).float(a.Scale * s.LossScale).int(flag(!a.NoGrad))
	unit := e.unit("loss", x[1])
	if a.V <= warpRow {
		name, _ := e.packed("loss_warps", a.V, x[1])
		return e.launch(unit, name, dim{x: ceil(a.N, rowWarps)}, rowWarps*32, 0)
	}
	name, w := e.packed("loss_blocks", a.V, x[1])
	row := a.V * int(e.dtype(x[1]).Size())
	if w > 1 && row >= heldRow && 2*row+lossScratch <= e.SharedPerBlock {
		return e.launch(unit, "loss_held", dim{x: min(a.N, e.Multiprocessors)}, 1024, 2*row)
	}
	return e.launch(unit, name, dim{x: a.N}, min(1024, ceil(a.V, 8*32)*32), 0)
}

// Which kernel takes a row of logits: a warp the short ones, a block the others, from shared memory those that are long enough
// to fill a multiprocessor's 1,024 threads.
const (
	warpRow     = 2048     // elements
	heldRow     = 64 << 10 // bytes
	lossScratch = 512      // bytes that loss_held has beside its rows
)

func (e *Executor) lossSum(op *program.Op, s program.Step) error {
	x := op.Args
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1])).int(x[1].Len)
	return e.launch("loss.f32", "loss_sum", dim{x: 1}, 1024, 0)
}

func (e *Executor) zero(op *program.Op, s program.Step) error {
	t := op.Args[0]
	return e.fill(e.ptr(t), 0, units.Bytes(int64(t.Len)*e.dtype(t).Size()))
}

func (e *Executor) cast(op *program.Op, s program.Step) error {
	x := op.Args
	dst, src := e.dtype(x[0]), e.dtype(x[1])
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1])).int(x[0].Len)
	grid := dim{x: min(ceil(x[0].Len, threads), 4096)}
	switch {
	case src == trace.Float32:
		return e.launch(e.unit("elementwise", x[0]), "cast_from_f32", grid, threads, 0)
	case dst == trace.Float32:
		return e.launch(e.unit("elementwise", x[1]), "cast_to_f32", grid, threads, 0)
	}
	return fmt.Errorf("cast from %s to %s: one of them must be float32", src, dst)
}
