// Package gpt owns GPT-2's architecture as nanoGPT trains it: its parameters, their initialisation, and the training
// step (forward, chunked head and loss, backward, clipping, AdamW) as one program of ops.
//
// What a policy chooses (micro-batch, recompute, loss chunk, dtypes) is data and changes the program, never the
// mathematics. It runs nothing and takes no memory: executors do.
package gpt

import (
	"errors"
	"fmt"
	"math"
)

// Model is the architecture, in nanoGPT's words.
type Model struct {
	NLayer, NHead, NEmbd, BlockSize, VocabSize int
	Bias                                       bool
	Dropout                                    float64
}

// Check reports what makes m impossible.
func (m Model) Check() error {
	for _, f := range []struct {
		key   string
		value int
	}{{"n_layer", m.NLayer}, {"n_head", m.NHead}, {"n_embd", m.NEmbd}, {"block_size", m.BlockSize}, {"vocab_size", m.VocabSize}} {
		if f.value < 1 {
			return fmt.Errorf("model: %s is %d, it must be at least 1", f.key, f.value)
		}
	}
	if m.NEmbd%m.NHead != 0 {
		return fmt.Errorf("model: n_embd %d is not a multiple of n_head %d: choose n_embd %d", m.NEmbd, m.NHead, (m.NEmbd/m.NHead+1)*m.NHead)
	}
	if !(m.Dropout >= 0 && m.Dropout < 1) {
		return fmt.Errorf("model: dropout is %g, it must be at least 0 and below 1", m.Dropout)
	}
	if elements := float64(m.NLayer) * 12 * float64(m.NEmbd) * float64(m.NEmbd); elements > 1e12 || float64(m.VocabSize)*float64(m.NEmbd) > 1e12 ||
		float64(m.BlockSize)*float64(m.NEmbd) > 1e12 {
		return errors.New("model: more than 10^12 parameters: lower n_layer or n_embd")
	}
	return nil
}

// Spec is one parameter: nanoGPT's name, its shape and the standard deviation it starts with.
type Spec struct {
	Name  string
	Shape []int
	Std   float64 // of the normal distribution; 0 with One false starts at zero
	One   bool    // starts at one: layernorm's weight
}

// Decays reports whether AdamW's weight decay applies: to tensors of two dimensions, as nanoGPT's groups have it.
func (s Spec) Decays() bool { return len(s.Shape) >= 2 }

// Len is the number of elements.
func (s Spec) Len() int {
	n := 1
	for _, d := range s.Shape {
		n *= d
	}
	return n
}

// Specs lists the parameters in the order of nanoGPT's state_dict; lm_head.weight is transformer.wte.weight.
func (m Model) Specs() []Spec {
	const std = 0.02
	C, proj := m.NEmbd, 0.02/math.Sqrt(2*float64(m.NLayer))
	specs := []Spec{
		{Name: "transformer.wte.weight", Shape: []int{m.VocabSize, C}, Std: std},
		{Name: "transformer.wpe.weight", Shape: []int{m.BlockSize, C}, Std: std},
	}
	layer := func(name string, out, in int, std float64) {
		specs = append(specs, Spec{Name: name + ".weight", Shape: []int{out, in}, Std: std})
		if m.Bias {
			specs = append(specs, Spec{Name: name + ".bias", Shape: []int{out}})
		}
	}
	norm := func(name string) {
		specs = append(specs, Spec{Name: name + ".weight", Shape: []int{C}, One: true})
		if m.Bias {
			specs = append(specs, Spec{Name: name + ".bias", Shape: []int{C}})
		}
	}
	for l := range m.NLayer {
		h := fmt.Sprintf("transformer.h.%d.", l)
		norm(h + "ln_1")
		layer(h+"attn.c_attn", 3*C, C, std)
		layer(h+"attn.c_proj", C, C, proj)
		norm(h + "ln_2")
		layer(h+"mlp.c_fc", 4*C, C, std)
		layer(h+"mlp.c_proj", C, 4*C, proj)
	}
	norm("transformer.ln_f")
	return specs
}

// Params is the number of parameters; as nanoGPT counts them, the position embedding left out, with nonEmbedding.
func (m Model) Params(nonEmbedding bool) int {
	n := 0
	for _, s := range m.Specs() {
		n += s.Len()
	}
	if nonEmbedding {
		n -= m.BlockSize * m.NEmbd
	}
	return n
}

// FlopsPerToken is the arithmetic of forward and backward for one token, as nanoGPT's estimate_mfu counts it
// (PaLM, appendix B).
func (m Model) FlopsPerToken() float64 {
	return 6*float64(m.Params(true)) + 12*float64(m.NLayer)*float64(m.NEmbd)*float64(m.BlockSize)
}
