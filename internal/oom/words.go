package oom

import (
	"slices"
	"strings"
	"sync"
	"unicode"
)

// kind is what the words of an identifier speak of: a set.
type kind uint64

const (
	kTrain kind = 1 << iota
	kEval
	kSample   // output for its own sake: generation, inference, serving
	kPerhaps  // may be that: a decoder decodes in training too
	kEpoch    // training, unless something says otherwise
	kForward  // a forward pass
	kBackward // a backward pass
	kLoss
	kGrad
	kStep  // what an optimizer does
	kOptim // an optimizer, or what holds one
	kClip
	kLoad
	kFrom
	kRestore // loads, where it is said what
	kFile    // what is loaded from a file
	kModel   // a model, or what holds one
	kLayer   // a part of one
	kBuild
	kMake // builds a model, and other things
	kWarm // tries a model before it is used
	kMove // to a device or another type
	kCompile
	kCompiler
	kTune   // compiles, in a compiler
	kExport // turns a model into
	kTarget // another form of it
	kSave
	kOne  // a thing to try a model on
	kRun  // does what its subject says
	kData // feeds the model: what is built or loaded there is no model
	kDataset
	kAfter // when something is over
	kSet
	kWrapper // runs what was made before
	kClosure // a training step handed to an optimizer
	kServe   // a server, a page, or a library that only asks models
	kPage    // a script that people talk to
	kTorch
	kCompute // an operation on tensors
	kTensor  // makes or reads a tensor, as anything does
	kOp      // an operation, where nothing else is known
	kThing   // what people evaluate: labels_val, test_loader
)

// vocabulary is the one table of words. A word stands for its plural too; what ends in "*" is the beginning of a word.
var vocabulary = map[kind]string{
	kTrain:    "train training traning trainning fit finetune finetuning tune pretrain pretraining learn retrain train* retrain* finetun* pretraining*",
	kEval:     "loglikelihood eval val dev valid evaluate evaluator evaluation validate validator validation test tester testing sanity perplexity ppl benchmarking eval* validat* test*",
	kSample:   "decoding rendering captioning inferece infernce generate generation generating infer inference predict prediction predictor chat demo detect transcribe translate synthesize synthesis tts txt2img img2img text2img text2image txt2vid img2vid text2video denoise denoising upscale upscaling enhance inpaint inpainting colorize stylize completion webui interactive qa serve serving sampling rollout prefill conversation viewer dock diarize upscal* generat* infer* predict* transcri* synthes* denois* ksampler",
	kPerhaps:  "sample sampler encode decode embed extract segment pipeline pipe process caption answer ask respond reply search retrieve detection recognition reconstruct reconstruction restoration visualize recognize ocr align diarization separate separation summarize simulate save track tracking forecast preview plot draw visualise viz animate fold matting relax register",
	kEpoch:    "epoch",
	kForward:  "forward",
	kBackward: "backward backprop vjp backprop*",
	kLoss:     "loss losses criterion lossfun lossfn lossfunc",
	kGrad:     "grad gradient",
	kStep:     "step update unscale",
	kOptim:    "optimizer optim opt optimiser scaler deepspeed adam adamw sgd lamb lars lion adafactor adagrad rmsprop optax radam prodigy muon shampoo novograd adan adam8bit adamw8bit bitsandbytes lbfgs optim* adamw* adam*",
	kClip:     "clip",
	kLoad:     "load resume resuming deserialize load* reload",
	kFrom:     "from",
	kRestore:  "restore restoring restored",
	kFile:     "pretrained checkpoint ckpt ckp weight state dict shard serialization safetensor safetensors saver single file lora adapter statedict ckpt* checkpoint*",
	kModel:    "model net network module unet vae encoder decoder transformer generator discriminator llm engine backbone ddp fsdp deepspeed megatron embedder critic actor policy teacher student gan detector accelerator pipe pipeline",
	kLayer:    "model net network module unet vae encoder decoder transformer backbone layer block attention embedding resnet modeling parallel",
	kBuild:    "init initialize initializ* initialis* build setup construct wrap",
	kMake:     "create make prepare place dispatch define instantiate new configure",
	kWarm:     "profile dummy warmup capture capturing",
	kMove:     "to cuda half float bfloat16 double apply convert xpu npu type",
	kCompile:  "compile compiler codegen autotune autotun* compil*",
	kTune:     "benchmark bench lowering",
	kExport:   "export convert conversion trace tracing export*",
	kTarget:   "onnx tensorrt trt torchscript coreml tflite openvino jit ncnn",
	kOne:      "image img video picture photo audio webcam single demo example wav",
	kSave:     "save saving dump write",
	kCompiler: "inductor dynamo triton xla compiler functorch jax autotuner aot",
	kRun:      "run start call main advance execute iter loop __call__ do",
	kData:     "dataloader loader collate sampler getitem fetch worker extension action",
	kDataset:  "dataset data datamodule corpus annotation vocab vocabulary tokenizer config configuration plugin dictionary cache csv json",
	kAfter:    "after end finish",
	kSet:      "set assign",
	kWrapper:  "wrapper fn",
	kClosure:  "closure",
	kServe:    "gradio fastapi uvicorn flask streamlit starlette aiohttp celery cog langchain vllm sglang lmdeploy comfy webui invokeai fooocus koboldai",
	kPage:     "app api cli render",
	kTorch:    "torch th",
	kCompute: "softmax matmul bmm mm addmm baddbmm einsum conv linear relu gelu silu sigmoid tanh cat concat concatenate stack norm layernorm batchnorm groupnorm attention attn dropout embedding interpolate pad gather scatter " +
		"repeat expand transpose permute contiguous reshape cumsum cdist exp mul normalize activation pool proj mlp ffn head layer block fc entropy",
	kTensor: "zeros ones empty rand randn randint tensor full arange eye numpy item print len range list dict open astype array",
	kOp: "clamp overlap iou sum mean max min sqrt pow where mask masked fill index select clone unsqueeze squeeze view chunk split flatten roll sort topk argmax nms fft svd inverse solve onehot unfold fold upsample warp corr correlation similarity dist distance mse kernel " +
		"tile outer cross dot kron prod std var log cos sin abs minimum maximum meshgrid bincount scan shift",
	kThing: "acc accuracy pred out output logit data loader dataloader dataset batch set label input img image target gt score feature feat text iter emb ids queue",
}

// What feeds a model, in words that are no kind: they say what is done only together with others, see feeding.
var (
	feeders   = strings.Fields("getitem collate collator prefetcher")
	caching   = strings.Fields("cache caching precompute precache preencode") // of what a frozen part makes of the data, before training
	cached    = strings.Fields("latent embedding embed feature text caption encoding")
	stores    = strings.Fields("dataset data datamodule corpus csv parquet example cam camera colmap replay")
	readers   = strings.Fields("load read loadtxt genfromtxt memmap") // of NumPy and others that compute on the machine itself
	preparers = strings.Fields("preprocess preprocessing preprocessor preproc prepro tokenization")
	parts     = strings.Fields("batch input image img sample target label data mask token ids video audio frame feature feat adj edge graph pixel wav mel annotation")
	owned     = strings.Fields("param parameter weight buffer grad")
)

// nouns are words that a stem would take for something they are not.
const nouns = "finetuned compiled trainer trained trainable generator detector validity inferred"

// idioms are frameworks' own names that their words do not tell.
var idioms = map[kind]string{
	kLoad | kFile:     "from_preset from_hparams from_hub from_hf from_pt from_tf from_flax from_quantized load_quantized load_quant load_gguf from_gguf",
	kSample:           "set_image readtext restore_faces restore_face restore_with_helper restore_with_face_helper apply_stable_diffusion compute_actions run_generation",
	kBuild | kModel:   "get_model get_peft_model resize_token_embeddings add_weight determine_available_memory determine_num_available_blocks profile_num_available_blocks init_memory_pool boost enable_model_cpu_offload enable_sequential_cpu_offload create_executor create_trainer build_trainer get_trainer make_trainer setup_trainer build_runner create_runner",
	kPerhaps:          "super_resolution superresolution super_resolve",
	kExport | kTarget: "torch2trt trtexec onnx2trt onnx2tf",
	kLoad | kData:     "cameraList_from_camInfos loadCam",
	kTrain:            "lr_find lr_finder update_actor update_critic update_policy train_on_batch",
	kEval:             "training_report estimate_loss inference_on_dataset compute_on_dataset compute_metrics compute_metric calc_metric calculate_metrics compute_fid calc_fid calculate_fid prediction_step prediction_loop nested_concat nested_gather torch_pad_and_concatenate distributed_concat",
}

// dictionary is the vocabulary as it is looked up.
type dictionary struct {
	word  map[string]kind
	stem  map[string]kind
	idiom map[string]kind
}

var dict = sync.OnceValue(func() dictionary {
	d := dictionary{map[string]kind{}, map[string]kind{}, map[string]kind{}}
	for _, n := range strings.Fields(nouns) {
		d.word[n] = 0
	}
	for k, words := range vocabulary {
		for _, w := range strings.Fields(words) {
			if stem, ok := strings.CutSuffix(w, "*"); ok {
				d.stem[stem] |= k
			} else {
				d.word[w] |= k
			}
		}
	}
	for k, names := range idioms {
		for _, n := range strings.Fields(names) {
			d.idiom[n] = k
		}
	}
	return d
})

// kindOf looks one word up: itself, its singular, or else the longest stem it begins with.
func (d dictionary) kindOf(w string) kind {
	if k, ok := d.word[w]; ok {
		return k
	}
	if k, ok := d.word[strings.TrimSuffix(w, "s")]; ok {
		return k
	}
	for n := len(w) - 1; n >= 4; n-- {
		if k, ok := d.stem[w[:n]]; ok {
			return k
		}
	}
	return 0
}

// ident is an identifier seen as its words.
type ident struct {
	words  []string
	kind   kind // of all of them together
	letter bool // one stands beside them: backward_G
}

func (n ident) has(k kind) bool { return n.kind&k != 0 }

// alone reports whether k is all that the name says.
func (n ident) alone(k kind) bool {
	for _, w := range n.words {
		if dict().kindOf(w)&(k|kRun) == 0 {
			return false
		}
	}
	return n.kind&k != 0
}

// any reports that one of the words is among these, in the singular or plural.
func (n ident) any(words []string) bool {
	return slices.ContainsFunc(n.words, func(w string) bool {
		return slices.Contains(words, strings.TrimSuffix(w, "s")) || slices.Contains(words, w)
	})
}

// feeding reports an identifier that reads or makes what a model is fed with.
func (n ident) feeding() bool {
	return n.any(feeders) || n.kind == kLoad|kData || n.any(caching) && n.any(cached) || n.has(kLoad) && n.has(kOne) && !n.has(kModel|kFile|kSample|kTarget) ||
		n.any(stores) && n.has(kLoad|kMake|kBuild) && !n.has(kModel|kFile|kForward|kLoss|kStep)
}

// first is the kind of the first word that is of one in k.
func (n ident) first(k kind) kind {
	for _, w := range n.words {
		if found := dict().kindOf(w) & k; found != 0 {
			return found
		}
	}
	return 0
}

// shows reports a test of one thing, which is made for its own sake: test_image, a test of the demo.
func (n ident) shows() bool {
	one := slices.ContainsFunc(n.words, func(w string) bool { return dict().word[w]&kOne != 0 }) // and not many
	return one && !n.has(kTrain) && slices.ContainsFunc(n.words, func(w string) bool { return strings.HasPrefix(w, "test") })
}

// read splits what people write as one word: snake_case, CamelCase, dots and slashes, numbers at the end.
func read(identifier string) ident {
	var n ident
	d := dict()
	if k, ok := d.idiom[identifier]; ok {
		return ident{words: []string{identifier}, kind: k}
	}
	for _, part := range strings.FieldsFunc(identifier, func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }) {
		parts := humps(part)
		if _, whole := d.word[strings.ToLower(part)]; whole {
			parts = []string{part} // TensorRT
		}
		for _, w := range parts {
			w = strings.ToLower(w)
			if bare := strings.TrimRight(w, "0123456789"); d.word[w] == 0 && bare != "" {
				w = bare
			}
			switch last := len(n.words) - 1; {
			case len(w) == 1: // netD is a net
				n.letter = true
			case w == "module" && last >= 0 && n.words[last] == "data": // which is no model's
				n.words[last] = "datamodule"
			default:
				n.words = append(n.words, w)
				n.kind |= d.kindOf(w)
			}
		}
	}
	return n
}

// humps splits CamelCase: HTTPServer is HTTP and Server.
func humps(s string) []string {
	var words []string
	runes := []rune(s)
	start := 0
	for i := 1; i < len(runes); i++ {
		up := unicode.IsUpper(runes[i])
		if up && !unicode.IsUpper(runes[i-1]) || up && i+1 < len(runes) && unicode.IsLower(runes[i+1]) {
			words = append(words, string(runes[start:i]))
			start = i
		}
	}
	return append(words, string(runes[start:]))
}

// ends reports whether the last word is of kind k: a model's inputs are no model.
func (n ident) ends(k kind) bool {
	return len(n.words) > 0 && dict().kindOf(n.words[len(n.words)-1])&k != 0
}
