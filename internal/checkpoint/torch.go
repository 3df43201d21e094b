package checkpoint

import (
	"fmt"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/pickle"
	"github.com/snugml/snug/internal/safetensors"
)

// TorchName is nanoGPT's checkpoint in out_dir.
const TorchName = "ckpt.pt"

// tiedName is the output layer in nanoGPT's state dict. It is wte: nanoGPT ties the two.
const (
	tiedName = "lm_head.weight"
	wteName  = "transformer.wte.weight"
)

// storageTypes are PyTorch's storage classes by element type.
var storageTypes = map[string]safetensors.DType{
	"torch.FloatStorage": safetensors.F32, "torch.DoubleStorage": safetensors.F64, "torch.HalfStorage": safetensors.F16,
	"torch.BFloat16Storage": safetensors.BF16, "torch.LongStorage": safetensors.I64, "torch.IntStorage": safetensors.I32,
	"torch.ShortStorage": safetensors.I16, "torch.CharStorage": safetensors.I8, "torch.ByteStorage": safetensors.U8, "torch.BoolStorage": safetensors.Bool,
}

// storage is a run of elements that the pickle names and another file of the archive holds.
type storage struct {
	dtype safetensors.DType
	key   string
	numel int64
}

// torchTensor is a view of a storage, as _rebuild_tensor_v2 describes it.
type torchTensor struct {
	storage storage
	offset  int64
	shape   []int64
}

// SetState accepts and drops the attributes of a parameter.
func (*torchTensor) SetState(any) error { return nil }

// torchOptions is the allow-list for a ckpt.pt: tensors and their storages, beside plain data. Nothing it names runs.
func torchOptions() pickle.Options {
	globals := map[string]any{
		"torch._utils._rebuild_tensor_v2": pickle.Func(rebuildTensor),
		"torch._utils._rebuild_parameter": pickle.Func(rebuildParameter),
	}
	for name, dtype := range storageTypes {
		globals[name] = dtype
	}
	return pickle.Options{Globals: globals, Persistent: persistentStorage}
}

// persistentStorage reads ('storage', type, key, location, numel). The location is where the tensor was: it does not matter here.
func persistentStorage(id any) (any, error) {
	t, ok := id.(pickle.Tuple)
	if !ok || len(t) != 5 || t[0] != any("storage") {
		return nil, fmt.Errorf("a persistent id that is no storage")
	}
	dtype, ok1 := t[1].(safetensors.DType)
	key, ok2 := t[2].(string)
	numel, ok3 := t[4].(int64)
	if !ok1 || !ok2 || !ok3 || numel < 0 {
		return nil, fmt.Errorf("a storage with other fields than type, key, location and length")
	}
	return storage{dtype, key, numel}, nil
}

// rebuildTensor reads (storage, offset, size, stride, requires_grad, hooks, …). Only contiguous views are tensors here.
func rebuildTensor(args pickle.Tuple) (any, error) {
	if len(args) < 4 {
		return nil, fmt.Errorf("_rebuild_tensor_v2 with %d arguments", len(args))
	}
	s, ok := args[0].(storage)
	offset, ok1 := args[1].(int64)
	shape, ok2 := ints(args[2])
	stride, ok3 := ints(args[3])
	if !ok || !ok1 || !ok2 || !ok3 || len(shape) != len(stride) {
		return nil, fmt.Errorf("_rebuild_tensor_v2 with other arguments than storage, offset, size and stride")
	}
	n, ok := safetensors.Elements(shape)
	if !ok || offset < 0 || offset > s.numel || n > s.numel-offset {
		return nil, fmt.Errorf("a tensor of shape %v at %d of a storage of %d elements", shape, offset, s.numel)
	}
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && stride[i] != step {
			return nil, fmt.Errorf("a tensor of shape %v with strides %v: save it with .contiguous()", shape, stride)
		}
		step *= max(shape[i], 1)
	}
	return &torchTensor{s, offset, shape}, nil
}

func rebuildParameter(args pickle.Tuple) (any, error) {
	if len(args) >= 1 {
		if t, ok := args[0].(*torchTensor); ok {
			return t, nil
		}
	}
	return nil, fmt.Errorf("_rebuild_parameter without a tensor")
}

func ints(v any) ([]int64, bool) {
	t, ok := v.(pickle.Tuple)
	if !ok || len(t) > 8 {
		return nil, false
	}
	out := make([]int64, len(t))
	for i, x := range t {
		if out[i], ok = x.(int64); !ok {
			return nil, false
		}
	}
	return out, true
}

// optimizerOrder lists the parameters as nanoGPT's configure_optimizers numbers them: the decayed ones, then the others.
func optimizerOrder(m gpt.Model, tensors int) (order []gpt.Spec, decayed int, err error) {
	specs, err := specsFor(m, tensors)
	if err != nil {
		return nil, 0, err
	}
	for _, decays := range []bool{true, false} {
		for _, s := range specs {
			if s.Decays() == decays {
				order = append(order, s)
			}
		}
		if decays {
			decayed = len(order)
		}
	}
	return order, decayed, nil
}
