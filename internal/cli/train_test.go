package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
)

// The example, shortened: its data and its config file are made, the run ends with a sample, and the file reads back to
// the same settings.
func TestExample(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("SNUG_RUNS", t.TempDir())
	t.Setenv("SNUG_NVML", filepath.Join(t.TempDir(), "none"))
	var out, errs bytes.Buffer
	io := &term.IO{Out: &term.Stream{Writer: &out, Width: 100}, Err: &term.Stream{Writer: &errs, Width: 100}, Env: os.Getenv}
	o := trainOptions{config: config.Default()}
	if err := prepareExample(context.Background(), io, &o); err != nil {
		t.Fatal(err)
	}
	back := config.Default()
	if err := back.LoadFile("out-example/config.py"); err != nil {
		t.Fatal(err)
	}
	for i := range config.Table {
		if row := &config.Table[i]; row.Value(&back) != row.Value(&o.config) {
			t.Errorf("%s reads back as %v, it was %v", row.Key, row.Value(&back), row.Value(&o.config))
		}
	}
	o.config.NLayer, o.config.NEmbd, o.config.MaxIters, o.config.EvalInterval, o.config.EvalIters = 1, 16, 6, 3, 1
	if err := runTrain(context.Background(), io, o); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"step 6: train loss", "bytes planned", "loss.svg", o.prompt, "more of it: snug sample --out_dir=out-example"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("stdout lacks %q:\n%s", want, out.String())
		}
	}
	if !strings.Contains(errs.String(), "nothing was given") || !strings.Contains(errs.String(), "taken once") {
		t.Errorf("stderr lacks the example's first line or the plan:\n%s", errs.String())
	}
}

// watcher is a stream that keeps the runs which snug watch would show when a text is first written to it.
type watcher struct {
	text, dir string
	seen      []runs.Run
}

func (w *watcher) Write(p []byte) (int, error) {
	if w.seen == nil && bytes.Contains(p, []byte(w.text)) {
		w.seen = runs.List(w.dir)
	}
	return len(p), nil
}

// snug watch knows of a run from before its first estimate on: the process memory that is predicted, then its iterations.
// When the run has ended it knows nothing of it.
func TestRunIsPublished(t *testing.T) {
	t.Chdir(t.TempDir())
	dir := t.TempDir()
	t.Setenv("SNUG_RUNS", dir)
	t.Setenv("SNUG_NVML", filepath.Join(dir, "none"))
	out, errs := &watcher{text: "step 0:", dir: dir}, &watcher{text: "iter 0:", dir: dir}
	io := &term.IO{Out: &term.Stream{Writer: out, Width: 100}, Err: &term.Stream{Writer: errs, Width: 100}, Env: os.Getenv}
	o := trainOptions{config: config.Default()}
	if err := prepareExample(context.Background(), io, &o); err != nil {
		t.Fatal(err)
	}
	o.prompt = ""
	o.config.Device, o.config.NLayer, o.config.NEmbd, o.config.MaxIters, o.config.EvalIters = "cpu", 1, 16, 2, 1
	if err := runTrain(context.Background(), io, o); err != nil {
		t.Fatal(err)
	}
	for _, seen := range [][]runs.Run{out.seen, errs.seen} {
		if len(seen) != 1 || seen[0].PID != os.Getpid() || seen[0].Predicted == nil || *seen[0].Predicted <= 0 {
			t.Errorf("during the run: %+v", seen)
		}
	}
	if len(out.seen) == 1 && out.seen[0].Iteration != nil {
		t.Errorf("iteration %d was told before it was", *out.seen[0].Iteration)
	}
	if left := runs.List(dir); left != nil {
		t.Errorf("after the run: %+v", left)
	}
}

func TestAgainIsACommandLine(t *testing.T) {
	s := &settings{overrides: []override{{"batch_size", "4"}, {"init_from", "scratch"}, {"out_dir", "my run's"}}}
	if got, want := s.again([]string{"a.py"}), `snug train a.py --batch_size=4 --out_dir='my run'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
