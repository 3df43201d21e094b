package gputest

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/snugml/snug/internal/gpu"
)

//go:embed fake/nvml.c
var source string

// ErrNoCompiler says that this machine cannot build C: tests that need it skip.
var ErrNoCompiler = errors.New("no C compiler that builds a shared library")

// Library compiles a shared library in dir that answers as the machine written beside it, and returns its path:
// what SNUG_NVML is set to, so that a whole snug runs over a machine that doesn't exist.
func Library(dir string) (path string, err error) {
	path = filepath.Join(dir, "libnvidia-ml.so.1")
	return path, Compile(path, source)
}

// Compile builds a shared library from C, with the compiler of $CC or the system's own. A compiler that lacks the C
// library's headers, or cannot link, is none.
func Compile(path, source string) error {
	compiler, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "cc"))
	if err != nil || runtime.GOOS != "linux" {
		return ErrNoCompiler
	}
	build := func(source string) ([]byte, error) {
		cmd := exec.Command(compiler, "-shared", "-fPIC", "-O1", "-w", "-o", path, "-x", "c", "-", "-ldl", "-lm", "-pthread")
		cmd.Stdin = strings.NewReader(source)
		return cmd.CombinedOutput()
	}
	out, err := build(source)
	if err == nil {
		return nil
	}
	if _, err := build("#include <stdio.h>\nint zero(void) { return 0; }\n"); err != nil {
		return ErrNoCompiler
	}
	return fmt.Errorf("compile %s: %w: %s", filepath.Base(path), err, out)
}

// Write puts the machine beside a Library in dir; a running one sees it at its next call.
func (m *Machine) Write(dir string) error {
	aside := filepath.Join(dir, "machine.new")
	if err := os.WriteFile(aside, []byte(m.text()), 0o644); err != nil {
		return err
	}
	return os.Rename(aside, filepath.Join(dir, "machine"))
}

func (m *Machine) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "driver %s\ncuda %d\n", m.Driver, m.CUDA)
	for _, c := range m.Cards {
		c.write(&b, "card")
		for _, instance := range c.MIG {
			instance.write(&b, "mig")
		}
	}
	return b.String()
}

func (c Card) write(b *strings.Builder, what string) {
	flags := 0
	for i, on := range []bool{c.Lost, c.Bare, c.MIG != nil, c.Crash, c.Hang} {
		if on {
			flags |= 1 << i
		}
	}
	fmt.Fprintf(b, "%s %s|%s|%d|%d|%d|%d|%d|%d|%d|%d|%d|%d|%d\n", what, c.Name, c.UUID, c.Capability.Major, c.Capability.Minor,
		c.Memory.Total, c.Memory.Reserved, c.Memory.Free, c.Memory.Used, c.Percent, c.Milliwatts, c.LimitMW, c.Celsius, flags)
	for kind, list := range map[string][]gpu.ProcessInfo{"compute": c.Compute, "graphics": c.Graphics} {
		for _, p := range list {
			used := ^uint64(0)
			if p.Memory != nil {
				used = uint64(*p.Memory)
			}
			fmt.Fprintf(b, "%s %d %d\n", kind, p.PID, used)
		}
	}
}
