package cuda

import (
	"fmt"
	"runtime"

	"github.com/snugml/snug/internal/units"
)

// driver is libcuda: the calls that snug makes. The context that they work in is current to the calling thread.
type driver struct {
	calls       [driverCalls]uintptr
	encodeTiled uintptr // cuTensorMapEncodeTiled, 0 where the driver is older than it
	graphs      bool    // the calls from graphCalls on are there
}

const (
	cuInit = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetAttribute
	cuDeviceTotalMem
	cuDeviceGetUuid
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxSynchronize
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemAllocHost
	cuMemFreeHost
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemsetD8Async
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventSynchronize
	cuEventElapsedTime
	cuModuleLoadData
	cuModuleUnload
	cuModuleGetFunction
	cuFuncSetAttribute
	cuLaunchKernel
	cuStreamBeginCapture
	cuStreamEndCapture
	cuStreamGetCaptureInfo
	cuGraphGetNodes
	cuGraphInstantiate
	cuGraphExecKernelNodeSetParams
	cuGraphLaunch
	cuGraphExecDestroy
	cuGraphDestroy
	driverCalls

	graphCalls = cuStreamBeginCapture // from here on, what a driver may lack
)

// The _v2 names take 64-bit sizes; the unversioned ones are another, older function and never a fallback.
var driverSymbols = []string{"cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuDeviceGetCount", "cuDeviceGet",
	"cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2", "cuDeviceGetUuid", "cuDevicePrimaryCtxRetain",
	"cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize", "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2",
	"cuMemAllocHost_v2", "cuMemFreeHost", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async", "cuStreamCreate",
	"cuStreamDestroy_v2", "cuStreamSynchronize", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize",
	"cuEventElapsedTime", "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel",
	"cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuStreamGetCaptureInfo_v2", "cuGraphGetNodes", "cuGraphInstantiateWithFlags",
	"cuGraphExecKernelNodeSetParams_v2", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy"}

// openDriver opens libcuda and starts it.
func openDriver() (*driver, error) {
	lib, err := openLibrary(driverNames...)
	if err != nil {
		return nil, fmt.Errorf("%w: install NVIDIA's driver", err)
	}
	d := &driver{}
	if err := lib.symbols(d.calls[:graphCalls], driverSymbols[:graphCalls]); err != nil {
		return nil, err
	}
	d.encodeTiled, _ = symbol(lib.handle, "cuTensorMapEncodeTiled")
	d.graphs = lib.symbols(d.calls[graphCalls:], driverSymbols[graphCalls:]) == nil
	// CUresult cuInit(unsigned int flags)
	return d, d.check("cuInit", call(d.calls[cuInit], 0))
}

// check turns a CUresult into nil or an *Error with the driver's own words.
func (d *driver) check(what string, code int32) error {
	if code == 0 {
		return nil
	}
	word := func(fn int) string {
		// CUresult cuGetErrorName(CUresult error, const char **pStr); cuGetErrorString likewise
		p := fresh[uintptr]()
		if call(d.calls[fn], uintptr(code), address(p)) != 0 {
			return ""
		}
		return goString(*p)
	}
	return &Error{Call: what, Code: code, Name: word(cuGetErrorName), Text: word(cuGetErrorString)}
}

// do calls fn and names it in the error.
func (d *driver) do(fn int, args ...uintptr) error {
	if code := call(d.calls[fn], args...); code != 0 {
		return d.check(driverSymbols[fn], code)
	}
	return nil
}

// version is 13000 for CUDA 13.0: CUresult cuDriverGetVersion(int *version).
func (d *driver) version() (int, error) {
	v := fresh[int32]()
	err := d.do(cuDriverGetVersion, address(v))
	return int(*v), err
}

// deviceCount: CUresult cuDeviceGetCount(int *count).
func (d *driver) deviceCount() (int, error) {
	n := fresh[int32]()
	err := d.do(cuDeviceGetCount, address(n))
	return int(*n), err
}

// device: CUresult cuDeviceGet(CUdevice *device, int ordinal).
func (d *driver) device(ordinal int) (int32, error) {
	dev := fresh[int32]()
	err := d.do(cuDeviceGet, address(dev), uintptr(ordinal))
	return *dev, err
}

// deviceName: CUresult cuDeviceGetName(char *name, int len, CUdevice dev).
func (d *driver) deviceName(dev int32) (string, error) {
	buf := heap(make([]byte, 256))
	err := d.do(cuDeviceGetName, address(&buf[0]), uintptr(len(buf)), uintptr(dev))
	return goString(address(&buf[0])), err
}

// deviceUUID is "GPU-…" as NVML prints it: CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev).
func (d *driver) deviceUUID(dev int32) (string, error) {
	u := heap(make([]byte, 16))
	err := d.do(cuDeviceGetUuid, address(&u[0]), uintptr(dev))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), err
}

// CUdevice_attribute.
const (
	attrMultiprocessors  = 16
	attrClockKHz         = 13
	attrMajor            = 75
	attrMinor            = 76
	attrSharedPerBlock   = 97
	attrL2Bytes          = 38
	funcMaxDynamicShared = 8 // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
)

// attribute: CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attrib, CUdevice dev).
func (d *driver) attribute(dev int32, attribute int) (int, error) {
	v := fresh[int32]()
	err := d.do(cuDeviceGetAttribute, address(v), uintptr(attribute), uintptr(dev))
	return int(*v), err
}

// totalMemory: CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev).
func (d *driver) totalMemory(dev int32) (units.Bytes, error) {
	n := fresh[uint64]()
	err := d.do(cuDeviceTotalMem, address(n), uintptr(dev))
	return units.Bytes(*n), err
}

// retain makes the device's primary context and makes it current to this thread:
// CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev).
func (d *driver) retain(dev int32) (context uintptr, err error) {
	ctx := fresh[uintptr]()
	if err := d.do(cuDevicePrimaryCtxRetain, address(ctx), uintptr(dev)); err != nil {
		return 0, err
	}
	return *ctx, d.makeCurrent(*ctx)
}

// makeCurrent makes a context current to this thread too; it may be to several: CUresult cuCtxSetCurrent(CUcontext ctx).
func (d *driver) makeCurrent(context uintptr) error { return d.do(cuCtxSetCurrent, context) }

// release: CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev).
func (d *driver) release(dev int32) error { return d.do(cuDevicePrimaryCtxRelease, uintptr(dev)) }

// memoryInfo: CUresult cuMemGetInfo_v2(size_t *free, size_t *total).
func (d *driver) memoryInfo() (free, total units.Bytes, err error) {
	n := heap(make([]uint64, 2))
	err = d.do(cuMemGetInfo, address(&n[0]), address(&n[1]))
	return units.Bytes(n[0]), units.Bytes(n[1]), err
}

// Pointer is an address in device memory.
type Pointer uint64

// alloc: CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes).
func (d *driver) alloc(n units.Bytes) (Pointer, error) {
	p := fresh[uint64]()
	code := call(d.calls[cuMemAlloc], address(p), uintptr(n))
	return Pointer(*p), d.check(fmt.Sprintf("cuMemAlloc_v2(%v)", n), code)
}

// free: CUresult cuMemFree_v2(CUdeviceptr ptr).
func (d *driver) free(p Pointer) error { return d.do(cuMemFree, uintptr(p)) }

// allocHost takes page-locked host memory: CUresult cuMemAllocHost_v2(void **p, size_t bytes).
func (d *driver) allocHost(n int) (uintptr, error) {
	p := fresh[uintptr]()
	err := d.do(cuMemAllocHost, address(p), uintptr(n))
	return *p, err
}

// freeHost: CUresult cuMemFreeHost(void *p).
func (d *driver) freeHost(p uintptr) error { return d.do(cuMemFreeHost, p) }

// toDevice: CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream).
// From page-locked memory the copy is queued; from other memory the driver copies src before it returns.
func (d *driver) toDevice(dst Pointer, src uintptr, n int, stream uintptr) error {
	return d.do(cuMemcpyHtoDAsync, uintptr(dst), src, uintptr(n), stream)
}

// toHost: CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream).
func (d *driver) toHost(dst uintptr, src Pointer, n int, stream uintptr) error {
	return d.do(cuMemcpyDtoHAsync, dst, uintptr(src), uintptr(n), stream)
}

// fill sets n bytes: CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream).
func (d *driver) fill(dst Pointer, value byte, n units.Bytes, stream uintptr) error {
	return d.do(cuMemsetD8Async, uintptr(dst), uintptr(value), uintptr(n), stream)
}

// newStream makes a stream that does not wait for the default one: CUresult cuStreamCreate(CUstream *stream, unsigned flags).
func (d *driver) newStream() (uintptr, error) {
	const nonBlocking = 1
	p := fresh[uintptr]()
	err := d.do(cuStreamCreate, address(p), nonBlocking)
	return *p, err
}

// synchronize waits for a stream: CUresult cuStreamSynchronize(CUstream stream).
func (d *driver) synchronize(stream uintptr) error { return d.do(cuStreamSynchronize, stream) }

// newEvent: CUresult cuEventCreate(CUevent *event, unsigned flags).
func (d *driver) newEvent() (uintptr, error) {
	p := fresh[uintptr]()
	err := d.do(cuEventCreate, address(p), 0)
	return *p, err
}

// record: CUresult cuEventRecord(CUevent event, CUstream stream).
func (d *driver) record(event, stream uintptr) error { return d.do(cuEventRecord, event, stream) }

// elapsed is the milliseconds between two events: CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end).
func (d *driver) elapsed(start, end uintptr) (float64, error) {
	ms := fresh[float32]()
	err := d.do(cuEventElapsedTime, address(ms), start, end)
	return float64(*ms), err
}

// loadModule: CUresult cuModuleLoadData(CUmodule *module, const void *image). image is PTX or a cubin.
func (d *driver) loadModule(image []byte) (uintptr, error) {
	image = heap(append(image[:len(image):len(image)], 0))
	m := fresh[uintptr]()
	err := d.do(cuModuleLoadData, address(m), address(&image[0]))
	runtime.KeepAlive(image)
	return *m, err
}

// function: CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name).
func (d *driver) function(module uintptr, name string) (uintptr, error) {
	f := fresh[uintptr]()
	c := cString(name)
	err := d.do(cuModuleGetFunction, address(f), module, address(c))
	runtime.KeepAlive(c)
	return *f, err
}

// allowShared lets a kernel have n bytes of dynamic shared memory:
// CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attrib, int value).
func (d *driver) allowShared(f uintptr, n int) error {
	return d.do(cuFuncSetAttribute, f, funcMaxDynamicShared, uintptr(n))
}
