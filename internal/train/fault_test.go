package train

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
)

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*config.Config)
		want   string
	}{
		"no data":       {func(c *config.Config) { c.Dataset = "none" }, "snug prepare"},
		"vocabulary":    {func(c *config.Config) { c.VocabSize = 9 }, "9"},
		"no checkpoint": {func(c *config.Config) { c.InitFrom = "resume" }, "train first"},
		"no file":       {func(c *config.Config) { c.InitFrom = "nowhere.pt" }, "no such file"},
		"gpt2":          {func(c *config.Config) { c.InitFrom = "gpt2" }, "model.safetensors"},
		"out_dir":       {func(c *config.Config) { os.WriteFile(c.OutDir, nil, 0o666) }, "out"},
	} {
		t.Run(name, func(t *testing.T) {
			settings := tiny(t, c.change)
			_, err := train(t, settings, &recorder{})
			if info, e := os.Stat(settings.OutDir); e == nil && info.IsDir() {
				t.Errorf("a start that failed left %s behind", settings.OutDir)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestTwoRunsInOneFolder(t *testing.T) {
	c := tiny(t, nil)
	d := device(1)
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := Prepare(c, d); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("a second run in the same out_dir: %v", err)
	}
}

// broken is an executor whose sixth update, iteration 5's, finds a gradient that is no number.
type broken struct {
	program.Executor
	step    *gpt.Step
	updates int
}

func (b *broken) Run(section int, s program.Step) error {
	if section == b.step.Update {
		if b.updates++; b.updates == 6 {
			if err := b.SetFloats(b.step.Params[3].Grad, []float32{float32(math.NaN())}); err != nil {
				return err
			}
		}
	}
	return b.Executor.Run(section, s)
}

// A gradient that is no number ends the run with the state before it saved, also where the next iteration was queued
// before anybody knew: no update is made behind it.
func TestNaNStopsAndSaves(t *testing.T) {
	for name, d := range map[string]func() Device{"in step": func() Device { return device(2) }, "queued": func() Device { return queuing(device(2)) }} {
		t.Run(name, func(t *testing.T) {
			c, rec := tiny(t, nil), &recorder{}
			var exec *broken
			_, err := trainOn(t, d(), c, rec, func(r *Run) {
				exec = &broken{Executor: r.Exec, step: r.Step}
				r.Exec = exec
			})
			if err == nil || !strings.Contains(err.Error(), "iteration 5") || !strings.Contains(err.Error(), "NaN") || !strings.Contains(err.Error(), "learning_rate") {
				t.Errorf("error %v", err)
			}
			if len(rec.iters) != 5 || len(rec.saved) == 0 || rec.saved[len(rec.saved)-1] != 5 || exec.updates != 6 {
				t.Errorf("%d lines, checkpoints at %v, %d updates, want 5, the last at 5, and 6", len(rec.iters), rec.saved, exec.updates)
			}
			same := tiny(t, nil)
			if _, err := train(t, same, &recorder{stopAt: 4}); !errors.Is(err, ErrStopped) {
				t.Fatal(err)
			}
			sameState(t, c.OutDir, same.OutDir)
		})
	}
}
