package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/safetensors"
)

func tiny(bias bool) gpt.Model {
	return gpt.Model{NLayer: 2, NHead: 2, NEmbd: 4, BlockSize: 3, VocabSize: 5, Bias: bias, Dropout: 0.2}
}

// newState is a state whose tensors all differ: element j of parameter i is 1000*i + j plus iter/2.
func newState(m gpt.Model, iter int) *State {
	fill := func(add float32) (out []Tensor) {
		for i, s := range m.Specs() {
			x := make([]float32, s.Len())
			for j := range x {
				x[j] = float32(1000*i+j) + add
			}
			out = append(out, safetensors.F32Tensor(s.Name, x, shapeOf(s)...))
		}
		return out
	}
	half := float32(iter) / 2
	return &State{
		IterNum: iter, BestValLoss: 1.4697, Model: m, Params: fill(half),
		Optimizer: &Optimizer{Step: int64(iter) + 1, ExpAvg: fill(half + 0.5), ExpAvgSq: fill(half + 0.25)},
		Config:    map[string]any{"dataset": "shakespeare_char", "batch_size": int64(12), "learning_rate": 6e-4, "grad_clip": 1.0, "bias": m.Bias},
		Extra:     map[string]json.RawMessage{"scale": json.RawMessage("65536")},
	}
}

// values reads every tensor of s, keyed by kind and name, beside the fields that are not tensors.
func values(t testing.TB, s *State) map[string]any {
	t.Helper()
	out := map[string]any{"iter": s.IterNum, "best": s.BestValLoss, "model": s.Model, "config": s.Config, "extra": s.Extra}
	read := func(kind string, tensors []Tensor) {
		for _, x := range tensors {
			v, err := x.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			out[kind+x.Name] = v
		}
	}
	read("", s.Params)
	if s.Optimizer != nil {
		out["step"] = s.Optimizer.Step
		read("m ", s.Optimizer.ExpAvg)
		read("v ", s.Optimizer.ExpAvgSq)
	}
	return out
}

func save(t testing.TB, dir string, s *State) {
	t.Helper()
	if err := Save(dir, s); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, path string, want Want) *State {
	t.Helper()
	s, err := Open(path, want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestSaveThenLoadIsBitEqual(t *testing.T) {
	for name, s := range map[string]*State{"bias": newState(tiny(true), 7), "no bias": newState(tiny(false), 7)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			save(t, dir, s)
			got := load(t, dir, Everything)
			if diff := cmp.Diff(values(t, s), values(t, got)); diff != "" {
				t.Error(diff)
			}
			only := load(t, dir, ModelOnly)
			if only.Optimizer != nil {
				t.Error("ModelOnly has an optimizer")
			}
			s.Optimizer = nil
			if diff := cmp.Diff(values(t, s), values(t, only)); diff != "" {
				t.Error(diff)
			}
			save(t, dir, s)
			if again := load(t, dir, Everything); again.Optimizer != nil {
				t.Error("a state without optimizer came back with one")
			}
		})
	}
}

func TestBestValLossKeepsInfinitiesAndEveryBit(t *testing.T) {
	for _, best := range []float64{math.Inf(1), 1e9, 0.1 + 0.2, 5e-324} {
		s, dir := newState(tiny(false), 1), t.TempDir()
		s.BestValLoss = best
		save(t, dir, s)
		if got := load(t, dir, Everything).BestValLoss; got != best {
			t.Errorf("best_val_loss %v came back as %v", best, got)
		}
	}
}

func TestThePreviousOneIsKept(t *testing.T) {
	dir := t.TempDir()
	for iter := range 3 {
		save(t, dir, newState(tiny(true), iter))
	}
	if n := load(t, filepath.Join(dir, Name), Everything).IterNum; n != 2 {
		t.Errorf("newest is iteration %d", n)
	}
	if n := load(t, filepath.Join(dir, PrevName), Everything).IterNum; n != 1 {
		t.Errorf("previous is iteration %d", n)
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("%d files in out_dir, want 2: %v", len(entries), entries)
	}
}

// A flip of any bit, and a cut at any byte, is noticed: the one before is loaded and a warning says so. It never loads as it is.
func TestEveryDamageIsNoticed(t *testing.T) {
	m := gpt.Model{NLayer: 1, NHead: 1, NEmbd: 2, BlockSize: 2, VocabSize: 3}
	dir := t.TempDir()
	save(t, dir, newState(m, 1))
	save(t, dir, newState(m, 2))
	path := filepath.Join(dir, Name)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := func(what string, at int, bad []byte) {
		t.Helper()
		if _, err := readNative(bytes.NewReader(bad), int64(len(bad)), false); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s at byte %d of %d: %v", what, at, len(good), err)
		}
		if at%41 != 0 {
			return
		}
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		s, err := Load(dir, Everything)
		if err != nil {
			t.Fatalf("%s at byte %d of %d: %v", what, at, len(good), err)
		}
		defer s.Close()
		if s.IterNum != 1 || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "damaged") || strings.Contains(s.Warnings[0], "\n") {
			t.Fatalf("%s at byte %d of %d: loaded iteration %d with warnings %q", what, at, len(good), s.IterNum, s.Warnings)
		}
	}
	for at := range good {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		damage("flip", at, bad)
	}
	for at := 0; at < len(good); at += 7 {
		damage("cut", at, good[:at])
	}
	for _, name := range []string{Name, PrevName} {
		if err := os.WriteFile(filepath.Join(dir, name), good[:100], 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir, Everything); !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "\n") {
		t.Errorf("both damaged: %v", err)
	}
	os.Remove(filepath.Join(dir, PrevName))
	if _, err := Load(dir, Everything); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged and alone: %v", err)
	}
}

// A run that went on from the previous one and is killed while it saves still has that one: the damaged newest one does not
// take its place.
func TestADamagedOneNeverReplacesAWholeOne(t *testing.T) {
	dir := t.TempDir()
	path, prev := filepath.Join(dir, Name), filepath.Join(dir, PrevName)
	save(t, dir, newState(tiny(true), 1))
	save(t, dir, newState(tiny(true), 2))
	if err := os.Truncate(path, 1000); err != nil {
		t.Fatal(err)
	}
	if s := load(t, dir, ModelOnly); s.IterNum != 1 {
		t.Fatalf("iteration %d loads", s.IterNum)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("sampling moved a file: %v", err)
	}
	if s := load(t, dir, Everything); s.IterNum != 1 || !strings.Contains(s.Warnings[0], DamagedName) {
		t.Fatalf("iteration %d loads, warnings %q", s.IterNum, s.Warnings)
	}
	if err := keepPrevious(path, prev); err != nil { // as far as Save gets before the kill
		t.Fatal(err)
	}
	if s := load(t, dir, Everything); s.IterNum != 1 {
		t.Errorf("iteration %d loads", s.IterNum)
	}
	save(t, dir, newState(tiny(true), 3))
	if s := load(t, dir, Everything); s.IterNum != 3 || len(s.Warnings) != 0 {
		t.Errorf("iteration %d loads, warnings %q", s.IterNum, s.Warnings)
	}
}

func TestAMissingNewestFallsBackToThePrevious(t *testing.T) {
	dir := t.TempDir()
	save(t, dir, newState(tiny(true), 1))
	if err := os.Rename(filepath.Join(dir, Name), filepath.Join(dir, PrevName)); err != nil {
		t.Fatal(err)
	}
	s := load(t, dir, Everything)
	if s.IterNum != 1 || len(s.Warnings) != 1 {
		t.Errorf("iteration %d, warnings %q", s.IterNum, s.Warnings)
	}
}

// Where the file system has no links, renaming keeps the previous one.
func TestThePreviousOneIsKeptWithoutLinks(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, PrevName+".tmp", "x") // a folder that is not empty, where the link would be
	if err := os.MkdirAll(blocked, 0o777); err != nil {
		t.Fatal(err)
	}
	for iter := range 3 {
		save(t, dir, newState(tiny(true), iter))
	}
	for name, want := range map[string]int{Name: 2, PrevName: 1} {
		if n := load(t, filepath.Join(dir, name), Everything).IterNum; n != want {
			t.Errorf("%s is iteration %d, want %d", name, n, want)
		}
	}
}

func TestLoadOfNothing(t *testing.T) {
	_, err := Load(t.TempDir(), Everything)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), Name) {
		t.Errorf("error = %v", err)
	}
}

func TestStatesThatAreNotWholeAreNotSaved(t *testing.T) {
	for name, change := range map[string]func(*State){
		"a parameter missing":    func(s *State) { s.Params = s.Params[:len(s.Params)-1] },
		"a parameter too many":   func(s *State) { s.Params = append(s.Params, s.Params[0]) },
		"two exchanged":          func(s *State) { s.Params[0], s.Params[1] = s.Params[1], s.Params[0] },
		"another shape":          func(s *State) { s.Params[3].Shape = []int64{1, 2} },
		"integers":               func(s *State) { s.Params[3].DType = safetensors.I32 },
		"a moment missing":       func(s *State) { s.Optimizer.ExpAvgSq = s.Optimizer.ExpAvgSq[1:] },
		"heads that do not fit":  func(s *State) { s.Model.NHead = 3 },
		"many layers":            func(s *State) { s.Model.NLayer, s.Model.NEmbd, s.Model.NHead = 1<<40, 1, 1 },
		"data shorter than said": func(s *State) { s.Params[0].Data = safetensors.Raw{1, 2, 3} },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			save(t, dir, newState(tiny(true), 1))
			bad := newState(tiny(true), 2)
			change(bad)
			if err := Save(dir, bad); err == nil || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error = %v", err)
			}
			if s := load(t, dir, Everything); s.IterNum != 1 || len(s.Warnings) != 0 {
				t.Errorf("what was there before is iteration %d now, warnings %q", s.IterNum, s.Warnings)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("%d files are left, want 1", len(entries))
			}
		})
	}
}

func TestOneRunAnOutDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("second lock: %v", err)
	}
	unlock()
	again, err := Lock(dir)
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	again()
}
