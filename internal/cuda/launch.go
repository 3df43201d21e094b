package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/snugml/snug/internal/philox"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// kernel is a function of a loaded module.
type kernel struct {
	name   string
	f      uintptr
	shared int // dynamic shared bytes that it has been allowed
}

// kernel finds a kernel of a unit, loading the unit where it is the first of it.
func (d *Device) kernel(unit, name string) (*kernel, error) {
	key := unit + "/" + name
	if k := d.kernels[key]; k != nil {
		return k, nil
	}
	if err := d.load(unit); err != nil {
		return nil, err
	}
	f, err := d.drv.function(d.modules[unit], name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", key, err)
	}
	k := &kernel{name: name, f: f, shared: 48 << 10}
	d.kernels[key] = k
	return k, nil
}

// load loads a unit's module, once.
func (d *Device) load(unit string) (err error) {
	if _, ok := d.modules[unit]; ok {
		return nil
	}
	image, ok := d.files[unit]
	if !ok {
		panic("cuda: no unit " + unit)
	}
	if d.modules[unit], err = d.drv.loadModule(image); err == nil {
		return nil
	}
	delete(d.modules, unit)
	if d.target != smallArchive || errors.Is(err, program.ErrNoMemory) {
		return fmt.Errorf("load %s: %w", unit, err)
	}
	// A driver that is older than the machine code's compiler may still take the PTX.
	if d.files, err = Archive(genericArchive); err != nil {
		return err
	}
	d.target = genericArchive
	return d.load(unit)
}

// dim is a grid: blocks along x, y, z.
type dim struct{ x, y, z int }

// arguments is the reused space of one launch: 8-byte slots, and the pointers to them that cuLaunchKernel reads.
type arguments struct {
	slots [128]uint64
	ptrs  [32]uintptr
	slot  int
	n     int
}

// add appends an argument of one or more slots.
func (a *arguments) add(values ...uint64) *arguments {
	a.ptrs[a.n] = address(&a.slots[a.slot])
	a.n++
	a.slot += copy(a.slots[a.slot:], values)
	return a
}

func (a *arguments) ptr(ps ...Pointer) *arguments {
	for _, p := range ps {
		a.add(uint64(p))
	}
	return a
}

func (a *arguments) int(xs ...int) *arguments {
	for _, x := range xs {
		a.add(uint64(x)) // little-endian: an int parameter reads the low half
	}
	return a
}

func (a *arguments) float(xs ...float64) *arguments {
	for _, x := range xs {
		a.add(uint64(math.Float32bits(float32(x))))
	}
	return a
}

// dropout appends a Dropout of common.cuh. Where nothing is dropped it is the same in every step.
func (a *arguments) dropout(at *program.Attrs, s program.Step) *arguments {
	threshold, scale := philox.Drop(at.Dropout)
	if threshold == 0 {
		s = program.Step{}
	}
	a.add(uint64(threshold)|uint64(math.Float32bits(float32(scale)))<<32, uint64(uint32(at.Site)), s.Sample)
	for _, k := range philox.Rounds(philox.Key(s.Seed)) {
		a.slots[a.slot] = uint64(k[0]) | uint64(k[1])<<32
		a.slot++
	}
	return a
}

// with starts the arguments of a launch.
func (d *Device) with() *arguments {
	d.args.slot, d.args.n = 0, 0
	return &d.args
}

// launch queues a kernel over the arguments gathered since with.
//
//	CUresult cuLaunchKernel(CUfunction f, unsigned gridX, gridY, gridZ, blockX, blockY, blockZ,
//	                        unsigned sharedBytes, CUstream stream, void **params, void **extra)
func (d *Device) launch(unit, name string, grid dim, threads, shared int) error {
	k, err := d.kernel(unit, name)
	if err != nil {
		return err
	}
	grid = dim{max(grid.x, 1), max(grid.y, 1), max(grid.z, 1)}
	l := launched{f: k.f, grid: grid, threads: threads, shared: shared}
	if d.tape != nil && d.tape.dry {
		return d.tape.compare(d, l)
	}
	if shared > k.shared {
		if err := d.drv.allowShared(k.f, shared); err != nil {
			return fmt.Errorf("launch %s with %d shared bytes: %w", name, shared, err)
		}
		k.shared = shared
	}
	code := call(d.drv.calls[cuLaunchKernel], k.f, uintptr(grid.x), uintptr(grid.y), uintptr(grid.z),
		uintptr(threads), 1, 1, uintptr(shared), d.stream, uintptr(unsafe.Pointer(&d.args.ptrs)), 0)
	if code == 0 && d.sync {
		code = call(d.drv.calls[cuStreamSynchronize], d.stream)
	}
	if code != 0 {
		return d.drv.check(fmt.Sprintf("launch %s/%s<<<(%d,%d,%d), %d, %d>>>", unit, name, grid.x, grid.y, grid.z, threads, shared), code)
	}
	if d.tape != nil {
		return d.tape.add(d, l)
	}
	return nil
}

// fill queues a fill that belongs to an op.
func (d *Device) fill(dst Pointer, value byte, n units.Bytes) error {
	if d.tape != nil && d.tape.dry {
		return nil
	}
	return d.drv.fill(dst, value, n, d.stream)
}

// upload queues a copy from page-locked memory that belongs to an op.
func (d *Device) upload(dst Pointer, src uintptr, n int) error {
	if d.tape != nil && d.tape.dry {
		return nil
	}
	return d.drv.toDevice(dst, src, n, d.stream)
}

func ceil(a, b int) int { return (a + b - 1) / b }
