package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// LibraryPath is the environment variable that says where to look first: folders, separated as in PATH.
const LibraryPath = "SNUG_CUDA_PATH"

// library is an open shared library.
type library struct {
	handle uintptr
	path   string
}

// openLibrary opens the first of names that is found: in the user's folders, by the loader, in the toolkit's folders,
// in those of a PyTorch installation. The error says what was tried.
func openLibrary(names ...string) (library, error) {
	var tried []string
	for _, path := range candidates(names) {
		h, err := openShared(path)
		if err == nil {
			return library{h, path}, nil
		}
		tried = append(tried, path)
	}
	return library{}, fmt.Errorf("%s not found (tried %s)", names[0], strings.Join(tried, ", "))
}

// candidates are the paths to try, in order. Those with a folder are listed only where the file exists, so that the
// error stays short; a bare name asks the system's loader.
func candidates(names []string) []string {
	var paths []string
	in := func(dirs ...string) {
		for _, dir := range dirs {
			for _, name := range names {
				if p := filepath.Join(dir, name); fileExists(p) {
					paths = append(paths, p)
				}
			}
		}
	}
	in(filepath.SplitList(os.Getenv(LibraryPath))...)
	paths = append(paths, names...)
	for _, pattern := range searchPatterns() {
		dirs, _ := filepath.Glob(pattern)
		in(dirs...)
	}
	return paths
}

// searchPatterns are the folders, as globs, of CUDA toolkits and of PyTorch's own copies of NVIDIA's libraries.
func searchPatterns() []string {
	patterns := []string{"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/opt/cuda/lib64", "/usr/lib/wsl/lib"}
	if runtime.GOOS == "windows" {
		patterns = []string{filepath.Join(os.Getenv("CUDA_PATH"), "bin"), filepath.Join(os.Getenv("CUDA_PATH"), "bin", "x64")}
	}
	home, _ := os.UserHomeDir()
	prefixes := []string{os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX"), ".venv", filepath.Join(home, ".local"), "/usr", "/usr/local"}
	if python, err := exec.LookPath("python3"); err == nil {
		prefixes = append(prefixes, filepath.Dir(filepath.Dir(python)))
	}
	for _, prefix := range prefixes {
		if prefix == "" {
			continue
		}
		for _, site := range []string{"lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages", "Lib/site-packages"} {
			patterns = append(patterns, filepath.Join(prefix, site, "nvidia", "*", "lib"), filepath.Join(prefix, site, "nvidia", "*", "bin"),
				filepath.Join(prefix, site, "torch", "lib"))
		}
	}
	return patterns
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// symbols finds every name in l; dst[i] gets the address of names[i].
func (l library) symbols(dst []uintptr, names []string) error {
	for i, name := range names {
		p, err := symbol(l.handle, name)
		if err != nil {
			return fmt.Errorf("%s has no %s: install a newer version: %w", l.path, name, err)
		}
		dst[i] = p
	}
	return nil
}

// call calls a C function whose result is an int. C's int is 32 bits: the rest of the register is not part of it.
func call(fn uintptr, args ...uintptr) int32 {
	r, _, _ := purego.SyscallN(fn, args...)
	return int32(r)
}

// address is p as an argument. The compiler does not see that C reads through it: p must come from fresh, heap or
// cString, because a stack may move during the call, and must be used again after it.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// fresh is a new T, on the heap because nothing is known of it where it is made.
//
//go:noinline
func fresh[T any]() *T { return new(T) }

// heap is a copy of s on the heap.
//
//go:noinline
func heap[T any](s []T) []T { return append(make([]T, 0, len(s)), s...) }

// cString is s with a closing zero, on the heap.
//
//go:noinline
func cString(s string) *byte {
	b := append([]byte(s), 0)
	return &b[0]
}

// goString reads a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	var b []byte
	for q := *(*unsafe.Pointer)(unsafe.Pointer(&p)); ; q = unsafe.Add(q, 1) {
		c := *(*byte)(q)
		if c == 0 {
			return string(b)
		}
		b = append(b, c)
	}
}

// callPointer calls a C function whose result is a pointer.
func callPointer(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}
