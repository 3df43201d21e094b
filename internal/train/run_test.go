package train

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/metrics"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// tiny is a run of a few milliseconds an iteration: settings, with data in dir.
func tiny(t *testing.T, change func(*config.Config)) config.Config {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	for key, v := range map[string]any{"out_dir": filepath.Join(dir, "out"), "data_dir": dir, "dataset": "words", "vocab_size": 17,
		"eval_interval": 4, "eval_iters": 2, "batch_size": 3, "gradient_accumulation_steps": 2, "block_size": 8,
		"n_layer": 2, "n_head": 2, "n_embd": 16, "dropout": 0.1, "max_iters": 10, "warmup_iters": 2, "lr_decay_iters": 10,
		"learning_rate": 1e-2, "min_lr": 1e-3} {
		if err := c.Set(key, v); err != nil {
			t.Fatal(err)
		}
	}
	writeTokens(t, filepath.Join(dir, "words"), 17)
	if change != nil {
		change(&c)
	}
	return c
}

// writeTokens writes a data set in which every token says much of the next.
func writeTokens(t *testing.T, dir string, vocab int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for i, name := range []string{"train.bin", "val.bin"} {
		raw, token := []byte(nil), 0
		for range []int{3000, 600}[i] {
			token = (token*3 + 1 + rng.IntN(2)) % vocab
			raw = binary.LittleEndian.AppendUint16(raw, uint16(token))
		}
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// recorder keeps what a run reports; stop, where set, is called after iteration stopAt.
type recorder struct {
	iters  []Iter
	evals  []Eval
	saved  []int
	stopAt int
	stop   func()
}

func (r *recorder) Iter(it Iter) error {
	r.iters = append(r.iters, it)
	if r.stop != nil && it.Iter == r.stopAt {
		r.stop()
	}
	return nil
}
func (r *recorder) Eval(e Eval) error           { r.evals = append(r.evals, e); return nil }
func (r *recorder) Saved(path string, iter int) { r.saved = append(r.saved, iter) }

func (r *recorder) losses() (l []float64) {
	for _, it := range r.iters {
		l = append(l, it.Loss)
	}
	return l
}

func device(threads int) Device {
	dtypes := DTypes(trace.Float32)
	dtypes.FirstOverwrites = true
	return Device{Name: "CPU", Exec: cpu.New(cpu.Options{Threads: threads}), DTypes: dtypes, Costs: CPUCosts}
}

// train runs c to its end, or to the stop that rec asks for, and returns the parameters.
func train(t *testing.T, c config.Config, rec *recorder) (params [][]float32, err error) {
	t.Helper()
	return trainFrom(t, c, rec, func(*Run) {})
}

// trainFrom is train with a run that change has changed before it starts.
func trainFrom(t *testing.T, c config.Config, rec *recorder, change func(*Run)) (params [][]float32, err error) {
	t.Helper()
	return trainOn(t, device(2), c, rec, change)
}

// trainOn is trainFrom on a device, which it closes.
func trainOn(t *testing.T, d Device, c config.Config, rec *recorder, change func(*Run)) (params [][]float32, err error) {
	t.Helper()
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	change(r)
	if err := r.Start(rec); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rec.stop = cancel
	if rec.stopAt == 0 {
		rec.stopAt = -1
	}
	err = r.Run(ctx)
	for _, p := range r.Step.Params {
		v := make([]float32, p.Len())
		if e := r.Exec.Floats(p.Weight, v); e != nil {
			t.Fatal(e)
		}
		params = append(params, v)
	}
	return params, err
}

func TestLoopIsNanoGPTs(t *testing.T) {
	c := tiny(t, func(c *config.Config) { c.TensorboardLog = true })
	rec := &recorder{}
	if _, err := train(t, c, rec); err != nil {
		t.Fatal(err)
	}
	if n := len(rec.iters); n != 11 {
		t.Errorf("%d iterations, nanoGPT does max_iters+1 = 11", n)
	}
	var at []int
	for _, e := range rec.evals {
		at = append(at, e.Iter)
	}
	if !slices.Equal(at, []int{0, 4, 8}) || !slices.Equal(rec.saved, []int{4, 8, 11}) {
		t.Errorf("estimates at %v, checkpoints at %v, want 0 4 8 and 4 8 and the end", at, rec.saved)
	}
	if first, last := rec.evals[0], rec.evals[2]; !(last.ValLoss < first.ValLoss-0.25 && last.TrainLoss < first.TrainLoss-0.25) {
		t.Errorf("the loss went from %v/%v to %v/%v", first.TrainLoss, first.ValLoss, last.TrainLoss, last.ValLoss)
	}
	if want := math.Log(17); !(math.Abs(rec.evals[0].ValLoss-want) < 0.05) {
		t.Errorf("the first estimate is %v, an untrained model's is about ln 17 = %v", rec.evals[0].ValLoss, want)
	}
	s, err := metrics.Read(filepath.Join(c.OutDir, metrics.Name))
	if err != nil || len(s.Iters) != 11 || len(s.Evals) != 3 {
		t.Errorf("metrics.jsonl has %d iterations and %d estimates (%v)", len(s.Iters), len(s.Evals), err)
	}
	if events, _ := filepath.Glob(filepath.Join(c.OutDir, "events.out.tfevents.*")); len(events) != 1 {
		t.Errorf("tensorboard_log=True left event files %v", events)
	}
}

// A finished run that is resumed does nothing, until max_iters is raised.
func TestResumeOfAFinishedRun(t *testing.T) {
	c := tiny(t, nil)
	want, err := train(t, c, &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	c.InitFrom = "resume"
	rec := &recorder{}
	got, err := train(t, c, rec)
	if err != nil {
		t.Fatal(err)
	}
	if len(rec.iters)+len(rec.evals)+len(rec.saved) != 0 || !slices.Equal(got[0], want[0]) {
		t.Errorf("%d iterations, %d estimates, %d checkpoints more", len(rec.iters), len(rec.evals), len(rec.saved))
	}
	c.MaxIters = 12
	if _, err := train(t, c, rec); err != nil || len(rec.iters) != 2 || rec.iters[0].Iter != 11 {
		t.Errorf("with max_iters=12: %v, %d iterations", err, len(rec.iters))
	}
}

// A setting that asks for what snug does otherwise is answered.
func TestNoSettingIsSilentlyIgnored(t *testing.T) {
	c := tiny(t, func(c *config.Config) {
		for key, v := range map[string]any{"compile": true, "backend": "gloo", "wandb_log": true, "warmup_iters": 20} {
			if err := c.Set(key, v); err != nil {
				t.Fatal(err)
			}
		}
	})
	d := device(1)
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	notes := strings.Join(r.Notes, "; ")
	for _, want := range []string{"compile has no effect", "backend has no effect", "wandb_log has no effect: snug sends nothing anywhere; metrics.jsonl",
		"lr_decay_iters 10 is less than warmup_iters 20"} {
		if !strings.Contains(notes, want) {
			t.Errorf("notes %q, want %q", notes, want)
		}
	}
}

// float16 is trained under a loss scale, whatever the checkpoint was trained in; nothing else is.
func TestFloat16IsScaled(t *testing.T) {
	kept := Scaler{Scale: 1024, Since: 7, On: true}
	for name, c := range map[string]struct {
		dtype     trace.DType
		own, want Scaler
	}{
		"fresh":            {trace.Float16, Start().Scale, Scaler{Scale: 65536, On: true}},
		"resumed":          {trace.Float16, kept, kept},
		"bfloat16":         {trace.BFloat16, Start().Scale, Scaler{Scale: 1}},
		"from float16, on": {trace.Float32, kept, Scaler{Scale: 1}},
	} {
		if got := scalerFor(c.dtype, c.own); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	d := device(1)
	defer d.Exec.Close()
	d.DTypes = DTypes(trace.Float16)
	r, err := Prepare(tiny(t, nil), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !r.Scale.On {
		t.Errorf("a float16 run has the scale %+v", r.Scale)
	}
}

// A run that was stopped and resumed, twice, ends in the same bits as one that was not, and tells the same.
func TestResumeIsBitEqual(t *testing.T) {
	for _, always := range []bool{true, false} {
		whole := tiny(t, func(c *config.Config) { c.AlwaysSaveCheckpoint = always })
		all := &recorder{}
		want, err := train(t, whole, all)
		if err != nil {
			t.Fatal(err)
		}
		c := tiny(t, func(c *config.Config) { c.AlwaysSaveCheckpoint = always })
		parts := []*recorder{{stopAt: 2}, {stopAt: 5}, {}}
		var got [][]float32
		var losses []float64
		for i, rec := range parts {
			if i > 0 {
				c.InitFrom = "resume"
			}
			if got, err = train(t, c, rec); i < 2 && !errors.Is(err, ErrStopped) || i == 2 && err != nil {
				t.Fatalf("part %d: %v", i, err)
			}
			losses = append(losses, rec.losses()...)
		}
		if !slices.Equal(losses, all.losses()) {
			t.Errorf("always_save %v: losses %v, without a stop %v", always, losses, all.losses())
		}
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("always_save %v: parameter %d has other bits", always, i)
			}
		}
		a, _ := metrics.Read(filepath.Join(whole.OutDir, metrics.Name))
		b, _ := metrics.Read(filepath.Join(c.OutDir, metrics.Name))
		if !slices.Equal(a.Evals, b.Evals) || len(a.Iters) != len(b.Iters) {
			t.Errorf("always_save %v: metrics.jsonl tells %v and %d iterations, without a stop %v and %d", always, b.Evals, len(b.Iters), a.Evals, len(a.Iters))
		}
	}
}

// A run sees the same samples and the same dropout however its batch is split: losses differ by rounding alone.
func TestSplitGivesTheSameRun(t *testing.T) {
	var want *recorder
	for _, micro := range []int{6, 1, 2, 4} {
		rec := &recorder{}
		if _, err := train(t, tiny(t, func(c *config.Config) { c.MicroBatch = micro }), rec); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = rec
		}
		for i, it := range rec.iters {
			if w := want.iters[i]; !(math.Abs(it.Loss-w.Loss) <= 1e-5*w.Loss) {
				t.Fatalf("micro_batch=%d: loss %v at iteration %d, at once %v", micro, it.Loss, it.Iter, w.Loss)
			}
		}
		for i, e := range rec.evals {
			if w := want.evals[i]; !(math.Abs(e.ValLoss-w.ValLoss) <= 1e-5*w.ValLoss) {
				t.Fatalf("micro_batch=%d: val loss %v at iteration %d, at once %v", micro, e.ValLoss, e.Iter, w.ValLoss)
			}
		}
	}
}

// float16's loss scale, a power of two, changes no bit of a step that stays in range.
func TestLossScaleCancels(t *testing.T) {
	want, err := train(t, tiny(t, nil), &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := trainFrom(t, tiny(t, nil), &recorder{}, func(r *Run) { r.Scale = scalerFor(trace.Float16, Start().Scale) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("parameter %d has other bits with a scaled loss", i)
		}
	}
}

// GradScaler's rules: half on an overflow, double after 2,000 good iterations; off, nothing changes and nothing helps.
func TestScaler(t *testing.T) {
	s := scalerFor(trace.Float16, Start().Scale)
	if !s.Overflow() || s.Scale != 32768 {
		t.Errorf("after an overflow: %+v", s)
	}
	for range 2000 {
		s.Good()
	}
	if s.Scale != 65536 || s.Since != 0 {
		t.Errorf("after 2,000 good iterations: %+v", s)
	}
	off := Scaler{Scale: 1}
	off.Good()
	if off.Overflow() || off != (Scaler{Scale: 1}) {
		t.Errorf("off: %+v", off)
	}
}

// With always_save_checkpoint=False an interrupt leaves the best checkpoint where it is.
func TestInterruptKeepsTheBest(t *testing.T) {
	c := tiny(t, func(c *config.Config) { c.AlwaysSaveCheckpoint = false })
	if _, err := train(t, c, &recorder{stopAt: 6}); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	for dir, want := range map[string]int{c.OutDir: 4, filepath.Join(c.OutDir, LastDir): 7} {
		s, err := checkpoint.Load(dir, checkpoint.Everything)
		if err != nil {
			t.Fatal(err)
		}
		if s.IterNum != want {
			t.Errorf("%s is at iteration %d, want %d", filepath.Base(dir), s.IterNum, want)
		}
		s.Close()
	}
	// A run begun anew forgets the old interrupted state with its first checkpoint.
	if _, err := train(t, c, &recorder{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(c.OutDir, LastDir)); !os.IsNotExist(err) {
		t.Errorf("the old run's last state is still there: %v", err)
	}
}

func TestEvalOnly(t *testing.T) {
	c := tiny(t, nil)
	if _, err := train(t, c, &recorder{stopAt: 5}); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(filepath.Join(c.OutDir, metrics.Name))
	c.InitFrom, c.EvalOnly = "resume", true
	rec := &recorder{}
	if _, err := train(t, c, rec); err != nil {
		t.Fatal(err)
	}
	if len(rec.iters) != 0 || len(rec.evals) != 1 || rec.evals[0].Iter != 6 || len(rec.saved) != 0 {
		t.Errorf("eval_only: %d iterations, estimates %v, checkpoints %v", len(rec.iters), rec.evals, rec.saved)
	}
	if after, _ := os.ReadFile(filepath.Join(c.OutDir, metrics.Name)); string(after) != string(before) {
		t.Error("eval_only changed metrics.jsonl")
	}
}

// Weights alone start a run anew, cropped to a shorter block_size.
func TestInitFromFile(t *testing.T) {
	c := tiny(t, nil)
	if _, err := train(t, c, &recorder{}); err != nil {
		t.Fatal(err)
	}
	next := tiny(t, func(n *config.Config) {
		n.InitFrom = filepath.Join(c.OutDir, checkpoint.Name)
		n.NLayer, n.VocabSize, n.MaxIters = 5, 0, 2 // the file's model wins
	})
	if err := next.Set("block_size", 6); err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	params, err := train(t, next, rec)
	if err != nil {
		t.Fatal(err)
	}
	if len(params) != 2+6*2+1 || len(params[1]) != 6*16 {
		t.Errorf("%d parameters, %d positions' values", len(params), len(params[1]))
	}
	if rec.evals[0].Iter != 0 || !(rec.evals[0].ValLoss < math.Log(17)-0.25) {
		t.Errorf("the first estimate is %v at iteration %d: the weights were not taken", rec.evals[0].ValLoss, rec.evals[0].Iter)
	}
}

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

// Nothing is allocated in an iteration but the line in metrics.jsonl.
func TestIterationAllocatesNothing(t *testing.T) {
	c := tiny(t, func(c *config.Config) { c.EvalInterval = 1000 })
	d := device(1)
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Start(&recorder{}); err != nil {
		t.Fatal(err)
	}
	most := max(r.Step.Policy.MicroBatch, r.Step.Policy.EvalBatch) * 8
	r.x, r.y = make([]int32, most), make([]int32, most)
	if n := testing.AllocsPerRun(10, func() {
		if err := errors.Join(r.gradients(r.Iter), r.update(1e-3)); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations in an iteration", n)
	}
}
