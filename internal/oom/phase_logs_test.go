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
