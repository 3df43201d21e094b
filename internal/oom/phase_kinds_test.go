package oom

import (
	"strings"
	"testing"
)

// Calls by what they are handed, made of or keep: the same in programs of many fields.
func TestPhaseByKindOfCall(t *testing.T) {
	for want, text := range cases(`
forward | chainer/training/updater.py update_core: optimizer.update(loss_func, *in_arrays); chainer/optimizer.py update: loss = lossfun(*args, **kwds); /w/nets/vgg.py __call__: h = F.relu(self.conv1(x))
forward | chainer/training/updaters/standard_updater.py update_core: optimizer.update(loss_func, **in_arrays); chainer/optimizer.py update: loss = lossfun(*args, **kwds); chainer/links/model/classifier.py forward: self.y = self.predictor(*args)
optimizer | chainer/training/updaters/standard_updater.py update_core: optimizer.update(loss_func, **in_arrays); chainer/optimizer.py update: self.update_rule.update(param)
backward | chainer/training/updaters/standard_updater.py update_core: optimizer.update(loss_func, **in_arrays); chainer/optimizer.py update: loss.backward(loss_scale=self._loss_scale)
forward | /w/pinn.py run: opt.minimize(loss_fn, variables); tensorflow/python/keras/optimizer_v2/optimizer_v2.py minimize; tensorflow/python/keras/optimizer_v2/optimizer_v2.py _compute_gradients: loss = loss(); /w/pinn.py loss_fn: u = self.net(x)
forward | main.py train: fit(cfg); /w/lib/parser.py train: loss_dict = self.scene(imgs, targets)
forward | main.py train: losses = self.head(feats, boxes)
sample | /w/bin/nnUNetv2_predict <module>: sys.exit(predict_entry_point()); /w/inference/predict_from_raw_data.py predict_entry_point: predictor.predict_from_files(args.i, args.o); /w/inference/predict_from_raw_data.py predict_from_files: return self.predict_from_data_iterator(it)
unknown | /w/hijack.py _prepare_decoder_attention_mask: sliding_window_mask = _make_sliding_window_causal_mask(
data | /w/tools/preprocess_data.py <module>: main(); /w/megatron/data/i.py finalize: index.write(x); /w/megatron/data/i.py write: pointers = torch.save(sizes)
data | prepro.py main: build_features(args, train); prepro.py build_features: x = y.big(z)
data | train.py main: import prepare_data_with_valid as dataset; /w/prepare_data_with_valid.py <module>: X = big(rows)
data | /w/train.py training: scene = Scene(dataset, gaussians); /w/scene/__init__.py __init__: self.train_cameras[r] = cameraList_from_camInfos(scene_info.train_cameras, r, args); /w/utils/camera_utils.py cameraList_from_camInfos: camera_lis
eval | /w/train.py main: trainer.train(); /w/train.py train: logs = self.inference_one_epoch(); /w/train.py inference_one_epoch: out = self.net(x); CALL; . forward
data | preprocess.py mp_handler: process_video_file(vfile, args); preprocess.py process_video_file: preds = fa.get_detections_for_batch(x); /w/face_detection/detect.py batch_detect: olist = net(imgs); CALL; . forward
eval | train_imagenet.py main: valid_acc, valid_obj = infer(valid_queue, model, criterion); train_imagenet.py infer: logits, _ = model(input); CALL; . forward
sample | run.py main: out = infer(queue, model); run.py infer: logits, _ = model(input); CALL; . forward
forward | /w/search.py _train_one_epoch: self._backward(X, y); /w/search.py _backward: loss = self._logits_and_loss(X, y); /w/search.py _logits_and_loss: logits = self.model(X)
optimizer | /w/fit.py fit: self.update(); mxnet/module/module.py update: _update_params_on_kvstore(self._exec_group); mxnet/model.py _update_params_on_kvstore: kvstore.push(name, grad_list)
forward | main.py run: loss, acc = self.branch(x, y)
eval | main.py evaluate: loss_dict = self.scene(imgs, targets)
init | main.py build: loss_fn = LPIPS(net='vgg').cuda()
unknown | main.py main: loss_history = defaultdict(list)
data | main.py main: data_module = FlowerDataModule(; /w/data.py __init__: super().__init__(*args, **kwargs); /w/data.py __init__: self.make_features(self.splits)
data | main.py main: dm = GraphDataModule(cfg)
data | /w/data/voc_datamodule.py setup: self.train = torch.stack(images)
forward | main.py main: trainer.fit(model, data_module); /w/lit.py training_step: x = self.stem(batch); CALL; . forward
data | <string> <module>; /usr/lib/python3.10/multiprocessing/spawn.py spawn_main: exitcode = _main(fd, parent_sentinel); /usr/lib/python3.10/multiprocessing/spawn.py _main: self = reduction.pickle.load(from_parent)
data | <string> <module>; C:\Users\me\Anaconda3\envs\e\lib\multiprocessing\spawn.py spawn_main: exitcode = _main(fd, parent_sentinel); C:\Users\me\Anaconda3\envs\e\lib\multiprocessing\spawn.py _main: self = reduction.pickle.load(from_parent)
data | train.py train: for batch in loader:; /usr/lib/python3.10/multiprocessing/popen_spawn_win32.py __init__: reduction.dump(process_obj, to_child)
data | train.py train; /usr/lib/python3.8/multiprocessing/popen_fork.py _launch: self.pid = os.fork()
load | . <module>: keras_hub.models.MistralCausalLM.from_preset("mistral_7b_en")
load | . <module>: asr = EncoderDecoderASR.from_hparams(source="x")
load | . <module>: net = Net.from_hub("a/b")
load | . <module>: pipe, params = FlaxPipe.from_pt(path)
optimizer | /w/scene/cloud.py cat_to_optimizer: stored_state["exp_avg_sq"] = torch.cat((stored_state["exp_avg_sq"], torch.zeros_like(new)), dim=0)
optimizer | train.py train; /w/opt/mine.py update_all: state['momentum_buffer'] = torch.clone(d_p)
optimizer | train.py train; /w/scene/cloud.py densify: self.optimizer.state[group['params'][0]] = stored_state
optimizer | train.py train; /w/opt/mine.py go: exp_avg.mul_(beta1).add_(grad)
sample | test.py <module>: pred = ligand.dock(pocket); /w/ligand/run.py dock: out = model(x); CALL; . forward
sample | test.py <module>: turns = pipe.diarize(wav); /w/pipe.py diarize: out = model(x); CALL; . forward
forward | /w/train.py main: trainer.fit(); /w/core/trainer.py fit: self.run_iter(batch); /w/core/trainer.py run_iter: out = self.arch(batch); CALL; . forward
eval | /w/train.py main: trainer.fit(); /w/core/trainer.py fit: self.inference(val_loader); /w/core/trainer.py inference: out = self.arch(batch); CALL; . forward
sample | /w/render.py <module>: render_sets(dataset); /w/render.py render_set: rendering = render(view, gaussians, pipe)["render"]
eval | /w/train.py <module>: training(args); /w/train.py training_report: image = renderFunc(viewpoint, scene.gaussians)
forward | /w/train.py <module>: training(args); /w/train.py training: render_pkg = render(viewpoint_cam, gaussians, pipe, bg); /w/gaussian_renderer/__init__.py render: rendered_image, radii = rasterizer(
backward | /w/train.py training: loss.backward(); torch/_tensor.py backward; torch/autograd/function.py apply: return user_fn(self, *args); diff_gaussian_rasterization/__init__.py backward
optimizer | /w/train.py training: gaussians.optimizer.step()
data | /w/train.py training: scene = Scene(dataset, gaussians); /w/scene/__init__.py __init__: self.train_cameras[r] = cameraList_from_camInfos(scene_info.train_cameras, r, args); /w/utils/camera_utils.py loadCam: image=gt_image; /w/scene/cameras.py __init__: self.original_image = image.clamp(0.0, 1.0).to(self.data_device)
sample | /w/sample.py main: samples = diffusion.p_sample_loop(model.forward, z.shape, z); /w/diffusion/gaussian_diffusion.py p_sample_loop; /w/diffusion/gaussian_diffusion.py p_mean_variance: model_output = model(x, t); CALL; . forward
forward | /w/train.py main: loss_dict = diffusion.training_losses(model, x, t); /w/diffusion/gaussian_diffusion.py training_losses: model_output = model(x_t, t); CALL; . forward
eval | /w/main.py main: test_stats, coco_evaluator = evaluate(model, criterion, postprocessors); /w/engine.py evaluate: outputs = model(samples); CALL; . forward
forward | /w/main.py main: train_stats = train_one_epoch(model, criterion); /w/engine.py train_one_epoch: outputs = model(samples); CALL; . forward
eval | /w/run_glue.py main: metrics = trainer.evaluate(eval_dataset=eval_dataset); transformers/trainer.py evaluate; transformers/trainer.py evaluation_loop: all_preds = nested_concat(all_preds, logits)
save | /w/train_mem.py train: safe_save_model_for_hf_trainer(trainer=trainer); /w/train.py safe_save_model_for_hf_trainer: state_dict = trainer.model.state_dict()
save | transformers/trainer.py _save_checkpoint; transformers/trainer.py save_model: state_dict = self.accelerator.get_state_dict(self.deepspeed); accelerate/accelerator.py get_state_dict; deepspeed/runtime/engine.py _zero3_consolidated_16bit_state_dict
load | transformers/trainer.py train; transformers/trainer.py _load_from_checkpoint; transformers/trainer.py _load_optimizer_and_scheduler: torch.load(os.path.join(checkpoint, OPTIMIZER_NAME))
load | transformers/trainer.py _inner_training_loop: deepspeed_load_checkpoint(self.model_wrapped, resume_from_checkpoint); deepspeed/runtime/engine.py load_checkpoint
init | transformers/trainer.py _inner_training_loop: self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer); accelerate/accelerator.py _prepare_deepspeed; deepspeed/__init__.py initialize; deepspeed/runtime/zero/stage3.py __init__
init | deepspeed/runtime/engine.py __init__: self._configure_optimizer(optimizer, model_parameters); deepspeed/runtime/engine.py _configure_zero_optimizer; deepspeed/runtime/zero/stage_1_and_2.py __init__: self.single_partition_of_fp32_groups.append(
optimizer | deepspeed/runtime/engine.py step: self._take_model_step(lr_kwargs); deepspeed/runtime/engine.py _take_model_step; deepspeed/runtime/zero/stage_1_and_2.py step; deepspeed/runtime/zero/stage_1_and_2.py _optimizer_step
backward | deepspeed/runtime/engine.py backward: self.optimizer.backward(loss, retain_graph=retain_graph); deepspeed/runtime/zero/stage3.py backward; deepspeed/runtime/fp16/loss_scaler.py backward: scaled_loss.backward()
sample | trl/trainer/grpo_trainer.py compute_loss; trl/trainer/grpo_trainer.py _generate_and_score_completions: prompt_completion_ids = unwrapped_model.generate(prompt_ids); transformers/generation/utils.py generate; CALL; . forward
forward | trl/trainer/grpo_trainer.py compute_loss; trl/trainer/grpo_trainer.py _get_per_token_logps: logits = model(input_ids=input_ids).logits; CALL; . forward
forward | trl/trainer/dpo_trainer.py get_batch_loss_metrics: forward_output = self.concatenated_forward(model, batch); trl/trainer/dpo_trainer.py concatenated_forward; CALL; . forward
forward | /w/main_ppo.py train: trainer.fit(); verl/trainer/ppo/ray_trainer.py fit: actor_output = self.actor_rollout_wg.update_actor(batch); verl/workers/actor/dp_actor.py update_policy: entropy, log_prob = self._forward_micro_batch(data); CALL; . forward
sample | /w/inference_realesrgan.py main: output, _ = upsampler.enhance(img, outscale=4); realesrgan/utils.py enhance; realesrgan/utils.py process: self.output = self.model(self.img); CALL; . forward
eval | basicsr/train.py train_pipeline: model.validation(val_loader, current_iter, tb_logger); basicsr/models/sr_model.py nondist_validation: self.test(); basicsr/models/sr_model.py test: self.output = self.net_g(self.lq); CALL; . forward
forward | basicsr/train.py train_pipeline: model.optimize_parameters(current_iter); basicsr/models/sr_model.py optimize_parameters: self.output = self.net_g(self.lq); CALL; . forward
backward | /w/train.py main: model.optimize_parameters(); /w/models/cut_model.py optimize_parameters: self.loss_G.backward(); torch/_tensor.py backward
eval | ultralytics/engine/trainer.py _do_train: self.metrics, self.fitness = self.validate(); ultralytics/engine/trainer.py validate: metrics = self.validator(self); ultralytics/engine/validator.py __call__: preds = model(batch["img"]); CALL; . forward
sample | ultralytics/engine/model.py predict; ultralytics/engine/predictor.py stream_inference: preds = self.inference(im); CALL; . forward
forward | ultralytics/engine/trainer.py _do_train: self.loss, self.loss_items = self.model(batch); CALL; ultralytics/nn/tasks.py loss; ultralytics/utils/loss.py __call__: _, target_bboxes = self.assigner(; ultralytics/utils/tal.py get_box_metrics
compile | ultralytics/engine/model.py export; ultralytics/engine/exporter.py export_engine; ultralytics/engine/exporter.py export_onnx: torch.onnx.export(
sample | nnunetv2/inference/predict_from_raw_data.py predict_from_files; nnunetv2/inference/predict_from_raw_data.py predict_sliding_window_return_logits; CALL; . forward
eval | nnunetv2/run/run_training.py run_training: nnunet_trainer.perform_actual_validation(export); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py perform_actual_validation: prediction = predictor.predict_sliding_window_return_logits(data)
forward | nnunetv2/run/run_training.py run_training: nnunet_trainer.run_training(); nnunetv2/training/nnUNetTrainer/nnUNetTrainer.py train_step: output = self.network(data); CALL; . forward
load | /w/launch.py main: start(); /w/modules/sd_models.py reload_model_weights; /w/modules/sd_models.py send_model_to_device: m.to(shared.device)
sample | /w/server.py generate: out = pipe(prompt); fastapi/routing.py app; CALL; . forward
init | vllm/engine/llm_engine.py __init__: self._initialize_kv_caches(); vllm/engine/llm_engine.py _initialize_kv_caches; vllm/worker/worker.py determine_num_available_blocks: self.model_runner.profile_run(); CALL; . forward
load | sglang/srt/managers/scheduler.py run_scheduler_process; sglang/srt/model_executor/model_runner.py load_model; sglang/srt/model_loader/loader.py load_model
sample | sglang/srt/managers/scheduler.py event_loop_overlap; sglang/srt/model_executor/model_runner.py forward_extend: return self.model.forward(; CALL; . forward
data | /w/train.py main: ds = load_dataset("json", data_files=p); datasets/load.py load_dataset; datasets/arrow_dataset.py map
data | /w/train.py main: X = np.array([img_to_array(load_img(p)) for p in paths])
forward | torch_geometric/nn/conv/message_passing.py propagate; /w/gnn.py message: return x_j * e
init | /w/main.py main: model = Net(cfg).to(device); /w/net.py __init__: self.emb = nn.Embedding(n, d); torch/nn/modules/sparse.py __init__
eval | /w/main.py main: acc = test(); /w/main.py test: out = model(data.x, data.adj_t); CALL; . forward
sample | /w/extract.py main: feats = extract_features(model, loader); /w/extract.py extract_features: f = model(x.cuda()); CALL; . forward
eval | test.py <module>: run(cfg); /w/run.py run: out = model(x); CALL; . forward
`) {
		if got := calls(text).Phase(); got != want {
			t.Errorf("%s, want %s: %s", got, want, text)
		}
	}
}

// Lines that programs print while they work, above the failure. "#" stands for the end of a line, "!" for the message being among them.
func TestPhaseByKindOfLine(t *testing.T) {
	for want, text := range cases(`
eval | Epoch 1/3#Train: 100%|█████| 500/500 [10:00<00:00,  1.2it/s]#Val:   0%|          | 0/100 [00:00<?, ?it/s]
eval | Train loss 0.31#Computing validation loss...
eval | Begin validation
eval | --- evaluating model on dev set ---
eval | >>> Running eval on 500 samples
eval | [2024-01-02 10:00:00] INFO Evaluating checkpoint step 100
eval | ==> Testing epoch 3
eval | Val Epoch: 3 [0/100]
eval | Test: [  0/98]  Time 3.2
eval | Performing validation
eval | Calculating metrics on the test split...
eval | Validation sanity check: 0it [00:00, ?it/s]
eval | INFO:lm_eval: Running loglikelihood requests
eval | Running loglikelihood requests:   0%|          | 0/40145 [00:00<?, ?it/s]
eval | INFO - Start validation epoch 3
forward | INFO - Train epoch 3
forward | Training: 0it [00:00, ?it/s]
forward | global_step 10 loss 3.2
forward | step: 100, loss: 2.31, lr: 1e-4
forward | Iter 100 | Train Loss 2.3
forward | Train: [0/90][10/2502] eta 1:00:00 lr 0.0001 loss 6.9
forward | { 'loss': 2.3 }#Starting training loop
forward | [Epoch 0/200] [Batch 1/938] [D loss: 0.69] [G loss: 0.7]
forward | epoch: 1 | step: 10 | loss: 0.4
sample | Rendering:  10%|█         | 1/10 [00:02<00:20,  2.31s/it]
sample | Generating image 1 of 4
sample | Running inference on input.mp4
sample | Processing image 3/10
sample | Upscaling frame 1/200
sample | Denoising:  10%|█         | 1/10 [00:02<00:20,  2.31s/it]
sample | INFO:     127.0.0.1:5555 - "POST /v1/chat/completions HTTP/1.1" 200 OK
sample | Running on local URL:  http://127.0.0.1:7860
sample | Extracting features:  10%|█         | 1/10 [00:02<00:20,  2.31s/it]
sample | Embedding documents:  10%|█         | 1/10 [00:02<00:20,  2.31s/it]
load | Loading model from /w/models/x.gguf
load | Loading checkpoint shards:  50%|█████     | 1/2 [00:30<00:30, 30.0s/it]
load | Resuming from checkpoint runs/last.pt
load | loading pretrained weights from vgg.pth
load | Restoring parameters from /w/model.ckpt-1000
load | Fetching 13 files: 100%|█████| 13/13#Loading weights...
init | Building model...
init | Initializing model
init | Creating model: swin_base
init | Moving model to cuda
init | Capturing CUDA graph shapes:  10%|█         | 3/35
data | Tokenizing dataset (num_proc=4):  10%|█         | 3/35 [00:30<00:30, 30.0s/it]
save | Merging LoRA weights into base model...
compile | Exporting to ONNX...
compile | Compiling kernels...
unknown | Train: 100%|█████| 500/500 [10:00<00:00,  1.2it/s]
eval | [VAL] ====> Iter: 200
eval | [Validation] iter 0
eval | [TRAIN] Iter: 0 Loss: 0.2 PSNR: 6.2#[VAL] =====> Iter: 0
forward | [VAL] ====> Iter: 0 PSNR: 7#[TRAIN] Iter: 100 Loss: 0.2 PSNR: 6.2
eval | [TRAIN] Iter: 0 Loss: 0.2#[VAL] ==> Iter: 0#  0%|          | 0/2000 [00:01<?, ?it/s]#Traceback (most recent call last):#  File "train_field.py", line 40, in main#    rgb = run_one(rays)#  File "field.py", line 18, in predict_and_render#    return torch.cat(encoding, dim=-1)
sample | Iter: 0 Loss: 0.2#Traceback (most recent call last):#  File "train_field.py", line 40, in main#    rgb = run_one(rays)#  File "field.py", line 18, in predict_and_render#    return torch.cat(encoding, dim=-1)
eval | Saving checkpoint at 100 iterations#[                          ] 0/120, elapsed: 0s, ETA:Traceback (most recent call last):#  File "tools/train.py", line 8, in main#    runner.run(loaders)
eval | [>>>       ] 12/120, 3.1 task/s, elapsed: 4s, ETA:    35s
eval | !Epoch 15 (validation) validation/acc=1.000:   2%|█        | 20/1094 [00:41<11:04,  1.62it/s]/w/bin/run: line 6:  3305 Killed                  $ROOT/bin/run
eval | !Valid epoch 3:  12%|█        | 20/1094 [00:41<11:04,  1.62it/s]run.sh: line 2:   812 Killed                  python train.py
save | /env/lib/python3.9/site-packages/torch/distributed/fsdp/_state_dict_utils.py:312: UserWarning: Failed to clone() tensor with name layers.3.weight on rank 0. This may mean
data | !Skipping token 400001 with 1-dimensional vector ['300']; likely a header#100%|█████| 400001/400001 [03:33<00:00, 14061.26it/s]#Killed
sample | !(task pid=77) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB#(task pid=77) Unhandled error: ray::Worker.actor_generate_sequences() (pid=78, ip=1.2.3.4)#(task pid=77)   File "/w/base.py", line 399, in func#(task pid=77)     return getattr(self.d[key], name)(*args)
forward | !ray.exceptions.RayTaskError(OutOfMemoryError): ray::train_loop() (pid=78, ip=1.2.3.4)#  File "/w/base.py", line 399, in func#    out = self.net(x)#  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)#torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
sample | !ray::RolloutWorker.sample() (pid=78, ip=1.2.3.4)#  File "/w/base.py", line 399, in func#    out = self.net(x)#  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)#torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
sample | !ERROR:seq_tools.embed.interfaces:Error processing batch of 3 sequences: CUDA out of memory. Tried to allocate 972.00 MiB
sample | !2024-01-02 03:04:05 ERROR my_app.inference.worker - CUDA out of memory. Tried to allocate 972.00 MiB
eval | !ERROR:my_app.evaluation.runner:failed: CUDA out of memory. Tried to allocate 972.00 MiB
sample | !ERROR:root:Error processing prompt 3: CUDA out of memory. Tried to allocate 972.00 MiB
`) {
		lines, alone := strings.CutPrefix(text, "!")
		lines = strings.ReplaceAll(lines, "#", "\n")
		if !alone {
			lines = "some output\n" + lines + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
		}
		if l, err := Read(strings.NewReader(lines + "\n")); err != nil || l.Phase() != want {
			t.Errorf("%s, want %s: %s; %v", l.Phase(), want, text, err)
		}
	}
}

// Sentences by what they say of the failure; "#" begins the title of one.
func TestPhaseByKindOfSentence(t *testing.T) {
	for want, text := range cases(`
eval | # trainer.evaluate() gathers predictions on the card and runs out of memory
sample | # model.generate() runs out of memory with long inputs
load | # torch.load() doubles the memory and crashes
save | # save_pretrained() runs out of memory
optimizer | # optimizer.step() is where the memory runs out
save | # An OOM occurred while saving in the last step of training
eval | Three epochs went through, but at the end of the third epoch this error came.
eval | The error occurs at the end of each epoch.
eval | It crashes after the first epoch ends.
eval | As soon as the first epoch is finished, an out of memory error appears.
eval | It runs out of memory at the end of an epoch.
eval | 第一个epoch结束后报错显存不足
forward | It fails at the start of the second epoch.
save | At the end of the epoch it fails while saving the checkpoint.
load | An OOM came when attempting to resume training from a checkpoint on four cards.
load | Out of memory error if resuming from a checkpoint.
forward | The forward pass can't finish and runs into OOM.
backward | The backward pass cannot complete because of OOM.
forward | It can't even do one forward pass before OOM.
optimizer | Forward and backward work; only the update of the weights gives out of memory.
optimizer | The crash comes when the weights are updated.
optimizer | It fails during the weight update.
optimizer | It dies while updating the parameters.
optimizer | It is the sgd update that runs out of memory.
unknown | An update of the package did not solve the out of memory error.
`) {
		if !strings.HasPrefix(text, "#") {
			text = "# Help needed\n\n" + text
		}
		l, err := Read(strings.NewReader(text + "\n\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s, want %s: %s; %v", l.Phase(), want, text, err)
		}
	}
}

// Reports that are a title, after "#" a sentence, and the message.
func TestPhaseByPhrase(t *testing.T) {
	for want, text := range cases(`
eval | OOM after first epoch#Training runs for one epoch, then when computing the metrics on the val split it goes OOM.
eval | CUDA out of memory#The model trains, but computing mAP on the validation images fails.
eval | Memory keeps rising while the test set is processed
eval | OOM in compute_metrics#I use the Trainer with predict_with_generate.
eval | GPU memory#The first evaluation happens at step 500 and it is there that memory runs out.
sample | Out of memory for high resolution input#When I upload a 4k picture in the gradio page, I get
sample | memory error for a batch of 16 prompts#With batch 1 generation is fine.
sample | CUDA OOM after a few requests to the API server
sample | Can I run this on 8 GB?#python app.py opens, but after pressing Generate I get
load | OOM#accelerate launch fails already while the weights are being loaded onto each GPU.
load | 70B with 4 bit#It dies at "Loading checkpoint shards: 80%".
load | GPU memory full before anything starts#load_in_8bit=True with device_map="auto" crashes when the model is loaded.
init | OOM before training#The crash comes when the model is moved to the GPU.
init | DDP#Wrapping the model in DistributedDataParallel gives out of memory.
init | FSDP#It runs out of memory when wrapping the model with FSDP.
init | vllm#The engine cannot be started since the KV cache does not fit, out of memory.
init | deepspeed#deepspeed.initialize() runs out of memory
backward | OOM#The forward pass needs 10 GB, then in backward it explodes and OOMs.
backward | RuntimeError in loss.backward()
backward | OOM during backpropagation
backward | out of memory when computing gradients
optimizer | OOM#First step works up to opt.step(), which raises the error.
optimizer | Adam states#Memory runs out when Adam allocates its states.
optimizer | OOM at gradient clipping
save | crash#Training finishes and then it is killed while writing the checkpoint to disk.
save | OOM#The out of memory error comes when merging the LoRA weights and saving.
save | memory#state_dict() gathering on rank 0 runs out of memory.
data | RAM#My RAM is full before the training starts because the whole dataset is read into memory and the process gets killed.
data | killed#The process gets killed while building the vocabulary.
data | Killed#Preprocessing of the 40 GB corpus gets killed.
data | Memory leak in DataLoader#RAM grows with num_workers until the process is killed.
compile | torch.compile#With mode max-autotune it runs out of memory while benchmarking kernels during compilation.
compile | TensorRT#Building the engine with trtexec runs out of memory.
compile | OOM in export to onnx
forward | OOM#It crashes at the 3rd iteration of the first epoch.
forward | OOM#Training crashes randomly after about 2000 steps with out of memory.
forward | batch size#In the first training batch the forward pass fails with CUDA out of memory.
forward | CUDA out of memory in the loss computation
forward | OOM#self-attention with 8k tokens in training runs out of memory when computing the softmax.
eval | OOM when doing linear probing evaluation
eval | running lm_eval runs out of memory
eval | MMLU benchmark OOM
sample | RuntimeError: out of memory when rendering a video
sample | SDXL needs more memory#txt2img at 1024 gives OOM
sample | Whisper large#transcribing a podcast fails
sample | colmap data#Rendering the test views: CUDA out of memory.
eval | OOM on test set#I trained with 4 GB but testing needs more than 24.
eval | Eval OOM#With eval_strategy="steps" the run fails at the first eval, without it all is fine.
eval | out of memory when calculating perplexity
eval | Memory explodes in validation_step
eval | CUDA OOM at the end of the epoch#bs=2
sample | CUDA out of memory while running the demo notebook
sample | Batch inference OOM#Same for single images.
sample | How much VRAM is needed for inference?#I get this on a 12GB card.
sample | Out of memory on long prompts
sample | Video generation OOM on 4090
sample | OOM with 720p video#generate.py --size 1280*720 crashes
sample | CUDA error after several chat turns#It grows with each answer and then runs out of memory.
sample | Can't run on Colab#Cell "Run inference" ends with the error.
load | Can't load model on 2x3090#Tensor parallel does not help.
load | loading fails#from_pretrained(..., torch_dtype=torch.float16) kills the kernel.
load | OOM with resume#When I pass --resume, GPU 0 takes double memory and crashes.
load | out of RAM#My 16 GB RAM are not enough to load the checkpoint, the process is killed.
load | convert checkpoints#The script is killed while reading the pytorch_model.bin.
init | OOM at model.cuda()
init | multi gpu#All ranks allocate on GPU 0 at start and it runs out of memory at init_process_group.
init | CUDA OOM on server startup
init | KV cache#ValueError: no memory for the cache blocks; it happens at initialization.
backward | OOM in loss.backward() only with 2 GPUs
backward | memory#Forward takes 5GB. Calling backward raises the error.
backward | double backward#Gradient penalty computation runs out of memory in autograd.grad.
optimizer | AdamW OOM#After the first backward, optimizer.step() fails.
optimizer | SGD works, Adam does not#The error arises in the first optimizer step.
save | OOM on save_model#Trainer finished.
save | CPU RAM#torch.save(model.state_dict()) gets killed.
save | FSDP full state dict OOM
data | process killed#While loading the csv with pandas the process gets killed.
data | MemoryError#It is raised when the images are converted into one numpy array.
data | RAM usage explodes in tokenization
data | DataLoader worker killed#num_workers=8
compile | torch.compile OOM#Without compile it trains.
compile | AOT compile OOM
compile | convert to tensorrt killed
forward | OOM in attention#Training with 4k tokens, the error is in the attention layer.
forward | OOM in first step of training
forward | CUDA out of memory at iteration 0
forward | crash at step 1200#Loss was fine till then, then CUDA OOM.
forward | training crashes after 2 epochs
forward | OOM in the middle of an epoch
unknown | How to reduce memory?#I train on a 2080.
unknown | Multi GPU#Why is GPU 0 full?
eval | mAP#It runs out of memory when computing the mAP.
forward | boxes#In training it runs out of memory when computing the IoU of the boxes in the first step.
load | adapters#It runs out of memory when loading the optimizer states.
`) {
		text = strings.Replace(text, "#", "\n\n", 1)
		l, err := Read(strings.NewReader("# " + text + "\n\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s, want %s: %q; %v", l.Phase(), want, text, err)
		}
	}
}
