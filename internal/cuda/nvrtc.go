package cuda

import (
	"fmt"
	"runtime"
)

// Compiler is NVRTC: CUDA C++ to PTX or to machine code, on any machine.
type Compiler struct {
	path  string
	calls [nvrtcCalls]uintptr
}

const (
	nvrtcCreateProgram = iota
	nvrtcCompileProgram
	nvrtcDestroyProgram
	nvrtcGetPTXSize
	nvrtcGetPTX
	nvrtcGetCUBINSize
	nvrtcGetCUBIN
	nvrtcGetProgramLogSize
	nvrtcGetProgramLog
	nvrtcGetErrorString
	nvrtcCalls
)

var nvrtcSymbols = []string{"nvrtcCreateProgram", "nvrtcCompileProgram", "nvrtcDestroyProgram", "nvrtcGetPTXSize", "nvrtcGetPTX",
	"nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog", "nvrtcGetErrorString"}

// NewCompiler opens NVRTC.
func NewCompiler() (*Compiler, error) {
	lib, err := openLibrary(nvrtcNames...)
	if err != nil {
		return nil, fmt.Errorf("%w: install PyPI's nvidia-cuda-nvrtc-cu12, or set %s to its folder", err, LibraryPath)
	}
	c := &Compiler{path: lib.path}
	return c, lib.symbols(c.calls[:], nvrtcSymbols)
}

// Compile compiles source for arch: PTX for "compute_80", machine code for "sm_86" and "sm_90a". headers are found by their names.
func (c *Compiler) Compile(name, source, arch string, headers map[string]string, options ...string) ([]byte, error) {
	var texts, names []*byte
	for n, text := range headers {
		names, texts = append(names, cString(n)), append(texts, cString(text))
	}
	names, texts = heap(names), heap(texts)
	prog := fresh[uintptr]()
	src, file := cString(source), cString(name)
	// nvrtcResult nvrtcCreateProgram(nvrtcProgram *prog, const char *src, const char *name, int numHeaders,
	//                                const char *const *headers, const char *const *includeNames)
	r := call(c.calls[nvrtcCreateProgram], address(prog), address(src), address(file), uintptr(len(names)), address(&texts[0]), address(&names[0]))
	if err := c.check("nvrtcCreateProgram("+name+")", r); err != nil {
		return nil, err
	}
	// nvrtcResult nvrtcDestroyProgram(nvrtcProgram *prog)
	defer call(c.calls[nvrtcDestroyProgram], address(prog))
	var opts []*byte
	for _, o := range append([]string{"--gpu-architecture=" + arch, "--std=c++17"}, options...) {
		opts = append(opts, cString(o))
	}
	opts = heap(opts)
	// nvrtcResult nvrtcCompileProgram(nvrtcProgram prog, int numOptions, const char *const *options)
	r = call(c.calls[nvrtcCompileProgram], *prog, uintptr(len(opts)), address(&opts[0]))
	runtime.KeepAlive(texts)
	runtime.KeepAlive(names)
	runtime.KeepAlive(opts)
	runtime.KeepAlive(src)
	if err := c.check("compile "+name, r); err != nil {
		log, _ := c.get(*prog, nvrtcGetProgramLogSize, nvrtcGetProgramLog)
		return nil, fmt.Errorf("%w\n%s", err, log)
	}
	if arch[:3] == "sm_" {
		return c.get(*prog, nvrtcGetCUBINSize, nvrtcGetCUBIN)
	}
	ptx, err := c.get(*prog, nvrtcGetPTXSize, nvrtcGetPTX)
	if err != nil {
		return nil, err
	}
	return ptx[:len(ptx)-1], nil // without the closing zero
}

// get reads one of the program's outputs: nvrtcResult nvrtcGet…Size(prog, size_t *n), nvrtcGet…(prog, char *out).
func (c *Compiler) get(prog uintptr, size, data int) ([]byte, error) {
	n := fresh[uint64]()
	if err := c.check(nvrtcSymbols[size], call(c.calls[size], prog, address(n))); err != nil {
		return nil, err
	}
	out := heap(make([]byte, *n))
	return out, c.check(nvrtcSymbols[data], call(c.calls[data], prog, address(&out[0])))
}

func (c *Compiler) check(what string, code int32) error {
	if code == 0 {
		return nil
	}
	// const char *nvrtcGetErrorString(nvrtcResult result)
	return &Error{Call: what, Code: code, Name: goString(callPointer(c.calls[nvrtcGetErrorString], uintptr(code)))}
}
