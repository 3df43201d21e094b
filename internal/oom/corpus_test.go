package oom

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/gpu"
)

// expected is what a corpus log's JSON file says: facts that are not in it are absent from the log too.
type expected struct {
	Facts  map[string]any `json:"facts"`
	Phase  Phase          `json:"phase"`
	Cause  Cause          `json:"cause"`
	Tensor map[string]any `json:"tensor"`
}

// h200 is the card of the two measured logs; which card it is only decides small workspaces.
func h200(t *testing.T) fit.Target {
	card, err := gpu.Match("h200")
	if err != nil {
		t.Fatal(err)
	}
	return fit.OnCard(card)
}

// Every log of testdata/corpus gives the facts, the phase, the cause and the tensor written beside it, and no other fact.
func TestCorpus(t *testing.T) {
	logs, err := filepath.Glob("testdata/corpus/*.log")
	if err != nil || len(logs) < 60 {
		t.Fatalf("%d logs, %v; want at least 60", len(logs), err)
	}
	for _, path := range logs {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".log"), func(t *testing.T) {
			var want expected
			raw, err := os.ReadFile(strings.TrimSuffix(path, ".log") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			src, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()
			l, err := Read(src)
			if err != nil {
				t.Fatal(err)
			}
			d := Diagnose(Case{Log: l, Config: l.Run.Config(), Target: h200(t)})
			if d == nil {
				t.Fatal("no failure found")
			}
			if diff := cmp.Diff(want.Facts, present(t, d.Failure.Facts)); diff != "" {
				t.Errorf("facts (-want +got):\n%s", diff)
			}
			shown := d.Phase
			if d.Guessed() {
				shown = UnknownPhase
			}
			if shown != want.Phase {
				t.Errorf("phase %s, want %s", shown, want.Phase)
			}
			if d.Cause() != want.Cause {
				t.Errorf("cause %s, want %s; found %+v", d.Cause(), want.Cause, d.Causes)
			}
			got := present(t, d.Tensor)
			for key, v := range want.Tensor {
				if diff := cmp.Diff(v, got[key]); diff != "" {
					t.Errorf("tensor's %s (-want +got):\n%s", key, diff)
				}
			}
		})
	}
}

// present is v's JSON without what is null.
func present(t *testing.T, v any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range m {
		if v == nil {
			delete(m, k)
		}
	}
	return m
}

// The corpus holds every kind of memory, and most causes and phases: a cause that no log shows is not tested.
func TestCorpusCovers(t *testing.T) {
	paths, _ := filepath.Glob("testdata/corpus/*.json")
	var phases []Phase
	var causes []Cause
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		var e expected
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		phases, causes = append(phases, e.Phase), append(causes, e.Cause)
	}
	for _, p := range []Phase{Init, Load, Data, Eval, Forward, Backward, Optimizer, Compile, Sample, Save, UnknownPhase} {
		if !slices.Contains(phases, p) {
			t.Errorf("no log fails in phase %s", p)
		}
	}
	for _, c := range []Cause{BatchTooLarge, ModelTooLarge, Fragmentation, OtherProcess, Leak, EvalLargerThanTrain, CheckpointOnGPU, WrongDevice, HostMemory, Other} {
		if !slices.Contains(causes, c) {
			t.Errorf("no log has cause %s", c)
		}
	}
}
