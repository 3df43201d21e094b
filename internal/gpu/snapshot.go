package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/snugml/snug/internal/units"
)

// Snapshot is a machine's devices at one moment. Figures that a driver doesn't give are nil.
type Snapshot struct {
	Time    time.Time `json:"time"`
	Driver  string    `json:"driver"`         // "580.159.04"
	CUDA    string    `json:"cuda,omitempty"` // the newest CUDA that the driver runs: "13.0"
	Devices []Device  `json:"devices"`
}

// Device is one card, or one instance of a card that is cut up with MIG.
type Device struct {
	Index      int         `json:"index"` // NVML's; MIG instances carry their card's
	Instance   *int        `json:"mig_instance,omitempty"`
	Name       string      `json:"name"`
	UUID       string      `json:"uuid,omitempty"`
	Fault      string      `json:"fault,omitempty"` // why the figures are missing: a card that fell off the bus
	Capability Capability  `json:"capability"`
	Total      units.Bytes `json:"total"` // what programs can have, as CUDA reports it: the board's memory less the driver's share
	Free       units.Bytes `json:"free"`
	Used       units.Bytes `json:"used"`     // by processes: Total - Free
	Reserved   units.Bytes `json:"reserved"` // the driver's share
	Percent    *int        `json:"utilization,omitempty"`
	Milliwatts *int        `json:"power_mw,omitempty"`
	LimitMW    *int        `json:"power_limit_mw,omitempty"`
	Celsius    *int        `json:"temperature_c,omitempty"`
	MIG        bool        `json:"mig,omitempty"` // this card is cut up: programs see its instances only
	Processes  []Process   `json:"processes"`
}

// Process is one holder of a device's memory.
type Process struct {
	PID     int          `json:"pid"`
	Kind    ProcessKind  `json:"kind"`
	Memory  *units.Bytes `json:"memory"` // nil: the driver doesn't say
	Command string       `json:"command,omitempty"`
	User    string       `json:"user,omitempty"`
	Started *time.Time   `json:"started,omitempty"`
}

// Facts is what the operating system knows of a process; empty where it knows nothing (another container's).
type Facts struct {
	Command string
	User    string
	Started time.Time
}

// Take reads every device once. A device that fails is listed with its fault: the others are still told.
func Take(lib NVML, now time.Time, facts func(pid int) Facts) (Snapshot, error) {
	s := Snapshot{Time: now, Devices: []Device{}}
	var err error
	if s.Driver, err = lib.DriverVersion(); err != nil {
		return s, err
	}
	if v, err := lib.CUDAVersion(); err == nil {
		s.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	n, err := lib.Count()
	if err != nil {
		return s, err
	}
	for i := range n {
		h, err := lib.Handle(i)
		if err != nil {
			s.Devices = append(s.Devices, Device{Index: i, Name: "unknown", Fault: err.Error()})
			continue
		}
		d := device(lib, h, facts)
		d.Index = i
		instances, err := lib.MIGHandles(h)
		d.MIG = err == nil && instances != nil
		s.Devices = append(s.Devices, d)
		for k, instance := range instances {
			m := device(lib, instance, facts)
			m.Index, m.Instance = i, &k
			if m.Capability == (Capability{}) {
				m.Capability = d.Capability // instances are not asked for theirs by every driver
			}
			s.Devices = append(s.Devices, m)
		}
	}
	return s, nil
}

func device(lib NVML, h Handle, facts func(pid int) Facts) Device {
	d := Device{Name: "unknown", Processes: []Process{}}
	fail := func(err error) bool {
		if err != nil && !absent(err) && d.Fault == "" {
			d.Fault = err.Error()
		}
		return err != nil
	}
	if name, err := lib.Name(h); !fail(err) {
		d.Name = name
	}
	if uuid, err := lib.UUID(h); !fail(err) {
		d.UUID = uuid
	}
	if c, err := lib.Capability(h); !fail(err) {
		d.Capability = c
	}
	if m, err := lib.Memory(h); !fail(err) {
		d.Total, d.Free, d.Reserved = m.Total-m.Reserved, m.Free, m.Reserved
		d.Used = max(0, d.Total-d.Free)
	} else if d.Fault == "" {
		d.Fault = err.Error()
	}
	for _, figure := range []struct {
		into *(*int)
		read func(Handle) (int, error)
	}{{&d.Percent, lib.Utilization}, {&d.Milliwatts, lib.Power}, {&d.LimitMW, lib.PowerLimit}, {&d.Celsius, lib.Temperature}} {
		if v, err := figure.read(h); !fail(err) {
			*figure.into = &v
		}
	}
	for _, kind := range []ProcessKind{Compute, Graphics} {
		list, err := lib.Processes(h, kind)
		if fail(err) {
			continue
		}
		for _, p := range list {
			d.Processes = append(d.Processes, process(p, kind, facts(p.PID)))
		}
	}
	// A process that computes and draws is in both lists, with the same memory: it is told once, as compute.
	slices.SortStableFunc(d.Processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	d.Processes = slices.CompactFunc(d.Processes, func(a, b Process) bool { return a.PID == b.PID })
	slices.SortStableFunc(d.Processes, func(a, b Process) int { return cmp.Compare(held(b), held(a)) })
	return d
}

func process(p ProcessInfo, kind ProcessKind, f Facts) Process {
	out := Process{PID: p.PID, Kind: kind, Memory: p.Memory, Command: f.Command, User: f.User}
	if !f.Started.IsZero() {
		out.Started = &f.Started
	}
	return out
}

func held(p Process) units.Bytes {
	if p.Memory == nil {
		return 0
	}
	return *p.Memory
}

// Holds is the process's memory for a table, "?" where the driver doesn't tell.
func (p Process) Holds() string {
	if p.Memory == nil {
		return "?"
	}
	return p.Memory.GiB()
}

// Runs is how long the process has run, for a table, "?" where the system doesn't know.
func (p Process) Runs(now time.Time) string {
	if age, ok := p.Age(now); ok {
		return units.Duration(age)
	}
	return "?"
}

// Age is how long the process has run, where the system knows.
func (p Process) Age(now time.Time) (time.Duration, bool) {
	if p.Started == nil {
		return 0, false
	}
	return max(0, now.Sub(*p.Started)), true
}

// BF16 says whether the device trains in bfloat16.
func (d Device) BF16() bool { return d.Capability.BF16() }

// Label is how tables and errors name the device: "0", "0:1" for a MIG instance.
func (d Device) Label() string {
	if d.Instance != nil {
		return fmt.Sprintf("%d:%d", d.Index, *d.Instance)
	}
	return fmt.Sprint(d.Index)
}

// Held sums what the listed processes hold; known is false where the driver doesn't say for one of them.
func (d Device) Held() (sum units.Bytes, known bool) {
	known = true
	for _, p := range d.Processes {
		sum += held(p)
		known = known && p.Memory != nil
	}
	return sum, known
}

// Usable are the devices that a program can train on: without fault, and not cut up into instances listed beside them.
func (s Snapshot) Usable() []Device {
	return slices.DeleteFunc(slices.Clone(s.Devices), func(d Device) bool { return d.Fault != "" || d.MIG })
}

// NoDeviceError says that this machine has no GPU that snug can see, and where it looked.
type NoDeviceError struct {
	Reason string
	Tried  []string
}

func (e *NoDeviceError) Error() string {
	s := "find a GPU: " + e.Reason
	for i, t := range e.Tried {
		if i == 0 {
			s += "; tried "
		} else {
			s += ", "
		}
		s += t
	}
	return s
}
