// Package gputest owns machines that don't exist: doubles of NVML, so that everything over it is tested without a GPU.
//
// A Machine answers as the library does, errors included. Library compiles the same machine into a shared library, for
// tests that must pass through the real binding. It never touches a real driver.
package gputest

import (
	"time"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/units"
)

// Machine is a double of NVML. The zero Machine has a driver and no card.
type Machine struct {
	Driver string
	CUDA   int // 13000 is 13.0
	Cards  []Card
	People map[int]gpu.Facts // what the system knows of a PID
}

// Card is one card, or a MIG instance of one.
type Card struct {
	Name, UUID string
	Capability gpu.Capability
	Memory     gpu.MemoryInfo
	Percent    int
	Milliwatts int
	LimitMW    int
	Celsius    int
	Compute    []gpu.ProcessInfo
	Graphics   []gpu.ProcessInfo
	Lost       bool   // fell off the bus: every call fails with GPUIsLost
	Bare       bool   // utilisation, power and temperature are not supported, as in WSL and for MIG instances
	Crash      bool   // every call aborts the process (Library only)
	Hang       bool   // every call never returns (Library only)
	MIG        []Card // instances; not nil means MIG is on
}

// texts are nvmlErrorString's, as driver 580 has them.
var texts = map[gpu.Return]string{
	gpu.InvalidArgument: "Invalid Argument",
	gpu.NotSupported:    "Not Supported",
	gpu.NotFound:        "Not Found",
	gpu.GPUIsLost:       "GPU is lost",
}

func fail(call string, code gpu.Return) error {
	return &gpu.NVMLError{Call: call, Code: code, Text: texts[code]}
}

// A handle is 1 + 64 x card + (0 for the card, 1 + i for instance i).
func (m *Machine) card(call string, h gpu.Handle) (Card, error) {
	index, instance := int(h-1)/64, int(h-1)%64
	if h == 0 || index >= len(m.Cards) || instance > len(m.Cards[index].MIG) {
		return Card{}, fail(call, gpu.InvalidArgument)
	}
	c := m.Cards[index]
	if c.Lost {
		return Card{}, fail(call, gpu.GPUIsLost)
	}
	if instance > 0 {
		c = c.MIG[instance-1]
	}
	return c, nil
}

func (m *Machine) figure(call string, h gpu.Handle, read func(Card) int) (int, error) {
	c, err := m.card(call, h)
	if err == nil && c.Bare {
		err = fail(call, gpu.NotSupported)
	}
	if err != nil {
		return 0, err
	}
	return read(c), nil
}

func (m *Machine) Close() {}

func (m *Machine) DriverVersion() (string, error) { return m.Driver, nil }

func (m *Machine) CUDAVersion() (int, error) { return m.CUDA, nil }

func (m *Machine) Count() (int, error) { return len(m.Cards), nil }

func (m *Machine) Handle(index int) (gpu.Handle, error) {
	h := gpu.Handle(1 + 64*index)
	_, err := m.card("nvmlDeviceGetHandleByIndex_v2", h)
	return h, err
}

func (m *Machine) MIGHandles(h gpu.Handle) ([]gpu.Handle, error) {
	c, err := m.card("nvmlDeviceGetMigMode", h)
	if err != nil || c.MIG == nil {
		return nil, err
	}
	handles := []gpu.Handle{}
	for i := range c.MIG {
		handles = append(handles, h+1+gpu.Handle(i))
	}
	return handles, nil
}

func (m *Machine) Name(h gpu.Handle) (string, error) {
	c, err := m.card("nvmlDeviceGetName", h)
	return c.Name, err
}

func (m *Machine) UUID(h gpu.Handle) (string, error) {
	c, err := m.card("nvmlDeviceGetUUID", h)
	return c.UUID, err
}

func (m *Machine) Memory(h gpu.Handle) (gpu.MemoryInfo, error) {
	c, err := m.card("nvmlDeviceGetMemoryInfo_v2", h)
	return c.Memory, err
}

func (m *Machine) Capability(h gpu.Handle) (gpu.Capability, error) {
	c, err := m.card("nvmlDeviceGetCudaComputeCapability", h)
	return c.Capability, err
}

func (m *Machine) Utilization(h gpu.Handle) (int, error) {
	return m.figure("nvmlDeviceGetUtilizationRates", h, func(c Card) int { return c.Percent })
}

func (m *Machine) Power(h gpu.Handle) (int, error) {
	return m.figure("nvmlDeviceGetPowerUsage", h, func(c Card) int { return c.Milliwatts })
}

func (m *Machine) PowerLimit(h gpu.Handle) (int, error) {
	return m.figure("nvmlDeviceGetEnforcedPowerLimit", h, func(c Card) int { return c.LimitMW })
}

func (m *Machine) Temperature(h gpu.Handle) (int, error) {
	return m.figure("nvmlDeviceGetTemperature", h, func(c Card) int { return c.Celsius })
}

func (m *Machine) Processes(h gpu.Handle, kind gpu.ProcessKind) ([]gpu.ProcessInfo, error) {
	c, err := m.card("nvmlDeviceGetComputeRunningProcesses_v3", h)
	if kind == gpu.Graphics {
		return c.Graphics, err
	}
	return c.Compute, err
}

// Facts is what gpu.ProcessFacts says on this machine.
func (m *Machine) Facts(pid int) gpu.Facts { return m.People[pid] }

// Snapshot takes one as the probe does, at the given moment.
func (m *Machine) Snapshot(now time.Time) (gpu.Snapshot, error) { return gpu.Take(m, now, m.Facts) }

// Holding is a process with its memory; Silent one whose memory the driver doesn't tell.
func Holding(pid int, memory units.Bytes) gpu.ProcessInfo {
	return gpu.ProcessInfo{PID: pid, Memory: &memory}
}

func Silent(pid int) gpu.ProcessInfo { return gpu.ProcessInfo{PID: pid} }
