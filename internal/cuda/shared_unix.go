//go:build unix

package cuda

import "github.com/ebitengine/purego"

func openShared(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}

func symbol(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

// Names of the libraries, newest first.
var (
	driverNames = []string{"libcuda.so.1"}
	blasNames   = []string{"libcublasLt.so.13", "libcublasLt.so.12"}
	nvrtcNames  = []string{"libnvrtc.so.12", "libnvrtc.so.13"}
)
