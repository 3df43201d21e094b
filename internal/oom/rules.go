package oom

import (
	"slices"
	"strings"
)

// place is a file of a framework whose functions tell a phase by being there.
type place struct {
	path  string
	funcs string // "" is any
	phase Phase
	kind  kind // kBuild where something is made there, not moved
	made  bool // it is so inside of a model's call, too: Keras makes weights when a layer is first called
}

// places are tried in order; a path matches where it holds the piece.
var places = []place{
	{"keras/", "_maybe_build add_weight add_variable set_weights _initialize_variables _init_variables", Init, kBuild, true},
	{"keras/engine/sequential.py", "__init__ add", Init, kBuild, true},
	{"keras/src/models/sequential.py", "__init__ add", Init, kBuild, true},
	{"transformers/training_args.py", "", Init, kBuild, true},   // which asks for the device
	{"deepspeed/__init__.py", "initialize", Init, kBuild, true}, // and takes a first step there
	{"torch/nn/modules/module.py", "to cuda _apply convert float half bfloat16 double to_empty type xpu <lambda>", Init, 0, false},
	{"torch/nn/modules/module.py", "state_dict _save_to_state_dict", Save, 0, false},
	{"torch/distributed/fsdp/_state_dict_utils.py", "_pre_state_dict_hook _post_state_dict_hook _full_post_state_dict_hook _full_pre_state_dict_hook", Save, 0, false},
	{"torch/distributed/checkpoint/state_dict_saver.py", "", Save, 0, false},
	{"torch/utils/data/", "", Data, 0, false},
	{"multiprocessing/popen_", "", Data, 0, false},
	{"multiprocessing/reduction.py", "dump", Data, 0, false},
	{"-packages/datasets/", "", Data, 0, false},
	{"torchvision/datasets/", "", Data, 0, false},
	{"torchvision/transforms/", "", Data, 0, false},
	{"albumentations/", "", Data, 0, false},
	{"monai/transforms/", "", Data, 0, false},
	{"monai/data/", "", Data, 0, false},
	{"torchio/", "", Data, 0, false},
	{"batchgenerators/", "", Data, 0, false},
	{"webdataset/", "", Data, 0, false},
	{"mmcv/transforms/", "", Data, 0, false},
	{"/datasets/pipelines/", "", Data, 0, false},
	{"/datasets/transforms/", "", Data, 0, false},
	{"detectron2/data/", "", Data, 0, false},
	{"fairseq/data/", "", Data, 0, false},
	{"torchaudio/backend/", "", Data, 0, false},
	{"skimage/", "", Data, 0, false},
	{"PIL/", "", Data, 0, false},
	{"mgds/", "", Data, 0, false},
	{"torch/onnx/", "", Compile, 0, false},
	{"torch/_dynamo/convert_frame.py", "", Compile, 0, false},
	{"torch/_dynamo/eval_frame.py", "catch_errors", Compile, 0, false},
	{"torch/_dynamo/utils.py", "", Compile, 0, false},
	{"torch/_dynamo/symbolic_convert.py", "", Compile, 0, false},
	{"torch/_dynamo/output_graph.py", "", Compile, 0, false},
	{"torch/_dynamo/variables/", "", Compile, 0, false},
	{"torch/_dynamo/repro/", "", Compile, 0, false},
	{"torch/_dynamo/debug_utils.py", "", Compile, 0, false},
	{"torch/_inductor/select_algorithm.py", "", Compile, 0, false},
	{"torch/_inductor/graph.py", "", Compile, 0, false},
	{"torch/_inductor/lowering.py", "", Compile, 0, false},
	{"torch/fx/experimental/proxy_tensor.py", "", Compile, 0, false},
	{"torch/_subclasses/fake_tensor.py", "", Compile, 0, false},
	{"torch/jit/_trace.py", "", Compile, 0, false},
	{"torch2trt/", "", Compile, 0, false},
	{"torch/optim/lr_scheduler.py", "", "", 0, false},
	{"torch/optim/swa_utils.py", "", "", 0, false},
	{"torch/optim/", "", Optimizer, 0, false},
	{"torch/serialization.py", "save _save _legacy_save", Save, 0, false},
	{"torch/serialization.py", "", Load, 0, false},
	{"torch/_utils.py", "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter", Load, 0, false},
	{"safetensors/", "", Load, 0, false},
	{"torch/nn/parallel/distributed.py", "__init__ _ddp_init_helper _sync_module_states _sync_params_and_buffers", Init, kBuild, false},
	{"torch/nn/utils/clip_grad.py", "", Optimizer, 0, false},
	{"torch/nn/modules/", "__init__ reset_parameters", Init, kBuild, false},
	{"torch/nn/modules/", "_apply flatten_parameters", Init, 0, false},
	{"torch/nn/parameter.py", "", Init, kBuild, false},
	{"torch/nn/init.py", "", Init, kBuild, false},
	{"torch/cuda/__init__.py", "_lazy_init init set_device current_device", Init, kBuild, false},
	{"torch/cuda/random.py", "", Init, kBuild, false},
	{"torch/distributed/distributed_c10d.py", "barrier init_process_group", Init, kBuild, false},
	{"torch/cuda/graphs.py", "", Init, kBuild, false},
	{"transformers/modeling_utils.py", "to cuda half float", Init, 0, false},
	{"diffusers/pipelines/pipeline_utils.py", "to", Init, 0, false},
	{"bitsandbytes/nn/modules.py", "to cuda _quantize", Init, 0, false},
	{"vllm/v1/core/kv_cache_utils.py", "", Init, kBuild, false},
	{"vllm/worker/cache_engine.py", "", Init, kBuild, false},
	{"sglang/srt/mem_cache/memory_pool.py", "__init__ _create_buffers", Init, kBuild, false},
	{"ultralytics/utils/autobatch.py", "", Init, kBuild, false},
	{"ultralytics/utils/checks.py", "check_amp amp_allclose", Init, kBuild, false},
	{"mxnet/module/", "update", Optimizer, 0, false},
	{"mxnet/model.py", "_update_params _update_params_on_kvstore", Optimizer, 0, false},
	{"mxnet/gluon/trainer.py", "step _update update", Optimizer, 0, false},
	{"paddle/optimizer/", "", Optimizer, 0, false},
	{"apex/optimizers/", "", Optimizer, 0, false},
	{"/tensorflow", "__init__ _init_ __call__ call apply_op create_op", "", 0, false}, // where a graph was made, not run
	{"torch/nn/", "", Forward, 0, false},
	{"torch/functional.py", "", Forward, 0, false},
}

func placed(path, fn string) (place, bool) {
	for _, p := range places {
		if strings.Contains(path, p.path) && (p.funcs == "" || slices.Contains(strings.Fields(p.funcs), fn)) {
			return p, true
		}
	}
	return place{}, false
}

// spawning reports that the calls end where a new process takes what it was handed: it is a loader's worker that does not come up.
func (t Traceback) spawning() bool {
	last := t[len(t)-1]
	return strings.HasSuffix(strings.ReplaceAll(last.Path, `\`, "/"), "multiprocessing/spawn.py") && slices.Contains([]string{"spawn_main", "_main", "prepare"}, last.Func)
}

// askers are packages that ask trained models and train none, as far as a path goes.
var askers = []string{"ase/", "rembg/", "easyocr/", "faster_whisper/", "whisperx/", "surya/", "marker/", "facexlib/", "gfpgan/", "iopaint/", "lama_cleaner/", "simple_lama", "insightface/", "llama_cpp/", "exllama", "outlines/",
	"guidance/", "realesrgan/", "docling/", "magic_pdf/", "mineru/", "alphafold/", "sahi/", "esm/inference", "ctranslate2/", "xinference/", "text_generation_server/"}

// mostly are packages whose models most people only ask: what calls them decides, where it is shown.
var mostly = []string{"diffusers/", "whisper/", "segment_anything/", "sam2/", "TTS/", "demucs/", "kokoro/", "audiocraft/", "bark/", "tortoise/", "comfy/", "f5_tts/", "cosyvoice/", "esm/", "boltz/", "chai_lab/", "paddleocr/", "sentence_transformers/",
	"bert_score/", "clip_interrogator/", "controlnet_aux/", "vllm/", "sglang/", "lmdeploy/", "tensorflow_hub/", "basicsr/archs/"}

// asked reports that one of the calls is in such a package.
func (t Traceback) asked() bool {
	return slices.ContainsFunc(t, func(f Frame) bool {
		_, inside, _ := strings.Cut(strings.ReplaceAll(f.Path, `\`, "/"), "-packages/")
		return slices.ContainsFunc(mostly, func(p string) bool { return strings.HasPrefix(inside, p) })
	})
}

func asks(inside string) bool {
	_, inside, _ = strings.Cut("/"+inside, "/")
	if _, egg, ok := strings.Cut(inside, ".egg/"); ok {
		inside = egg
	}
	return slices.ContainsFunc(askers, func(p string) bool { return strings.HasPrefix(inside, p) })
}

// sources are lines of PyTorch that tell a phase by themselves: pastes often begin there.
var sources = []struct {
	code  string
	phase Phase
}{
	{"t.to(device, dtype if", Init}, {"fn(param", Init}, {"t.cuda(device", Init}, {"self._apply(", Init},
	{"forward_call(", Forward}, {"self.forward(", Forward}, {"torch._C._nn.", Forward},
	{"unpickler.load(", Load}, {"restore_location(", Load},
}

// moduleFiles hold the call of a layer or model: what is called inside of it belongs to a forward pass.
var moduleFiles = []string{"torch/nn/modules/module.py", "paddle/nn/layer/layers.py", "gluon/block.py", "keras/engine/base_layer.py", "keras/src/layers/layer.py"}

func callsModule(path, fn string) bool {
	return slices.Contains([]string{"__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward"}, fn) &&
		slices.ContainsFunc(moduleFiles, func(file string) bool { return strings.HasSuffix(path, file) })
}

// sign is a row of what an identifier shows to be done: it has every kind of all, and one of with, itself or in its subject
// (a method's object, a function's class and file), and none of not.
type sign struct {
	phase Phase
	all   kind
	with  kind // 0 is no matter
	not   kind
	alone bool // the identifier says nothing else
}

// doings are tried in order for each identifier.
var doings = []sign{
	{phase: Compile, all: kCompile, with: kCompiler | kTorch, not: kWrapper},
	{phase: Compile, all: kTune, with: kCompiler},
	{phase: Compile, all: kExport, with: kTarget},
	{phase: Save, all: kSave, with: kFile | kModel | kOptim | kTorch, not: kLoad | kTrain | kEval | kData | kDataset},
	{phase: Save, all: kSave | kFile, not: kLoad},
	{phase: Load, all: kLoad, with: kFile | kModel | kOptim | kTorch, not: kData | kDataset},
	{phase: Load, all: kRestore, with: kFile | kModel | kOptim | kTorch, not: kData | kDataset},
	{phase: Load, all: kFrom | kFile, not: kSample | kEval | kTrain},
	{phase: Load, all: kSet | kModel | kMove},
	{phase: Backward, all: kBackward, not: kForward | kTrain | kBuild},
	{phase: Backward, all: kGrad, alone: true},
	{phase: Optimizer, all: kClip, with: kGrad},
	{phase: Optimizer, all: kStep, with: kOptim, not: kTrain | kEval | kSample},
	{phase: Optimizer, all: kGrad | kMove},
	{phase: Optimizer, all: kOptim | kFile, not: kLoad | kBuild},
	{phase: Init, all: kWarm, with: kModel | kRun},
	{phase: Load, all: kLoad, not: kData | kDataset | kTrain | kEval | kSample},
	{phase: Init, all: kBuild, not: kData | kDataset | kForward | kLoss},
	{phase: Init, all: kMake | kModel, not: kData | kDataset | kForward | kLoss | kCompute | kOp},
	{phase: Init, all: kMake | kOptim, not: kData | kDataset | kLoad | kStep},
	{phase: Init, all: kMake | kFile, not: kData | kDataset | kLoad},
	{phase: Init, all: kMake | kLayer, not: kData | kDataset | kForward | kLoss | kOp},
	{phase: Init, all: kMake, with: kModel, alone: true},
	{phase: Forward, all: kForward},
	{phase: Forward, all: kLoss},
	{phase: Forward, all: kTrain | kStep, not: kBackward},
}

// doing is the phase that an identifier shows.
func doing(n, subject ident) Phase {
	if n.feeding() {
		return Data
	}
	for _, r := range doings {
		if n.kind&r.all == r.all && n.kind&r.not == 0 && (r.with == 0 || (n.kind|subject.kind)&r.with != 0) && (!r.alone || n.alone(r.all)) {
			return r.phase
		}
	}
	return ""
}
