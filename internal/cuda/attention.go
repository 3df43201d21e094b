package cuda

import (
	"fmt"
	"math"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// attentionShape is how one of attention.cu's instances is launched: warps, query tiles of 16 a warp and keys at a time
// forward; warps and queries at a time for dk and dv; warps and keys at a time for dq. The numbers are the instances'.
type attentionShape struct{ fw, fm, fc, kw, kq, qw, qc int }

var attentionShapes = map[int]attentionShape{
	32:  {4, 1, 64, 4, 64, 4, 64},
	64:  {4, 2, 64, 4, 64, 4, 64},
	96:  {4, 1, 64, 4, 32, 4, 32},
	128: {4, 1, 64, 4, 32, 4, 32},
}

// Shared memory of the three kernels for heads of p channels: own rows, and two buffers of two tiles.
func (s attentionShape) forwardShared(p int) int { return (s.fw*s.fm*16 + 4*s.fc) * p * 2 }
func (s attentionShape) kvShared(p int) int      { return (2*s.kw*16+4*s.kq)*p*2 + 4*s.kq*4 }
func (s attentionShape) qShared(p int) int       { return (2*s.qw*16 + 4*s.qc) * p * 2 }

// paddedHead is the instance that takes heads of hs channels, 0 where none does.
func paddedHead(hs int, dtype trace.DType) int {
	if dtype == trace.Float32 || hs%8 != 0 {
		return 0
	}
	for _, p := range headSizes {
		if hs <= p {
			return p
		}
	}
	return 0
}

// anyHeadMost is the widest head that attention_any.cu takes.
const anyHeadMost = 256

// attentionUnit is the unit of the kernels that take attention's op.
func (e *Executor) attentionUnit(op *program.Op) string {
	if p := paddedHead(op.Attrs.C/op.Attrs.NH, e.dtype(op.Args[0])); p != 0 {
		return e.unit(fmt.Sprintf("attention%d", p), op.Args[0])
	}
	return e.unit("attention_any", op.Args[0])
}

func (e *Executor) attentionForward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	hs := a.C / a.NH
	e.with().ptr(e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2])).int(a.T, a.NH, hs).float(1/math.Sqrt(float64(hs))).dropout(a, s)
	p := paddedHead(hs, e.dtype(x[0]))
	if p == 0 {
		if hs > anyHeadMost {
			return fmt.Errorf("heads of %d channels: at most %d", hs, anyHeadMost)
		}
		return e.launch(e.unit("attention_any", x[0]), "attention_any_forward", dim{ceil(a.T, 4), a.NH, a.B}, 128, 0)
	}
	sh := attentionShapes[p]
	rows := sh.fw * sh.fm * 16
	return e.launch(e.unit(fmt.Sprintf("attention%d", p), x[0]), attentionName("forward", p, a), dim{ceil(a.T, rows), a.NH, a.B}, sh.fw*32, sh.forwardShared(p))
}

func attentionName(pass string, p int, a *program.Attrs) string {
	name := fmt.Sprintf("attention_%s_%d", pass, p)
	if a.Dropout > 0 {
		name += "_drop"
	}
	return name
}

func (e *Executor) attentionBackward(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	hs := a.C / a.NH
	scale := 1 / math.Sqrt(float64(hs))
	dqkv, delta, dout, qkv, out, lse := e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2]), e.ptr(x[3]), e.ptr(x[4]), e.ptr(x[5])
	p := paddedHead(hs, e.dtype(x[0]))
	if p == 0 {
		unit, grid := e.unit("attention_any", x[0]), dim{ceil(a.T, 4), a.NH, a.B}
		e.with().ptr(dqkv, delta, dout, qkv, out, lse).int(a.T, a.NH, hs).float(scale).dropout(a, s)
		if err := e.launch(unit, "attention_any_backward_q", grid, 128, 0); err != nil {
			return err
		}
		e.with().ptr(dqkv, delta, dout, qkv, lse).int(a.T, a.NH, hs).float(scale).dropout(a, s)
		return e.launch(unit, "attention_any_backward_kv", grid, 128, 0)
	}
	unit, sh := e.unit(fmt.Sprintf("attention%d", p), x[0]), attentionShapes[p]
	rows, keys := sh.qw*16, sh.kw*16
	e.with().ptr(dqkv, delta, dout, qkv, out, lse).int(a.T, a.NH, hs).float(scale).dropout(a, s)
	if err := e.launch(unit, attentionName("backward_q", p, a), dim{ceil(a.T, rows), a.NH, a.B}, sh.qw*32, sh.qShared(p)); err != nil {
		return err
	}
	e.with().ptr(dqkv, dout, qkv, lse, delta).int(a.T, a.NH, hs).float(scale).dropout(a, s)
	return e.launch(unit, attentionName("backward_kv", p, a), dim{ceil(a.T, keys), a.NH, a.B}, sh.kw*32, sh.kvShared(p))
}

// attentionCached keeps keys and values as (T,C). A block does one row of one head, its scores in shared memory.
func (e *Executor) attentionCached(op *program.Op, s program.Step) error {
	a, x := &op.Attrs, op.Args
	unit, hs := e.unit("generate", x[0]), a.C/a.NH
	out, keys, values, qkv := e.ptr(x[0]), e.ptr(x[1]), e.ptr(x[2]), e.ptr(x[3])
	e.with().ptr(keys, values, qkv).int(s.Pos, a.N, a.C)
	if err := e.launch(unit, "cache_store", dim{x: ceil(a.N*a.C, threads)}, threads, 0); err != nil {
		return err
	}
	shared := 4 * (hs + threads + s.Pos + a.N)
	if shared > e.SharedPerBlock {
		return fmt.Errorf("block_size %d: its scores take %d bytes of shared memory, the card has %d a block: sample on the CPU", a.T, shared, e.SharedPerBlock)
	}
	e.with().ptr(out, keys, values, qkv).int(s.Pos, a.NH, hs).float(1 / math.Sqrt(float64(hs)))
	return e.launch(unit, "attention_cached", dim{x: a.NH, y: a.N}, threads, shared)
}
