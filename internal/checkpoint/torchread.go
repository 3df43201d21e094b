package checkpoint

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/pickle"
	"github.com/snugml/snug/internal/safetensors"
)

// maxPickle bounds data.pkl, which holds names and shapes alone: a GPT-2 XL's takes 0.2 MB.
const maxPickle = 64 << 20

// archive is a file of torch.save: a zip of stored entries below one folder.
type archive struct {
	r       io.ReaderAt
	prefix  string
	entries map[string]*zip.File
	checked map[string]bool
}

// readTorch opens nanoGPT's checkpoint. The CRC-32 of every entry is checked before its tensor is handed out.
func readTorch(r io.ReaderAt, size int64, want Want) (*State, error) {
	a, err := openArchive(r, size)
	if err != nil {
		return nil, err
	}
	raw, err := a.pickle()
	if err != nil {
		return nil, err
	}
	value, _, err := pickle.Read(raw, torchOptions())
	if err != nil {
		return nil, err
	}
	root, ok := value.(*pickle.Dict)
	if !ok {
		return nil, errors.New("it holds no dict: not a checkpoint of nanoGPT's train.py")
	}
	s := &State{BestValLoss: 1e9}
	if err := s.torchFields(a, root); err != nil {
		return nil, err
	}
	if want == Everything {
		if s.Optimizer, err = a.optimizer(s.Model, root); err != nil {
			return nil, err
		}
		if s.Optimizer == nil {
			s.Warnings = append(s.Warnings, "the checkpoint has no optimizer state: AdamW starts anew")
		}
	}
	return s, s.Check()
}

func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	a := &archive{r: r, entries: map[string]*zip.File{}, checked: map[string]bool{}}
	for _, f := range z.File {
		if a.entries[f.Name] != nil {
			return nil, fmt.Errorf("%w: it has %s twice", ErrDamaged, f.Name)
		}
		a.entries[f.Name] = f
		if path.Base(f.Name) == "data.pkl" {
			a.prefix = strings.TrimSuffix(f.Name, "data.pkl")
		}
	}
	if order := a.entries[a.prefix+"byteorder"]; order != nil {
		b, err := readEntry(order, 16)
		if err != nil {
			return nil, err
		}
		if string(b) != "little" {
			return nil, fmt.Errorf("its byte order is %q, only little is read", b)
		}
	}
	return a, nil
}

func (a *archive) pickle() ([]byte, error) {
	f := a.entries[a.prefix+"data.pkl"]
	if f == nil {
		return nil, errors.New("it has no data.pkl: not a file of torch.save")
	}
	return readEntry(f, maxPickle)
}

// readEntry reads a small entry and its CRC.
func readEntry(f *zip.File, most uint64) ([]byte, error) {
	if f.UncompressedSize64 > most {
		return nil, fmt.Errorf("%s takes %d bytes, at most %d are read", f.Name, f.UncompressedSize64, most)
	}
	r, err := f.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, f.Name, err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, f.Name, err)
	}
	return b, nil
}

// torchFields reads everything but the optimizer.
func (s *State) torchFields(a *archive, root *pickle.Dict) error {
	args, _ := root.Get("model_args")
	argDict, ok := args.(*pickle.Dict)
	if !ok {
		return errors.New("it has no model_args: not a checkpoint of nanoGPT's train.py")
	}
	var err error
	if s.Model, err = modelFromDict(argDict); err != nil {
		return err
	}
	model, _ := root.Get("model")
	modelDict, ok := model.(*pickle.Dict)
	if !ok {
		return errors.New("it has no model: not a checkpoint of nanoGPT's train.py")
	}
	if s.Params, err = a.params(s.Model, modelDict); err != nil {
		return err
	}
	iter, err := a.number(root, "iter_num", 0)
	if err != nil {
		return err
	}
	if iter != math.Trunc(iter) || iter < 0 || iter > math.MaxInt32 {
		return fmt.Errorf("iter_num is %v, not a count", iter)
	}
	s.IterNum = int(iter)
	if s.BestValLoss, err = a.number(root, "best_val_loss", 1e9); err != nil {
		return err
	}
	config, _ := root.Get("config")
	if d, ok := config.(*pickle.Dict); ok {
		s.Config = map[string]any{}
		for k, v := range d.All() {
			key, isString := k.(string)
			switch v.(type) {
			case bool, int64, float64, string:
				if isString {
					s.Config[key] = v
				}
			}
		}
	}
	return nil
}

func modelFromDict(d *pickle.Dict) (m gpt.Model, err error) {
	for key, dst := range map[string]*int{"n_layer": &m.NLayer, "n_head": &m.NHead, "n_embd": &m.NEmbd, "block_size": &m.BlockSize, "vocab_size": &m.VocabSize} {
		v, _ := d.Get(key)
		n, ok := v.(int64)
		if !ok || n < 0 || n > math.MaxInt32 {
			return m, fmt.Errorf("model_args: %s is %v, not a count", key, v)
		}
		*dst = int(n)
	}
	bias, ok := d.Get("bias")
	if !ok {
		bias = true // nanoGPT's default, for checkpoints from before the setting
	}
	if m.Bias, ok = bias.(bool); !ok {
		return m, fmt.Errorf("model_args: bias is %v, not a bool", bias)
	}
	switch v, _ := d.Get("dropout"); v := v.(type) {
	case nil:
	case int64:
		m.Dropout = float64(v)
	case float64:
		m.Dropout = v
	default:
		return m, fmt.Errorf("model_args: dropout is %v, not a number", v)
	}
	return m, m.Check()
}

// params puts the state dict in order: torch.compile's prefix and old attention masks go, lm_head must be wte.
func (a *archive) params(m gpt.Model, d *pickle.Dict) ([]Tensor, error) {
	byName := map[string]Tensor{}
	for k, v := range d.All() {
		name, ok := k.(string)
		t, isTensor := v.(*torchTensor)
		if !ok || !isTensor {
			return nil, fmt.Errorf("model: %v is no tensor", k)
		}
		name = strings.TrimPrefix(name, "_orig_mod.")
		if strings.HasSuffix(name, ".attn.bias") {
			continue // the causal mask, a buffer of PyTorch before 2.0
		}
		tensor, err := a.tensor(name, t)
		if err != nil {
			return nil, err
		}
		byName[name] = tensor
	}
	if err := dropTied(byName); err != nil {
		return nil, err
	}
	return arrange(m, byName)
}

// dropTied removes lm_head after checking that it is wte.
func dropTied(byName map[string]Tensor) error {
	head, ok := byName[tiedName]
	if !ok {
		return nil
	}
	wte, ok := byName[wteName]
	if !ok {
		return fmt.Errorf("parameter %s is missing", wteName)
	}
	delete(byName, tiedName)
	if !slices.Equal(head.Shape, wte.Shape) || head.DType != wte.DType {
		return fmt.Errorf("%s is %s%v, %s is %s%v: only models that tie the two are read", tiedName, head.DType, head.Shape, wteName, wte.DType, wte.Shape)
	}
	if a, ok := head.Data.(safetensors.Section); ok {
		if b, ok := wte.Data.(safetensors.Section); ok && a == b {
			return nil
		}
	}
	var sums [2][]byte
	for i, t := range []Tensor{head, wte} {
		h := sha256.New()
		if _, err := t.Data.WriteTo(h); err != nil {
			return err
		}
		sums[i] = h.Sum(nil)
	}
	if !bytes.Equal(sums[0], sums[1]) {
		return fmt.Errorf("%s differs from %s: only models that tie the two are read", tiedName, wteName)
	}
	return nil
}

// tensor finds the bytes of a view and checks the CRC of the entry they lie in, once.
func (a *archive) tensor(name string, t *torchTensor) (Tensor, error) {
	f := a.entries[a.prefix+"data/"+t.storage.key]
	if f == nil {
		return Tensor{}, fmt.Errorf("%w: %s is in data/%s, which it does not have", ErrDamaged, name, t.storage.key)
	}
	if f.Method != zip.Store {
		return Tensor{}, fmt.Errorf("%s is compressed: torch.save stores it plain", f.Name)
	}
	width := t.storage.dtype.Width()
	if f.UncompressedSize64 > math.MaxInt64/2 || t.storage.numel > math.MaxInt64/width || int64(f.UncompressedSize64) < t.storage.numel*width {
		return Tensor{}, fmt.Errorf("%w: %s has %d bytes, %s needs %d elements of %d", ErrDamaged, f.Name, f.UncompressedSize64, name, t.storage.numel, width)
	}
	if !a.checked[f.Name] {
		if err := checkCRC(f); err != nil {
			return Tensor{}, err
		}
		a.checked[f.Name] = true
	}
	at, err := f.DataOffset()
	if err != nil {
		return Tensor{}, fmt.Errorf("%w: %s: %w", ErrDamaged, f.Name, err)
	}
	n, _ := safetensors.Elements(t.shape)
	return Tensor{Name: name, DType: t.storage.dtype, Shape: t.shape, Data: safetensors.Section{R: a.r, From: at + t.offset*width, N: n * width}}, nil
}

func checkCRC(f *zip.File) error {
	r, err := f.Open()
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, max(1, min(f.UncompressedSize64, 1<<20))))
		r.Close()
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, f.Name, err)
	}
	return nil
}

// number reads a Python number, or a tensor of one element: nanoGPT's best_val_loss is one.
func (a *archive) number(d *pickle.Dict, key string, absent float64) (float64, error) {
	v, ok := d.Get(key)
	if !ok {
		return absent, nil
	}
	return a.scalar(key, v)
}

func (a *archive) scalar(name string, v any) (float64, error) {
	switch v := v.(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	case *torchTensor:
		t, err := a.tensor(name, v)
		if err != nil {
			return 0, err
		}
		var x [1]float32
		err = t.Floats(x[:])
		return float64(x[0]), err
	}
	return 0, fmt.Errorf("%s is neither a number nor a tensor of one", name)
}

// optimizer reads AdamW's state dict. nil without an error means that there is none.
func (a *archive) optimizer(m gpt.Model, root *pickle.Dict) (*Optimizer, error) {
	v, _ := root.Get("optimizer")
	d, ok := v.(*pickle.Dict)
	if !ok {
		return nil, nil
	}
	v, _ = d.Get("state")
	state, ok := v.(*pickle.Dict)
	if !ok || state.Len() == 0 {
		return nil, nil
	}
	order, _, err := optimizerOrder(m, state.Len())
	if err != nil {
		return nil, fmt.Errorf("optimizer: %w", err)
	}
	avg, sq := map[string]Tensor{}, map[string]Tensor{}
	o := &Optimizer{Step: -1}
	for i, want := range order {
		v, _ := state.Get(int64(i))
		one, ok := v.(*pickle.Dict)
		if !ok {
			return nil, fmt.Errorf("optimizer: it has no state for parameter %d, %s", i, want.Name)
		}
		step, err := a.number(one, "step", -1)
		if err != nil {
			return nil, err
		}
		if step != math.Trunc(step) || step < 0 || step > math.MaxInt32 || o.Step >= 0 && int64(step) != o.Step {
			return nil, fmt.Errorf("optimizer: step of %s is %v, other parameters' is %d", want.Name, step, o.Step)
		}
		o.Step = int64(step)
		for key, dst := range map[string]map[string]Tensor{"exp_avg": avg, "exp_avg_sq": sq} {
			v, _ := one.Get(key)
			t, ok := v.(*torchTensor)
			if !ok {
				return nil, fmt.Errorf("optimizer: %s of %s is missing", key, want.Name)
			}
			if !slices.Equal(t.shape, shapeOf(want)) {
				return nil, fmt.Errorf("optimizer: %s of parameter %d has shape %v, %s has %v: not the order of nanoGPT's configure_optimizers", key, i, t.shape, want.Name, want.Shape)
			}
			if dst[want.Name], err = a.tensor(want.Name, t); err != nil {
				return nil, err
			}
		}
	}
	if o.ExpAvg, err = arrange(m, avg); err != nil {
		return nil, err
	}
	o.ExpAvgSq, err = arrange(m, sq)
	return o, err
}
