// Package checkpoint owns the files a run is kept in: snug's own checkpoint, nanoGPT's ckpt.pt and Hugging Face's GPT-2.
//
// # snug's checkpoint
//
// One safetensors file, out_dir/ckpt.safetensors: the parameters under nanoGPT's names, then AdamW's moments as
// exp_avg.NAME and exp_avg_sq.NAME; the rest is JSON in the header's metadata. Two tensors are SHA-256 sums of every byte
// before them: checksum.model behind the parameters (all that sampling reads) and checksum at the end.
// It is written aside, synced and renamed, and the one before it stays as ckpt.prev.safetensors.
//
// Open reads any of the three kinds and gives nanoGPT's names and shapes. Nothing is loaded that was not verified first.
// The package streams: it never holds a second copy of a model. It trains nothing and draws no samples.
package checkpoint

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/safetensors"
)

// Tensor is a named tensor whose Data can be written out, from an array, a file, or a device's pinned buffer.
type Tensor = safetensors.Tensor

// Optimizer is AdamW's state: Step updates were made; the moments have the parameters' names, order and shapes, in float32.
type Optimizer struct {
	Step             int64
	ExpAvg, ExpAvgSq []Tensor
}

// State is everything a run needs to go on as if it had never stopped.
//
// Save reads each tensor's Data once, in order, so a GPU's state can be written through one small pinned buffer.
// In a State that Open returned, Data reads the open file: use it before Close.
type State struct {
	IterNum     int
	BestValLoss float64
	Model       gpt.Model
	// Config holds the run's settings under nanoGPT's keys: bool, int64, float64 or string.
	Config map[string]any
	// Params holds the parameters in the order of Model.Specs. lm_head is wte and is not listed twice.
	Params []Tensor
	// Optimizer is nil where there are weights alone.
	Optimizer *Optimizer
	// Extra is what the loop keeps beside nanoGPT's fields, as JSON. CharsKey is one of its keys.
	Extra map[string]json.RawMessage

	// Path is the file that Open read.
	Path string
	// Warnings say what Open did otherwise than asked, one line each.
	Warnings []string

	close func() error
}

// CharsKey is where Extra has the characters of a model whose tokens are not GPT-2's, in the order of their tokens.
const CharsKey = "chars"

// Close closes the file behind a State from Open.
func (s *State) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

// Check reports the first tensor that is missing, unknown, or of another shape than Model gives it.
func (s *State) Check() error {
	if err := s.Model.Check(); err != nil {
		return err
	}
	if s.IterNum < 0 {
		return fmt.Errorf("iter_num is %d, it must be at least 0", s.IterNum)
	}
	if err := match(s.Model, "parameter", s.Params); err != nil {
		return err
	}
	if s.Optimizer == nil {
		return nil
	}
	if s.Optimizer.Step < 0 || s.Optimizer.Step > math.MaxInt32 {
		return fmt.Errorf("optimizer step is %d, it must be between 0 and %d", s.Optimizer.Step, math.MaxInt32)
	}
	if err := match(s.Model, "exp_avg of", s.Optimizer.ExpAvg); err != nil {
		return err
	}
	return match(s.Model, "exp_avg_sq of", s.Optimizer.ExpAvgSq)
}

// match compares tensors with the model's parameters, name by name and shape by shape.
func match(m gpt.Model, kind string, tensors []Tensor) error {
	specs, err := specsFor(m, len(tensors))
	if err != nil {
		return err
	}
	for i, want := range specs {
		if i >= len(tensors) {
			return fmt.Errorf("%s %s is missing: %d tensors, the model has %d", kind, want.Name, len(tensors), len(specs))
		}
		got := tensors[i]
		if got.Name != want.Name {
			return fmt.Errorf("%s %s is where %s must be", kind, got.Name, want.Name)
		}
		if !slices.Equal(got.Shape, shapeOf(want)) {
			return fmt.Errorf("%s %s has shape %v, the model's is %v", kind, got.Name, got.Shape, want.Shape)
		}
		if storageNames[got.DType] == "" {
			return fmt.Errorf("%s %s has dtype %s, it must be a float type", kind, got.Name, got.DType)
		}
	}
	if len(tensors) > len(specs) {
		return fmt.Errorf("%s %s is not one of the model's %d", kind, tensors[len(specs)].Name, len(specs))
	}
	return nil
}

// specsFor is m.Specs, refused before it is built where a file's n_layer has nothing to do with its tensors.
func specsFor(m gpt.Model, tensors int) ([]gpt.Spec, error) {
	if m.NLayer > tensors {
		return nil, fmt.Errorf("%d tensors cannot be those of %d layers", tensors, m.NLayer)
	}
	return m.Specs(), nil
}

func shapeOf(s gpt.Spec) []int64 {
	shape := make([]int64, len(s.Shape))
	for i, d := range s.Shape {
		shape[i] = int64(d)
	}
	return shape
}

// arrange puts named tensors in the model's order. A name that the model does not have is an error.
func arrange(m gpt.Model, tensors map[string]Tensor) ([]Tensor, error) {
	specs, err := specsFor(m, len(tensors))
	if err != nil {
		return nil, err
	}
	out := make([]Tensor, 0, len(specs))
	for _, want := range specs {
		t, ok := tensors[want.Name]
		if !ok {
			return nil, fmt.Errorf("parameter %s is missing (n_layer %d, bias %v)", want.Name, m.NLayer, m.Bias)
		}
		out = append(out, t)
	}
	if len(tensors) == len(specs) {
		return out, nil
	}
	known := make(map[string]bool, len(specs))
	for _, want := range specs {
		known[want.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if !known[name] {
			return nil, fmt.Errorf("parameter %s is not one of a GPT with n_layer %d, bias %v", name, m.NLayer, m.Bias)
		}
	}
	panic("checkpoint: more names than the model has, and all of them known")
}

// modelArgs is gpt.Model under nanoGPT's keys.
type modelArgs struct {
	NLayer    int     `json:"n_layer"`
	NHead     int     `json:"n_head"`
	NEmbd     int     `json:"n_embd"`
	BlockSize int     `json:"block_size"`
	Bias      bool    `json:"bias"`
	VocabSize int     `json:"vocab_size"`
	Dropout   float64 `json:"dropout"`
}

func argsOf(m gpt.Model) modelArgs {
	return modelArgs{m.NLayer, m.NHead, m.NEmbd, m.BlockSize, m.Bias, m.VocabSize, m.Dropout}
}

func (a modelArgs) model() gpt.Model {
	return gpt.Model{NLayer: a.NLayer, NHead: a.NHead, NEmbd: a.NEmbd, BlockSize: a.BlockSize, Bias: a.Bias, VocabSize: a.VocabSize, Dropout: a.Dropout}
}
