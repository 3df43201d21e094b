package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/safetensors"
)

// Names in a Hugging Face model folder.
const (
	hfName       = "model.safetensors"
	hfIndexName  = "model.safetensors.index.json"
	hfConfigName = "config.json"
)

// conv1D are the weights that Hugging Face's GPT-2 keeps as (in, out); nn.Linear and nanoGPT have (out, in).
var conv1D = []string{".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight"}

func isConv1D(name string) bool {
	return slices.ContainsFunc(conv1D, func(s string) bool { return strings.HasSuffix(name, s) })
}

// hfConfig is the part of config.json that a GPT-2 is made from.
type hfConfig struct {
	Architectures      []string `json:"architectures,omitempty"`
	ModelType          string   `json:"model_type"`
	VocabSize          int      `json:"vocab_size"`
	NPositions         int      `json:"n_positions"`
	NCtx               int      `json:"n_ctx"`
	NEmbd              int      `json:"n_embd"`
	NLayer             int      `json:"n_layer"`
	NHead              int      `json:"n_head"`
	ActivationFunction string   `json:"activation_function"`
	LayerNormEpsilon   float64  `json:"layer_norm_epsilon"`
	TieWordEmbeddings  bool     `json:"tie_word_embeddings"`
	BosTokenID         int      `json:"bos_token_id"`
	EosTokenID         int      `json:"eos_token_id"`
	Dtype              string   `json:"torch_dtype"`
}

// readHF makes nanoGPT's state of Hugging Face's tensors, as GPT.from_pretrained does: masks go, Conv1D weights are
// transposed, lm_head is wte, bias is on. The number of heads comes from config.json, or is n_embd/64 as in every GPT-2.
func readHF(tensors []Tensor, dir string) (*State, error) {
	byName := map[string]Tensor{}
	for _, t := range tensors {
		if strings.HasSuffix(t.Name, ".attn.bias") || strings.HasSuffix(t.Name, ".attn.masked_bias") {
			continue
		}
		if t.Name != tiedName && !strings.HasPrefix(t.Name, "transformer.") {
			t.Name = "transformer." + t.Name
		}
		if isConv1D(t.Name) {
			if len(t.Shape) != 2 {
				return nil, fmt.Errorf("tensor %s has shape %v, it must have two dimensions", t.Name, t.Shape)
			}
			t = transposed(t)
		}
		byName[t.Name] = t
	}
	if err := dropTied(byName); err != nil {
		return nil, err
	}
	m, err := hfModel(byName, dir)
	if err != nil {
		return nil, err
	}
	s := &State{BestValLoss: 1e9, Model: m}
	if s.Params, err = arrange(m, byName); err != nil {
		return nil, err
	}
	return s, s.Check()
}

// hfModel takes the sizes from the tensors themselves.
func hfModel(byName map[string]Tensor, dir string) (gpt.Model, error) {
	wte, wpe := byName[wteName], byName["transformer.wpe.weight"]
	if len(wte.Shape) != 2 || len(wpe.Shape) != 2 {
		return gpt.Model{}, errors.New("it has no wte.weight and wpe.weight: neither a checkpoint of snug nor a GPT-2 of Hugging Face")
	}
	a := gpt.Model{VocabSize: int(wte.Shape[0]), NEmbd: int(wte.Shape[1]), BlockSize: int(wpe.Shape[0]), NHead: int(wte.Shape[1]) / 64}
	_, a.Bias = byName["transformer.ln_f.bias"]
	for {
		if _, ok := byName[fmt.Sprintf("transformer.h.%d.ln_1.weight", a.NLayer)]; !ok {
			break
		}
		a.NLayer++
	}
	path := filepath.Join(dir, hfConfigName)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if a.NHead == 0 {
			return a, fmt.Errorf("n_embd is %d and there is no %s beside it to say n_head", a.NEmbd, hfConfigName)
		}
		return a, a.Check()
	}
	if err != nil {
		return a, err
	}
	c := hfConfig{NHead: a.NHead}
	if err := json.Unmarshal(raw, &c); err != nil {
		return a, fmt.Errorf("%s: %w", path, err)
	}
	a.NHead = c.NHead
	return a, a.Check()
}

// readHFIndex opens the shards that an index file lists.
func readHFIndex(path string) (*State, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	var files []*safetensors.File
	closeAll := func() (err error) {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return err
	}
	var tensors []Tensor
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index.WeightMap))) {
		if name != filepath.Base(name) {
			closeAll()
			return nil, fmt.Errorf("shard %q is not in the index's folder", name)
		}
		f, err := safetensors.Open(filepath.Join(dir, name))
		if err != nil {
			closeAll()
			return nil, err
		}
		files = append(files, f)
		tensors = append(tensors, f.Tensors...)
	}
	s, err := readHF(tensors, dir)
	if err != nil {
		closeAll()
		return nil, err
	}
	s.close = closeAll
	return s, nil
}

// WriteHF writes s as a Hugging Face GPT-2 folder: model.safetensors and config.json, for GPT2LMHeadModel.from_pretrained.
//
// A model without bias gets zero ones, which is the same function. The activation is "gelu", the exact one that nanoGPT trains with.
func WriteHF(dir string, s *State) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	a := s.Model
	a.Bias = true
	have := byName(s.Params)
	var tensors []Tensor
	for _, want := range a.Specs() {
		t, ok := have[want.Name]
		if !ok {
			t = safetensors.F32Tensor(want.Name, make([]float32, want.Len()), shapeOf(want)...)
		}
		if isConv1D(t.Name) {
			t = transposed(t)
		}
		tensors = append(tensors, t)
	}
	write := func(w io.Writer) error { return safetensors.Write(w, tensors, map[string]string{"format": "pt"}) }
	if err := writeAside(filepath.Join(dir, hfName), write, nil); err != nil {
		return err
	}
	last := a.VocabSize - 1
	config, err := json.MarshalIndent(hfConfig{Architectures: []string{"GPT2LMHeadModel"}, ModelType: "gpt2", VocabSize: a.VocabSize, NPositions: a.BlockSize,
		NCtx: a.BlockSize, NEmbd: a.NEmbd, NLayer: a.NLayer, NHead: a.NHead, ActivationFunction: "gelu", LayerNormEpsilon: 1e-5, TieWordEmbeddings: true,
		BosTokenID: min(endOfText, last), EosTokenID: min(endOfText, last), Dtype: "float32"}, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", dir, err)
	}
	return writeAside(filepath.Join(dir, hfConfigName), func(w io.Writer) error {
		_, err := w.Write(append(config, '\n'))
		return err
	}, nil)
}

// transposed is the matrix t with rows and columns exchanged. It holds t whole while it writes.
func transposed(t Tensor) Tensor {
	out := t
	out.Shape = []int64{t.Shape[1], t.Shape[0]}
	out.Data = transpose{t}
	return out
}

type transpose struct{ t Tensor }

func (x transpose) WriteTo(w io.Writer) (int64, error) {
	src, err := x.t.Bytes()
	if err != nil {
		return 0, err
	}
	rows, cols, width := int(x.t.Shape[0]), int(x.t.Shape[1]), int(x.t.DType.Width())
	dst := make([]byte, 0, rows*width)
	total := int64(0)
	for c := range cols {
		dst = dst[:0]
		for r := range rows {
			at := (r*cols + c) * width
			dst = append(dst, src[at:at+width]...)
		}
		n, err := w.Write(dst)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// endOfText is GPT-2's <|endoftext|>.
const endOfText = 50256
