package checkpoint

import (
	"archive/zip"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/snugml/snug/internal/pickle"
	"github.com/snugml/snug/internal/safetensors"
)

// WriteTorch writes s as nanoGPT's ckpt.pt: torch.load(weights_only=True), sample.py and train.py's resume read it.
//
// Settings that train.py takes the optimizer's groups from (learning_rate, beta1, beta2, weight_decay) come from s.Config;
// nanoGPT's defaults stand in for absent ones.
func WriteTorch(path string, s *State) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return writeAside(path, s.writeTorch, nil)
}

// torchWriter collects the storages that the pickle names.
type torchWriter struct{ storages []Tensor }

func (s *State) writeTorch(w io.Writer) error {
	tw := &torchWriter{}
	optimizer, err := tw.optimizer(s)
	if err != nil {
		return err
	}
	m := s.Model
	root := dict(
		"model", tw.model(s.Params),
		"optimizer", optimizer,
		"model_args", dict("n_layer", m.NLayer, "n_head", m.NHead, "n_embd", m.NEmbd, "block_size", m.BlockSize,
			"bias", m.Bias, "vocab_size", m.VocabSize, "dropout", m.Dropout),
		"iter_num", s.IterNum,
		"best_val_loss", s.BestValLoss,
		"config", configDict(s.Config),
	)
	raw, err := pickle.Write(root)
	if err != nil {
		return err
	}
	z := &alignedZip{w: w}
	z.zip = zip.NewWriter(z)
	entries := []Tensor{{Name: "data.pkl", Data: safetensors.Raw(raw)}, {Name: "byteorder", Data: safetensors.Raw("little")}}
	for i, t := range tw.storages {
		t.Name = "data/" + strconv.Itoa(i)
		entries = append(entries, t)
	}
	entries = append(entries, Tensor{Name: "version", Data: safetensors.Raw("3\n")})
	for _, e := range entries {
		if err := z.add("ckpt/"+e.Name, e.Data); err != nil {
			return err
		}
	}
	return z.zip.Close()
}

// dict is a Python dict of key, value, key, value…
func dict(items ...any) *pickle.Dict {
	d := pickle.NewDict()
	for i := 0; i < len(items); i += 2 {
		if err := d.Set(items[i], items[i+1]); err != nil {
			panic(err) // keys are constants of this file
		}
	}
	return d
}

func configDict(config map[string]any) *pickle.Dict {
	d := pickle.NewDict()
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if err := d.Set(key, config[key]); err != nil {
			panic(err) // keys are strings
		}
	}
	return d
}

var storageNames = map[safetensors.DType]string{
	safetensors.F32: "FloatStorage", safetensors.F64: "DoubleStorage", safetensors.F16: "HalfStorage", safetensors.BF16: "BFloat16Storage",
}

// tensor is the pickle of a tensor that fills a storage of its own.
func (tw *torchWriter) tensor(t Tensor) any {
	tw.storages = append(tw.storages, t)
	n, stride, step := t.Size()/t.DType.Width(), make(pickle.Tuple, len(t.Shape)), int64(1)
	shape := make(pickle.Tuple, len(t.Shape))
	for i := len(t.Shape) - 1; i >= 0; i-- {
		shape[i], stride[i] = t.Shape[i], step
		step *= t.Shape[i]
	}
	id := pickle.Tuple{"storage", pickle.Global{Module: "torch", Name: storageNames[t.DType]}, strconv.Itoa(len(tw.storages) - 1), "cpu", n}
	hooks := pickle.Call{Fn: pickle.Global{Module: "collections", Name: "OrderedDict"}}
	return pickle.Call{Fn: pickle.Global{Module: "torch._utils", Name: "_rebuild_tensor_v2"},
		Args: pickle.Tuple{pickle.Persistent{ID: id}, 0, shape, stride, false, hooks}}
}

// model is the state dict; lm_head.weight is a second name for wte's storage.
func (tw *torchWriter) model(tensors []Tensor) *pickle.Dict {
	d := pickle.NewDict()
	var wte any
	for _, t := range tensors {
		v := tw.tensor(t)
		if t.Name == wteName {
			wte = v
		}
		d = set(d, t.Name, v)
	}
	return set(d, tiedName, wte)
}

func set(d *pickle.Dict, key, value any) *pickle.Dict {
	if err := d.Set(key, value); err != nil {
		panic(err) // keys are names and numbers
	}
	return d
}

// optimizer is AdamW's state dict with nanoGPT's two groups.
func (tw *torchWriter) optimizer(s *State) (*pickle.Dict, error) {
	order, decay, err := optimizerOrder(s.Model, len(s.Params))
	if err != nil {
		return nil, err
	}
	state := pickle.NewDict()
	if s.Optimizer != nil {
		avg, sq := byName(s.Optimizer.ExpAvg), byName(s.Optimizer.ExpAvgSq)
		step := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(s.Optimizer.Step)))
		for i, t := range order {
			state = set(state, int64(i), dict("step", tw.tensor(Tensor{DType: safetensors.F32, Data: safetensors.Raw(step)}),
				"exp_avg", tw.tensor(avg[t.Name]), "exp_avg_sq", tw.tensor(sq[t.Name])))
		}
	}
	group := func(weightDecay float64, from, to int) any {
		var params []any
		for i := from; i < to; i++ {
			params = append(params, i)
		}
		return dict("lr", s.setting("learning_rate", 6e-4), "betas", pickle.Tuple{s.setting("beta1", 0.9), s.setting("beta2", 0.95)}, "eps", 1e-8,
			"weight_decay", weightDecay, "amsgrad", false, "maximize", false, "foreach", nil, "capturable", false, "differentiable", false,
			"fused", nil, "decoupled_weight_decay", true, "params", params)
	}
	return dict("state", state, "param_groups", []any{group(s.setting("weight_decay", 0.1), 0, decay), group(0, decay, len(order))}), nil
}

func (s *State) setting(key string, absent float64) float64 {
	switch v := s.Config[key].(type) {
	case float64:
		return v
	case int64:
		return float64(v)
	}
	return absent
}

func byName(tensors []Tensor) map[string]Tensor {
	m := make(map[string]Tensor, len(tensors))
	for _, t := range tensors {
		m[t.Name] = t
	}
	return m
}

// alignedZip writes stored entries whose bytes start on 64, as torch.save does, so that torch.load(mmap=True) works too.
type alignedZip struct {
	w   io.Writer
	zip *zip.Writer
	n   int64
}

func (z *alignedZip) Write(p []byte) (int, error) {
	n, err := z.w.Write(p)
	z.n += int64(n)
	return n, err
}

func (z *alignedZip) add(name string, data io.WriterTo) error {
	if err := z.zip.Flush(); err != nil {
		return err
	}
	const localHeader, fieldHeader, align = 30, 4, 64
	start := z.n + z.pending() + localHeader + int64(len(name)) + fieldHeader
	pad := int((align - start%align) % align)
	extra := append([]byte{'F', 'B', byte(pad), 0}, make([]byte, pad)...)
	e, err := z.zip.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store, Extra: extra})
	if err != nil {
		return err
	}
	_, err = data.WriteTo(e)
	return err
}

// pending is the data descriptor of the last entry, which the zip writer puts out only with the next one.
func (z *alignedZip) pending() int64 {
	if z.n == 0 {
		return 0
	}
	return 16
}
