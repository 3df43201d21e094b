//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/units"
)

// onStandIn runs the example, shortened and changed, on the stand-in driver; between happens once the plan is shown.
func onStandIn(t *testing.T, sync bool, change map[string]any, between func()) (stderr string, err error) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("SNUG_RUNS", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var out, errs bytes.Buffer
	io := &term.IO{Out: &term.Stream{Writer: &out, Width: 300}, Err: &term.Stream{Writer: &hook{&errs, "memory ", between}, Width: 300}, Env: os.Getenv}
	o := trainOptions{config: config.Default(), cuda: cuda.Options{Sync: sync}}
	if err := prepareExample(context.Background(), io, &o); err != nil {
		t.Fatal(err)
	}
	o.prompt = ""
	settings := map[string]any{"device": "cuda", "n_layer": 1, "n_embd": 16, "max_iters": 1, "eval_iters": 1}
	maps.Copy(settings, change)
	for key, v := range settings {
		if err := o.config.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	err = runTrain(context.Background(), io, o)
	return errs.String(), err
}

// hook is a writer that does something when a text is first written to it.
type hook struct {
	*bytes.Buffer
	text string
	do   func()
}

func (h *hook) Write(p []byte) (int, error) {
	if h.do != nil && bytes.Contains(p, []byte(h.text)) {
		h.do()
		h.do = nil
	}
	return h.Buffer.Write(p)
}

// With --sync a kernel that fails is named where it fails; without, the run ends at whatever waits next.
func TestSyncNamesTheKernel(t *testing.T) {
	for _, sync := range []bool{true, false} {
		driver := cudatest.StandIn(t)
		_, err := onStandIn(t, sync, nil, func() { driver.Fail("norm_final") })
		if err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_ILLEGAL_ADDRESS") || strings.Contains(err.Error(), "run update, op 0, grad_norm GlobalNorm: launch adamw.bf16/norm_final<<<(1,1,1), 1024, 0>>>") != sync {
			t.Errorf("sync %v: %v", sync, err)
		}
	}
}

// What others take between the plan and the start is said in one line, or ends the run as one that does not fit.
func TestTakenMemoryIsSaid(t *testing.T) {
	driver := cudatest.StandIn(t)
	large := map[string]any{"block_size": 64, "n_embd": 240, "n_head": 5, "n_layer": 4, "batch_size": 224, "dtype": "bfloat16"}
	text, err := onStandIn(t, false, large, func() { driver.Others(cudatest.Total - 244*units.MiB) })
	if want := "\nnote     others took memory of the device: the run could have 11.82 GiB when it was planned, it can have 60.00 MiB now: planned again"; err != nil || !strings.Contains(text, want) {
		t.Errorf("%v, stderr lacks %q:\n%s", err, want, text)
	}
	driver.Others(0)
	_, err = onStandIn(t, false, large, func() { driver.Others(cudatest.Total) })
	var exit *exitError
	if !errors.As(err, &exit) || exit.code != ExitDoesNotFit || !strings.Contains(err.Error(), "it can have 0 B now") {
		t.Errorf("with no memory left: %v", err)
	}
}
