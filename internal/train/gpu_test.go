package train

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/program"
)

// gpu is this machine's GPU, or skips: SNUG_REQUIRE_GPU=1 makes the skip a failure. snug's own products give the same bits in
// every run; which of the library's algorithms is the fastest may change.
func gpu(t *testing.T, c *config.Config) Device {
	t.Helper()
	d, _, err := OpenCUDA(c, cuda.Options{OwnBlas: true})
	if err != nil {
		if os.Getenv("SNUG_REQUIRE_GPU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	d.calibrate = nil // its times may choose another policy in the second run
	return d
}

// waiting is an executor that takes an iteration's scalars at once.
type waiting struct{ program.Executor }

func (w waiting) Later(dst []float32, ids ...program.ID) (func() error, error) {
	for i, id := range ids {
		if err := w.Floats(id, dst[i:i+1]); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// lateChangesNothing fails unless a run on d that reads its scalars late, one that waits for them, and one that is stopped
// and resumed tell the same losses and end in the same checkpoint.
func lateChangesNothing(t *testing.T, d func(t *testing.T, c *config.Config) Device) {
	t.Helper()
	var want []float64
	var first config.Config
	for i, stops := range [][]int{{0}, {0}, {2, 5, 0}} {
		c := tiny(t, func(c *config.Config) { c.MicroBatch = 4 })
		var losses []float64
		for part, stop := range stops {
			device, rec := d(t, &c), &recorder{stopAt: stop}
			if i == 0 {
				device.Exec = waiting{device.Exec}
			}
			if part > 0 {
				c.InitFrom = "resume"
			}
			if _, err := trainOn(t, device, c, rec, func(*Run) {}); stop > 0 && !errors.Is(err, ErrStopped) || stop == 0 && err != nil {
				t.Fatal(err)
			}
			losses = append(losses, rec.losses()...)
		}
		if i == 0 {
			want, first = losses, c
			continue
		}
		if !slices.Equal(losses, want) {
			t.Errorf("stops %v: losses %v, in step %v", stops, losses, want)
		}
		sameState(t, c.OutDir, first.OutDir)
	}
}

func TestLateReadingOnAGPU(t *testing.T) { lateChangesNothing(t, gpu) }

func TestCheckpointsBesideTrainingOnAGPU(t *testing.T) {
	checkpointsBeside(t, func(c *config.Config) Device { return gpu(t, c) })
}
