//go:build linux

// Package cudatest owns a stand-in for NVIDIA's driver and cuBLASLt, so that what the host does runs in tests on any machine.
//
// It queues work as a card does and does it as late as is allowed; testdata/standin.c says which kernels compute what.
// It shows what the host does in the wrong order, and nothing of a kernel or a card's speed.
package cudatest

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/units"
)

//go:embed testdata/standin.c
var source string

// Driver is a stand-in that this process finds as its libcuda.
type Driver struct {
	Dir     string // where its libraries lie
	others  func(uint64)
	fail    func(string)
	refuse  func(int32)
	replays func() uint64
}

// Total is the memory of the stand-in's card.
const Total = 12 * units.GiB

// StandIn puts a fresh stand-in where cuda looks first. It skips the test where there is no C compiler, or where the real
// driver is wanted in this process.
func StandIn(t testing.TB) *Driver {
	t.Helper()
	if os.Getenv("SNUG_REQUIRE_GPU") != "" {
		t.Skip("the real driver is wanted in this process")
	}
	image, err := library()
	if errors.Is(err, gputest.ErrNoCompiler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{Dir: t.TempDir()}
	path := filepath.Join(d.Dir, "libcuda.so.1")
	if err := os.WriteFile(path, image, 0o755); err != nil {
		t.Fatal(err)
	}
	// A second name of one file: both libraries see the same streams.
	if err := os.Link(path, filepath.Join(d.Dir, "libcublasLt.so.13")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SNUG_CUDA_PATH", d.Dir)
	t.Setenv("SNUG_NVML", filepath.Join(d.Dir, "none"))
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		t.Fatal(err)
	}
	purego.RegisterLibFunc(&d.others, handle, "standin_others")
	purego.RegisterLibFunc(&d.fail, handle, "standin_fail")
	purego.RegisterLibFunc(&d.refuse, handle, "standin_refuse")
	purego.RegisterLibFunc(&d.replays, handle, "standin_replays")
	return d
}

// library is the stand-in compiled, once a process.
var library = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "standin")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "standin.so")
	if err := gputest.Compile(path, source); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// Others says how much of the card's memory other processes hold.
func (d *Driver) Others(n units.Bytes) { d.others(uint64(n)) }

// Fail makes the kernel of this name fail when it runs.
func (d *Driver) Fail(kernel string) { d.fail(kernel) }

// RefuseGraphs makes capturing a stream fail with a CUresult, 0 for none.
func (d *Driver) RefuseGraphs(code int32) { d.refuse(code) }

// Replays is how often a graph was launched.
func (d *Driver) Replays() int { return int(d.replays()) }
