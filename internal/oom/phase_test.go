package oom

import (
	"strings"
	"testing"
)

const site = "/env/lib/python3.11/site-packages/"

// calls writes a traceback down: "path func: code" a line, "." for the user's own file.
func calls(text string) Traceback {
	var t Traceback
	for line := range strings.SplitSeq(strings.TrimSpace(text), ";") {
		call, code, _ := strings.Cut(strings.TrimSpace(line), ": ")
		path, fn, _ := strings.Cut(call, " ")
		switch {
		case path == ".":
			path = "work.py"
		case path == "CALL":
			path, fn = site+"torch/nn/modules/module.py", "_call_impl"
		case strings.Contains(path, "/") && path[0] != '/':
			path = site + path
		}
		class, fn := qualified(fn)
		t = append(t, Frame{Path: path, Class: class, Func: fn, Code: code})
	}
	return t
}

// What is done, whoever calls it: the innermost calls of the frameworks.
func TestPhaseByFramework(t *testing.T) {
	for phase, rows := range map[Phase]string{
		Backward: `
			. step: loss.backward()
			. closure_and_more: self.scaler.scale(loss / n).backward()
			. fit_batch; torch/_tensor.py backward; torch/autograd/__init__.py backward
			deepspeed/runtime/engine.py backward: self.optimizer.backward(loss, retain_graph=retain_graph)
			. train; accelerate/accelerator.py backward: loss.backward(**kwargs)
			. main: grads = torch.autograd.grad(out, x)
			. main: grads = tape.gradient(loss, variables)
			. train_step; torch/autograd/function.py apply: return user_fn(self, *args); torch/utils/checkpoint.py backward; CALL; . forward
			jax/_src/interpreters/ad.py backward_pass
			. train; fairseq/tasks/fairseq_task.py train_step: optimizer.backward(loss)
			. train: manual_backward(loss)
			colossalai/booster/booster.py backward`,
		Optimizer: `
			. train: optimizer.step()
			. train: self.optimizers['G'].step()
			. train: opt_disc.step()
			. train; torch/optim/optimizer.py wrapper; torch/optim/adamw.py step; torch/optim/adamw.py _init_group
			. train: scaler.step(optimizer)
			. train: scaler.unscale_(optimizer)
			. train; torch/nn/utils/clip_grad.py clip_grad_norm_
			. train: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
			bitsandbytes/optim/optimizer.py step; bitsandbytes/optim/optimizer.py init_state
			transformers/optimization.py step: exp_avg.mul_(beta1)
			deepspeed/runtime/engine.py step; deepspeed/runtime/engine.py _take_model_step: self.optimizer.step()
			apex/optimizers/fused_adam.py step
			. train; timm/optim/lamb.py step
			pytorch_lightning/core/module.py optimizer_step; torch/optim/lr_scheduler.py wrapper; torch/optim/adam.py step
			keras/src/optimizers/base_optimizer.py apply_gradients`,
		Load: `
			. main: ckpt = torch.load(path)
			. main; torch/serialization.py load; torch/serialization.py _cuda_deserialize
			. evaluate: model.load_state_dict(state)
			. main: model = AutoModelForCausalLM.from_pretrained(name)
			transformers/modeling_utils.py from_pretrained; transformers/modeling_utils.py _load_pretrained_model
			transformers/modeling_utils.py from_pretrained; torch/nn/modules/module.py to
			accelerate/utils/modeling.py set_module_tensor_to_device: new_value = value.to(device)
			. load_models_gpu: model.model_load(weights)
			. reload_model_weights; . load_model_weights
			diffusers/pipelines/pipeline_utils.py from_pretrained
			. main: unet.load_attn_procs(lora)
			safetensors/torch.py load_file
			transformers/trainer.py train; transformers/trainer.py _load_optimizer_and_scheduler; torch/optim/optimizer.py load_state_dict; torch/optim/optimizer.py cast
			detectron2/checkpoint/detection_checkpoint.py load; fvcore/common/checkpoint.py load
			mmcv/runner/checkpoint.py load_checkpoint
			tensorflow/python/training/saver.py restore
			vllm/model_executor/model_loader/loader.py load_model; vllm/model_executor/models/llama.py load_weights
			. resume_checkpoint: torch.load(f)
			whisper/__init__.py load_model: model.load_state_dict(checkpoint)`,
		Init: `
			. main: model = Net().cuda()
			. main: model.to(device)
			. main; torch/nn/modules/module.py to; torch/nn/modules/module.py _apply
			. demo; torch/nn/modules/module.py cuda
			. evaluate; torch/nn/modules/module.py cuda; torch/nn/modules/module.py _apply
			. __init__; torch/nn/modules/linear.py __init__
			. main; . __init__: self.embed = nn.Embedding(vocab, dim); torch/nn/modules/sparse.py __init__; torch/nn/init.py normal_
			. main: model = DistributedDataParallel(model)
			. main; torch/nn/parallel/distributed.py __init__; torch/nn/parallel/distributed.py _sync_module_states
			torch/distributed/fsdp/wrap.py _wrap: return wrapper_cls(module, **kwargs)
			accelerate/accelerator.py prepare; accelerate/accelerator.py _prepare_one; accelerate/accelerator.py prepare_model: model = model.to(self.device)
			. train; deepspeed/__init__.py initialize; deepspeed/runtime/engine.py __init__; deepspeed/runtime/engine.py _configure_distributed_model
			vllm/worker/gpu_worker.py determine_available_memory; vllm/worker/gpu_model_runner.py profile_run; CALL; vllm/model_executor/models/llama.py forward
			vllm/worker/gpu_model_runner.py capture_model; CALL; vllm/model_executor/models/llama.py forward
			torch/cuda/__init__.py _lazy_init
			. build_model: net.cuda()
			. train_model; . create_model; torch/nn/modules/module.py cuda`,
		Compile: `
			. train; CALL; torch/_dynamo/eval_frame.py _fn; torch/_dynamo/convert_frame.py _compile; torch/_inductor/compile_fx.py compile_fx; torch/_inductor/compile_fx.py fx_codegen_and_compile
			. train; CALL; torch/_inductor/runtime/triton_heuristics.py autotune_to_one_config; torch/_inductor/runtime/triton_heuristics.py bench
			triton/runtime/autotuner.py run; triton/runtime/autotuner.py _bench; triton/testing.py do_bench
			jax/_src/compiler.py backend_compile
			. train; torch/_tensor.py backward; torch/_inductor/compile_fx.py bw_compiler`,
		Forward: `
			. train; CALL; . forward
			. train: loss = criterion(out, y)
			. train; CALL; torch/_dynamo/eval_frame.py compile_wrapper; torch/_inductor/output_code.py __call__; /tmp/torchinductor_me/ab/cab.py call
			. forward: x = self.conv(x)
			. training_step: z = self.encode(x)
			. train; . compute_loss
			torch/nn/functional.py linear
			diffusers/models/attention_processor.py get_attention_scores
			. train; . generate_anchors; CALL; . forward
			. train_step; CALL; . forward; . sample: eps = torch.randn_like(std)
			. forward_backward_step; CALL; . forward
			pytorch_lightning/core/module.py optimizer_step; torch/optim/adam.py step; . closure; . training_step; CALL; . forward
			torch/optim/adamw.py step: loss = closure(); . closure; CALL; . forward`,
	} {
		for row := range strings.SplitSeq(strings.TrimSpace(rows), "\n") {
			if got := calls(row).Phase(); got != phase {
				t.Errorf("%s: %s, want %s", strings.TrimSpace(row), got, phase)
			}
		}
	}
}

// What a forward pass is for, by names that nobody has listed.
func TestPhaseByNames(t *testing.T) {
	for phase, names := range map[Phase]string{
		Eval: `evaluate eval validate do_valid run_val evaluate_ppl EvalLoop.run validation_epoch_end validation_step eval_one_epoch test test_epoch
			TestRunner.run testModel valEpoch _run_sanity_check prediction_step compute_metrics_on_test single_gpu_test inference_on_dataset_eval
			Evaluator.__call__ ValLoop.run estimate_loss run_validation evalModel log_validation calc_perplexity`,
		Sample: `generate generate_samples sample_images p_sample_loop inference_detector run_inference infer_batch predict predict_step InferenceEngine.run
			chat stream_chat txt2img process_images denoise_image transcribe translate_sentence synthesize detect_faces upscale enhance
			doInference Predictor.__call__ make_prediction get_predictions generateText text2video`,
		Forward: `train train_one_epoch fit training_step Trainer.train finetune run_epoch pretrain trainIters do_train train_model main work`,
	} {
		for name := range strings.FieldsSeq(names) {
			if got := calls(". main; . " + name + "; CALL; . forward").Phase(); got != phase {
				t.Errorf("%s: %s, want %s", name, got, phase)
			}
		}
	}
}

// Functions speak louder than files, the innermost function louder than those around it.
func TestPhaseByOrder(t *testing.T) {
	for row, want := range map[string]Phase{
		"/w/train.py main; . validate; CALL; . forward":                                                  Eval,
		"/w/train.py train; . evaluate; CALL; . forward":                                                 Eval,
		"/w/test.py main; . train; CALL; . forward":                                                      Forward,
		"/w/test.py <module>; CALL; . forward":                                                           Eval,
		"/w/demo.py <module>; CALL; . forward":                                                           Sample,
		"/w/demo.py <module>: l = loss_fn(a, b); CALL; torch/nn/modules/loss.py forward":                 Forward,
		"/w/train_and_eval.py main; CALL; . forward":                                                     Forward,
		"/w/train.py train_and_evaluate; . train_epoch; CALL; . forward":                                 Forward,
		"/w/ppo.py train; . rollout; torch/utils/_contextlib.py decorate_context; . generate; CALL; . f": Sample,
		"/w/eval.py evaluate; . generate; CALL; . forward":                                               Eval,
		"/w/x.py main; torch/utils/_contextlib.py decorate_context; . extract; CALL; . forward":          Sample,
		"gradio/routes.py run_predict; /w/ui.py click; CALL; . forward":                                  Sample,
		"gradio/routes.py run_predict; /w/ui.py start_training; . train; CALL; . forward":                Forward,
		"/w/resume.py resume_training; . train_loop; CALL; . forward":                                    Forward,
		"/w/run.py load_model; . warm; . predict; CALL; . forward":                                       Sample,
		"/w/tune.py objective; . __init__; . fit; CALL; . forward":                                       Forward,
		"/w/train.py main; torch/nn/parallel/distributed.py forward; CALL; . validation_step; . forward": Eval,
		"/w/train.py main":          UnknownPhase,
		"/w/work.py main; . helper": UnknownPhase,
	} {
		if got := calls(row).Phase(); got != want {
			t.Errorf("%s: %s, want %s", row, got, want)
		}
	}
}
