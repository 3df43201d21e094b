package oom

import (
	"slices"
	"strings"
	"testing"
)

// A sentence's clause that tells of the failure names the phase; one that says what goes well, or what to avoid, does not.
func TestPhaseByClause(t *testing.T) {
	for want, text := range cases(`
eval | The epochs run smoothly at 9 GB. Only while validating is the exception raised.
eval | The fit itself is fine, but as soon as it reaches validation the card is full and it crashes.
eval | It is the test phase that keeps increasing the memory.
eval | Strangely it dies in the last evaluation, whereas training works with the same batch.
backward | No error in the forward pass, it fails in the backward pass.
forward | The checkpoint loads without problems, then the first forward pass fails.
save | It runs out of memory when saving the last checkpoint.
save | Memory is exhausted by model checkpointing under FSDP.
compile | The conversion of the model to ONNX fails for lack of memory.
compile | It crashes while exporting to TensorRT.
init | It crashes when launching the start-webui script.
init | The server cannot start, memory is exhausted at once.
init | It fails while capturing the CUDA graphs.
optimizer | The memory overhead in the optimizer step ends in a crash.
unknown | The saved model leads to a crash.
sample | Did anybody else see this problem while testing the demo?
sample | 用 demo 推理的时候报错
eval | 训练正常，验证的时候显存就爆了
forward | It happened during training.
forward | It always crashes after a few steps.
forward | The error comes while starting an epoch.
load | It gets killed while loading pyg-6b_dev and other models.
load | The process dies when loading the trained model.
eval | It crashes when evaluating the loaded model.
data | It is killed while loading the validation dataset.
data | It runs out of memory in the pre-processing.
save | It crashes during the checkpointing.
forward | It fails in the forward pass despite gradient checkpointing.
save | 保存模型的时候内存不足
data | 数据加载的时候被杀
init | Using vllm, the model is initialised with every request leading to a crash.
unknown | This may cause some inputs to fail during inference.
unknown | To avoid running out of memory in evaluation, set eval_accumulation_steps.
unknown | An OOM does not happen in evaluation.
init | The error seems to be caused by ´.to(device)´.
unknown | I get an error with ´python -c "from exp.tests.test_gan import Testing; Testing().test_train(debug=False)"´
backward | It always stops at this line:#loss.backward()
forward | the crash is at the following line:##logits = unet(batch)
compile | The error occurs in:#engine = torch2trt(net, [example], fp16_mode=True)
unknown | This is the following line of the log:#nothing to see here (really)
`) {
		l, err := Read(strings.NewReader("# Help needed\n\n" + strings.NewReplacer("#", "\n", "´", "`").Replace(text) + "\n\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", text, l.Phase(), want, err)
		}
	}
}

// What a program prints shows it too, whatever stands before the line; a warning's source line is no call.
func TestPhaseByOutput(t *testing.T) {
	for want, text := range cases(`
eval | 0: Running validation on dev set
forward | INFO:tensorflow:global step 512: loss = 0.4210 (0.391 sec/step)
forward | 01/02 10:20:30 - mmengine - INFO - Epoch(train)  [3][50/400]  lr: 1.0e-03  memory: 7000  loss: 0.8
eval | 01/02 10:20:30 - mmengine - INFO - Epoch(val)  [3][50/400]  data_time: 0.1
init | (RayWorker pid=77) INFO 01-02 03:04:05 [model_runner.py:99] Capturing cudagraphs for decoding. This may take a while.
compile | /w/net.py:12: TracerWarning: Converting a tensor to a Python boolean might cause the trace to be incorrect.#  attn = attn.repeat(2, 1) if n > 1 else attn
compile | No ONNX file found. Exporting ONNX...#/w/net.py:12: TracerWarning: Converting a tensor to a Python float.
unknown | Training from scratch on one card I see this:
forward | W tensorflow/core/framework/op_kernel.cc:1202] OP_REQUIRES failed at tile_ops.cc:123 : Resource exhausted: OOM when allocating tensor with shape[16,1,8] and type float
backward | W tensorflow/core/framework/op_kernel.cc:1202] OP_REQUIRES failed at conv_grad_input_ops.cc:936 : Resource exhausted: OOM when allocating tensor with shape[16,1,8] and type float
optimizer | W tensorflow/core/framework/op_kernel.cc:1202] OP_REQUIRES failed at training_ops.cc:22 : Resource exhausted: OOM when allocating tensor with shape[16,8] and type float
init | W tensorflow/core/framework/op_kernel.cc:1202] OP_REQUIRES failed at assign_op.h:12 : Resource exhausted: OOM when allocating tensor with shape[16,8] and type float
backward | train_ft.py:12 _forward_backward_step -> torch/_tensor.py:623 backward -> torch/autograd/graph.py:9 _engine_run_backward
sample | serve.py:5 answer → model.py:80 generate → layers.py:7 forward
init | Exception in worker P0 while processing method determine_num_available_blocks.
init | jcuda.CudaException: CUDA_ERROR_OUT_OF_MEMORY#    at jcuda.driver.JCudaDriver.cuCtxCreate(JCudaDriver.java:1514)
init |     self.mean = torch.from_numpy(mean).float().cuda()
init | 1、File "train.py", line 82, in <module>#    model_func = model_func.cuda()
init | File "/w/ui/app.py", line 72, in infer#    pipe.to(device)
optimizer |     fp32_param.grad = fp16_param.grad.to(fp32_param.dtype)
save | File "/w/fsdp.py", line 3, in save_ckpt#    state = model.state_dict()#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 2, in state_dict#    hook(self, prefix, keep_vars)
sample | $ python test_image.py --image one.jpg
sample | python infer_finetuning.py
sample | $ sh command/mesh_infer/baseline.sh
load | Loading skip-thoughts...
unknown | Loading tokenizer...
unknown | Loading images...
forward | {'loss': 0.66, 'learning_rate': 5.1e-06, 'epoch': 0.74}
forward | /w/site-packages/keras/engine/training.pyc in fit(self, x, y, batch_size)#-> 1196                               initial_epoch=initial_epoch)
load | File "/env/lib/python3.11/site-packages/auto_gptq/modeling/auto.py", line 3, in from_quantized#    model = quant_func(
init | File "/env/lib/python3.11/site-packages/vllm/v1/core/kv_cache_utils.py", line 714, in _check_enough_kv_cache_memory#    raise ValueError(
sample | File "/w/modules/face_restoration.py", line 19, in restore_faces#    return face_restorer.restore(np_image)
forward | File "/env/lib/python3.11/site-packages/mmdet/structures/bbox/bbox_overlaps.py", line 176, in bbox_overlaps#    wh = fp16_clamp(rb - lt, min=0)
`) {
		l, err := Read(strings.NewReader("some output\n" + strings.ReplaceAll(text, "#", "\n") + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", text, l.Phase(), want, err)
		}
	}
}

// What the one who reports it says of the cause is among the first three, where the message gives no number that says otherwise.
func TestCausesTold(t *testing.T) {
	for text, want := range map[string]Cause{
		"Even with no job of mine running, 13 GB are allocated by someone.":                       OtherProcess,
		"A zombie process keeps sitting on the card.":                                             OtherProcess,
		"推理时显存逐渐增加，最后报错":                                                                          Leak,
		"The memory usage is getting bigger with every image.":                                    Leak,
		"It leaks memory in each call.":                                                           Leak,
		"Solved: I forgot torch.no_grad() around the call of the demo.":                           EvalWithoutNoGrad,
		"It works after I set map_location='cpu' in the script.":                                  CheckpointOnGPU,
		"After 8000 iterations it ran out of memory.":                                             Leak,
		"Restarting from a checkpoint goes out of memory, a fresh run does not.":                  CheckpointOnGPU,
		"The train part is all right, the error appears afterwards, in the evaluation.":           EvalLargerThanTrain,
		"It fails during the export to ONNX.":                                                     Other,
		"RuntimeError: cuda runtime error (2) : out of memory at THC/THCCachingHostAllocator.cpp": HostMemory,
	} {
		message := "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"
		if want == HostMemory {
			message = ""
		}
		l, err := Read(strings.NewReader("# Help needed\n\n" + text + "\n\n" + message + "\n"))
		if err != nil || l.Failure() == nil {
			t.Errorf("%s: no failure; %v", text, err)
			continue
		}
		causes := Diagnose(Case{Log: l}).Causes
		first := causes[:min(len(causes), 3)]
		if !slices.ContainsFunc(first, func(f Finding) bool { return f.Cause == want }) {
			t.Errorf("%s: %+v, want %s", text, first, want)
		}
	}
}

// A report without a message is a failure where somebody says that memory ran out, and none where something else ended the run.
func TestAnnouncedByProse(t *testing.T) {
	for text, kind := range map[string]Kind{
		"# The system kills the process in val\nWhen validation begins it is killed by the system.":                          Host,
		"# System RAM OOM when training on two cards\nsee title":                                                             Host,
		"# Sliding window inference fails in the validation\nIt is always a cuda memory error with large images.":            Device,
		"# rising gpu memory usage\n  File \"a.py\", line 3, in train\n    out = model(x)\n":                                 Device,
		"# The worker is killed\nDataLoader worker (pid 7) is killed by signal: Segmentation fault":                          "",
		"# The loader is gone\nRuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.":                         Host,
		"# Conversion stops\n[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::161] Error Code 2: OutOfMemory (no info": Device,
	} {
		l, err := Read(strings.NewReader(text + "\n"))
		f := l.Failure()
		if err != nil || (f == nil) != (kind == "") || f != nil && f.Kind != kind {
			t.Errorf("%s: %+v, want %q; %v", text, f, kind, err)
		}
	}
}
