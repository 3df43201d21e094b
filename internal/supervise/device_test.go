//go:build unix

package supervise

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// hold lists the trainer of the folder dir among the device's processes, once it has said who it is.
func hold(d *gpu.Device, dir string, held units.Bytes) (listed bool) {
	text, _ := os.ReadFile(filepath.Join(dir, trainerPID))
	pid, err := strconv.Atoi(string(text))
	if err == nil {
		d.Processes = append(d.Processes, gpu.Process{PID: pid, Kind: gpu.Compute, Memory: &held})
	}
	return err == nil
}

// fullCard is a machine on which the trainer holds nearly all.
type fullCard struct{ dir string } // the trainer's folder

func (c fullCard) Snapshot(context.Context) (gpu.Snapshot, error) {
	m := gputest.One()
	m.Cards[0].Memory.Free = 10 * units.MiB
	s, err := m.Snapshot(gputest.Noon)
	hold(&s.Devices[0], c.dir, 9*units.GiB)
	return s, err
}

// A look that finds the card free again, because the trainer has died, does not hide how it died.
func TestTheLastLookAtATrainerCounts(t *testing.T) {
	w := watcher{s: &Supervisor{}, child: &child{cmd: &exec.Cmd{Process: &os.Process{Pid: 7}}}}
	held := 9 * units.GiB
	full, err := gputest.One().Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	full.Devices[0].Free = 10 * units.MiB
	full.Devices[0].Processes = []gpu.Process{{PID: 7, Kind: gpu.Compute, Memory: &held}}
	free, err := gputest.One().Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	w.look(full)
	w.look(free)
	if !w.full {
		t.Error("the trainer was on a full card when it was last seen")
	}
}

func TestDeathWithTheDeviceFull(t *testing.T) {
	for script, want := range map[string]Outcome{"python error": Failed, "dies once seen": OutOfMemory} {
		st := newStage(t, script, 1, "--batch_size=64", "--gradient_accumulation_steps=1")
		st.Prober, st.Retries = fullCard{st.dir}, 0
		st.Publish = func(r runs.Run) {
			if r.Measured != nil {
				write(t, looked, "")
			}
		}
		sum := st.run(t)
		if a := sum.Attempts[0]; a.Outcome != want {
			t.Errorf("%s: %s, want %s", script, a.Outcome, want)
		} else if want == OutOfMemory && a.Measured != 9*units.GiB {
			t.Errorf("measured %v", a.Measured)
		}
	}
}

// crowded is a card on which another process takes all but 8 GiB as soon as the trainer has been seen there.
type crowded struct {
	dir  string       // the trainer's folder
	seen atomic.Int32 // looks that listed the trainer
}

func (c *crowded) Snapshot(context.Context) (gpu.Snapshot, error) {
	s, err := gputest.One().Snapshot(gputest.Noon)
	d := &s.Devices[0]
	d.Total, d.Free = 80*units.GiB, 8*units.GiB
	if hold(d, c.dir, 30*units.GiB) && c.seen.Add(1) == 2 { // the first has been taken in: the trainer may fail
		err = errors.Join(err, os.WriteFile(filepath.Join(c.dir, looked), nil, 0o644))
	}
	return s, err
}

// A message without numbers leaves the device itself to say how much there is for the next attempt.
func TestRoomIsAskedOfTheDevice(t *testing.T) {
	st := newStage(t, "fails without numbers", 40, "--batch_size=128")
	st.Prober, st.Limit, st.Preflight = &crowded{dir: st.dir}, 80*units.GiB, true
	sum := st.run(t)
	want := []string{"128 x 40 resume false", "40 x 128 resume false"}
	if got := st.batches(); !slices.Equal(got, want) || sum.Exit != 0 {
		t.Errorf("%q, want %q: 8 GiB are left\n%s", got, want, &st.said)
	}
}

// contained is a card whose driver lists no process, as in a container: its use grows by 5 GiB while the trainer runs.
type contained struct {
	looks atomic.Int32
	sign  string // the file that tells the trainer
}

func (c *contained) Snapshot(context.Context) (gpu.Snapshot, error) {
	s, err := gputest.One().Snapshot(gputest.Noon)
	s.Devices[0].Processes = nil
	look := c.looks.Add(1)
	if look > 1 {
		s.Devices[0].Used += 5 * units.GiB
	}
	if look == 4 {
		err = errors.Join(err, os.WriteFile(c.sign, nil, 0o644))
	}
	return s, err
}

func TestMemoryIsMeasuredInAContainer(t *testing.T) {
	st := newStage(t, "fails without numbers", 40, "--batch_size=128")
	st.Prober, st.Device, st.Retries = &contained{sign: filepath.Join(st.dir, looked)}, "GPU-3060aaaa-0000-0000-0000-000000000001", 0
	if a := st.run(t).Attempts[0]; a.Measured != 5*units.GiB {
		t.Errorf("measured %v, want what came in use since the start", a.Measured)
	}
}
