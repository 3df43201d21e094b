package oom

import (
	"slices"
	"strings"
	"testing"
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
	if d.Phase != Eval || !d.Guessed() || d.Chance > 1 {
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

// Saving has a remedy of its own, the first one.
func TestSavingFromTheCPU(t *testing.T) {
	d := diagnose(t, "  File \"/w/t.py\", line 9, in <module>\n    torch.save(model.state_dict(), path)\n  File \"/e/site-packages/torch/serialization.py\", line 5, in save\n"+smallMessage)
	if d.Phase != Save || len(d.Fixes) == 0 || d.Fixes[0].Kind != "save_cpu" {
		t.Errorf("phase %s, fixes %s", d.Phase, kinds(d))
	}
}
