package supervise

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/units"
)

// The real planner under the limit of a 12 GB card: what it chooses keeps the effective batch, fits, and is the largest
// that fits, and a resumed run, which has its checkpoint on the GPU, is never given more.
func TestSimulated(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", "gradient_accumulation_steps = 5 * 8\nbatch_size = 12\nexec(open('configurator.py').read())\n")
	limit := 1147 * units.GiB / 100
	for _, line := range []string{
		"python train.py --batch_size=64",
		"python train.py --batch_size=64 --gradient_accumulation_steps=1 --compile=False",
		"torchrun --standalone --nproc_per_node=8 train.py --batch_size=60",
		"torchrun --standalone --nproc_per_node=6 train.py --batch_size=60 --gradient_accumulation_steps=6 --compile=False",
	} {
		t.Run(line, func(t *testing.T) {
			cmd, err := Parse(strings.Fields(line), "", "")
			if err != nil {
				t.Fatal(err)
			}
			planner := Simulated{Target: fit.Within(limit)}
			p := &planned{cmd: cmd, planner: planner, tried: map[string]bool{}}
			s, given, fits, err := p.first(limit, true)
			if err != nil || fits || given.Process <= limit {
				t.Fatalf("as given: %v of %v, fits %v, %v", given.Process, limit, fits, err)
			}
			batch, _ := cmd.Batch()
			if s.Batch.Effective() != batch.Effective() || s.Batch.Accum%cmd.World != 0 || s.Predicted.Process > limit {
				t.Errorf("%s, predicted %v", s, s.Predicted.Process)
			}
			for b := batch.Micro - 1; b > s.Batch.Micro; b-- { // nothing larger fits
				if whole := batch.Effective(); whole%b == 0 && whole/b%cmd.World == 0 {
					larger := *cmd.Config
					larger.BatchSize, larger.GradientAccumulationSteps = b, whole/b
					if _, fits, err := planner.Predict(larger, Conditions{Limit: limit, World: cmd.World}); fits || err != nil {
						t.Errorf("%d was chosen, yet %d fits (%v)", s.Batch.Micro, b, err)
					}
				}
			}
			resumed := &planned{cmd: cmd, planner: planner, tried: map[string]bool{}}
			again, err := resumed.next(Setting{}, Seen{Limit: limit, Resume: true})
			if err != nil || again.Batch.Micro > s.Batch.Micro {
				t.Errorf("resumed with %v, from the start with %v, %v", again.Batch, s.Batch, err)
			}
		})
	}
}
