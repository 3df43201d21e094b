// Package cuda owns the CUDA executor: the program's ops on an NVIDIA GPU, from Go without cgo.
//
// # Layers
//
// driver.go, cublaslt.go and nvrtc.go bind the three libraries through purego, the C prototype above each call.
// kernels/ holds every op in CUDA C++, compiled ahead by `go generate` and embedded; module.go finds and loads them.
// Executor takes one allocation of the planned size and runs a program's sections in it, on one stream, without waiting;
// graph.go makes sections that run again into CUDA graphs.
//
// # Threads
//
// A CUDA context is current to an OS thread. Everything that talks to the driver runs on one goroutine locked to its
// thread, but for the copies of a snapshot, which have a second one; exported methods hand their work to them, so that they
// may be called from any goroutine.
//
// # Limits
//
// It never decides what runs or where a tensor lies: that is program's. It takes no device memory beside the arena and
// what the driver, its libraries and graphs take for themselves. Cards from Ampere on (compute capability 8.0).
package cuda

//go:generate go run ./generate

import (
	"fmt"

	"github.com/snugml/snug/internal/program"
)

// Error is a failed call: what was called, and the library's own name and text for the result.
type Error struct {
	Call string // "cuMemAlloc_v2(12.0 GiB)"
	Code int32
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory"
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// Is makes a want of memory, on the device or in the library, program.ErrNoMemory.
func (e *Error) Is(target error) bool {
	return target == program.ErrNoMemory && (e.Name == "CUDA_ERROR_OUT_OF_MEMORY" || e.Name == "CUBLAS_STATUS_ALLOC_FAILED")
}
