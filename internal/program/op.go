package program

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Code names an operation. Executors implement each under this name, with the arguments in the order of its Spec.
type Code uint8

const (
	EncoderForward Code = iota
	EncoderBackward
	LayernormForward
	LayernormBackward
	ResidualForward
	ResidualLayernormForward
	DropoutBackward
	MatmulForward
	MatmulGeluForward
	MatmulBackwardInput
	MatmulBackwardWeight
	BiasBackward
	GeluForward
	GeluBackward
	AttentionForward
	AttentionBackward
	AttentionCached
	Loss
	LossSum
	GlobalNorm
	AdamW
	Zero
	Cast
	Codes // how many there are
)

// Access says what an op does with an argument.
type Access uint8

const (
	Read   Access = iota // only read
	Write                // every element is written, none is read
	Add                  // added to: read and written
	Update               // read, then overwritten in place
)

// Param is one argument of an op as its Spec has it.
type Param struct {
	Name     string
	Access   Access
	Optional bool // may be absent (Arg.None)
	Many     bool // from the first such on, parameters repeat together, any number of times
}

// Spec is an op's signature: outputs first, then inputs.
type Spec struct {
	Name   string
	Params []Param
}

// Spec returns the signature of c.
func (c Code) Spec() Spec { return specs[c] }

func (c Code) String() string {
	if c < Codes {
		return specs[c].Name
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

func w(name string) Param   { return Param{Name: name, Access: Write} }
func add(name string) Param { return Param{Name: name, Access: Add} }
func upd(name string) Param { return Param{Name: name, Access: Update} }
func r(name string) Param   { return Param{Name: name, Access: Read} }
func opt(p Param) Param     { p.Optional = true; return p }
func many(p Param) Param    { p.Many = true; return p }

// specs is the op contract. Letters: B sequences, T block_size, C n_embd, NH heads, HS = C/NH, N = B*T tokens,
// OC output channels, V vocabulary, n tokens of a loss chunk. Weights are (OC, C) row-major, as nn.Linear has them.
//
// Elementwise ops (Residual, Gelu, Dropout, Cast to the same type) accept an output that is one of their inputs;
// ResidualLayernormForward's sum may be a or b. What a fused op computes from its other output it computes from that
// output as stored, rounding included: GELU from pre, layernorm from sum. So recomputing from what is stored gives the same bits.
// A first output marked Write is added to instead when Attrs.Accumulate is set (LayernormBackward, MatmulBackwardInput).
// Gradients of weights, marked Add, are overwritten instead when Attrs.Overwrite is set, but for dwte of EncoderBackward,
// to which the head's product came first.
var specs = [Codes]Spec{
	// out (N,C) = dropout(wte[idx] + wpe[Step.Pos+t]); idx (N) int32, wte (V,C), wpe (Pos+T or more, C)
	EncoderForward: {"EncoderForward", []Param{w("out"), r("idx"), r("wte"), r("wpe")}},
	// dwte += , dwpe += dropout'(dout) (N,C), summed in a fixed order
	EncoderBackward: {"EncoderBackward", []Param{add("dwte"), add("dwpe"), r("dout"), r("idx")}},
	// out = (inp - mean) * rstd * weight + bias; mean, rstd (N) f32; eps 1e-5.
	LayernormForward: {"LayernormForward", []Param{w("out"), w("mean"), w("rstd"), r("inp"), r("weight"), opt(r("bias"))}},
	// dinp (N,C) = or += ; dweight, dbias (C) +=
	LayernormBackward: {"LayernormBackward", []Param{w("dinp"), add("dweight"), opt(add("dbias")),
		r("dout"), r("inp"), r("weight"), r("mean"), r("rstd")}},
	// out = a + dropout(b)
	ResidualForward: {"ResidualForward", []Param{w("out"), r("a"), r("b")}},
	// sum = a + dropout(b); out = layernorm(sum)
	ResidualLayernormForward: {"ResidualLayernormForward", []Param{w("sum"), w("out"), w("mean"), w("rstd"),
		r("a"), r("b"), r("weight"), opt(r("bias"))}},
	// dinp = dout * mask / (1-p), the mask drawn again from its counter
	DropoutBackward: {"DropoutBackward", []Param{w("dinp"), r("dout")}},
	// out (N,OC) = inp (N,C) weight^T + bias
	MatmulForward: {"MatmulForward", []Param{w("out"), r("inp"), r("weight"), opt(r("bias"))}},
	// pre = inp weight^T + bias; out = gelu(pre), the exact one. pre is absent where nothing reads it again.
	MatmulGeluForward: {"MatmulGeluForward", []Param{w("out"), opt(w("pre")), r("inp"), r("weight"), opt(r("bias"))}},
	// dinp (N,C) = or += dout (N,OC) weight
	MatmulBackwardInput: {"MatmulBackwardInput", []Param{w("dinp"), r("dout"), r("weight")}},
	// dweight (OC,C) += dout^T inp
	MatmulBackwardWeight: {"MatmulBackwardWeight", []Param{add("dweight"), r("dout"), r("inp")}},
	// dbias (OC) += column sums of dout (N,OC)
	BiasBackward: {"BiasBackward", []Param{add("dbias"), r("dout")}},
	GeluForward:  {"GeluForward", []Param{w("out"), r("pre")}},
	GeluBackward: {"GeluBackward", []Param{w("dpre"), r("dout"), r("pre")}},
	// out (N,C), lse (B,NH,T) f32 = causal attention over qkv (N,3C), dropout inside
	AttentionForward: {"AttentionForward", []Param{w("out"), w("lse"), r("qkv")}},
	// dqkv (N,3C); scratch (B,NH,T) f32 holds sum(dout*out) of each row and head
	AttentionBackward: {"AttentionBackward", []Param{w("dqkv"), w("scratch"), r("dout"), r("qkv"), r("out"), r("lse")}},
	// Rows Step.Pos … Step.Pos+N-1 of one sequence, qkv (N,3C), join keys and values (T,C), which hold the rows before
	// them; out (N,C) is each row's attention over all rows up to its own. How keys and values lie inside is the executor's.
	AttentionCached: {"AttentionCached", []Param{w("out"), upd("keys"), upd("values"), r("qkv")}},
	// losses (n) f32; logits (n,V) become (softmax - onehot) * Scale * Step.LossScale in place unless NoGrad;
	// targets (n) int32, -1 gives loss 0 and gradient 0
	Loss: {"Loss", []Param{w("losses"), upd("logits"), r("targets")}},
	// sum (1) f32 += the sum of losses, in a fixed order
	LossSum: {"LossSum", []Param{add("sum"), r("losses")}},
	// norm (1) f32 = sqrt(sum of squares of every gradient) / Step.LossScale, in a fixed order
	GlobalNorm: {"GlobalNorm", []Param{w("norm"), many(r("grads"))}},
	// PyTorch's AdamW over one parameter group, in fp32. A value is param and its master (MasterOf) together, and param is left as
	// the value's rounding to the weights' dtype. grad is fp32 or in the weights' dtype.
	// The gradient is scaled by min(1, GradClip/(norm+1e-6)) / Step.LossScale; GradClip 0 does not clip.
	// A norm that is not finite leaves everything as it was.
	AdamW: {"AdamW", []Param{r("norm"), many(upd("param")), many(opt(upd("master"))), many(upd("m")), many(upd("v")), many(r("grad"))}},
	Zero:  {"Zero", []Param{w("t")}},
	Cast:  {"Cast", []Param{w("dst"), r("src")}},
}

// masters is what completes a parameter of each dtype to its fp32 value. bfloat16 is the upper half of a float32, so the lower half
// does, and no bit is kept twice; float16 is no part of one.
var masters = map[trace.DType]trace.DType{trace.BFloat16: trace.Float32Low, trace.Float16: trace.Float32}

// MasterOf is the dtype of the master that AdamW keeps beside a parameter; empty where the parameter is fp32 itself.
func MasterOf(param trace.DType) trace.DType { return masters[param] }

// ID is the index of a tensor in its Program, None where an optional argument is absent.
type ID int32

const None ID = -1

// Arg is a tensor, or a contiguous run of its elements (the rows of one loss chunk, the tokens of a smaller micro-batch).
type Arg struct {
	ID     ID
	Offset int // elements
	Len    int // elements
}

// Absent is the optional argument that is not there.
var Absent = Arg{ID: None}

// None reports whether a is the optional argument that is not there, as the zero Arg is too.
func (a Arg) None() bool { return a.ID == None || a.Len == 0 }

// Attrs are an op's constants: shapes by their letters, flags, dropout, and the optimizer's fixed numbers.
// Letters that an op does not use are zero.
type Attrs struct {
	B, T, C, NH int // N = B*T
	N, OC, V    int // N is the rows of this op: B*T, or the tokens of a loss chunk

	Accumulate bool // the first output is added to, not overwritten
	Overwrite  bool // gradients of weights, marked Add, hold nothing yet: they are overwritten (EncoderBackward: dwpe alone)
	NoGrad     bool // Loss: leave the logits as they are

	Dropout float64 // probability; 0 is off
	Site    int     // dropout's place in the counter: 0 embedding, 1+3l attention, 2+3l its residual, 3+3l the MLP's

	Scale float64 // Loss: 1/(effective batch * T)

	Beta1, Beta2, Eps, WeightDecay, GradClip float64 // AdamW
}

// Op is one operation on tensors of its program.
type Op struct {
	Code    Code
	Name    string // where in the model: "h.3.ln_1"
	Args    []Arg  // in the order of Code.Spec
	Attrs   Attrs
	Scratch Arg // workspace that the executor asked for, alive during this op only; Absent if none
}

// Reads reports whether op reads what argument i held before it.
func (op *Op) Reads(i int) bool {
	switch op.Param(i).Access {
	case Write:
		return i == 0 && op.Attrs.Accumulate
	case Add:
		return !op.Attrs.Overwrite || op.Code == EncoderBackward && i == 0
	}
	return true
}

// Param returns the parameter that argument i of op stands for.
func (op *Op) Param(i int) Param {
	params := specs[op.Code].Params
	if i >= len(params) {
		first := specs[op.Code].repeated()
		i = first + (i-first)%(len(params)-first)
	}
	return params[i]
}

// repeated is the index of the first parameter that repeats, or how many there are.
func (s Spec) repeated() int {
	if i := slices.IndexFunc(s.Params, func(p Param) bool { return p.Many }); i >= 0 {
		return i
	}
	return len(s.Params)
}

// takes reports whether n arguments can be bound to s.
func (s Spec) takes(n int) bool {
	first, all := s.repeated(), len(s.Params)
	return n == all || first < all && n > all && (n-first)%(all-first) == 0
}

// Step is what changes from run to run of a section.
type Step struct {
	Seed      uint64  // dropout's key
	Sample    uint64  // global index of the section's first sequence: iteration*effective_batch + index
	LR        float64 // AdamW
	T         int     // AdamW's step number, from 1
	LossScale float64 // 1 unless training in float16
	Pos       int     // position of the first row in its sequence: 0 but for a generated token
}

// ErrNoMemory says that Load found less memory than it was to take.
var ErrNoMemory = errors.New("not enough memory is free")

// FillPart divides the place of every part of a Fill.
const FillPart = 1 << 16

// Executor runs programs. The arena is taken in Load and given back in Close; nothing else may be taken between,
// so that the bytes planned are the bytes taken.
type Executor interface {
	// Scratch is the workspace that op needs beside its arguments, 0 for none.
	Scratch(op *Op) units.Bytes
	// Load takes the arena of l and prepares every section. Contents are undefined until written. An error leaves nothing
	// taken; it is ErrNoMemory where the device has less left than the arena and what comes with it.
	Load(l *Layout) error
	// Taken is the size of the arena as it was taken.
	Taken() units.Bytes
	// Run runs a section of the loaded program. It may return before the work is done; Floats waits for it.
	Run(section int, s Step) error
	// SetFloats and SetInts write a whole tensor or its head, converting to its dtype. A Float32Low tensor is written, and read,
	// together with the parameter that it completes: as float32 values.
	SetFloats(id ID, src []float32) error
	SetInts(id ID, src []int32) error
	// Fill writes a whole tensor of float32 values: fill, called from several goroutines at once, writes its elements from number
	// from on, a multiple of FillPart, into dst.
	Fill(id ID, fill func(dst []float32, from int)) error
	// Floats reads a tensor's first len(dst) elements as float32, after all work queued before.
	Floats(id ID, dst []float32) error
	// Later queues a read of the first element of each of ids, float32 tensors, behind all work queued so far. dst holds
	// them once wait has returned; a nil wait says that it holds them already. One read may be under way at a time.
	Later(dst []float32, ids ...ID) (wait func() error, err error)
	Close() error
}

// Snapshotter is an executor that copies tensors to the host beside its other work.
type Snapshotter interface {
	// Snapshot copies tensor ids[i] into dst[i], as float32, as the work queued so far leaves it, and returns at once. wait,
	// which any goroutine may call, returns when dst holds them. Until it has, nothing that changes one of the tensors may
	// be queued, and no other snapshot begun.
	Snapshot(ids []ID, dst [][]float32) (wait func() error, err error)
}
