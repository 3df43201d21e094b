package oom

import (
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

const smallMessage = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 6.31 GiB already allocated; 12.50 MiB free; 6.55 GiB reserved in total by PyTorch)\n"

// What reports show beside a message: a title that nothing marks, a message's end, C++'s operations, wordings of libraries.
func TestReports(t *testing.T) {
	const cut = "Traceback (most recent call last):\n  File \"/w/a.py\", line 3, in <module>\n    loss.backward()\n"
	for name, c := range map[string]struct {
		log   string
		phase Phase // "" is no failure
	}{
		"a bare title alone":                           {"Out of GPU memory while loading the checkpoint\n\nIt happens on both of my laptops.\n", Load},
		"the same without a blank line":                {"Out of GPU memory while loading the checkpoint\nIt happens on both of my laptops.\n", ""},
		"the same line as a log's first":               {"INFO my card is fine and not out of work\n\n" + cut, ""},
		"a title that says nothing of memory":          {"My run stops again\n\n" + cut, ""},
		"a message whose beginning was cut":            {"ting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF\n" + cut, Backward},
		"an operation of C++ in the backward pass":     {"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\nframe #4: at::native::slow_conv3d_backward_out_cuda(at::Tensor const&) + 0x15ef\n", Backward},
		"TensorFlow's gradient tape":                   {"W bfc_allocator.cc:431] Allocator (GPU_0_bfc) ran out of memory trying to allocate 4.42GiB (rounded to 4746649600)requested by op gradient_tape/net/MatMul\n", Backward},
		"an array read from a file":                    {"  File \"/w/g.py\", line 6, in <module>\n    table = np.load('./rows.npy')\nMemoryError: Unable to allocate 29.0 GiB for an array with shape (7790126400,) and data type float32\n", Data},
		"a batch moved to the card":                    {"  File \"/w/t.py\", line 9, in train\n    images = images.to(device)\n" + smallMessage, Data},
		"no algorithm of cuDNN":                        {strings.TrimSuffix(cut, "\n") + "\nRuntimeError: Unable to find a valid cuDNN algorithm to run convolution\n", Backward},
		"ONNX Runtime's arena":                         {"INFO Starting inference for 1 steps\n[E:onnxruntime:, sequential_executor.cc:516] bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t)\n", Sample},
		"autograd's anomaly mode":                      {"Warning: Traceback of forward call that caused the error:\n" + smallMessage, Backward},
		"a loader's worker killed beside a step":       {"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n\nTraceback (most recent call last):\n  File \"/w/train.py\", line 3, in train\n    out = model(x)\n", Data},
		"a bar that counts scores, in train.py":        {"[to SR images] PSNR: 20.9 dB:   1%| | 1/176 [00:00<00:34,  5.00it/s]\nTraceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    sr = net(lr)\n" + smallMessage, Eval},
		"a bar that counts scores and a loss":          {"[1/9] loss 0.2 PSNR: 20.9 dB:   1%| | 1/176 [00:00<00:34,  5.00it/s]\nTraceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    sr = net(lr)\n" + smallMessage, Forward},
		"a file's path in what a program announces":    {"2022-02-23 19:35:10,513 INFO [a.py:1] Creating model\n2022-02-23 19:35:11,513 INFO [a.py:2] Loading G from ./exp/data/lang/G.pt\n" + smallMessage, Load},
		"arithmetic in a function that says nothing":   {"  File \"/w/geometry.py\", line 9, in overlaps\n    ious = overlap / (area1[:, None] + area2 - overlap)\n" + smallMessage, Forward},
		"the average of an optimizer in TensorFlow":    {"ResourceExhaustedError: OOM when allocating tensor with shape[2304,384]\n\t [[Node: ExponentialMovingAverage/AssignMovingAvg_4/sub_1 = Sub[T=DT_FLOAT]]]\n", Optimizer},
		"MatConvNet's workspace":                       {"Error: vl::impl::nnconv_forward_blas: getWorkspace [out of memory error]\n", Forward},
		"a pool's process that was killed":             {"A process in the process pool was terminated abruptly while the future was running or pending.\nThe error comes in the tokenisation part.\n", Data},
		"many iterations":                              {"# It fails\n\n" + smallMessage + "I meet out of memory after some hundred (or thousand) iterations\n", Forward},
		"ComfyUI's shortest message":                   {"!!! Exception during processing !!! Allocation on device \nTraceback (most recent call last):\n  File \"/w/nodes.py\", line 9, in process\n    bi.model.to(device)\n", Init},
		"data loaded where training is set up":         {"  File \"/w/train.py\", line 9, in setup_training_options\n    d = dataset.load_dataset(**args)\n  File \"/w/dataset.py\", line 3, in load_dataset\n    x = tfutil.var(labels)\n" + smallMessage, Data},
		"inference with a finetuned model":             {"# Running out of GPU space when inferencing model using LoRA finetuned model\n\n  File \"/e/site-packages/torch/nn/modules/module.py\", line 1, in _call_impl\n    return forward_call(*args)\n", Sample},
		"a bare title above markup":                    {"OOM in evaluation\n**Environment** torch 1.9.0\n", Eval},
		"a killed program on its bar's line":           {"Loading checkpoint shards:   0%| | 0/2 [00:00<?, ?it/s]Killed\n", Load},
		"a TPU's refusal":                              {"10.128.0.33 [3]   (1) Resource exhausted: Attempting to allocate 180.59M. That was not possible. There are 142.58M free.; (0x3x0_HBM1)\n  File \"/w/a.py\", line 3, in <module>\n    loss.backward()\n", Backward},
		"a bar that counts what is recognized":         {"Recognizing Text:  40%|███▏     | 2/5 [00:40<01:01, 20.35s/it]\n" + smallMessage, Sample},
		"a model read as any object":                   {"  File \"/w/a.py\", line 3, in <module>\n    model = pickle.load(open(filename, 'rb'))\nMemoryError\n", Load},
		"data read as any object":                      {"  File \"/w/a.py\", line 3, in <module>\n    rows = pickle.load(open(filename, 'rb'))\nMemoryError\n", Data},
		"DeepSpeed's first step while it starts":       {"  File \"/e/site-packages/deepspeed/__init__.py\", line 3, in initialize\n    engine = DeepSpeedEngine(args)\n  File \"/e/site-packages/deepspeed/runtime/zero/stage_1_and_2.py\", line 5, in initialize_optimizer_states\n    self.optimizer.step()\n" + smallMessage, Init},
		"the device asked for among the arguments":     {"  File \"/e/site-packages/transformers/training_args.py\", line 5, in __post_init__\n    if self.device.type != 'cuda':\n" + smallMessage, Init},
		"TensorRT's builder":                           {"[TRT] [W] Tactic Device request: 16512MB Available: 12281MB. Device memory is insufficient to use tactic.\n", Compile},
		"Caffe2's gradients":                           {"[enforce fail at context_gpu.cu:524] error == cudaSuccess. 2 vs 0. Error at: a.cu:524: out of memory (Error from operator: type: \"UpsampleNearestGradient\" is_gradient_op: true)\n", Backward},
		"ComfyUI's node":                               {"# Error\n\n- **Node Type:** CheckpointLoaderSimple\n- **Exception Type:** torch.OutOfMemoryError\n", Load},
		"a call named beside its purpose":              {"# out of memory\n\n" + smallMessage + "At the line net.forward() during testing I get this error\n", Eval},
		"a bare title with a setting in it":            {"Training with batch=1 is still out of memory\n\nEpoch: [0][0/1000]\tLoss: nan\n", Forward},
		"a notebook's cell with links for numbers":     {"Cell 2' in <cell line: 4>()\n----> [4](vscode-notebook-cell://ssh/test.ipynb#ch01?line=3) model = TransUNet(\n" + smallMessage, Init},
		"TensorFlow's first taking":                    {"E tensorflow/stream_executor/rocm/rocm_driver.cc:601] failed to allocate 7.35G (7889485824 bytes) from device: hipError_t(1002)\n", Init},
		"memory that burst":                            {"# Two problems\n\nI run it and the gpu memory grew with each batch until it burst.\nTraceback (most recent call last):\n  File \"/w/a.py\", line 3, in <module>\n    loss.backward()\n", Backward},
		"a setting's name for an allocator's failure":  {"INFO options: memory allocation failure injection off\nINFO the job queue exceeded memory allocation hints by 3\n", ""},
		"a program's arrays beside another trouble":    {"# The shapes differ\n\nMy numpy array is created with other shapes.\n" + cut, ""},
		"a failed collective beside no word of memory": {"NCCL error: unhandled system error\n", ""},
	} {
		l, err := Read(strings.NewReader(c.log))
		if err != nil {
			t.Fatal(err)
		}
		d := Diagnose(Case{Log: l, Target: h200(t)})
		switch {
		case d == nil && c.phase != "":
			t.Errorf("%s: no failure, want one in phase %s", name, c.phase)
		case d != nil && (d.Phase != c.phase || d.Guessed()):
			t.Errorf("%s: phase %s, guessed %v, want %q", name, d.Phase, d.Guessed(), c.phase)
		}
	}
}

// Where nothing shows the phase the words guess it, the report says so, and causes and remedies do not look at it.
func TestPhaseIsGuessed(t *testing.T) {
	d := diagnose(t, "# Help\n\n"+smallMessage+"\nvalidation accuracy metrics, evaluator, eval_dataloader, evaluate, val, compute_metrics, dev set\n")
	if d.Phase != Eval || !d.Guessed() || d.Chance > 1 || strings.Contains(kinds(d), "eval_cpu") {
		t.Fatalf("phase %s, chance %g, guessed %v", d.Phase, d.Chance, d.Guessed())
	}
	for chance, want := range map[float64]string{0.9: "phase.likely", 0.25: "phase.perhaps", 0: "phase.eval"} {
		d.Chance = chance
		if got := d.Where().ID; got != want {
			t.Errorf("a chance of %g is told as %s, want %s", chance, got, want)
		}
	}
}

// A cause that the reporter names is among those found, and only where it can hold.
func TestSaidCauses(t *testing.T) {
	for said, want := range map[string]Cause{
		"It is gone since I added torch.no_grad().":                   EvalWithoutNoGrad,
		"Using map_location='cpu' solved it for me.":                  CheckpointOnGPU,
		"The test code takes full size images.":                       EvalLargerThanTrain,
		"Memory is piling up between the cases.":                      Leak,
		"I see increasing memory consumption.":                        Leak,
		"It was to run in CPU mode.":                                  WrongDevice,
		"The memory grew with every batch.":                           Leak,
		"An LLM holding ~14 GB runs beside it.":                       OtherProcess,
		"Resource exhausted when training in a loop.":                 Leak,
		"It runs out of memory on resume.":                            CheckpointOnGPU,
		"I resume the training from a checkpoint and it fails there.": CheckpointOnGPU,
	} {
		for message, holds := range map[string]bool{smallMessage: true, "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8388608 bytes.\n": false} {
			d := diagnose(t, "# It fails\n\n"+message+"\n"+said+"\n")
			if found := slices.ContainsFunc(d.Causes, func(f Finding) bool { return f.Cause == want }); found != holds {
				t.Errorf("%q beside %.30q: %s found %v, want %v", said, message, want, found, holds)
			}
		}
	}
}

// The machine's own memory by what its allocators are called.
func TestHostAllocators(t *testing.T) {
	for _, message := range []string{
		"RuntimeError: $ Torch: not enough memory: you tried to allocate 0GB. Buy new RAM! at ..\\aten\\src\\TH\\THGeneral.cpp:201\n",
		"W bfc_allocator.cc:273] Allocator (cuda_host_bfc) ran out of memory trying to allocate 3.72GiB.  Current allocation summary follows.\n",
		"ResourceExhaustedError: OOM when allocating tensor with shape[2304,384]\n\t [[Node: a/b = Sub[_device=\"/job:localhost/replica:0/task:0/cpu:0\"]]]\n",
		"Could not allocate pinned host memory of size: 2147483648\n",
		"# killed right at loading the shards\n\nIs that for lack of memory?\n",
		"Job 104759609 has exceeded memory allocation on node1\nProcess \"bash\", pid 4018500, rss 3444736, vmem 23883776\n",
		"pycuda._driver.MemoryError: cuMemHostAlloc failed: out of memory\n",
		"# A long audio\n\nI see OOM on RAM (not VRAM) there.\n",
		"Memory allocation failure    from pandas.core.frame import DataFrame\n",
		"# RAM OOM in training\n\nTraining Progress:   6%|▌         | 9/150 [23:07<5:43:53, 146.34s/it]\n",
	} {
		if d := diagnose(t, message); d == nil || d.Failure.Kind != Host || d.Causes[0].Cause != HostMemory {
			t.Errorf("%q: not the machine's memory", message)
		}
	}
}

// The size asked for, in the wordings of libraries beside PyTorch.
func TestLibrariesSizes(t *testing.T) {
	for message, want := range map[string]units.Bytes{
		"Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 space Device stream 0x397eefa0 size 1073741824 bytes (cudaMalloc error out of memory [2])\n": 1073741824,
		"[E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory (Requested size was 15862857728 bytes.)\n":                                                                            15862857728,
		"jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 98697216 bytes for new constant\n":                                                                                              98697216,
		"RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB\n":                                                                                            268435456,
		"$ Torch: not enough memory: you tried to reallocate 11GB. Buy new RAM! at /tmp/THGeneral.c:251\n":                                                                                                  11 * units.GiB,
	} {
		if d := diagnose(t, message); d == nil || d.Failure.Facts.Tried == nil || *d.Failure.Facts.Tried != want {
			t.Errorf("%q: the size is not %d", message, want)
		}
	}
}

// A card that the message does not number has processes all the same.
func TestCardWithoutNumber(t *testing.T) {
	for _, gpu := range []string{"", "\a", "^G"} {
		cardWithoutNumber(t, gpu)
	}
}

func cardWithoutNumber(t *testing.T, gpu string) {
	d := diagnose(t, "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 66.00 MiB. GPU "+gpu+" has a total capacity of 79.14 GiB of which 25.69 MiB is free. Process 8674 has 28.09 GiB memory in use. Including non-PyTorch memory, this process has 50.95 GiB memory in use. Of the allocated memory\n[rank5]: 49.39 GiB is allocated by PyTorch, and 825.12 MiB is reserved by PyTorch but unallocated.\n")
	if f := d.Failure.Facts; f.GPU != nil || f.Total == nil || f.Free == nil || len(f.Others) != 1 || d.Causes[0].Cause != OtherProcess {
		t.Errorf("facts %+v, first cause %s", f, d.Causes[0].Cause)
	}
}

// A batch of one is not halved, and one that works is not what failed.
func TestBatchOfOneIsToldOf(t *testing.T) {
	for said, want := range map[string]bool{
		"Even batch_size=1 was tried.":            true,
		"Every batch size is set to 1 and fails.": true,
		"With batch size 1 it works fine.":        false,
		"The batch size is 16.":                   false,
		"The batch size is 1.5 times as large.":   false,
	} {
		d := diagnose(t, "# It fails in training\n\n"+smallMessage+said+"\n  File \"/w/a.py\", line 3, in <module>\n    loss.backward()\n")
		if halves := strings.Contains(kinds(d), "generic_batch"); d.Run.Told.One != want || halves == want {
			t.Errorf("%q: told of a batch of one %v, halving advised %v", said, d.Run.Told.One, halves)
		}
	}
}

// A run that works on the CPU was not meant for it.
func TestMeantForTheCPU(t *testing.T) {
	for said, want := range map[string]bool{"It was to run in CPU mode.": true, "It works fine in CPU mode.": false, "It does not work in CPU mode.": true} {
		d := diagnose(t, "# It fails\n\n"+smallMessage+said+"\n")
		if found := slices.ContainsFunc(d.Causes, func(f Finding) bool { return f.Cause == WrongDevice }); found != want {
			t.Errorf("%q: meant for the CPU %v, want %v", said, found, want)
		}
	}
}

// The words may outweigh what a whole traceback shows, never what a cut one does, nor nanoGPT's own calls.
func TestWordsOutweighCalls(t *testing.T) {
	const words = "generate() in gradio, inference demo: pipe(prompt), predict and sample an image, upscale, chat with the webui\n"
	const inner = "  File \"/w/test.py\", line 4, in run_test\n    out = model(x)\n  File \"/e/site-packages/torch/nn/modules/module.py\", line 5, in _call_impl\n    return forward_call(*args)\n"
	const whole = "Traceback (most recent call last):\n  File \"/w/test.py\", line 3, in <module>\n    run_test(x)\n" + inner
	for name, c := range map[string]struct {
		log     string
		phase   Phase
		guessed bool
	}{
		"a whole traceback alone":     {whole + smallMessage, Eval, false},
		"a whole traceback and words": {words + whole + smallMessage, Sample, true},
		"a cut one and words":         {words + inner + smallMessage, Eval, false},
		"nanoGPT's and words":         {"Overriding: batch_size = 64\n" + words + whole + smallMessage, Eval, false},
	} {
		if d := diagnose(t, c.log); d.Phase != c.phase || d.Guessed() != c.guessed {
			t.Errorf("%s: %s, guessed %v, want %s, %v", name, d.Phase, d.Guessed(), c.phase, c.guessed)
		}
	}
}

// What others hold is not told as nothing where nobody knows it.
func TestFreeingTheCardWithoutSizes(t *testing.T) {
	d := diagnose(t, "  File \"/w/a.py\", line 3, in <module>\n    model.cuda()\nRuntimeError: CUDA error: out of memory\n")
	i := slices.IndexFunc(d.Fixes, func(f Fix) bool { return f.Kind == "free_card" })
	if i < 0 || d.Fixes[i].Effect.ID != "fix.free_card.effect_unknown" {
		t.Errorf("fixes %s", kinds(d))
	}
}

// Saving has a remedy of its own, the first one.
func TestSavingFromTheCPU(t *testing.T) {
	d := diagnose(t, "  File \"/w/t.py\", line 9, in <module>\n    torch.save(model.state_dict(), path)\n  File \"/e/site-packages/torch/serialization.py\", line 5, in save\n"+smallMessage)
	if d.Phase != Save || len(d.Fixes) == 0 || d.Fixes[0].Kind != "save_cpu" {
		t.Errorf("phase %s, fixes %s", d.Phase, kinds(d))
	}
}
