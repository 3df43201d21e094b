package gpu

import "golang.org/x/sys/windows"

func openLibrary(name string) (uintptr, error) {
	h, err := windows.LoadLibrary(name)
	return uintptr(h), err
}

func findSymbol(handle uintptr, name string) (uintptr, error) {
	return windows.GetProcAddress(windows.Handle(handle), name)
}
