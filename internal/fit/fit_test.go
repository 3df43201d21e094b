package fit

import (
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/units"
)

func card(t *testing.T, name string) gpu.Card {
	t.Helper()
	c, err := gpu.Match(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func setup(t *testing.T, settings map[string]any) Setup {
	t.Helper()
	c := config.Default()
	for k, v := range settings {
		if err := c.Set(k, v); err != nil {
			t.Fatal(err)
		}
	}
	return Setup{Config: c}
}

func try(t *testing.T, s Setup, target Target) *Outcome {
	t.Helper()
	o, err := Try(s, target)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// The configurations of the notes: what fails on the 12 GB card, and that what is suggested first really fits.
func TestSuggestionsFitAndKeepTheEffectiveBatch(t *testing.T) {
	target := OnCard(card(t, "rtx 3060"))
	for name, settings := range map[string]map[string]any{
		"b64 compiled":  {"batch_size": 64, "gradient_accumulation_steps": 1},
		"b64 eager":     {"batch_size": 64, "gradient_accumulation_steps": 1, "compile": false},
		"b16x32":        {"batch_size": 16, "gradient_accumulation_steps": 32},
		"medium":        {"n_layer": 24, "n_head": 16, "n_embd": 1024, "batch_size": 12},
		"prime batch":   {"batch_size": 61, "gradient_accumulation_steps": 1},
		"long contexts": {"block_size": 4096, "batch_size": 8, "gradient_accumulation_steps": 4},
	} {
		t.Run(name, func(t *testing.T) {
			o := try(t, setup(t, settings), target)
			if o.Fits && !o.Tight {
				t.Fatalf("fits: %s", o.Verdict(target))
			}
			found, err := Suggest(o, target)
			if err != nil || len(found) == 0 {
				t.Fatalf("%d suggestions, %v", len(found), err)
			}
			want := o.Setup.Config.EffectiveBatch()
			for i, s := range found {
				if !s.Outcome.Fits || s.Outcome.Peak.Process+s.Outcome.Margin > target.Limit {
					t.Errorf("%d %s %v: %s", i, s.Kind, s.Changes, s.Outcome.Verdict(target))
				}
				if s.SameTraining && s.EffectiveBatch != want {
					t.Errorf("%s %v: effective batch %d, want %d", s.Kind, s.Changes, s.EffectiveBatch, want)
				}
				if i > 0 && s.SameTraining && !found[i-1].SameTraining {
					t.Errorf("%s %v comes after a change of training", s.Kind, s.Changes)
				}
				if !(s.RelativeSpeed > 0) || s.Why == "" {
					t.Errorf("%s: speed %v, why %q", s.Kind, s.RelativeSpeed, s.Why)
				}
			}
			if first := found[0]; !first.SameTraining || len(first.Changes) == 0 {
				t.Errorf("the first suggestion is %s %v", first.Kind, first.Changes)
			}
		})
	}
}

// A suggestion is the largest that fits: the next larger micro-batch does not.
func TestMicroBatchIsTheLargest(t *testing.T) {
	target := OnCard(card(t, "rtx 3060"))
	o := try(t, setup(t, map[string]any{"batch_size": 64, "gradient_accumulation_steps": 1}), target)
	found, err := Suggest(o, target)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found {
		if s.Kind == MicroBatch && !s.Safe {
			b := s.Changes["batch_size"].(int)
			next := try(t, setup(t, map[string]any{"batch_size": 2 * b, "gradient_accumulation_steps": 32 / b}), target)
			if comfortably(next) {
				t.Errorf("batch_size %d was suggested, %d fits too", b, 2*b)
			}
			return
		}
	}
	t.Error("no micro-batch was suggested")
}

// expandable_segments is advised only where it alone makes the run fit.
func TestExpandableOnlyWhereItHelps(t *testing.T) {
	target := OnCard(card(t, "rtx 3060"))
	o := try(t, setup(t, map[string]any{"batch_size": 64, "gradient_accumulation_steps": 1}), target)
	found, err := Suggest(o, target)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found {
		if s.Kind == Expandable {
			t.Errorf("advised where allocated memory alone is %v", o.Peak.Allocated)
		}
	}
	eager := setup(t, map[string]any{"batch_size": 8, "compile": false})
	free := try(t, eager, Target{Card: target.Card})
	growing := eager
	growing.AllocConf.Expandable = true
	least := try(t, growing, Target{Card: target.Card})
	room := Target{Card: target.Card, Limit: (free.Peak.Process+least.Peak.Process)/2 + free.Margin}
	tight := try(t, eager, room)
	if comfortably(tight) {
		t.Fatal("the tight target fits")
	}
	if found, err = Suggest(tight, room); err != nil {
		t.Fatal(err)
	}
	for _, s := range found {
		if s.Kind == Expandable {
			return
		}
	}
	t.Errorf("not advised where it makes %v reserved for %v allocated fit %v", free.Peak.Reserved, free.Peak.Allocated, room.Limit)
}

func TestNothingFits(t *testing.T) {
	target := Within(units.GiB)
	found, err := Suggest(try(t, setup(t, nil), target), target)
	if err != nil || len(found) != 1 || found[0].Outcome.Fits || found[0].Changes["batch_size"] != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestWithin(t *testing.T) {
	limit, err := units.ParseBytes("11.69GiB")
	if err != nil {
		t.Fatal(err)
	}
	if got := Within(limit); got.Card.Name != "GeForce RTX 3060" || got.Limit != limit || !got.Assumed {
		t.Errorf("Within(11.69 GiB) = %+v", got)
	}
	if got := Within(10 * units.TiB); got.Card.Name == "" {
		t.Error("no card for a limit beyond all cards")
	}
}

// A larger limit never makes a setup stop fitting, and a larger batch never takes less.
func TestMonotone(t *testing.T) {
	target := OnCard(card(t, "rtx 3060"))
	var last units.Bytes
	fitted := true
	for _, b := range []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32} {
		o := try(t, setup(t, map[string]any{"batch_size": b, "compile": false}), target)
		if o.Peak.Allocated < last {
			t.Errorf("batch_size %d takes %v, less than the smaller one's %v", b, o.Peak.Allocated, last)
		}
		if o.Fits && !fitted {
			t.Errorf("batch_size %d fits where a smaller one does not", b)
		}
		last, fitted = o.Peak.Allocated, o.Fits
	}
}

func BenchmarkSuggest(b *testing.B) {
	c, err := gpu.Match("rtx 3060")
	if err != nil {
		b.Fatal(err)
	}
	cfg := config.Default()
	if err := cfg.Set("batch_size", 64); err != nil {
		b.Fatal(err)
	}
	target := OnCard(c)
	for b.Loop() {
		o, err := Try(Setup{Config: cfg}, target)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := Suggest(o, target); err != nil {
			b.Fatal(err)
		}
	}
}

// Under torchrun train.py asserts that accumulation is a multiple of the processes: every split keeps it so.
func TestSplitsKeepTheProcessesDividing(t *testing.T) {
	target := OnCard(card(t, "rtx 3060"))
	for _, world := range []int{2, 6, 8} {
		s := setup(t, map[string]any{"batch_size": 60, "gradient_accumulation_steps": world})
		s.Options.DDP, s.Options.WorldSize = true, world
		found, err := Suggest(try(t, s, target), target)
		if err != nil || len(found) == 0 {
			t.Errorf("%d processes: %d suggestions, %v", world, len(found), err)
		}
		for _, sg := range found {
			c := sg.Outcome.Setup.Config
			if c.GradientAccumulationSteps%world != 0 || sg.SameTraining && c.EffectiveBatch() != 60*world {
				t.Errorf("%d processes: %d x %d", world, c.BatchSize, c.GradientAccumulationSteps)
			}
		}
	}
}
