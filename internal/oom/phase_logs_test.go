package oom

import (
	"strings"
	"testing"
)

// What a piece of a log shows: "phase | lines", "#" between lines, above a message of the card's memory. A line that begins
// with "!" stands in for that message.
func TestPhaseOfLogs(t *testing.T) {
	for want, text := range cases(`
data | File "train.py", line 9, in <module>#    boxes_data.resize_(batch[1].size()).copy_(batch[1])
optimizer | File "/env/lib/python3.11/site-packages/torch/optim/adam.py", line 9, in step#    p.data.copy_(batch_of_params)
init | File "metrics.py", line 9, in <module>#    blur_window.cuda()
init | File "train.py", line 9, in main#    vgg_features.to(device)
data | File "train.py", line 2, in train#    loss = net(x)#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)#File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 66, in handler#    _error_if_any_worker_fails()
data | File "data_feed.py", line 31, in __init__#    self.data = data.view(bsz, -1).t().to(device)
init | File "/env/lib/python3.11/site-packages/peft/utils/other.py", line 3, in prepare_model_for_kbit_training#    param.data = param.data.to(torch.float32)
load | File "work.py", line 2, in main#    net = th.load(path).to(device)#File "/env/lib/python3.11/site-packages/torch/nn/modules/rnn.py", line 3, in _apply#    self.flatten_parameters()
sample | File "work.py", line 2, in <module>#    e = atoms.get_potential_energy()#File "/env/lib/python3.11/site-packages/ase/calculators/calculator.py", line 3, in get_property#    self.calculate(atoms)#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)
sample | File "run_demo.py", line 2, in <module>#    out = est.track(frame)#File "/w/est.py", line 3, in predict#    crops = make_crop_data_batch(frame, boxes)#File "/w/est.py", line 7, in make_crop_data_batch#    x = warp(frame, boxes)
init | File "work.py", line 2, in train#    with self.backend.create_trainer(#File "work.py", line 9, in create_trainer#    return cls(model)
sample | Processed prompts:   0%|
data | Loading dataset:  42%|████      | 75/178 [09:03<12:18,  6.56s/it]
data | train: Caching images (3.1GB RAM):  42%|████      | 75/178 [09:03<12:18,  6.56s/it]
forward | File "train.py", line 2, in <module>#    model.optimize_parameters()#File "/w/models/pair.py", line 3, in optimize_parameters#    self.backward_D()#File "/w/models/pair.py", line 5, in backward_D#    pred = self.netD(self.fake.detach())#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)
backward | File "train.py", line 2, in <module>#    loss.backward()#File "/w/models/reversible.py", line 3, in backward#    y = self.block(x)#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)
compile | File "work.py", line 2, in <module>#    out = net(x)#File "/env/lib/python3.11/site-packages/torch/_dynamo/utils.py", line 3, in clone_input#    return torch_clone(x)
sample | File "/usr/local/bin/unmix", line 8, in <module>#    sys.exit(main())#File "/env/lib/python3.11/site-packages/unmix/separate.py", line 3, in main#    tracks = unmix_all(net, wav)
sample | File "runner.py", line 8, in <module>#    save_normals(scenes)#File "runner.py", line 18, in save_normals#    out = self.predictor(views)#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)
save | File "runner.py", line 8, in train#    save_checkpoint(net)#File "runner.py", line 18, in save_checkpoint#    torch.save(net.state_dict(), path)
sample | 2024-01-02 03:04:05,631 - Forecast Bench - INFO - Generating forecasts for series
sample | I0102 run_fold.py:7] Operator: op_type="add" op_name="jit(apply_fn)/scan/while/body/add" source_file="modules.py"#    XLA Label: fusion
forward | Operator: op_name="jit(train_step)/jvp(Net)/dense/dot_general"#    XLA Label: fusion
sample | File "/env/lib/python3.11/site-packages/diffusers/models/resnet.py", line 3, in forward#    hidden = self.conv1(hidden)
forward | File "/w/nets/resnet.py", line 3, in forward#    hidden = self.conv1(hidden)
init | File "work.py", line 3, in <module>#    model.add(Dense(4096))#File "/env/lib/python3.11/site-packages/tensorflow/python/keras/engine/sequential.py", line 3, in add#    output_tensor = layer(self.outputs[0])#File "/env/lib/python3.11/site-packages/tensorflow/python/keras/engine/base_layer.py", line 3, in __call__#    self._maybe_build(inputs)
forward | File "work.py", line 3, in <module>#    model.fit(x, y)#File "/env/lib/python3.11/site-packages/tensorflow/python/keras/engine/training.py", line 3, in train_step#    y_pred = self(x, training=True)#File "/env/lib/python3.11/site-packages/tensorflow/python/keras/engine/base_layer.py", line 3, in __call__#    outputs = call_fn(inputs)
data | File "work.py", line 3, in train#    x, y = x.to(device), y.to(device)
data | File "work.py", line 3, in train#    features = features.cuda()
sample | File "/w/plugins/super_resolution.py", line 56, in enlarge#    big = model(small)#File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 3, in _call_impl#    return forward_call(*args)
unknown | evaluating Epoch: 100%|██████████| 17/17 [01:08<00:00,  4.00s/it]
data | !Traceback (most recent call last):#  File "train.py", line 5, in main#    labels = np.repeat(labels, 4, axis=0)#  File "/env/lib/python3.11/site-packages/numpy/lib/function_base.py", line 3, in repeat#    new = empty(shape)#MemoryError
eval | !Traceback (most recent call last):#  File "tool.py", line 5, in evaluate#    scores = np.zeros((n, n))#MemoryError
`) {
		lines, alone := strings.CutPrefix(strings.ReplaceAll(text, "#  ", "\n  "), "!")
		for _, mark := range []string{"#File", "#Memory"} {
			lines = strings.ReplaceAll(lines, mark, "\n"+mark[1:])
		}
		if !alone {
			lines = "some output\n" + lines + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
		}
		l, err := Read(strings.NewReader(lines + "\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", text, l.Phase(), want, err)
		}
	}
}

// A title says more than the script's name, and the half of it that goes well says nothing.
func TestPhaseByTitleBeforeScript(t *testing.T) {
	for want, text := range cases(`
sample | Inference on a picture runs out of memory | python test.py --opt x.yml
load | Killed at "Loading checkpoint shards: 30%" | python generate.py --base llama
save | OOM while saving the checkpoint | python eval.py
sample | CUDA out of memory for large embeddings | python work.py
sample | Memory error while running extract_features.py | python work.py
init | Memory full when starting the webui | python work.py
eval | Out of memory in the validation | python predict.py
init | Error | I get out of memory at#@net, opt = accelerator.prepare(net, opt) in work.py@
init | Error | I get out of memory at#net = accelerator.prepare(net)
eval | Error | After 500 steps it goes into the eval stage and the error occurs.
sample | Error | Upscaling a clip takes far too much memory.
sample | Extracting the mesh raises an OutOfMemoryError | some output
sample | Out of memory | I can train, but when I visualize the mesh there is an error.
data | Memory issue in dataset generation | some output
sample | Out of memory | Training worked, when doing recognition it gave an error.
init | Out of memory | It is stuck on this line @m = torch.nn.DataParallel(m).cuda()@ and dies.
data | Memory error in prepro.py | some output
eval | Why is the memory full? | python test.py
forward | Evaluation runs while training does not | return forward_call(*input, **kwargs)
compile | Far too much memory in compilation start-up | python work.py
`) {
		title, command, _ := strings.Cut(text, " | ")
		l, err := Read(strings.NewReader("# " + title + "\n\n" + strings.NewReplacer("#", "\n", "@", "`").Replace(command) + "\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"))
		if err != nil || l.Phase() != want {
			t.Errorf("%s: %s, want %s; %v", text, l.Phase(), want, err)
		}
	}
}
