package oom

import (
	"fmt"
	"strings"
	"testing"
)

// cutReports are "phase | form | calls": h keeps a traceback's head and ends inside a line, without a message, t keeps its
// tail with the message, b is a bare source line above it.
const cutReports = `
forward | h | pytorch_lightning/trainer/trainer.py fit: call._call_and_handle_interrupt(; pytorch_lightning/trainer/call.py _call_and_handle_interrupt: return trainer_fn(*args, **kwargs); pytorch_lightning/loops/fit_loop.py advance: self.epoch_loop.run(self._data_fetcher); pytorch_lightning/loops/training_epoch_loop.py advance: batch_outp
eval | h | /w/run.py main: trainer.fit(model, dm); pytorch_lightning/trainer/trainer.py _run_sanity_check: val_loop.run(); pytorch_lightning/loops/evaluation_loop.py _evaluation_step: output = call._call_strategy_hook(trainer, hook_name, *step_args.va
backward | h | pytorch_lightning/trainer/trainer.py fit; pytorch_lightning/loops/optimization/automatic.py closure: self._backward_fn(step_output.closure_loss); pytorch_lightning/core/module.py backwa
optimizer | t | pytorch_lightning/core/module.py optimizer_step: optimizer.step(closure=optimizer_closure); torch/optim/optimizer.py wrapper: out = func(*args, **kwargs); torch/optim/adamw.py step: has_complex = self._init_group(; torch/optim/adamw.py _init_group: state["exp_avg_sq"] = torch.zeros_like(
forward | h | /w/finetune.py train: trainer.train(); transformers/trainer.py train: return inner_training_loop(; transformers/trainer.py _inner_training_loop: tr_loss_step = self.training_step(mode
backward | h | transformers/trainer.py train; transformers/trainer.py training_step: self.accelerator.backw
eval | h | transformers/trainer.py train; transformers/trainer.py _maybe_log_save_evaluate: metrics = self.evaluate(ignore_keys=ignore_keys_for_eval); transformers/trainer.py evalua
load | h | /w/serve.py <module>: model = AutoModelForCausalLM.from_pre
load | h | /w/serve.py load: tokenizer, model = get_model(path); /w/serve.py get_model: model = LlavaForConditionalGeneration.from_pretrained(path, torch_dtype="auto"); transformers/modeling_utils.py from_pretrained: model, missing = cls._load_pretra
init | h | /w/train.py main: model, optimizer, loader = accelerator.prepare(model, optimizer, loader); accelerate/accelerator.py prepare: result = tuple(; accelerate/accelerator.py prepare_model: model = model.to(self.dev
init | h | /w/ds_train.py main: engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model); deepspeed/__init__.py initialize: engine = DeepSpeedEngine(args=args; deepspeed/runtime/engine.py __init__: self._configure_optimizer(optimizer, model_parameters); deepspeed/runtime/zero/stage_1_and_2.py __init__: self.single_partition_of_fp32_groups.append(
optimizer | h | /w/ds_train.py main: engine.step(); deepspeed/runtime/engine.py step: self._take_model_step(lr_kwargs); deepspeed/runtime/engine.py _take_model_step: self.optimizer.st
backward | h | /w/ds_train.py main: engine.backward(loss); deepspeed/utils/nvtx.py wrapped_fn: ret_val = func(*args, **kwa
init | h | /w/fsdp.py main: model = FSDP(model, auto_wrap_policy=policy); torch/distributed/fsdp/fully_sharded_data_parallel.py __init__: _auto_wrap(; torch/distributed/fsdp/_wrap_utils.py _auto_wra
forward | t | torch/distributed/fsdp/fully_sharded_data_parallel.py forward: output = self._fsdp_wrapped_module(*args, **kwargs); torch/nn/modules/module.py _call_impl: return forward_call(*args, **kwargs)
forward | h | /w/Megatron-LM/pretrain_gpt.py <module>: pretrain(train_valid_test_datasets_provider; /w/Megatron-LM/megatron/training/training.py train: train_step(forward_step_func; /w/Megatron-LM/megatron/training/training.py train_step: losses_reduced = forward_backward_func(; /w/Megatron-LM/megatron/core/pipeline_parallel/schedules.py forward_step: output_tensor, loss_func = forward_step_func(data_it
backward | h | /w/Megatron-LM/megatron/training/training.py train_step: losses_reduced = forward_backward_func(; /w/Megatron-LM/megatron/core/pipeline_parallel/schedules.py forward_backward_no_pipelining: backward_step(input_tensor, output_tensor; /w/Megatron-LM/megatron/core/pipeline_parallel/schedules.py backward_step: custom_backward(output_tensor[0
init | h | /w/Megatron-LM/megatron/training/training.py pretrain: model, optimizer, opt_param_scheduler = setup_model_and_optimizer(; /w/Megatron-LM/megatron/training/training.py setup_model_and_optimizer: model = get_model(model_provider_func, model_type); /w/Megatron-LM/megatron/training/training.py get_model: model_module.cuda(torch.cuda.curr
forward | h | /w/tools/train.py main: runner.train(); mmengine/runner/runner.py train: model = self.train_loop.run(); mmengine/runner/loops.py run_iter: outputs = self.runner.model.train_step(data_batch; mmengine/model/wrappers/distributed.py train_step: losses = self._run_forward(data, mode='l
eval | h | /w/tools/test.py main: runner.test(); mmengine/runner/runner.py test: metrics = self.test_loop.run(); mmengine/runner/loops.py run_iter: outputs = self.runner.model.test_step(dat
eval | h | mmengine/runner/runner.py train; mmengine/runner/loops.py run: self.runner.val_loop.run(); mmengine/runner/loops.py run_iter: outputs = self.runner.model.val_st
backward | h | mmcv/runner/iter_based_runner.py train: self.call_hook('after_train_iter'); mmcv/runner/hooks/optimizer.py after_train_iter: runner.outputs["lo
forward | h | /w/plain_train.py do_train: loss_dict = model(data); torch/nn/modules/module.py _call_impl: return forward_ca
optimizer | h | detectron2/engine/train_loop.py train: self.run_step(); detectron2/engine/defaults.py run_step: self._trainer.run_step(); detectron2/engine/train_loop.py run_step: self.optimizer.s
eval | h | detectron2/engine/hooks.py after_step: self._do_eval(); detectron2/engine/defaults.py test_and_save_results: self._last_eval_results = self.test(self.cfg, self.model); detectron2/evaluation/evaluator.py inference_on_dataset: outputs = model(inpu
forward | h | <ipython> <module>: learn.fit_one_cycle(4, 1e-3); fastai/callback/schedule.py fit_one_cycle: self.fit(n_epoch, cbs=ParamScheduler(scheds)+L(cbs)); fastai/learner.py fit: self._with_events(self._do_fit, 'fit'; fastai/learner.py _do_epoch_train: self._with_events(self.all_batches, 'tr
eval | h | fastai/learner.py fit; fastai/learner.py _do_epoch: self._do_epoch_validate(); fastai/learner.py _do_epoch_validate: with torch.no_grad(): self._with_events(self.all_bat
backward | h | fastai/learner.py _do_one_batch: self._with_events(self._backward, 'backward', CancelBackwardException); fastai/learner.py _backward: def _backward(self): self.loss_grad.backw
forward | h | fairseq_cli/train.py train: log_output = trainer.train_step(samples); fairseq/trainer.py train_step: loss, sample_size_i, logging_output = self.task.train_step(; fairseq/tasks/fairseq_task.py train_step: loss, sample_size, logging_output = criterion(model, sam
optimizer | h | fairseq_cli/train.py train: log_output = trainer.train_step(samples); fairseq/trainer.py train_step: self.task.optimizer_step(; fairseq/tasks/fairseq_task.py optimizer_step: optimizer.step(); fairseq/optim/fp16_optimizer.py step: self.fp32_optimizer.st
sample | h | fairseq_cli/generate.py _main: hypos = task.inference_step(generator, models, sample; fairseq/sequence_generator.py generate: return self._generate(sample, **kw
eval | h | espnet2/train/trainer.py run: cls.validate_one_epoch(; espnet2/train/trainer.py validate_one_epoch: retval = model(**bat
sample | h | espnet2/bin/asr_inference.py inference: results = speech2text(**batch); espnet2/bin/asr_inference.py __call__: enc, enc_olens = self.asr_model.enco
forward | h | spacy/cli/train.py train_cli: train(config_path; spacy/training/loop.py train_while_improving: nlp.update(; spacy/language.py update: proc.update(examples, sgd=None, losses=losses, **component_cfg[name]); spacy/pipeline/tagger.pyx upd
forward | h | /w/rnn.py main: history = model.fit(x, y, epochs=3, validation_data=(x_test, y_test)); keras/src/utils/traceback_utils.py error_handler: raise e.with_traceback(filtered_t
eval | h | /w/rnn.py main: score = model.evaluate(x_test, y_test); keras/src/utils/traceback_utils.py error_hand
sample | h | /w/rnn.py main: y = model.predict(x); keras/src/utils/traceback_utils.py error_hand
backward | h | /w/tf2.py train_step: grads = tape.gradient(loss, model.trainable_variables); tensorflow/python/eager/backprop.py gradient: flat_grad = imperative_grad.impera
optimizer | h | /w/tf2.py train_step: optimizer.apply_gradients(zip(grads, model.trainable_variables)); keras/src/optimizers/base_optimizer.py apply_gradi
init | h | /w/tf1.py main: sess.run(tf.global_variables_initializer()); tensorflow/python/client/session.py run: result = self._run(None, fetches, feed_di
forward | h | /w/tf1.py main: _, l = sess.run([train_op, loss], feed_dict=feed); tensorflow/python/client/session.py run: result = self._run(None, fetches, feed_di
forward | h | /w/flax_train.py main: state, metrics = p_train_step(state, batch, rng); jax/_src/traceback_util.py reraise_with_filtered_traceback: return fun(*arg
optimizer | h | /w/vit.py step: updates, opt_state = tx.update(grads, opt_state, params); optax/_src/combine.py update_fn: updates, new_s = fn(updates, s, params, **ext
init | h | /w/flax_train.py main: variables = model.init(rng, jnp.ones((1, 224, 224, 3))); flax/linen/module.py init: _, v_out = self.init_with_out
forward | h | /w/gcn.py train: out = model(data.x, data.edge_index); torch/nn/modules/module.py _call_impl: return forward_call(*args, **kwargs); torch_geometric/nn/conv/gcn_conv.py forwa
eval | h | /w/gcn.py test: out = model(data.x, data.adj_t); torch/nn/modules/module.py _call_im
forward | t | dgl/ops/spmm.py func: return gspmm(g, binary_op, reduce_op, x, y); dgl/backend/pytorch/sparse.py gspmm: return GSpMM.apply(*args)
sample | h | /w/yolo.py <module>: results = model("bus.jpg"); ultralytics/engine/model.py __call__: return self.predict(source, stream, **kwargs); ultralytics/engine/predictor.py stream_infer: preds = self.inference(im, *ar
forward | h | nnunetv2/run/run_training.py run_training: nnunet_trainer.run_training(); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py run_training: train_outputs.append(self.train_step(next(self.dataloader_train))); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py train_step: output = self.network(da
eval | h | nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py run_training: val_outputs.append(self.validation_step(next(self.dataloader_val))); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py validation_step: output = self.netw
eval | h | /w/monai_main.py main: val_outputs = sliding_window_inference(val_images, roi_size, 4, model); monai/inferers/utils.py sliding_window_inference: seg_prob_out = predictor(win_data, *args
sample | h | /w/sdxl.py <module>: image = pipe(prompt, num_inference_steps=30).images[0]; torch/utils/_contextlib.py decorate_context: return func(*args, **kwargs); diffusers/pipelines/stable_diffusion_xl/pipeline_stable_diffusion_xl.py __call__: noise_pred = self.un
forward | h | /w/sd-scripts/sdxl_train.py train: noise_pred = unet(noisy_latents, timesteps, text_embedding, vector_embedding); torch/nn/modules/module.py _call_im
init | h | vllm/entrypoints/llm.py __init__: self.llm_engine = LLMEngine.from_engine_args(; vllm/engine/llm_engine.py __init__: self._initialize_kv_caches(); vllm/engine/llm_engine.py _initialize_kv_caches: self.model_executor.initialize_cache(num_gpu_blo
sample | h | /w/ComfyUI/execution.py execute: output_data = get_output_data(obj); /w/ComfyUI/nodes.py sample: return common_ksampler(model, seed; /w/ComfyUI/comfy/samplers.py calc_cond_batch: output = model.apply_mod
sample | h | /w/stable-diffusion-webui/modules/call_queue.py f: res = list(func(*args, **kwargs)); /w/stable-diffusion-webui/modules/txt2img.py txt2img: processed = processing.process_images(p); /w/stable-diffusion-webui/modules/processing.py process_images_inner: x_samples_ddim = decode_latent_ba
sample | h | openrlhf/trainer/ppo_trainer.py fit: experience = self.experience_maker.make_experience(rand_prompts, **self.generate_kwargs); openrlhf/trainer/ppo_utils/experience_maker.py make_experience: sequences, attention_mask, action_mask = self.actor.gene
backward | h | trl/trainer/ppo_trainer.py step: train_stats = self.train_minibatch(; trl/trainer/ppo_trainer.py train_minibatch: self.accelerator.backw
sample | h | llama_cpp/llama.py create_completion: for token in self.generate(; llama_cpp/llama.py eval: self._ctx.dec
forward | b | x = torch.cat([a, b], dim=1)
forward | b | out = self.conv(x)
forward | b | attn = q @ k.transpose(-2, -1)
forward | b | return F.scaled_dot_product_attention(q, k, v)
backward | b | loss.backward()
optimizer | b | optimizer.step()
load | b | state = torch.load(path)
init | b | model = Net().cuda()
init | b | model.to(device)
load | b | model = AutoModel.from_pretrained(name)
forward | b | hidden = self.act(self.fc1(hidden))
sample | b | out = model.generate(**inputs, max_new_tokens=512)
`

// A report that is cut shows its phase by what is left of it.
func TestPhaseOfCutReports(t *testing.T) {
	titles := []string{"# OOM on a 3090", "# CUDA OOM", "# Getting out of memory here", "# Run out of VRAM"}
	n := 0
	for want, row := range cases(cutReports) {
		form, text, _ := strings.Cut(row, " | ")
		var log strings.Builder
		switch form {
		case "h":
			log.WriteString(titles[n%len(titles)] + "\n\nTraceback (most recent call last):\n")
		case "b":
			log.WriteString("Hello, I see this error:\n    " + text + "\n")
			text = ""
		}
		for call := range strings.SplitSeq(text, "; ") {
			if call == "" {
				continue
			}
			place, code, _ := strings.Cut(call, ": ")
			path, fn, _ := strings.Cut(place, " ")
			if path[0] != '/' && path[0] != '<' {
				path = site + path
			}
			fmt.Fprintf(&log, "  File \"%s\", line 12, in %s\n", path, fn)
			if code != "" {
				fmt.Fprintf(&log, "    %s\n", code)
			}
		}
		whole := strings.TrimSuffix(log.String(), "\n")
		if form != "h" {
			whole += "\n" + torchMessage + "\n"
		}
		l, err := Read(strings.NewReader(whole))
		if got := l.Phase(); err != nil || l.Failure() == nil || got != want {
			t.Errorf("%s, want %s: %s; %v", got, want, row, err)
		}
		n++
	}
}
