//go:build linux

package train

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/cuda/cudatest"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// standIn is the device of a run on the stand-in driver.
func standIn(t *testing.T, c *config.Config) Device {
	t.Helper()
	d, _, err := OpenCUDA(c, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d.calibrate = nil // a stand-in's times mean nothing
	return d
}

// Every line has its own iteration's loss, though it is read late: the stand-in's is 1 + 0.01 of the mean target.
func TestLateLossIsItsOwn(t *testing.T) {
	cudatest.StandIn(t)
	for _, dtype := range []string{"bfloat16", "float16"} {
		c, rec := tiny(t, func(c *config.Config) { c.DType, c.MicroBatch = dtype, 4 }), &recorder{}
		var want []float64
		if _, err := trainOn(t, standIn(t, &c), c, rec, func(r *Run) {
			x, y := make([]int32, 6*8), make([]int32, 6*8)
			for it := range uint64(c.MaxIters + 1) {
				if err := r.Data.Train(6*it, x, y); err != nil {
					t.Fatal(err)
				}
				sum := 0.0
				for _, target := range y {
					sum += float64(target)
				}
				want = append(want, 1+0.01*sum/float64(len(y)))
			}
		}); err != nil {
			t.Fatal(err)
		}
		for i, loss := range rec.losses() {
			if !(math.Abs(loss-want[i]) < 1e-5) {
				t.Errorf("%s: iteration %d has loss %v, its targets' is %v", dtype, i, loss, want[i])
			}
		}
	}
}

// Gradients are in no checkpoint: a run that stored them in one type resumes with another.
func TestResumeWithOtherGradients(t *testing.T) {
	cudatest.StandIn(t)
	c := tiny(t, func(c *config.Config) { c.MicroBatch, c.GradientDType = 6, "float32" })
	var losses []float64
	for i, gradient := range []string{"float32", "bfloat16", "auto"} {
		c.GradientDType = gradient
		if i > 0 {
			c.InitFrom = "resume"
		}
		rec := &recorder{stopAt: []int{2, 5, 0}[i]}
		if _, err := trainOn(t, standIn(t, &c), c, rec, func(r *Run) {
			if got := r.Step.Policy.Gradient; (got == trace.Float32) != (gradient == "float32") {
				t.Errorf("gradient_dtype=%s gave %s", gradient, got)
			}
		}); rec.stopAt > 0 && !errors.Is(err, ErrStopped) || rec.stopAt == 0 && err != nil {
			t.Fatal(err)
		}
		losses = append(losses, rec.losses()...)
	}
	if len(losses) != c.MaxIters+1 {
		t.Errorf("%d iterations in three parts, want %d", len(losses), c.MaxIters+1)
	}
}

func TestLateReadingOnADevice(t *testing.T) {
	cudatest.StandIn(t)
	lateChangesNothing(t, standIn)
}

// The same on a driver: the copies are made by another thread, on a stream of its own.
func TestCheckpointsBesideTrainingOnADevice(t *testing.T) {
	cudatest.StandIn(t)
	checkpointsBeside(t, func(c *config.Config) Device { return standIn(t, c) })
}

// Memory that others take between the plan and the start makes the run plan again for what is left, within vram; what
// does not fit then says both numbers.
func TestReplansWhenMemoryIsTaken(t *testing.T) {
	driver := cudatest.StandIn(t)
	for name, c := range map[string]struct {
		vram, left units.Bytes
		want       string // in the note, or in the error
		fits       bool
	}{
		"free":       {0, 244 * units.MiB, "could have 11.82 GiB when it was planned, it can have 60.00 MiB now: planned again, it takes ", true},
		"vram":       {724 * units.MiB, 244 * units.MiB, "could have 668.00 MiB when it was planned, it can have 60.00 MiB now: planned again", true},
		"too little": {0, 189 * units.MiB, "could have 11.82 GiB when it was planned, it can have 5.00 MiB now: plan: the smallest way", false},
		"nothing":    {0, units.MiB, "it can have 0 B now: plan: the smallest way", false},
	} {
		t.Run(name, func(t *testing.T) {
			driver.Others(0)
			settings := tiny(t, func(s *config.Config) {
				s.BlockSize, s.NEmbd, s.NHead, s.NLayer, s.BatchSize, s.GradientAccumulationSteps, s.MaxIters, s.EvalIters, s.Vram = 64, 240, 5, 4, 224, 1, 1, 1, c.vram
			})
			var r *Run
			_, err := trainOn(t, standIn(t, &settings), settings, &recorder{}, func(run *Run) {
				r = run
				driver.Others(cudatest.Total - c.left)
			})
			var fit *FitError
			notes := strings.Join(r.Notes, "\n")
			switch {
			case !c.fits && (!errors.As(err, &fit) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("error %v, want %q", err, c.want)
			case c.fits && (err != nil || !strings.Contains(notes, c.want)):
				t.Errorf("error %v, notes %q, want %q", err, notes, c.want)
			case c.fits && (r.Layout.Size > c.left || r.Iter != 2):
				t.Errorf("planned %v where %v were left, %d iterations done", r.Layout.Size, c.left, r.Iter)
			}
		})
	}
}
