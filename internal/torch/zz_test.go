package torch

import (
	"fmt"
	"os"
	"testing"
)

func TestZZ(t *testing.T) {
	name := os.Getenv("RUN")
	if name == "" {
		t.Skip()
	}
	for _, run := range measuredRuns(t) {
		if run.Name != name {
			continue
		}
		cfg, opt, conf, n := run.settings(t)
		tr, err := build(cfg, opt, n)
		if err != nil {
			t.Fatal(err)
		}
		r := Simulate(tr, conf, 0)
		for i, p := range r.Phases {
			fmt.Println(p.Name, int64(p.PeakAllocated), int64(p.PeakReserved), int64(p.After), "event", p.PeakEvent)
			if os.Getenv("PHASE") == p.Name {
				for j, e := range r.LedgerOf(i) {
					if j < 45 {
						fmt.Println("   ", int64(e.Held), e.Name)
					}
				}
			}
		}
		fmt.Printf("%+v %+v %+v\n", *run.Eval, *run.FirstStep, *run.Step)
	}
}
