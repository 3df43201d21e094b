package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/snugml/snug/internal/oom/likely"
)

// What is fitted tells apart what it was fitted to, and is read back as it was written.
func TestFit(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"1.txt": "backward of the loss", "2.txt": "calling backward", "3.txt": "loss.backward()", "4.txt": "validation", "5.txt": "the validation loop", "6.txt": "validation of the loss", "7.txt": "no label",
		"labels.json": `{"1": {"phase": ["backward"], "shows": true}, "2": {"phase": ["backward"], "shows": true}, "3": {"phase": ["backward"], "shows": true},
			"4": {"phase": ["eval"], "shows": true}, "5": {"phase": ["eval", "sample"], "shows": true}, "6": {"phase": ["eval"], "shows": true}, "7": {"phase": ["save"]}}`,
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := read(dir)
	if err != nil || len(all) != 6 {
		t.Fatalf("%d reports, %v", len(all), err)
	}
	all = slices.Repeat(all, 10)
	var out bytes.Buffer
	write(&out, fit(all))
	table, err := likely.Parse(out.String())
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range all {
		if phase, _ := table.Guess(r.words, ""); !r.right[phase] {
			t.Errorf("report %d is %q", i+1, phase)
		}
	}
}

func TestReadRefusesOtherPhases(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "labels.json"), []byte(`{"1": {"phase": ["evaluation"], "shows": true}}`), 0o600)
	os.WriteFile(filepath.Join(dir, "1.txt"), nil, 0o600)
	if _, err := read(dir); err == nil {
		t.Error("evaluation is taken for a phase")
	}
}
