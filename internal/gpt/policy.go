package gpt

import (
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/trace"
)

// Recompute says what a layer gives up in forward and computes again in backward. Each level includes the former.
//
// Kept of a layer, in elements a token: None 16C (ln_1, qkv 3C, attention's output, the stream in the middle, ln_2,
// the MLP's 4C before and 4C after GELU, the layer's input); Gelu 12C; Ln 10C; Attention 6C (c_attn runs again too:
// its 3C cost more to keep than attention's output); Block C, the layer's input alone. Block runs all of the layer's
// forward again but the MLP's last matmul, whose result only the next layer's input needs.
type Recompute uint8

const (
	RecomputeNone Recompute = iota
	RecomputeGelu
	RecomputeLn
	RecomputeAttention
	RecomputeBlock
	recomputeLevels
)

var (
	recomputeNames = [recomputeLevels]string{"none", "gelu", "ln", "attention", "block"}
	recomputeKept  = [recomputeLevels]int{16, 12, 10, 6, 1}
)

func (r Recompute) String() string { return recomputeNames[r] }

// Kept is what a layer keeps of a token for backward, in multiples of n_embd elements.
func (r Recompute) Kept() int { return recomputeKept[r] }

// ParseRecompute reads a level by its name.
func ParseRecompute(s string) (Recompute, error) {
	for i, name := range recomputeNames {
		if s == name {
			return Recompute(i), nil
		}
	}
	return 0, fmt.Errorf("recompute %q: choose one of %s", s, strings.Join(recomputeNames[:], ", "))
}

// Policy is how a step is run: what may be traded between memory and speed. It never changes what is computed.
type Policy struct {
	MicroBatch int         // sequences at once in forward and backward
	EvalBatch  int         // sequences at once in evaluation, which keeps nothing for backward: it may be more; 0: none is built
	Recompute  []Recompute // of each layer; shorter lists repeat their last level, an empty one is None
	LossChunk  int         // tokens whose logits exist at once; 0: all of a micro-batch
	EvalChunk  int         // the same in evaluation; 0: LossChunk
	Weight     trace.DType // of the weights that matmuls read; AdamW keeps what completes them to fp32 (program.MasterOf)
	Activation trace.DType

	// Gradient is the type of the gradients that one product of an iteration writes alone: those of the layers' matrices, where
	// one micro-batch is all. PyTorch's autocast rounds such a product to 16 bits before it adds it to a float32 gradient, so a
	// sum of one loses nothing there. Every other gradient is a sum of more, or small, and float32.
	Gradient trace.DType
}

// level is the recompute level of layer l.
func (p Policy) level(l int) Recompute {
	if len(p.Recompute) == 0 {
		return RecomputeNone
	}
	return p.Recompute[min(l, len(p.Recompute)-1)]
}

// Uniform is a recompute list with the same level in every layer.
func Uniform(level Recompute) []Recompute { return []Recompute{level} }

// Adam is AdamW's fixed numbers and the clipping of the gradient's norm (0: none).
type Adam struct {
	Beta1, Beta2, Eps, WeightDecay, GradClip float64
}

// Shape is the work of one iteration: Batch sequences of block_size tokens, however they are split.
type Shape struct {
	Batch     int // batch_size * gradient_accumulation_steps
	EvalBatch int // sequences of one evaluation, all of it: eval_iters * batch_size
	Adam      Adam
}
