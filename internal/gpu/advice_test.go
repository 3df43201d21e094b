package gpu_test

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/units"
)

func TestAdvise(t *testing.T) {
	hidden := gputest.One()
	hidden.Cards[0].Compute = hidden.Cards[0].Compute[:1]
	small := gputest.One()
	small.Cards[0].Compute, small.Cards[0].Graphics = nil, []gpu.ProcessInfo{gputest.Holding(4_200_003, 4*units.MiB)}
	small.Cards[0].Memory.Free = small.Cards[0].Memory.Total - small.Cards[0].Memory.Reserved - 4*units.MiB
	for name, c := range map[string]struct {
		machine *gputest.Machine
		want    []string // one fragment of each line
	}{
		"one": {gputest.One(), []string{
			"pid 4200001 (a program) holds 7.04 GiB for 2h 14m: if it is yours: kill 4200001",
			"pid 4200002 (a notebook's kernel) holds 2.16 GiB for 3d 03h: shut it down in Jupyter",
			"pid 4200003 (the desktop) holds 0.40 GiB",
		}},
		"hidden holder":       {hidden, []string{"4200001", "4200003", "2.16 GiB is held by processes that cannot be seen"}},
		"wsl":                 {gputest.WSL(), []string{"how much the driver doesn't tell here"}},
		"mig":                 {gputest.MIG(), []string{"pid 4200030 (a program) holds 11.72 GiB for 5m 00s"}},
		"lost":                {gputest.Lost(), []string{"4200001", "4200002", "4200003", "fell off the bus"}},
		"nothing worth while": {small, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := gpu.Advise(take(t, c.machine))
			if len(got) != len(c.want) {
				t.Fatalf("%d pieces of advice, want %d: %+v", len(got), len(c.want), got)
			}
			for i, a := range got {
				if !strings.Contains(a.Text, c.want[i]) {
					t.Errorf("%q, want %q in it", a.Text, c.want[i])
				}
			}
		})
	}
}
