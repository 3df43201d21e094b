package gpu

import (
	"errors"
	"fmt"

	"github.com/snugml/snug/internal/units"
)

// NVML is the part of NVIDIA's management library that snug reads: nothing in it changes a device.
//
// Library binds the real one; gputest has whole machines that answer as it does. A call fails with *NVMLError.
type NVML interface {
	DriverVersion() (string, error)
	CUDAVersion() (int, error) // 12040 is 12.4
	Count() (int, error)
	Handle(index int) (Handle, error)
	MIGHandles(Handle) ([]Handle, error) // none where MIG is off
	Name(Handle) (string, error)
	UUID(Handle) (string, error)
	Memory(Handle) (MemoryInfo, error)
	Capability(Handle) (Capability, error)
	Utilization(Handle) (percent int, err error)
	Power(Handle) (milliwatts int, err error)
	PowerLimit(Handle) (milliwatts int, err error)
	Temperature(Handle) (celsius int, err error)
	Processes(Handle, ProcessKind) ([]ProcessInfo, error)
	Close()
}

// Handle is NVML's pointer to a device or a MIG instance.
type Handle uintptr

// MemoryInfo is nvmlMemory_v2_t: Used includes Reserved, which is the driver's own.
type MemoryInfo struct{ Total, Reserved, Free, Used units.Bytes }

// ProcessKind tells training from the desktop.
type ProcessKind string

const (
	Compute  ProcessKind = "compute"
	Graphics ProcessKind = "graphics"
)

// ProcessInfo is nvmlProcessInfo_t. Memory is nil where the driver doesn't say: Windows, WSL, some containers.
type ProcessInfo struct {
	PID    int
	Memory *units.Bytes
}

// NVMLError is a failed call, with the library's own text for its code.
type NVMLError struct {
	Call string // "nvmlDeviceGetMemoryInfo"
	Code Return
	Text string // nvmlErrorString(Code)
}

func (e *NVMLError) Error() string {
	return fmt.Sprintf("%s: %s (NVML error %d)", e.Call, e.Text, e.Code)
}

// Return is nvmlReturn_t.
type Return int32

// The codes that snug treats apart; nvml.h has them all.
const (
	Success           Return = 0
	InvalidArgument   Return = 2
	NotSupported      Return = 3
	NoPermission      Return = 4
	InsufficientSize  Return = 7
	DriverNotLoaded   Return = 9
	FunctionNotFound  Return = 13
	GPUIsLost         Return = 15
	NotFound          Return = 6
	unavailableMemory        = ^uint64(0) // NVML_VALUE_NOT_AVAILABLE
)

// absent says that err means "this device doesn't have that figure", which is no failure.
func absent(err error) bool {
	var e *NVMLError
	return errors.As(err, &e) && (e.Code == NotSupported || e.Code == FunctionNotFound || e.Code == NoPermission || e.Code == NotFound || e.Code == InvalidArgument)
}
