//go:build unix

package cuda

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// openShared stays on its thread: the loader keeps the reason of a failure for the thread that asked.
func openShared(path string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

func symbol(handle uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(handle, name)
}

// Names of the libraries, newest first.
var (
	driverNames = []string{"libcuda.so.1"}
	blasNames   = []string{"libcublasLt.so.13", "libcublasLt.so.12"}
	nvrtcNames  = []string{"libnvrtc.so.12", "libnvrtc.so.13"}
)
