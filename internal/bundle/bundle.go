// Package bundle reads the files in which PyTorch's results for tiny GPTs are kept (internal/gpt/testdata/README.md).
//
// It owns that file layout for tests of every executor; it compares nothing and computes nothing.
package bundle

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/snugml/snug/internal/safetensors"
)

// Config is the run that a bundle records, under nanoGPT's names.
type Config struct {
	NLayer                    int     `json:"n_layer"`
	NHead                     int     `json:"n_head"`
	NEmbd                     int     `json:"n_embd"`
	BlockSize                 int     `json:"block_size"`
	VocabSize                 int     `json:"vocab_size"`
	Bias                      bool    `json:"bias"`
	BatchSize                 int     `json:"batch_size"`
	GradientAccumulationSteps int     `json:"gradient_accumulation_steps"`
	Steps                     int     `json:"steps"`
	LearningRate              float64 `json:"learning_rate"`
	MinLr                     float64 `json:"min_lr"`
	WarmupIters               int     `json:"warmup_iters"`
	LrDecayIters              int     `json:"lr_decay_iters"`
	WeightDecay               float64 `json:"weight_decay"`
	Beta1                     float64 `json:"beta1"`
	Beta2                     float64 `json:"beta2"`
	GradClip                  float64 `json:"grad_clip"`
}

// Bundle is one file. Param, Grad and Final are keyed by nanoGPT's parameter names; Names lists them as the file has them, not in the model's order.
// Kinds that the file leaves out are empty.
type Bundle struct {
	Config             Config
	Names              []string
	Shapes             map[string][]int64
	Param, Grad, Final map[string][]float32
	Logits             []float32 // (B, T, V)
	Loss, Norm, Lr     []float64 // (steps), float64 run
	LossF32, NormF32   []float64 // (steps), float32 run
	tokens             []int32   // (steps, accumulation, B, T+1)
}

// Batch returns inputs and targets, each (B, T), of one micro-batch of one step.
func (b *Bundle) Batch(step, micro int) (x, y []int32) {
	B, T := b.Config.BatchSize, b.Config.BlockSize
	at := (step*b.Config.GradientAccumulationSteps + micro) * B * (T + 1)
	for range B {
		row := b.tokens[at : at+T+1]
		x, y = append(x, row[:T]...), append(y, row[1:]...)
		at += T + 1
	}
	return x, y
}

// Read reads a bundle.
func Read(path string) (*Bundle, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	defer f.Close()
	b := &Bundle{Shapes: map[string][]int64{}}
	if err := json.Unmarshal([]byte(f.Metadata["config"]), &b.Config); err != nil {
		return nil, fmt.Errorf("read bundle %s: config: %w", path, err)
	}
	series := map[string]*[]float64{"loss": &b.Loss, "norm": &b.Norm, "lr": &b.Lr, "loss_f32": &b.LossF32, "norm_f32": &b.NormF32}
	kinds := map[string]*map[string][]float32{"param": &b.Param, "grad": &b.Grad, "final": &b.Final}
	for _, t := range f.Tensors {
		kind, name, named := strings.Cut(t.Name, ".")
		switch dst := series[t.Name]; {
		case dst != nil:
			*dst, err = float64s(t)
		case t.Name == "tokens":
			b.tokens, err = int32s(t)
		case t.Name == "logits":
			b.Logits, err = t.Float32s()
		case named && kinds[kind] != nil:
			group := kinds[kind]
			if *group == nil {
				*group = map[string][]float32{}
			}
			(*group)[name], err = t.Float32s()
			if kind == "param" {
				b.Names = append(b.Names, name)
				b.Shapes[name] = t.Shape
			}
		default:
			err = fmt.Errorf("tensor %q is of no known kind", t.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("read bundle %s: %w", path, err)
		}
	}
	c := b.Config
	if want := c.Steps * c.GradientAccumulationSteps * c.BatchSize * (c.BlockSize + 1); len(b.tokens) != want || len(b.Loss) != c.Steps {
		return nil, fmt.Errorf("read bundle %s: %d tokens and %d losses, the config needs %d and %d", path, len(b.tokens), len(b.Loss), want, c.Steps)
	}
	return b, nil
}

func float64s(t safetensors.Tensor) ([]float64, error) {
	raw, err := t.Bytes()
	if err != nil || t.DType != safetensors.F64 {
		return nil, fmt.Errorf("tensor %q has dtype %s: %w", t.Name, t.DType, err)
	}
	out := make([]float64, len(raw)/8)
	for i := range out {
		out[i] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
	}
	return out, nil
}

func int32s(t safetensors.Tensor) ([]int32, error) {
	raw, err := t.Bytes()
	if err != nil || t.DType != safetensors.I32 {
		return nil, fmt.Errorf("tensor %q has dtype %s: %w", t.Name, t.DType, err)
	}
	out := make([]int32, len(raw)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return out, nil
}
