package cuda

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/snugml/snug/internal/units"
)

// Device is an open GPU: its context, its threads, their streams, its kernels.
type Device struct {
	Info
	drv     *driver
	dev     int32
	thread  // of everything but a snapshot's copies
	stream  uintptr
	copies  thread            // of a snapshot's copies, which wait for the device while the other thread queues work
	copied  uintptr           // their stream
	target  string            // which of Archives
	files   map[string][]byte // its compiled units, by name
	modules map[string]uintptr
	kernels map[string]*kernel
	blas    *blas // nil where cuBLASLt is not there or not wanted
	args    arguments
	sync    bool // wait for and check every launch
	timer   *stopwatch
	plain   bool  // sections never become graphs
	tape    *tape // of the op whose launches are being recorded or compared; nil otherwise
	nvml    management
}

// Info is what is known of a device.
type Info struct {
	Ordinal         int
	Name, UUID      string
	Total           units.Bytes
	Multiprocessors int
	SharedPerBlock  int // bytes, the most that a block may ask for
	Major, Minor    int // compute capability
	Driver          int // 13000 is CUDA 13.0
	Blas            string
}

// Options choose how a device is used; the zero value is the fastest that is there.
type Options struct {
	Ordinal int    // as CUDA numbers the visible devices
	UUID    string // as NVML names the device: chosen before Ordinal, because the two may number devices differently
	Generic bool   // the PTX that every card takes, even where machine code for this one is at hand
	OwnBlas bool   // snug's own matmuls, even where cuBLASLt is found
	Plain   bool   // launch every op by itself, where the driver could replay a section as a graph
	Sync    bool   // wait for every launch and name the kernel that failed
	Cache   string // folder that remembers the fastest algorithms of the library; empty: none
}

// oldest is the lowest compute capability that the kernels' instructions (cp.async, bf16) exist on.
const oldest = 80

// Open makes a context on a device. Everything after it that talks to the driver runs on the device's own thread.
func Open(o Options) (*Device, error) {
	d := &Device{thread: newThread(), copies: newThread(), modules: map[string]uintptr{}, kernels: map[string]*kernel{}, plain: o.Plain, sync: o.Sync}
	if err := d.on(func() error { return d.open(o) }); err != nil {
		d.thread.end()
		d.copies.end()
		return nil, fmt.Errorf("open cuda:%d: %w", o.Ordinal, err)
	}
	return d, nil
}

// thread is an OS thread of our own, which a context can be current to.
type thread chan func()

func newThread() thread {
	t := make(thread)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its goroutine
		for f := range t {
			f()
		}
	}()
	return t
}

// on runs f on the thread and waits for it.
func (t thread) on(f func() error) error {
	done := make(chan error, 1)
	t <- func() { done <- f() }
	return <-done
}

func (t thread) end() { close(t) }

// later runs f beside what follows; the function that it returns waits for f's results.
func later[T any](f func() (T, error)) func() (T, error) {
	done := make(chan struct{})
	var v T
	var err error
	go func() { defer close(done); v, err = f() }()
	return func() (T, error) { <-done; return v, err }
}

// open starts the driver and makes the context. The library and the kernels are read meanwhile.
func (d *Device) open(o Options) (err error) {
	blas := later(func() (library, error) {
		if o.OwnBlas {
			return library{}, nil
		}
		return openLibrary(blasNames...)
	})
	defer blas()
	if d.drv, err = openDriver(); err != nil {
		return err
	}
	if err := d.pick(o); err != nil {
		return err
	}
	if cc := d.Major*10 + d.Minor; cc < oldest {
		return fmt.Errorf("%s has compute capability %d.%d, snug's kernels need %d.%d", d.Name, d.Major, d.Minor, oldest/10, oldest%10)
	}
	d.target = archiveOf(d.Major, d.Minor, o.Generic)
	files := later(func() (map[string][]byte, error) { return Archive(d.target) })
	context, err := d.drv.retain(d.dev)
	if err != nil {
		return err
	}
	if err := d.copies.on(func() error { return d.drv.makeCurrent(context) }); err != nil {
		return err
	}
	for _, s := range []*uintptr{&d.stream, &d.copied} {
		if *s, err = d.drv.newStream(); err != nil {
			return err
		}
	}
	if d.files, err = files(); err != nil {
		return err
	}
	if o.OwnBlas {
		d.Blas = "snug's own matmuls"
	} else {
		lib, err := blas()
		d.openBlas(lib, err, o.Cache)
	}
	return nil
}

// pick finds the device that o names and describes it.
func (d *Device) pick(o Options) error {
	n, err := d.drv.deviceCount()
	if err != nil {
		return err
	}
	first, last := o.Ordinal, o.Ordinal
	if o.UUID != "" {
		first, last = 0, n-1
	}
	for ordinal := first; ordinal <= min(last, n-1); ordinal++ {
		if d.dev, err = d.drv.device(ordinal); err != nil {
			return err
		}
		if err := d.describe(ordinal); err != nil {
			return err
		}
		if o.UUID == "" || d.UUID == o.UUID {
			return nil
		}
	}
	if o.UUID != "" {
		return fmt.Errorf("%s is none of CUDA's %d devices: CUDA_VISIBLE_DEVICES may hide it", o.UUID, n)
	}
	return fmt.Errorf("there is no device %d, CUDA sees %d: choose another --device", o.Ordinal, n)
}

// describe fills Info.
func (d *Device) describe(ordinal int) (err error) {
	d.Ordinal = ordinal
	if d.Name, err = d.drv.deviceName(d.dev); err != nil {
		return err
	}
	if d.UUID, err = d.drv.deviceUUID(d.dev); err != nil {
		return err
	}
	if d.Total, err = d.drv.totalMemory(d.dev); err != nil {
		return err
	}
	if d.Driver, err = d.drv.version(); err != nil {
		return err
	}
	for _, a := range []struct {
		dst       *int
		attribute int
	}{{&d.Multiprocessors, attrMultiprocessors}, {&d.SharedPerBlock, attrSharedPerBlock}, {&d.Major, attrMajor}, {&d.Minor, attrMinor}} {
		if *a.dst, err = d.drv.attribute(d.dev, a.attribute); err != nil {
			return err
		}
	}
	return nil
}

// HasBlas says that cuBLASLt multiplies, not snug's own kernels.
func (d *Device) HasBlas() bool { return d.blas != nil }

// Memory is what is free on the device now, and what it has.
func (d *Device) Memory() (free, total units.Bytes, err error) {
	err = d.on(func() (err error) { free, total, err = d.drv.memoryInfo(); return err })
	return free, total, err
}

// Synchronize waits for all queued work.
func (d *Device) Synchronize() error {
	return d.on(func() error { return d.drv.synchronize(d.stream) })
}

// Close gives everything back. The device must not be used again.
func (d *Device) Close() error {
	err := d.on(func() error {
		err := errors.Join(d.drv.synchronize(d.copied), d.drv.synchronize(d.stream))
		if d.blas != nil {
			d.blas.close()
		}
		for _, m := range d.modules {
			err = errors.Join(err, d.drv.do(cuModuleUnload, m))
		}
		return errors.Join(err, d.drv.do(cuStreamDestroy, d.copied), d.drv.do(cuStreamDestroy, d.stream), d.drv.release(d.dev))
	})
	d.thread.end()
	d.copies.end()
	d.nvml.close()
	return err
}
