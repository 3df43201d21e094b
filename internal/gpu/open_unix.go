//go:build !windows

package gpu

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// openLibrary stays on its thread: the loader keeps the reason of a failure for the thread that asked.
func openLibrary(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func findSymbol(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }
