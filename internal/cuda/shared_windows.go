package cuda

import "golang.org/x/sys/windows"

func openShared(path string) (uintptr, error) {
	h, err := windows.LoadLibrary(path)
	return uintptr(h), err
}

func symbol(handle uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(handle), name)
}

// Names of the libraries, newest first.
var (
	driverNames = []string{"nvcuda.dll"}
	blasNames   = []string{"cublasLt64_13.dll", "cublasLt64_12.dll"}
	nvrtcNames  = []string{"nvrtc64_120_0.dll", "nvrtc64_130_0.dll"}
)
