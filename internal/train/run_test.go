package train

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	"github.com/snugml/snug/internal/metrics"
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

func (r *recorder) Eval(e Eval) error { r.evals = append(r.evals, e); return nil }

func (r *recorder) Saved(path string, iter int) { r.saved = append(r.saved, iter) }

func (r *recorder) losses() (l []float64) {
	for _, it := range r.iters {
		l = append(l, it.Loss)
	}
	return l
}

func device(threads int) Device {
	dtypes := DTypes(trace.Float32)
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

// Wider passes of an evaluation draw the same samples in the same order and find the same losses, to rounding; nothing else of a
// run changes.
func TestWideEvaluationDrawsTheSame(t *testing.T) {
	run := func(costs Costs) (rec recorder, drawn []string, at int, params [][]float32) {
		d := device(1)
		d.Costs = costs
		params, err := trainOn(t, d, tiny(t, func(c *config.Config) { c.EvalIters = 4 }), &rec, func(r *Run) {
			r.Data = drawing{r.Data, func(split string, it int, n uint64) { drawn = append(drawn, fmt.Sprint(split, it, " ", n)) }}
			at = r.Step.Policy.EvalBatch
		})
		if err != nil {
			t.Fatal(err)
		}
		return rec, drawn, at, params
	}
	few := CPUCosts
	few.Tokens = 3 * 8
	wide := few
	wide.Eval = 1000
	narrow, one, atNarrow, params := run(few)
	got, other, atWide, same := run(wide)
	if atNarrow != 3 || atWide != 12 {
		t.Errorf("passes of %d and %d sequences, want 3 and 12", atNarrow, atWide)
	}
	if !slices.Equal(one, other) {
		t.Errorf("drawn:\n%v\nand with wider passes\n%v", one, other)
	}
	if !slices.Equal(got.losses(), narrow.losses()) || !slices.EqualFunc(params, same, slices.Equal[[]float32]) {
		t.Error("training changed")
	}
	for i, e := range narrow.evals {
		if w := got.evals[i]; !(math.Abs(w.ValLoss-e.ValLoss) < 1e-6) || !(math.Abs(w.TrainLoss-e.TrainLoss) < 1e-6) {
			t.Errorf("iteration %d: losses %v and %v, with wider passes %v and %v", e.Iter, e.TrainLoss, e.ValLoss, w.TrainLoss, w.ValLoss)
		}
	}
}

// drawing tells of every sample that an evaluation draws.
type drawing struct {
	Data
	tell func(split string, it int, n uint64)
}

func (d drawing) Eval(split string, it int, n uint64, x, y []int32) error {
	for i := range len(x) / 8 {
		d.tell(split, it, n+uint64(i))
	}
	return d.Data.Eval(split, it, n, x, y)
}
