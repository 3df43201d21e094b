package gpu_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/units"
)

func take(t *testing.T, m *gputest.Machine) gpu.Snapshot {
	t.Helper()
	s, err := m.Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTakeOneCard(t *testing.T) {
	s := take(t, gputest.One())
	if s.Driver != "580.65.06" || s.CUDA != "13.0" || len(s.Devices) != 1 {
		t.Fatalf("%+v", s)
	}
	d := s.Devices[0]
	if got, want := d.Total.GiB(), "11.69 GiB"; got != want {
		t.Errorf("total %s, want %s: what CUDA reports, the driver's share taken off", got, want)
	}
	if d.Free+d.Used != d.Total {
		t.Errorf("free %v + used %v is not total %v", d.Free, d.Used, d.Total)
	}
	if !d.BF16() || d.Label() != "0" || *d.Percent != 97 || *d.Milliwatts != 158_300 {
		t.Errorf("%+v", d)
	}
	var pids []int
	for _, p := range d.Processes {
		pids = append(pids, p.PID-4_200_000)
	}
	if !cmp.Equal(pids, []int{1, 2, 3}) {
		t.Errorf("processes %v, want the largest holder first", pids)
	}
	if sum, known := d.Held(); !known || sum != 9832*units.MiB {
		t.Errorf("held %v, %v", sum, known)
	}
}

func TestTakeOtherMachines(t *testing.T) {
	if s := take(t, gputest.Eight()); len(s.Usable()) != 8 || s.Devices[7].Label() != "7" {
		t.Errorf("eight cards: %+v", s.Devices)
	}
	wsl := take(t, gputest.WSL()).Devices[0]
	if _, known := wsl.Held(); known || wsl.Percent != nil || wsl.Milliwatts != nil || wsl.Fault != "" || len(wsl.Processes) != 1 {
		t.Errorf("WSL tells no figures, and that is no fault: %+v", wsl)
	}
	mig := take(t, gputest.MIG())
	if len(mig.Devices) != 3 || !mig.Devices[0].MIG || mig.Devices[2].Label() != "0:1" || len(mig.Usable()) != 2 {
		t.Errorf("MIG: the card and its two instances, of which the instances are usable: %+v", mig.Devices)
	}
	lost := take(t, gputest.Lost())
	if len(lost.Devices) != 2 || len(lost.Usable()) != 1 || !strings.Contains(lost.Devices[1].Fault, "GPU is lost") {
		t.Errorf("a lost card hides no other: %+v", lost.Devices)
	}
}

func TestProcessOfBothKindsIsToldOnce(t *testing.T) {
	m := gputest.One()
	m.Cards[0].Graphics = append(m.Cards[0].Graphics, m.Cards[0].Compute[0])
	d := take(t, m).Devices[0]
	if len(d.Processes) != 3 || d.Processes[0].Kind != gpu.Compute {
		t.Errorf("%+v", d.Processes)
	}
}

// The binding through a C library with nvml.h's structs must read what the double says, for every machine.
func TestLibraryAgreesWithTheDouble(t *testing.T) {
	dir := t.TempDir()
	path, err := gputest.Library(dir)
	if errors.Is(err, gputest.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range gputest.Machines() {
		t.Run(name, func(t *testing.T) {
			if err := m.Write(dir); err != nil {
				t.Fatal(err)
			}
			lib, err := gpu.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer lib.Close()
			got, err := gpu.Take(lib, gputest.Noon, m.Facts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(take(t, m), got); diff != "" {
				t.Errorf("double against library:\n%s", diff)
			}
		})
	}
}
