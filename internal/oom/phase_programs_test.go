package oom

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
)

// cases are lines of "phase | what shows it".
func cases(table string) func(yield func(Phase, string) bool) {
	return func(yield func(Phase, string) bool) {
		for row := range strings.SplitSeq(strings.TrimSpace(table), "\n") {
			if phase, text, _ := strings.Cut(row, " | "); !yield(Phase(phase), text) {
				return
			}
		}
	}
}

// programs are calls as programs of many fields make them; the libraries' names are theirs.
const programs = `
sample | /w/ComfyUI/execution.py execute: output_data, output_ui = get_output_data(obj, input_data_all); /w/ComfyUI/nodes.py sample: return common_ksampler(model, seed, steps); /w/ComfyUI/comfy/samplers.py sampling_function; /w/ComfyUI/comfy/model_base.py apply_model; CALL; /w/ComfyUI/comfy/ldm/modules/diffusionmodules/openaimodel.py forward
sample | /w/ComfyUI/execution.py execute; /w/ComfyUI/nodes.py decode: images = vae.decode(samples["samples"]); /w/ComfyUI/comfy/sd.py decode; CALL; /w/ComfyUI/comfy/ldm/modules/diffusionmodules/model.py forward
load | /w/ComfyUI/execution.py execute; /w/ComfyUI/nodes.py load_checkpoint: out = comfy.sd.load_checkpoint_guess_config(ckpt_path); /w/ComfyUI/comfy/sd.py load_checkpoint_guess_config; /w/ComfyUI/comfy/utils.py load_torch_file
load | /w/ComfyUI/execution.py execute; /w/ComfyUI/nodes.py sample; /w/ComfyUI/comfy/sample.py prepare_sampling; /w/ComfyUI/comfy/model_management.py load_models_gpu: cur_loaded_model = loaded_model.model_load(lowvram_model_memory); /w/ComfyUI/comfy/model_patcher.py patch_model_lowvram; torch/nn/modules/module.py to
sample | /w/stable-diffusion-webui/modules/call_queue.py f; /w/stable-diffusion-webui/modules/txt2img.py txt2img: processed = processing.process_images(p); /w/stable-diffusion-webui/modules/processing.py process_images_inner; /w/stable-diffusion-webui/modules/sd_samplers_kdiffusion.py sample; CALL; . forward
sample | /w/stable-diffusion-webui/modules/call_queue.py f; /w/stable-diffusion-webui/modules/extras.py run_extras; /w/stable-diffusion-webui/modules/esrgan_model.py do_upscale: upscaled = upscale_without_tiling(model, img); CALL; . forward
load | /w/stable-diffusion-webui/modules/initialize.py load_model; /w/stable-diffusion-webui/modules/sd_models.py load_model: load_model_weights(sd_model, checkpoint_info, state_dict, timer); /w/stable-diffusion-webui/modules/sd_models.py load_model_weights: model.load_state_dict(state_dict, strict=False)
forward | /w/stable-diffusion-webui/modules/textual_inversion/textual_inversion.py train_embedding: loss = shared.sd_model(x, c)[0] / gradient_step; CALL; . forward
forward | /w/sd-scripts/train_network.py train: noise_pred = self.call_unet(args, accelerator, unet); CALL; accelerate/utils/operations.py forward; . forward
init | /w/sd-scripts/train_network.py train: unet.to(accelerator.device, dtype=unet_weight_dtype); torch/nn/modules/module.py to; torch/nn/modules/module.py _apply
data | /w/sd-scripts/train_network.py train; /w/sd-scripts/library/train_util.py cache_latents: latents = vae.encode(img_tensors).latent_dist.sample(); diffusers/models/autoencoder_kl.py encode; CALL; . forward
sample | . <module>: image = pipe(prompt).images[0]; torch/utils/_contextlib.py decorate_context; diffusers/pipelines/stable_diffusion_xl/pipeline_stable_diffusion_xl.py __call__: image = self.vae.decode(latents).sample; diffusers/models/autoencoder_kl.py decode; CALL; . forward
init | . <module>: pipe = pipe.to("cuda"); diffusers/pipelines/pipeline_utils.py to: module.to(torch_device, torch_dtype); torch/nn/modules/module.py to; torch/nn/modules/module.py _apply
sample | /w/text-generation-webui/modules/callbacks.py gentask; /w/text-generation-webui/modules/text_generation.py generate_with_callback: shared.model.generate(**kwargs); transformers/generation/utils.py generate; CALL; . forward
load | /w/text-generation-webui/server.py <module>: shared.model, shared.tokenizer = load_model(shared.model_name); /w/text-generation-webui/modules/models.py load_model; /w/text-generation-webui/modules/models.py huggingface_loader: model = model.cuda(); torch/nn/modules/module.py cuda
sample | fastchat/serve/model_worker.py generate_stream_gate; fastchat/serve/inference.py generate_stream: out = model(input_ids=input_ids); CALL; transformers/models/llama/modeling_llama.py forward
load | fastchat/serve/model_worker.py __init__: self.model, self.tokenizer = load_model(; fastchat/model/model_adapter.py load_model: model.to(device); torch/nn/modules/module.py to
backward | /w/LLaMA-Factory/src/train.py main; llamafactory/train/tuner.py run_exp; llamafactory/train/sft/workflow.py run_sft; transformers/trainer.py train; transformers/trainer.py training_step: self.accelerator.backward(loss); accelerate/accelerator.py backward
forward | /w/LLaMA-Factory/src/train_bash.py main; transformers/trainer.py train; transformers/trainer.py training_step; transformers/trainer.py compute_loss: outputs = model(**inputs); CALL; torch/nn/parallel/data_parallel.py forward
eval | /w/run_clm.py main; transformers/trainer.py train; transformers/trainer.py _maybe_log_save_evaluate; transformers/trainer.py evaluate; transformers/trainer.py evaluation_loop; transformers/trainer_pt_utils.py nested_concat
optimizer | /w/run.py main; transformers/trainer.py train; transformers/trainer.py _inner_training_loop: self.optimizer.step(); accelerate/optimizer.py step; torch/optim/lr_scheduler.py wrapper; torch/optim/optimizer.py wrapper; bitsandbytes/optim/optimizer.py step
load | /w/run.py main; transformers/trainer.py train; transformers/trainer.py _load_from_checkpoint: state_dict = torch.load(; torch/serialization.py load
load | /w/run.py main; transformers/trainer.py _inner_training_loop; transformers/trainer.py _load_rng_state: torch.cuda.random.set_rng_state_all(checkpoint_rng_state["cuda"])
init | /w/run.py main; transformers/trainer.py __init__: self._move_model_to_device(model, args.device); transformers/trainer.py _move_model_to_device: model = model.to(device); torch/nn/modules/module.py to
init | /w/run.py train; transformers/trainer.py _inner_training_loop; accelerate/accelerator.py prepare; accelerate/accelerator.py _prepare_deepspeed; deepspeed/__init__.py initialize; deepspeed/runtime/engine.py __init__; deepspeed/runtime/engine.py _configure_optimizer; deepspeed/runtime/zero/stage_1_and_2.py __init__
init | /w/run.py main; transformers/integrations/deepspeed.py deepspeed_init; deepspeed/runtime/zero/partition_parameters.py wrapper; deepspeed/runtime/zero/partition_parameters.py _post_init_method: param.partition()
backward | /w/train.py train; deepspeed/runtime/engine.py backward; deepspeed/runtime/zero/stage3.py backward: self.loss_scaler.backward(loss.float(), retain_graph=retain_graph)
optimizer | /w/train.py train; deepspeed/runtime/engine.py step; deepspeed/runtime/engine.py _take_model_step; deepspeed/runtime/zero/stage3.py step: self._optimizer_step(sub_group_id); deepspeed/runtime/zero/stage3.py _optimizer_step
init | /w/serve.py <module>: llm = LLM(model=args.model); vllm/entrypoints/llm.py __init__; vllm/engine/llm_engine.py from_engine_args; vllm/engine/llm_engine.py _initialize_kv_caches; vllm/worker/worker.py determine_num_available_blocks; vllm/worker/model_runner.py profile_run; CALL; . forward
load | vllm/engine/llm_engine.py __init__; vllm/executor/gpu_executor.py _init_executor; vllm/worker/worker.py load_model; vllm/model_executor/model_loader/loader.py load_model; vllm/model_executor/model_loader/loader.py _initialize_model; vllm/model_executor/layers/linear.py create_weights
sample | vllm/engine/async_llm_engine.py engine_step; vllm/worker/worker.py execute_model; vllm/worker/model_runner.py execute_model; CALL; vllm/model_executor/models/mixtral.py forward
forward | /w/yolov5/train.py <module>: main(opt); /w/yolov5/train.py main; /w/yolov5/train.py train: pred = model(imgs); CALL; /w/yolov5/models/yolo.py forward
eval | /w/yolov5/train.py train: results, maps, _ = validate.run(data_dict; torch/utils/_contextlib.py decorate_context; /w/yolov5/val.py run: preds, train_out = model(im) ; CALL; . forward
eval | /w/yolov7/train.py train: results, maps, times = test.test(data_dict; /w/yolov7/test.py test: out, train_out = model(img, augment=augment); CALL; . forward
sample | /w/yolov5/detect.py run: pred = model(im, augment=augment, visualize=visualize); CALL; . forward
forward | ultralytics/engine/model.py train; ultralytics/engine/trainer.py _do_train: self.loss, self.loss_items = self.model(batch); CALL; ultralytics/nn/tasks.py forward; ultralytics/nn/tasks.py loss; ultralytics/utils/loss.py __call__; ultralytics/utils/tal.py get_box_metrics
eval | ultralytics/engine/trainer.py train; ultralytics/engine/trainer.py validate; torch/utils/_contextlib.py decorate_context; ultralytics/engine/validator.py __call__; CALL; . forward
forward | /w/tools/train.py main; mmengine/runner/runner.py train; mmengine/runner/loops.py run_iter: outputs = self.runner.model.train_step(; mmengine/model/base_model/base_model.py train_step; mmengine/model/base_model/base_model.py _run_forward; CALL; mmdet/models/detectors/base.py forward; mmdet/models/detectors/two_stage.py loss
backward | /w/tools/train.py main; mmcv/runner/epoch_based_runner.py train; mmcv/runner/hooks/optimizer.py after_train_iter: runner.outputs['loss'].backward(); torch/_tensor.py backward
eval | /w/tools/train.py main; mmcv/runner/epoch_based_runner.py train; mmcv/runner/hooks/evaluation.py after_train_epoch; mmcv/runner/hooks/evaluation.py _do_evaluate; mmdet/apis/test.py single_gpu_test; CALL; . forward
eval | /w/tools/test.py main: outputs = single_gpu_test(model, data_loader); mmseg/apis/test.py single_gpu_test; CALL; . forward
forward | /w/train_net.py main; detectron2/engine/defaults.py train; detectron2/engine/train_loop.py run_step: loss_dict = self.model(data); CALL; detectron2/modeling/meta_arch/rcnn.py forward; detectron2/modeling/proposal_generator/rpn.py predict_proposals
eval | /w/train_net.py main; detectron2/engine/defaults.py test; detectron2/evaluation/evaluator.py inference_on_dataset; CALL; . forward
sample | /w/demo.py <module>; detectron2/engine/defaults.py __call__: predictions = self.model([inputs])[0]; CALL; . forward
backward | fairseq_cli/train.py main; fairseq_cli/train.py train; fairseq/trainer.py train_step; fairseq/tasks/fairseq_task.py train_step: optimizer.backward(loss); fairseq/optim/fp16_optimizer.py backward; torch/_tensor.py backward
eval | fairseq_cli/train.py main; fairseq_cli/train.py validate_and_save; fairseq_cli/train.py validate; fairseq/trainer.py valid_step; CALL; . forward
sample | fairseq_cli/generate.py main: hypos = task.inference_step(; fairseq/tasks/fairseq_task.py inference_step; fairseq/sequence_generator.py generate; CALL; . forward
optimizer | fairseq/trainer.py train_step: self.optimizer.step(); fairseq/optim/adam.py step: state['exp_avg'] = torch.zeros_like(p_data_fp32)
forward | espnet2/bin/asr_train.py main; espnet2/train/trainer.py run; espnet2/train/trainer.py train_one_epoch: retval = model(**batch); CALL; espnet2/asr/espnet_model.py forward; espnet2/asr/espnet_model.py encode
eval | espnet2/train/trainer.py run; espnet2/train/trainer.py validate_one_epoch; CALL; . forward
sample | /w/whisper/transcribe.py cli; whisper/transcribe.py transcribe: result = model.decode(segment, options); CALL; whisper/decoding.py run; . forward
forward | sentence_transformers/SentenceTransformer.py fit: loss_value = loss_model(features, labels); CALL; . forward
sample | /w/embed_docs.py <module>: emb = model.encode(docs); sentence_transformers/SentenceTransformer.py encode; CALL; . forward
forward | . main: trainer.fit(model, dm); pytorch_lightning/trainer/trainer.py fit; pytorch_lightning/loops/optimization/automatic.py run; pytorch_lightning/core/module.py optimizer_step; torch/optim/adamw.py step: loss = closure(); pytorch_lightning/plugins/precision/precision.py _wrap_closure; pytorch_lightning/loops/optimization/automatic.py closure; pytorch_lightning/strategies/strategy.py training_step; . training_step; CALL; . forward
optimizer | . main: trainer.fit(model, dm); pytorch_lightning/trainer/trainer.py fit; pytorch_lightning/core/module.py optimizer_step; torch/optim/adamw.py step; torch/optim/adamw.py _multi_tensor_adamw
eval | . main: trainer.fit(model, dm); pytorch_lightning/trainer/trainer.py fit; pytorch_lightning/trainer/trainer.py _run_sanity_check; pytorch_lightning/loops/dataloader/evaluation_loop.py run; pytorch_lightning/strategies/strategy.py validation_step; . validation_step; . shared_step; CALL; . forward
sample | . main: trainer.predict(model, dl); pytorch_lightning/trainer/trainer.py predict; pytorch_lightning/strategies/strategy.py predict_step; . predict_step; CALL; . forward
init | . main: trainer.fit(model); pytorch_lightning/trainer/trainer.py fit; pytorch_lightning/strategies/strategy.py setup; pytorch_lightning/strategies/single_device.py model_to_device; torch/nn/modules/module.py to
forward | . <module>: model.fit(x, y); keras/src/utils/traceback_utils.py error_handler; keras/src/engine/training.py fit
sample | . <module>: p = model.predict(x_test); keras/engine/training.py predict; keras/engine/training_arrays.py predict_loop
eval | . <module>: model.evaluate(x_test, y_test); keras/engine/training.py evaluate
init | . <module>: sess.run(tf.global_variables_initializer()); tensorflow/python/client/session.py run
load | . <module>: saver.restore(sess, ckpt); tensorflow/python/training/saver.py restore
forward | /w/train.py main; . train_step: state, loss = p_train_step(state, batch); jax/_src/traceback_util.py reraise_with_filtered_traceback; jax/_src/pjit.py cache_miss
compile | /w/train.py main; jax/_src/traceback_util.py reraise_with_filtered_traceback; jax/_src/pjit.py cache_miss; jax/_src/interpreters/pxla.py compile; jax/_src/compiler.py backend_compile
init | /w/train.py main: state = create_train_state(rng, config); . create_train_state
init | /w/train.py main: params = model.init(rng, x)["params"]; flax/linen/module.py init
sample | /w/gen.py main: out = generate(params, tokens); jax/_src/pjit.py cache_miss
forward | /w/gaussian-splatting/train.py training: render_pkg = render(viewpoint_cam, gaussians, pipe, bg); /w/gaussian-splatting/gaussian_renderer/__init__.py render; CALL; . forward
optimizer | /w/gaussian-splatting/train.py training: gaussians.optimizer.step(); torch/optim/adam.py step
sample | /w/scripts/inference.py main: video = model.sample(text); CALL; . forward
forward | /w/finetune.py finetune; peft/peft_model.py forward; CALL; . forward
init | /w/finetune.py main: model = get_peft_model(model, config); peft/mapping.py get_peft_model; peft/tuners/lora/model.py inject_adapter; peft/tuners/lora/layer.py __init__
init | /w/finetune.py main: model = prepare_model_for_kbit_training(model); peft/utils/other.py prepare_model_for_kbit_training: param.data = param.data.to(torch.float32)
backward | /w/megatron/training.py train; /w/megatron/training.py train_step; /w/megatron/core/pipeline_parallel/schedules.py forward_backward_no_pipelining; /w/megatron/core/pipeline_parallel/schedules.py backward_step; torch/autograd/__init__.py backward
forward | /w/megatron/training.py train; /w/megatron/training.py train_step; /w/megatron/core/pipeline_parallel/schedules.py forward_backward_no_pipelining; /w/megatron/core/pipeline_parallel/schedules.py forward_step; . forward_step; CALL; . forward
init | /w/megatron/training.py pretrain; /w/megatron/training.py setup_model_and_optimizer; /w/megatron/training.py get_model: model_module.cuda(); torch/nn/modules/module.py cuda
sample | trl/trainer/ppo_trainer.py train; trl/trainer/utils.py batch_generation; torch/utils/_contextlib.py decorate_context; transformers/generation/utils.py generate; CALL; . forward
forward | trl/trainer/grpo_trainer.py compute_loss; trl/trainer/grpo_trainer.py _get_per_token_logps; CALL; . forward
eval | lm_eval/__main__.py cli_evaluate; lm_eval/evaluator.py simple_evaluate; lm_eval/models/huggingface.py _loglikelihood_tokens; CALL; . forward
sample | gradio/blocks.py call_function; /w/app.py predict: out = model(img); CALL; . forward
init | nnunet/run/run_training.py main: trainer.initialize(not validation_only); nnunet/training/network_training/nnUNetTrainerV2.py initialize; nnunet/training/network_training/nnUNetTrainerV2.py initialize_network: self.network.cuda()
forward | nnunetv2/run/run_training.py run_training: nnunet_trainer.run_training(); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py run_training; nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py train_step; CALL; . forward
eval | nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py run_training; nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py perform_actual_validation: prediction = predictor.predict_sliding_window_return_logits(data); nnunetv2/inference/predict_from_raw_data.py predict_sliding_window_return_logits; CALL; . forward
eval | /w/main.py main; monai/engines/evaluator.py run; monai/inferers/utils.py sliding_window_inference; CALL; . forward
backward | fastai/learner.py fit_one_cycle; fastai/learner.py _do_one_batch: self._with_events(self._backward, 'backward', CancelBackwardException); fastai/learner.py _backward: self.loss_grad.backward(); torch/_tensor.py backward
eval | fastai/learner.py fit; fastai/learner.py _do_epoch_validate; fastai/learner.py one_batch; CALL; . forward
sample | /w/real_esrgan/inference_realesrgan.py main: output, _ = upsampler.enhance(img); realesrgan/utils.py enhance; realesrgan/utils.py process; CALL; . forward
sample | /w/segment_anything/automatic_mask_generator.py generate; segment_anything/predictor.py set_image; CALL; . forward
forward | /w/litgpt/finetune/lora.py fit: logits = model(input_ids, lm_head_chunk_size=128); CALL; lightning/fabric/wrappers.py forward; . forward
eval | /w/litgpt/finetune/lora.py fit: val_loss = validate(fabric, model, val_dataloader, eval); torch/utils/_contextlib.py decorate_context; /w/litgpt/finetune/lora.py validate: logits = model(input_ids); CALL; . forward
backward | /w/torchtune/recipes/full_finetune_single_device.py train: current_loss.backward(); torch/_tensor.py backward
optimizer | /w/torchtune/recipes/full_finetune_distributed.py train: self._optimizer.step(); torch/optim/optimizer.py wrapper
init | /w/torchtune/recipes/full_finetune_distributed.py setup: self._model = self._setup_model(; /w/torchtune/recipes/full_finetune_distributed.py _setup_model: training.shard_model(; torch/distributed/_composable/fsdp/fully_shard.py fully_shard
load | /w/torchtune/recipes/lora_finetune_single_device.py setup: checkpoint_dict = self.load_checkpoint(cfg.checkpointer); torchtune/training/checkpointing/_checkpointer.py load_checkpoint; torchtune/training/checkpointing/_utils.py safe_torch_load
forward | onmt/bin/train.py main; onmt/train_single.py main: trainer.train(; onmt/trainer.py train; onmt/trainer.py _gradient_accumulation: outputs, attns = self.model(src, tgt); CALL; onmt/models/model.py forward
eval | onmt/trainer.py train: valid_stats = self.validate(valid_iter); onmt/trainer.py validate: outputs, attns = valid_model(src, tgt); CALL; . forward
sample | onmt/bin/translate.py main; onmt/translate/translator.py translate; onmt/translate/translator.py _translate_batch_with_strategy; onmt/translate/translator.py _decode_and_generate; CALL; . forward
backward | allennlp/commands/train.py train_model; allennlp/training/trainer.py train; allennlp/training/trainer.py _train_epoch: loss.backward()
eval | allennlp/training/trainer.py train; allennlp/training/trainer.py _validation_loss; allennlp/training/trainer.py batch_outputs; CALL; . forward
sample | allennlp/commands/predict.py _predict; allennlp/predictors/predictor.py predict_json; CALL; . forward
forward | parlai/scripts/train_model.py train; parlai/core/torch_generator_agent.py train_step; parlai/core/torch_generator_agent.py compute_loss; CALL; . forward
eval | parlai/scripts/train_model.py run_eval; parlai/core/torch_generator_agent.py eval_step; CALL; . forward
forward | stable_baselines3/ppo/ppo.py learn; stable_baselines3/ppo/ppo.py train: values, log_prob, entropy = self.policy.evaluate_actions(obs, actions); stable_baselines3/common/policies.py evaluate_actions; CALL; . forward
sample | stable_baselines3/common/on_policy_algorithm.py learn; stable_baselines3/common/on_policy_algorithm.py collect_rollouts; torch/utils/_contextlib.py decorate_context; stable_baselines3/common/policies.py predict; CALL; . forward
forward | /w/stylegan2-ada-pytorch/train.py main; /w/stylegan2-ada-pytorch/training/training_loop.py training_loop: loss.accumulate_gradients(phase=phase.name); /w/stylegan2-ada-pytorch/training/loss.py accumulate_gradients; /w/stylegan2-ada-pytorch/training/loss.py run_G; CALL; . forward
backward | /w/stylegan2-ada-pytorch/training/training_loop.py training_loop; /w/stylegan2-ada-pytorch/training/loss.py accumulate_gradients: loss_Gmain.mean().mul(gain).backward(); torch/_tensor.py backward
eval | /w/stylegan2-ada-pytorch/training/training_loop.py training_loop: result_dict = metric_main.calc_metric(metric=metric, G=snapshot_data['G_ema']); /w/metrics/metric_main.py calc_metric; /w/metrics/frechet_inception_distance.py compute_fid; CALL; . forward
forward | /w/pytorch-CycleGAN-and-pix2pix/train.py <module>: model.optimize_parameters(); /w/models/cycle_gan_model.py optimize_parameters: self.forward(); /w/models/cycle_gan_model.py forward: self.fake_B = self.netG_A(self.real_A); CALL; . forward
backward | /w/pytorch-CycleGAN-and-pix2pix/train.py <module>: model.optimize_parameters(); /w/models/cycle_gan_model.py optimize_parameters: self.backward_G(); /w/models/cycle_gan_model.py backward_G: self.loss_G.backward()
eval | /w/pytorch-CycleGAN-and-pix2pix/test.py <module>: model.test(); /w/models/base_model.py test: self.forward(); CALL; . forward
init | /w/pytorch-CycleGAN-and-pix2pix/train.py <module>: model = create_model(opt); /w/models/__init__.py create_model: instance = model(opt); /w/models/cycle_gan_model.py __init__: self.netG_A = networks.define_G(; /w/models/networks.py init_net: net.to(gpu_ids[0]); torch/nn/modules/module.py to
forward | /w/RAFT/train.py train: flow_predictions = model(image1, image2, iters=args.iters); CALL; . forward
eval | /w/RAFT/train.py train: results.update(evaluate.validate_sintel(model.module)); torch/autograd/grad_mode.py decorate_context; /w/RAFT/evaluate.py validate_sintel; CALL; . forward
sample | /w/RAFT/demo.py demo: flow_low, flow_up = model(image1, image2); CALL; . forward
sample | /w/DeepFaceLab/main.py process_merge; /w/DeepFaceLab/mainscripts/Merger.py main: predictor_func(face); . predictor_func
forward | /w/nerf-pytorch/run_nerf.py train: rgb, disp, acc, extras = render(H, W, K, chunk=args.chunk, rays=batch_rays); /w/nerf-pytorch/run_nerf.py render; /w/nerf-pytorch/run_nerf.py batchify_rays; /w/nerf-pytorch/run_nerf.py run_network; CALL; . forward
forward | nerfstudio/scripts/train.py main; nerfstudio/engine/trainer.py train; nerfstudio/engine/trainer.py train_iteration; nerfstudio/pipelines/base_pipeline.py get_train_loss_dict; CALL; . forward
eval | nerfstudio/engine/trainer.py train; nerfstudio/engine/trainer.py eval_iteration; nerfstudio/pipelines/base_pipeline.py get_eval_image_metrics_and_images; CALL; . forward
forward | recbole/quick_start/quick_start.py run_recbole: best_valid_score, best_valid_result = trainer.fit(; recbole/trainer/trainer.py fit; recbole/trainer/trainer.py _train_epoch: losses = loss_func(interaction); recbole/model/general_recommender/lightgcn.py calculate_loss
eval | recbole/trainer/trainer.py fit; recbole/trainer/trainer.py _valid_epoch; recbole/trainer/trainer.py evaluate; recbole/trainer/trainer.py _full_sort_batch_eval; recbole/model/general_recommender/lightgcn.py full_sort_predict
forward | speechbrain/core.py fit; speechbrain/core.py _fit_train; speechbrain/core.py fit_batch: outputs = self.compute_forward(batch, Stage.TRAIN); /w/train.py compute_forward; CALL; . forward
eval | speechbrain/core.py fit; speechbrain/core.py _fit_valid; speechbrain/core.py evaluate_batch; /w/train.py compute_forward; CALL; . forward
backward | speechbrain/core.py fit; speechbrain/core.py fit_batch: self.scaler.scale(loss / self.grad_accumulation_factor).backward()
forward | nemo/core/classes/modelPT.py fit; pytorch_lightning/strategies/strategy.py training_step; nemo/collections/asr/models/rnnt_models.py training_step: encoded, encoded_len = self.forward(; nemo/utils/model_utils.py wrap_training_step
sample | nemo/collections/asr/models/rnnt_models.py transcribe; nemo/collections/asr/parts/mixins/transcription.py transcribe_generator; CALL; . forward
forward | /w/maskrcnn-benchmark/tools/train_net.py train; maskrcnn_benchmark/engine/trainer.py do_train: loss_dict = model(images, targets); CALL; maskrcnn_benchmark/modeling/detector/generalized_rcnn.py forward
eval | /w/maskrcnn-benchmark/tools/test_net.py main; maskrcnn_benchmark/engine/inference.py inference; maskrcnn_benchmark/engine/inference.py compute_on_dataset; CALL; . forward
forward | /w/pysot/tools/train.py train: outputs = model(data); CALL; . forward
sample | /w/pysot/tools/demo.py main: outputs = tracker.track(frame); /w/pysot/pysot/tracker/siamrpn_tracker.py track; CALL; . forward
forward | /w/BERT-pytorch/main.py <module>: trainer.train(epoch); /w/BERT-pytorch/trainer/pretrain.py train; /w/BERT-pytorch/trainer/pretrain.py iteration: next_sent_output, mask_lm_output = self.model.forward(; CALL; . forward
eval | /w/BERT-pytorch/main.py <module>: trainer.test(epoch); /w/BERT-pytorch/trainer/pretrain.py test; /w/BERT-pytorch/trainer/pretrain.py iteration; CALL; . forward
forward | torch_geometric/nn/conv/gcn_conv.py forward; torch_geometric/nn/conv/message_passing.py propagate
forward | /w/gat/train.py train: out = model(data.x, data.edge_index); CALL; . forward
eval | /w/gat/train.py test: out = model(data.x, data.edge_index); torch/autograd/grad_mode.py decorate_context; CALL; . forward
load | llama_cpp/llama.py __init__; llama_cpp/_internals.py __init__: raise ValueError(f"Failed to load model from file: {path_model}")
load | exllamav2/model.py load_autosplit; exllamav2/model.py load_autosplit_gen; exllamav2/linear.py load
sample | . main: out = model.generate(load_data(path)); torch/utils/_contextlib.py decorate_context; transformers/generation/utils.py generate
forward | maxtext/train.py main; maxtext/train.py train_loop: state, metrics = p_train_step(state, example_batch, nextrng); jax/_src/pjit.py cache_miss
init | maxtext/train.py setup_train_loop; maxtext/max_utils.py setup_training_state; maxtext/max_utils.py setup_initial_state
sample | t5x/infer.py infer; t5x/models.py predict_batch; jax/_src/pjit.py cache_miss
forward | tensor2tensor/bin/t2t_trainer.py main; tensor2tensor/utils/trainer_lib.py train_and_evaluate; tensorflow/python/estimator/estimator.py train; tensorflow/python/training/monitored_session.py run
eval | tensorflow/python/estimator/estimator.py evaluate; tensorflow/python/training/evaluation.py _evaluate_once; tensorflow/python/training/monitored_session.py run
`

func TestPhaseOfPrograms(t *testing.T) {
	for want, text := range cases(programs) {
		if got := calls(text).Phase(); got != want {
			t.Errorf("%s, want %s: %s", got, want, text)
		}
	}
}

const shortMessage = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"

// python writes calls down as Python does.
func python(t Traceback) string {
	text := "Traceback (most recent call last):\n"
	for i, f := range t {
		text += fmt.Sprintf("  File \"%s\", line %d, in %s\n    %s\n", f.Path, 10+i, f.Func, cmp.Or(f.Code, "x"))
	}
	return text + shortMessage + "\n"
}

// box writes calls down with numbered source lines around the failing one, as notebooks and rich do.
func box(call, source string) func(Traceback) string {
	return func(t Traceback) string {
		text := "OutOfMemoryError                          Traceback (most recent call last)\n"
		for i, f := range t {
			text += fmt.Sprintf(call, f.Path, 10+i, f.Func) + fmt.Sprintf(source, 9+i, 10+i, f.Code, 11+i)
		}
		return text + shortMessage + "\n"
	}
}

// The same calls tell the same phase however they are printed, quoted or cut.
func TestPhaseForms(t *testing.T) {
	prefixed := func(prefix string) func(Traceback) string {
		return func(t Traceback) string {
			return prefix + strings.ReplaceAll(strings.TrimSpace(python(t)), "\n", "\n"+prefix) + "\n"
		}
	}
	replaced := func(pairs ...string) func(Traceback) string {
		return func(t Traceback) string { return strings.NewReplacer(pairs...).Replace(python(t)) }
	}
	for form, write := range map[string]func(Traceback) string{
		"plain": python, "quoted": prefixed("> "), "rank": prefixed("[rank2]: "), "host": prefixed("node7: "), "table": prefixed("| "),
		"ray": prefixed("(TrainActor pid=1234, ip=10.0.0.1) "), "logger": prefixed("ERROR:root:"),
		"date": prefixed("2024-05-01 10:11:12,123 - "), "date and logger": prefixed("[2024-05-01 10:11:12,123][root][ERROR] - "),
		"no indentation": replaced("\n    ", "\n", "\n  ", "\n"), "blank lines": replaced("\n", "\n\n"), "one line": replaced("\n", " "),
		"windows": replaced("/", `\`, "\n", "\r\n"), "no heading": replaced("Traceback (most recent call last):\n", ""),
		"single quotes": replaced(`"`, "'"), "html": replaced(`"`, "&quot;"),
		"json": func(t Traceback) string {
			return `{"m": "` + strings.NewReplacer(`"`, `\"`, "\n", `\n`).Replace(python(t)) + `"}`
		},
		"message above": func(t Traceback) string { return shortMessage + "\n" + strings.ReplaceAll(python(t), shortMessage, "") },
		"message cut":   func(t Traceback) string { return "# CUDA OOM\n" + strings.ReplaceAll(python(t), shortMessage, "") },
		"rich":          box("│ %s:%d in %s │\n│ │\n", "│ %d │ foo(1) │\n│ ❱ %d │ │ %s │\n│ %d │ bar() │\n│ │\n"),
		"notebook":      box("File %s:%d, in %s(self, x)\n", "    %d     foo(1)\n---> %d     %s\n    %d     bar()\n\n"),
	} {
		t.Run(form, func(t *testing.T) {
			row := len(form) // every form takes a third of the programs
			for want, text := range cases(programs) {
				if row++; row%3 != 0 {
					continue
				}
				if l, err := Read(strings.NewReader(write(calls(text)))); err != nil || l.Phase() != want {
					t.Errorf("%s, want %s: %s", l.Phase(), want, text)
				}
			}
		})
	}
}

// A title tells the phase where the rest of a report does not.
func TestPhaseByTitle(t *testing.T) {
	for want, title := range cases(`
sample | # CUDA out of memory when I run inference on a 4k image
sample | # OOM during generation with long prompts
load | # Out of memory when loading model in 8bit
load | # CUDA OOM while loading checkpoint shards
load | # Cannot load the 70B model: out of memory
eval | # OOM on evaluation
eval | # Running out of memory at validation step
eval | # Memory leak during evaluation
eval | # GPU memory error in the eval loop
forward | # CUDA out of memory in the middle of training
unknown | # Out of memory error
unknown | # RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB
backward | # OOM in backward pass with gradient checkpointing
backward | # CUDA out of memory on loss.backward()
optimizer | # OOM at optimizer.step()
optimizer | # Out of memory in optimizer step with Adam
compile | # torch.compile OOM during autotuning
compile | # OOM when compiling the model with inductor
init | # OOM during model initialization
init | # CUDA out of memory when initializing the model
sample | # Inference uses too much memory: OOM on T4
sample | # Demo crashes with out of memory
sample | # vllm serve: CUDA out of memory
sample | # Out of memory when generating 1024x1024 images
sample | # text generation webui out of memory
init | # vllm server fails to start: CUDA out of memory
init | # OOM on startup with a 24 GB card
init | # Out of memory when starting the API server
unknown | # OOM when starting training
unknown | # Finetune Llama 2 7B OOM on 24GB
unknown | # OOM when fine-tuning with LoRA
unknown | # Memory usage keeps growing until OOM
unknown | # CUDA out of memory when training on multiple GPUs
eval | # cuda out of memory during test
eval | # Testing with large images: CUDA out of memory
load | # model.load_state_dict causes OOM
load | # OOM at from_pretrained with device_map auto
load | # CUDA OOM when resuming from checkpoint
sample | # How to predict on large images without running out of memory?
sample | # Out of memory when transcribing long audio
forward | # OOM during the forward pass
eval | # eval.py out of memory
sample | # python detect.py CUDA out of memory
unknown | # train.py CUDA out of memory
unknown | # CUDA out of memory, batch size 1
sample | # chat with 13B model out of memory after several turns
unknown | # out of memory when converting to onnx
save | # OOM when saving the checkpoint
unknown | # Out of memory with dataset of 1M samples
`) {
		l, err := Read(strings.NewReader(title + "\n\nI get this:\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", title, l.Phase(), want, err)
		}
		calls := title + "\n\nTraceback (most recent call last):\n  File \"a.py\", line 1, in go\n    loss.backward()\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
		if l, _ := Read(strings.NewReader(calls)); l.Phase() != Backward {
			t.Errorf("%s: speaks louder than the calls: %s", title, l.Phase())
		}
	}
}

// So does a sentence about the failure, where the title does not either.
func TestPhaseBySentence(t *testing.T) {
	for want, sentence := range cases(`
eval | The training is fine. When it starts evaluating, it crashes.
eval | The error occurs in validation after the first epoch.
sample | It happens when I call model.generate() with a long prompt.
backward | the problem occurs at loss.backward() every time
optimizer | It fails at the optimizer step.
load | I get this error when loading the model on my 3060.
load | the script dies while loading checkpoint shards
eval | I can train, but it fails during the evaluation phase
sample | Running inference on a 3 minute clip gives the error below.
unknown | I get this error when I start training.
unknown | My GPU is a 3090 and I use pytorch 1.13. Please help.
unknown | This issue occurs with batch size 1 as well.
init | It fails when initializing the model.
eval | Training works but the validation step runs out of memory.
load | Loading the checkpoint takes all the memory of the GPU and crashes.
`) {
		l, err := Read(strings.NewReader("# Help needed\n\n" + sentence + "\n\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", sentence, l.Phase(), want, err)
		}
	}
}

// Where there are no calls, the last thing that the program printed tells.
func TestPhaseByLine(t *testing.T) {
	for want, line := range cases(`
eval | [Epoch 3] Validation: 12/50
eval | Validating: 40%|████      | 4/10 [00:02<00:03,  1.71it/s]
eval | ***** Running Evaluation *****
forward | ***** Running training *****
forward | Epoch 1/10
forward | | epoch 001:   0%| | 1/85544 [00:01<44:15:59,  1.86s/it, loss=20.7, ppl=177489, oom=5]
forward | Epoch [1][50/7330]	lr: 1.978e-03, eta: 1 day, 8:01:41, time: 0.5
forward | Train Epoch: 1 [0/60000 (0%)]	Loss: 2.30
load | Loading pipeline components...:  43%|████▎     | 3/7 [00:01<00:01,  2.10it/s]
load | Loading weights [6ce0161689] from /w/models/v1-5.safetensors
load | => loading checkpoint 'runs/best.pth'
load | INFO - loading model from out/last.ckpt
load | Loading model ...
sample | Generating: 10%|█         | 1/10 [00:02<00:20,  2.31s/it]
sample | Sampling timesteps: 30%|███       | 15/50 [00:05<00:12,  2.8it/s]
sample | Transcribing: 0%|          | 0/12 [00:00<?, ?it/s]
eval | Testing DataLoader 0:   0%|          | 0/25 [00:00<?, ?it/s]
eval | Sanity Checking DataLoader 0:   0%|          | 0/2 [00:00<?, ?it/s]
sample | Predicting DataLoader 0:  12%|█▏        | 3/25 [00:01<00:07,  2.9it/s]
data | Map:  12%|█▏        | 1200/10000 [00:01<00:07,  1200 examples/s]
unknown | Downloading shards: 50%|█████     | 1/2 [00:30<00:30, 30.0s/it]
unknown | Loading dataset from disk
eval | 2024-01-02 10:11:12 INFO Start evaluating on the dev set
forward | 2024-01-02 10:11:12 INFO Start training
eval | Evaluating perplexity...
compile | Compiling model with torch.compile...
forward | Steps:   0%|          | 0/1000 [00:00<?, ?it/s]
`) {
		l, err := Read(strings.NewReader("some output\n" + line + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", line, l.Phase(), want, err)
		}
	}
}
