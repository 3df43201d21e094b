package oom

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/fit"
)

func diagnose(t *testing.T, log string) *Diagnosis {
	t.Helper()
	l, err := Read(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	target := h200(t)
	if f := l.Failure(); f != nil && f.Facts.Total != nil {
		target = fit.Within(*f.Facts.Total)
	}
	return Diagnose(Case{Log: l, Config: l.Run.Config(), Target: target})
}

func kinds(d *Diagnosis) string {
	var all []string
	for _, f := range d.Fixes {
		all = append(all, f.Kind)
	}
	return strings.Join(all, " ")
}

// Advice never names what the log shows is on already.
func TestFixesNotOnAlready(t *testing.T) {
	const fragmented = "RuntimeError: CUDA out of memory. Tried to allocate 1.10 GiB (GPU 0; 10.76 GiB total capacity; 5.02 GiB already allocated; 640.50 MiB free; 9.23 GiB reserved in total by PyTorch)\n"
	if got := kinds(diagnose(t, fragmented)); !strings.Contains(got, "expandable_segments") {
		t.Errorf("fragmentation: %s", got)
	}
	if got := kinds(diagnose(t, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"+fragmented)); strings.Contains(got, "expandable_segments") {
		t.Errorf("expandable segments are on: %s", got)
	}
	one := "  Instantaneous batch size per device = 1\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n    loss.backward()\n" +
		"RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 7.93 GiB total capacity; 7.11 GiB already allocated; 30.94 MiB free; 7.20 GiB reserved in total by PyTorch)\n"
	if got := kinds(diagnose(t, one)); strings.Contains(got, "generic_batch") {
		t.Errorf("the batch is 1: %s", got)
	}
	eager, err := os.ReadFile("testdata/corpus/nanogpt-b64-eager-eval.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range diagnose(t, string(eager)).Fixes {
		if v, ok := f.Changes["compile"]; ok && v == false && f.Kind != "cpu" {
			t.Errorf("compile is off: %+v", f)
		}
	}
}

// A fix that is said to fit does: simulated again under the room of the log, nothing fails. The first is settings alone.
func TestFixesFit(t *testing.T) {
	logs, _ := filepath.Glob("testdata/corpus/nanogpt-*.log")
	tried := 0
	for _, path := range logs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d := diagnose(t, string(raw))
		base, target := d.Simulated()
		if base == nil {
			continue
		}
		for i, f := range d.Fixes {
			if f.Fits == nil || !*f.Fits || len(f.Changes) == 0 {
				continue
			}
			setup := base.Setup
			for key, v := range f.Changes {
				if err := setup.Config.Set(key, v); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
			}
			o, err := fit.Try(setup, target)
			if err != nil || !o.Fits || o.Peak.Reserved > d.Room {
				t.Errorf("%s: fix %d (%s %v) is said to fit %v: %+v, %v", filepath.Base(path), i+1, f.Kind, f.Changes, d.Room, o, err)
			}
			tried++
		}
		if d.Cause() == BatchTooLarge && len(d.Fixes) > 0 && d.Fixes[0].Kind != "micro_batch" {
			t.Errorf("%s: the first fix is %s", filepath.Base(path), d.Fixes[0].Kind)
		}
	}
	if tried < 10 {
		t.Errorf("only %d fixes were tried", tried)
	}
}

// The incident of the notes: the figures a person got by hand, by computation.
func TestIncident(t *testing.T) {
	d := diagnose(t, string(Example))
	if d.Same == nil || d.Same.Allocated.String() != "6.78 GiB" || d.Tensor.Name != "logits" || d.Tensor.Certainty != Exact {
		t.Errorf("simulated failure %+v, tensor %+v", d.Same, d.Tensor)
	}
	best := d.Fixes[0]
	if best.Changes["batch_size"] != 8 || best.Changes["gradient_accumulation_steps"] != 8 || !*best.Fits || best.EffectiveBatch != 64 {
		t.Errorf("best fix %+v", best)
	}
	if d.Fixes[1].Kind != "micro_batch_safe" {
		t.Errorf("second fix %s", d.Fixes[1].Kind)
	}
}

// Evaluation on the CPU is offered where evaluation failed on a card, and is said not to be enough where training does not fit either.
func TestFixesEvalOnCPU(t *testing.T) {
	const oom = "RuntimeError: CUDA out of memory. Tried to allocate 1.10 GiB (GPU 0; 10.76 GiB total capacity; 9.02 GiB already allocated; 640.50 MiB free; 9.23 GiB reserved in total by PyTorch)\n"
	const call = "Traceback (most recent call last):\n  File \"a.py\", line 1, in %\n    out = model(x)\n"
	if got := kinds(diagnose(t, strings.Replace(call, "%", "validate", 1)+oom)); !strings.Contains(got, "eval_cpu") {
		t.Errorf("evaluation failed: %s", got)
	}
	if got := kinds(diagnose(t, strings.Replace(call, "%", "train", 1)+oom)); strings.Contains(got, "eval_cpu") {
		t.Errorf("training failed: %s", got)
	}
	for _, f := range diagnose(t, string(Example)).Fixes {
		if f.Kind == "eval_cpu" && (f.Fits == nil || *f.Fits || f.Effect.Args["tokens"] != int64(2*200*64*1024)) {
			t.Errorf("the example's training does not fit either: %+v", f)
		}
	}
}
