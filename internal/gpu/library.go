package gpu

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/snugml/snug/internal/units"
)

// libraryNames is where NVML is looked for after the path the user gave: the loader's way, then WSL's and NixOS's folders.
func libraryNames() []string {
	if runtime.GOOS == "windows" {
		return []string{"nvml.dll", `C:\Program Files\NVIDIA Corporation\NVSMI\nvml.dll`}
	}
	return []string{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1", "/run/opengl-driver/lib/libnvidia-ml.so.1"}
}

// library is NVML bound through purego. Its function fields carry the C prototypes; C int and nvmlReturn_t are int32.
type library struct {
	// nvmlReturn_t nvmlInit_v2(void)
	init func() Return
	// nvmlReturn_t nvmlShutdown(void)
	shutdown func() Return
	// const char *nvmlErrorString(nvmlReturn_t result)
	errorString func(Return) string
	// nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
	driverVersion func(*byte, uint32) Return
	// nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
	cudaVersion func(*int32) Return
	// nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
	count func(*uint32) Return
	// nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
	handle func(uint32, *Handle) Return
	// nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
	migMode func(Handle, *uint32, *uint32) Return
	// nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
	migCount func(Handle, *uint32) Return
	// nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
	migHandle func(Handle, uint32, *Handle) Return
	// nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
	name func(Handle, *byte, uint32) Return
	// nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
	uuid func(Handle, *byte, uint32) Return
	// nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
	memory func(Handle, *memoryV1) Return
	// nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
	memoryV2 func(Handle, *memoryV2) Return
	// nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
	capability func(Handle, *int32, *int32) Return
	// nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
	utilization func(Handle, *utilization) Return
	// nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *power)
	power func(Handle, *uint32) Return
	// nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit)
	powerLimit func(Handle, *uint32) Return
	// nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensorType, unsigned int *temp)
	temperature func(Handle, int32, *uint32) Return
	// nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
	compute func(Handle, *uint32, *processInfo) Return
	// nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
	graphics func(Handle, *uint32, *processInfo) Return
}

type (
	// memoryV1 is nvmlMemory_t.
	memoryV1 struct{ Total, Free, Used uint64 }
	// memoryV2 is nvmlMemory_v2_t; version is the struct's size with 2 in the top byte.
	memoryV2 struct {
		version                     uint32
		_                           uint32
		total, reserved, free, used uint64
	}
	// utilization is nvmlUtilization_t, per cent of the last sample period.
	utilization struct{ gpu, _ uint32 }
	// processInfo is nvmlProcessInfo_t as _v2 and _v3 of the calls fill it.
	processInfo struct {
		pid           uint32
		_             uint32
		usedGpuMemory uint64
		_, _          uint32 // gpuInstanceId, computeInstanceId
	}
)

// Open loads NVML and initialises it: from path where it is not empty, else from where drivers put it.
//
// It runs the driver's code in this process: Serve does so in a child, and everything else asks that child.
func Open(path string) (NVML, error) {
	names := libraryNames()
	if path != "" {
		names = []string{path}
	}
	var tried []string
	for _, name := range names {
		handle, err := openLibrary(name)
		if err != nil {
			tried = append(tried, name+why(err))
			continue
		}
		lib, err := bind(handle)
		if err != nil {
			return nil, &NoDeviceError{Reason: fmt.Sprintf("%s is not a usable NVML: %v", name, err), Tried: []string{name}}
		}
		if err := lib.err("nvmlInit_v2", lib.init()); err != nil {
			return nil, &NoDeviceError{Reason: err.Error(), Tried: []string{name}}
		}
		return lib, nil
	}
	return nil, &NoDeviceError{Reason: "no NVIDIA driver found", Tried: tried}
}

// why is the loader's reason, unless it is the usual one.
func why(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if strings.Contains(line, "No such file") || strings.Contains(line, "could not be found") || strings.Contains(line, "no such file") {
		return ""
	}
	return " (" + line + ")"
}

// bind looks every function up. Older drivers lack the optional ones, whose fields then stay nil.
func bind(handle uintptr) (*library, error) {
	lib := &library{}
	for _, f := range []struct {
		fn       any
		names    []string // the first found is bound
		optional bool
	}{
		{&lib.init, []string{"nvmlInit_v2"}, false},
		{&lib.shutdown, []string{"nvmlShutdown"}, false},
		{&lib.errorString, []string{"nvmlErrorString"}, false},
		{&lib.driverVersion, []string{"nvmlSystemGetDriverVersion"}, false},
		{&lib.cudaVersion, []string{"nvmlSystemGetCudaDriverVersion_v2"}, true},
		{&lib.count, []string{"nvmlDeviceGetCount_v2"}, false},
		{&lib.handle, []string{"nvmlDeviceGetHandleByIndex_v2"}, false},
		{&lib.migMode, []string{"nvmlDeviceGetMigMode"}, true},
		{&lib.migCount, []string{"nvmlDeviceGetMaxMigDeviceCount"}, true},
		{&lib.migHandle, []string{"nvmlDeviceGetMigDeviceHandleByIndex"}, true},
		{&lib.name, []string{"nvmlDeviceGetName"}, false},
		{&lib.uuid, []string{"nvmlDeviceGetUUID"}, false},
		{&lib.memory, []string{"nvmlDeviceGetMemoryInfo"}, false},
		{&lib.memoryV2, []string{"nvmlDeviceGetMemoryInfo_v2"}, true},
		{&lib.capability, []string{"nvmlDeviceGetCudaComputeCapability"}, false},
		{&lib.utilization, []string{"nvmlDeviceGetUtilizationRates"}, true},
		{&lib.power, []string{"nvmlDeviceGetPowerUsage"}, true},
		{&lib.powerLimit, []string{"nvmlDeviceGetEnforcedPowerLimit"}, true},
		{&lib.temperature, []string{"nvmlDeviceGetTemperature"}, true},
		{&lib.compute, []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"}, true},
		{&lib.graphics, []string{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"}, true},
	} {
		var address uintptr
		var err error
		for _, name := range f.names {
			if address, err = findSymbol(handle, name); err == nil {
				purego.RegisterFunc(f.fn, address)
				break
			}
		}
		if err != nil && !f.optional {
			return nil, fmt.Errorf("no %s in it: the driver is older than 2016", f.names[0])
		}
	}
	return lib, nil
}

// err is nil for Success, else the code with the library's text.
func (l *library) err(call string, code Return) error {
	if code == Success {
		return nil
	}
	return &NVMLError{Call: call, Code: code, Text: l.errorString(code)}
}

func missing(call string) error {
	return &NVMLError{Call: call, Code: FunctionNotFound, Text: "not in this driver"}
}

// text calls f with a buffer of 96 bytes, the size NVML asks for names and UUIDs, and returns it up to the zero.
func (l *library) text(call string, f func(*byte, uint32) Return) (string, error) {
	buffer := make([]byte, 96)
	if err := l.err(call, f(&buffer[0], uint32(len(buffer)))); err != nil {
		return "", err
	}
	s, _, _ := strings.Cut(string(buffer), "\x00")
	return s, nil
}

// figure calls an optional function that writes one unsigned int.
func (l *library) figure(call string, f func(Handle, *uint32) Return, h Handle) (int, error) {
	if f == nil {
		return 0, missing(call)
	}
	var v uint32
	err := l.err(call, f(h, &v))
	return int(v), err
}

func (l *library) Close() { l.shutdown() }

func (l *library) DriverVersion() (string, error) {
	return l.text("nvmlSystemGetDriverVersion", l.driverVersion)
}

func (l *library) CUDAVersion() (int, error) {
	if l.cudaVersion == nil {
		return 0, missing("nvmlSystemGetCudaDriverVersion_v2")
	}
	var v int32
	err := l.err("nvmlSystemGetCudaDriverVersion_v2", l.cudaVersion(&v))
	return int(v), err
}

func (l *library) Count() (int, error) {
	var n uint32
	err := l.err("nvmlDeviceGetCount_v2", l.count(&n))
	return int(n), err
}

func (l *library) Handle(index int) (Handle, error) {
	var h Handle
	err := l.err("nvmlDeviceGetHandleByIndex_v2", l.handle(uint32(index), &h))
	return h, err
}

func (l *library) MIGHandles(h Handle) ([]Handle, error) {
	if l.migMode == nil || l.migCount == nil || l.migHandle == nil {
		return nil, missing("nvmlDeviceGetMigMode")
	}
	var current, pending, n uint32
	if err := l.err("nvmlDeviceGetMigMode", l.migMode(h, &current, &pending)); err != nil || current == 0 {
		return nil, err
	}
	if err := l.err("nvmlDeviceGetMaxMigDeviceCount", l.migCount(h, &n)); err != nil {
		return nil, err
	}
	handles := []Handle{} // not nil: MIG is on, though no instance may exist
	for i := range n {
		var instance Handle
		switch err := l.err("nvmlDeviceGetMigDeviceHandleByIndex", l.migHandle(h, i, &instance)); {
		case err == nil:
			handles = append(handles, instance)
		case !absent(err):
			return nil, err
		}
	}
	return handles, nil
}

func (l *library) Name(h Handle) (string, error) {
	return l.text("nvmlDeviceGetName", func(b *byte, n uint32) Return { return l.name(h, b, n) })
}

func (l *library) UUID(h Handle) (string, error) {
	return l.text("nvmlDeviceGetUUID", func(b *byte, n uint32) Return { return l.uuid(h, b, n) })
}

func (l *library) Memory(h Handle) (MemoryInfo, error) {
	if l.memoryV2 != nil {
		m := memoryV2{version: uint32(unsafe.Sizeof(memoryV2{})) | 2<<24}
		err := l.err("nvmlDeviceGetMemoryInfo_v2", l.memoryV2(h, &m))
		if err == nil {
			return MemoryInfo{units.Bytes(m.total), units.Bytes(m.reserved), units.Bytes(m.free), units.Bytes(m.used)}, nil
		}
		if !absent(err) {
			return MemoryInfo{}, err
		}
	}
	var m memoryV1
	err := l.err("nvmlDeviceGetMemoryInfo", l.memory(h, &m))
	return MemoryInfo{Total: units.Bytes(m.Total), Free: units.Bytes(m.Free), Used: units.Bytes(m.Used)}, err
}

func (l *library) Capability(h Handle) (Capability, error) {
	var major, minor int32
	err := l.err("nvmlDeviceGetCudaComputeCapability", l.capability(h, &major, &minor))
	return Capability{int(major), int(minor)}, err
}

func (l *library) Utilization(h Handle) (int, error) {
	if l.utilization == nil {
		return 0, missing("nvmlDeviceGetUtilizationRates")
	}
	var u utilization
	err := l.err("nvmlDeviceGetUtilizationRates", l.utilization(h, &u))
	return int(u.gpu), err
}

func (l *library) Power(h Handle) (int, error) {
	return l.figure("nvmlDeviceGetPowerUsage", l.power, h)
}

func (l *library) PowerLimit(h Handle) (int, error) {
	return l.figure("nvmlDeviceGetEnforcedPowerLimit", l.powerLimit, h)
}

func (l *library) Temperature(h Handle) (int, error) {
	const core = 0 // NVML_TEMPERATURE_GPU
	if l.temperature == nil {
		return 0, missing("nvmlDeviceGetTemperature")
	}
	return l.figure("nvmlDeviceGetTemperature", func(h Handle, v *uint32) Return { return l.temperature(h, core, v) }, h)
}

func (l *library) Processes(h Handle, kind ProcessKind) ([]ProcessInfo, error) {
	call, f := "nvmlDeviceGetComputeRunningProcesses_v3", l.compute
	if kind == Graphics {
		call, f = "nvmlDeviceGetGraphicsRunningProcesses_v3", l.graphics
	}
	if f == nil {
		return nil, missing(call)
	}
	// The count changes between calls as processes start: ask again with more room, a few times.
	for room := uint32(32); room <= 4096; room *= 4 {
		infos, n := make([]processInfo, room), room
		err := l.err(call, f(h, &n, &infos[0]))
		var e *NVMLError
		if errors.As(err, &e) && e.Code == InsufficientSize {
			continue
		}
		if err != nil {
			return nil, err
		}
		list := make([]ProcessInfo, n)
		for i, p := range infos[:n] {
			list[i].PID = int(p.pid)
			if p.usedGpuMemory != unavailableMemory {
				used := units.Bytes(p.usedGpuMemory)
				list[i].Memory = &used
			}
		}
		return list, nil
	}
	return nil, &NVMLError{Call: call, Code: InsufficientSize, Text: "more than 4096 processes"}
}
