//go:build linux

package train

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/cuda/cudatest"
)

// standIn is the device of a run on the stand-in driver.
func standIn(t *testing.T, c *config.Config) Device {
	t.Helper()
	d, _, err := OpenCUDA(c, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Every line has its own iteration's loss, though it is read late: the stand-in's is 1 + 0.01 of the mean target. Stopped
// and resumed, the run ends in the same checkpoint.
func TestTrainsOnAQueuingDevice(t *testing.T) {
	cudatest.StandIn(t)
	for _, dtype := range []string{"bfloat16", "float16"} {
		change := func(c *config.Config) { c.DType, c.MicroBatch = dtype, 4 }
		whole, all := tiny(t, change), &recorder{}
		var want []float64
		if _, err := trainOn(t, standIn(t, &whole), whole, all, func(r *Run) {
			x, y := make([]int32, 6*8), make([]int32, 6*8)
			for it := range uint64(whole.MaxIters + 1) {
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
		for i, loss := range all.losses() {
			if !(math.Abs(loss-want[i]) < 1e-5) {
				t.Errorf("%s: iteration %d has loss %v, its targets' is %v", dtype, i, loss, want[i])
			}
		}
		c := tiny(t, change)
		var losses []float64
		for part, stop := range []int{2, 5, 0} {
			rec := &recorder{stopAt: stop}
			if part > 0 {
				c.InitFrom = "resume"
			}
			if _, err := trainOn(t, standIn(t, &c), c, rec, func(*Run) {}); stop > 0 && !errors.Is(err, ErrStopped) || stop == 0 && err != nil {
				t.Fatalf("%s: %v", dtype, err)
			}
			losses = append(losses, rec.losses()...)
		}
		if !slices.Equal(losses, all.losses()) {
			t.Errorf("%s: losses %v, without a stop %v", dtype, losses, all.losses())
		}
		sameState(t, c.OutDir, whole.OutDir)
	}
}
