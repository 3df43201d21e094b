package train

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// keeper is a reporter that keeps a copy of every checkpoint that it is told of.
type keeper struct {
	recorder
	t   *testing.T
	dir string
}

func (k *keeper) Saved(path string, iter int) {
	k.recorder.Saved(path, iter)
	raw, err := os.ReadFile(path)
	dir := k.at(iter)
	if err = errors.Join(err, os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, checkpoint.Name), raw, 0o666)); err != nil {
		k.t.Error(err)
	}
}

func (k *keeper) at(iter int) string { return filepath.Join(k.dir, fmt.Sprint(iter)) }

// inStep is an executor without snapshots: its checkpoints are written while it waits.
type inStep struct{ program.Executor }

// checkpointsBeside fails unless the checkpoints that a run on d writes beside its training are those of one that waits.
func checkpointsBeside(t *testing.T, d func(c *config.Config) Device) {
	t.Helper()
	keepers := [2]*keeper{{t: t, dir: t.TempDir()}, {t: t, dir: t.TempDir()}}
	for i, k := range keepers {
		c := tiny(t, func(c *config.Config) { c.EvalInterval = 2 })
		device := d(&c)
		if i == 1 {
			device.Exec = inStep{device.Exec}
		}
		if _, err := trainKeeping(t, device, c, k); err != nil {
			t.Fatal(err)
		}
	}
	beside, waited := keepers[0], keepers[1]
	if want := []int{2, 4, 6, 8, 10}; !slices.Equal(beside.saved, want) || !slices.Equal(waited.saved, want) {
		t.Errorf("checkpoints at %v, and %v where the run waits, want %v", beside.saved, waited.saved, want)
	}
	for _, iter := range waited.saved {
		sameState(t, beside.at(iter), waited.at(iter))
	}
}

func trainKeeping(t *testing.T, d Device, c config.Config, k *keeper) (*Run, error) {
	t.Helper()
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Start(k); err != nil {
		t.Fatal(err)
	}
	return r, r.Run(context.Background())
}

// A checkpoint that leaves the device while the next gradients are made is, to the bit, that of a run which stands still.
func TestCheckpointsBesideTraining(t *testing.T) {
	checkpointsBeside(t, func(*config.Config) Device { return queuing(device(2)) })
}

// Where the host has no room for a copy, checkpoints are written as on an executor that makes none.
func TestNoRoomForACopy(t *testing.T) {
	for _, free := range []units.Bytes{0, hostMargin, units.GiB} {
		rec := &recorder{}
		d := queuing(device(2))
		if _, err := trainOn(t, d, tiny(t, nil), rec, func(r *Run) { r.free = func() units.Bytes { return free } }); err != nil {
			t.Fatal(err)
		}
		if made := d.Exec.(*queue).shot != nil; made != (free == units.GiB) || !slices.Equal(rec.saved, []int{4, 8, 11}) {
			t.Errorf("%v free: snapshots %v, checkpoints at %v", free, made, rec.saved)
		}
	}
}

// A checkpoint that cannot be written ends the run with the reason, and is never told of; nor is one whose copy fails.
func TestSavingFails(t *testing.T) {
	block := func(c config.Config) {
		if err := os.MkdirAll(filepath.Join(c.OutDir, checkpoint.Name+".tmp", "full"), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*config.Config)
		stopAt int
		broken bool
	}{
		"between":    {nil, 0, false},
		"at the end": {func(c *config.Config) { c.EvalInterval = 100 }, 0, false},
		"at a stop":  {func(c *config.Config) { c.EvalInterval = 100 }, 3, false},
		"copy fails": {nil, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			settings, rec := tiny(t, c.change), &recorder{stopAt: c.stopAt}
			d, want := queuing(device(2)), "is a directory"
			if c.broken {
				d.Exec, want = &unreadable{d.Exec.(*queue)}, errUnreadable.Error()
			} else {
				block(settings)
			}
			_, err := trainOn(t, d, settings, rec, func(*Run) {})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), want) > 1 || errors.Is(err, ErrStopped) || len(rec.saved) > 0 {
				t.Errorf("%v after checkpoints %v, want %q", err, rec.saved, want)
			}
			if s, err := checkpoint.Load(settings.OutDir, checkpoint.Everything); err == nil {
				s.Close()
				t.Error("a checkpoint is there")
			}
		})
	}
}

// unreadable is an executor whose snapshots fail on their way.
type unreadable struct{ *queue }

var errUnreadable = errors.New("the device has gone")

func (u *unreadable) Snapshot(ids []program.ID, dst [][]float32) (func() error, error) {
	_, err := u.queue.Snapshot(ids, dst)
	u.shot.copy = func() error { return errUnreadable }
	return u.shot.wait, err
}

// A checkpoint begins when the one before is in its file.
func TestOneSavingAtATime(t *testing.T) {
	rec, begun := &recorder{}, 0
	c := tiny(t, func(c *config.Config) { c.EvalInterval = 2 })
	d := queuing(device(1))
	defer d.Exec.Close()
	r, err := Prepare(c, d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Start(rec); err != nil {
		t.Fatal(err)
	}
	r.Save = func(p Progress, best bool) (*Saving, error) {
		if begun++; len(rec.saved) != begun-1 {
			t.Errorf("checkpoint %d begins when %d are in their files", begun, len(rec.saved))
		}
		// Its file is there when the loop waits for it, and no earlier.
		s := &Saving{Path: "file", Iter: p.Iter, Copied: func() error { return nil }, written: make(chan error)}
		go func() { s.written <- nil }()
		return s, nil
	}
	if err := r.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 4, 6, 8, 10}; !slices.Equal(rec.saved, want) {
		t.Errorf("checkpoints at %v, want %v", rec.saved, want)
	}
}
