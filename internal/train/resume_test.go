package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/metrics"
)

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

// A run that is stopped before it has done anything leaves the checkpoint of the run before where it is.
func TestStopAtOnceKeepsTheCheckpoint(t *testing.T) {
	c := tiny(t, nil)
	if _, err := train(t, c, &recorder{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // twice, because the one before the last is kept too
		d := device(1)
		defer d.Exec.Close()
		r, err := Prepare(c, d)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(&recorder{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ctx); !errors.Is(err, ErrStopped) {
			t.Errorf("error %v, want that it was stopped", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := checkpoint.Load(c.OutDir, checkpoint.Everything)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.IterNum != 11 {
		t.Errorf("the checkpoint is of iteration %d, the finished run left 11", s.IterNum)
	}
}
