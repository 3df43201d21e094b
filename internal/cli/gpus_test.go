package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/term"
)

// fakeNVML compiles the fake driver once for all scripts.
var fakeNVML = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "snug-nvml")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path, err := gputest.Library(dir)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// machine NAME gives the script one of gputest's machines, through a fake driver: a script that
// says so begins with [!fake-driver] skip.
func machine(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 || gputest.Machines()[args[0]] == nil {
		ts.Fatalf("usage: machine NAME, of gputest.Machines")
	}
	lib, err := fakeNVML()
	ts.Check(err)
	dir := ts.MkAbs("nvml")
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(gputest.Machines()[args[0]].Write(dir))
	path := filepath.Join(dir, "libnvidia-ml.so.1")
	if _, err := os.Stat(path); err != nil { // one that is loaded must not be written over
		ts.Check(os.WriteFile(path, lib, 0o755))
	}
	ts.Setenv("SNUG_NVML", path)
}

func terminal(width int) (*term.Stream, *bytes.Buffer) {
	var b bytes.Buffer
	return &term.Stream{Writer: &b, TTY: true, Width: width, UTF8: true}, &b
}

func TestGPUsOnATerminal(t *testing.T) {
	for name, m := range gputest.Machines() {
		s, err := m.Snapshot(gputest.Noon)
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{80, 100} {
			golden(t, fmt.Sprintf("gpus-%s-%d", name, width), width, func(out *term.Stream) error { return writeGPUs(out, s) })
		}
	}
}

// golden compares what write prints on a terminal with testdata/golden/NAME.txt, and checks that no line is too wide.
func golden(t *testing.T, name string, width int, write func(*term.Stream) error) {
	t.Helper()
	out, got := terminal(width)
	if err := write(out); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(got.String(), "\n") {
		if term.Width(line) > width {
			t.Errorf("%s: %d columns: %q", name, term.Width(line), line)
		}
	}
	path := filepath.Join("testdata", "golden", name+".txt")
	if os.Getenv("SNUG_UPDATE") != "" {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got.String() != string(want) {
		t.Errorf("%s (%v):\n%s\nwant:\n%s", path, err, got, want)
	}
}
