package cuda

import (
	"encoding/binary"
	"errors"
	"math"
	"unsafe"

	"github.com/snugml/snug/internal/trace"
)

// staging is page-locked memory through which everything passes between host and device: a ring of buffers, so that
// writing the next batch does not wait for the last one's copy.
type staging struct {
	drv    *driver
	stream uintptr // of its copies
	memory uintptr // of all slots: page-locking takes the system a millisecond, however little it is
	slots  [16]stageSlot
	next   int
}

type stageSlot struct {
	memory uintptr
	event  uintptr // recorded behind the copy that reads or writes memory
	used   bool
}

// stageBytes is the size of one buffer.
const stageBytes = 1 << 20

func (s *staging) open(d *driver, stream uintptr) (err error) {
	s.drv, s.stream = d, stream
	if s.memory, err = d.allocHost(len(s.slots) * stageBytes); err != nil {
		return err
	}
	for i := range s.slots {
		s.slots[i].memory = s.memory + uintptr(i*stageBytes)
		if s.slots[i].event, err = d.newEvent(); err != nil {
			return err
		}
	}
	return nil
}

// close gives back what open took, all of it or the part before its error.
func (s *staging) close() (err error) {
	if s.memory != 0 {
		err = s.drv.freeHost(s.memory)
	}
	for i := range s.slots {
		if event := s.slots[i].event; event != 0 {
			err = errors.Join(err, s.drv.do(cuEventDestroy, event))
		}
	}
	*s = staging{}
	return err
}

func (s *stageSlot) open(d *driver, bytes int) (err error) {
	if s.memory, err = d.allocHost(bytes); err != nil {
		return err
	}
	s.event, err = d.newEvent()
	return err
}

// close gives back what open took, all of it or the part before its error.
func (s *stageSlot) close(d *driver) (err error) {
	if s.memory != 0 {
		err = d.freeHost(s.memory)
	}
	if s.event != 0 {
		err = errors.Join(err, d.do(cuEventDestroy, s.event))
	}
	*s = stageSlot{}
	return err
}

// take returns the next buffer once nothing uses it any more.
func (s *staging) take() (*stageSlot, error) {
	slot := &s.slots[s.next]
	s.next = (s.next + 1) % len(s.slots)
	if !slot.used {
		slot.used = true
		return slot, nil
	}
	return slot, s.drv.do(cuEventSynchronize, slot.event)
}

// bytes is the buffer's first n bytes.
func (s *stageSlot) bytes(n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&s.memory))), n)
}

// place is where a tensor's elements lie on the device: at one address, or a part of each at several. A buffer holds a run of
// elements address by address.
type place struct {
	at   []Pointer
	size int // bytes of an element at each address
}

// whole is the bytes of an element.
func (p place) whole() int { return p.size * len(p.at) }

// each calls copy for the run of n elements from number `from` on: for its part at each address, and that part's place in the buffer.
func (p place) each(from, n int, copy func(at Pointer, offset uintptr, bytes int) error) error {
	bytes := n * p.size
	for i, at := range p.at {
		if err := copy(at+Pointer(from*p.size), uintptr(i*bytes), bytes); err != nil {
			return err
		}
	}
	return nil
}

// write queues the copy of n elements to dst; fill writes those from `from` on as the buffer has them, on a goroutine for each of
// several buffers where there are several.
func (s *staging) write(dst place, n int, fill func(buf []byte, from int)) (err error) {
	per := stageBytes / dst.whole()
	type flight struct {
		slot   *stageSlot
		from   int
		n      int
		filled chan struct{}
	}
	var queue []flight
	send := func() error {
		f := queue[0]
		queue = queue[1:]
		<-f.filled
		if err := dst.each(f.from, f.n, func(at Pointer, offset uintptr, bytes int) error {
			return s.drv.toDevice(at, f.slot.memory+offset, bytes, s.stream)
		}); err != nil {
			return err
		}
		return s.drv.record(f.slot.event, s.stream)
	}
	defer func() {
		for _, f := range queue { // after an error: nobody may write into a buffer that is given back
			<-f.filled
		}
	}()
	for from := 0; from < n; from += per {
		if len(queue) == len(s.slots) {
			if err := send(); err != nil {
				return err
			}
		}
		slot, err := s.take()
		if err != nil {
			return err
		}
		f := flight{slot, from, min(per, n-from), make(chan struct{})}
		work := func() { defer close(f.filled); fill(slot.bytes(f.n*dst.whole()), from) }
		if n <= per {
			work()
		} else {
			go work()
		}
		queue = append(queue, f)
	}
	for len(queue) > 0 {
		if err := send(); err != nil {
			return err
		}
	}
	return nil
}

// read copies n elements from src and hands them to drain, on a goroutine for each of several buffers where there are several.
func (s *staging) read(src place, n int, drain func(buf []byte, to int)) error {
	per := stageBytes / src.whole()
	type flight struct {
		slot    *stageSlot
		to, n   int
		drained chan struct{}
	}
	var copying, draining []flight
	hand := func() error {
		f := copying[0]
		copying = copying[1:]
		if err := s.drv.do(cuEventSynchronize, f.slot.event); err != nil {
			return err
		}
		work := func() { defer close(f.drained); drain(f.slot.bytes(f.n*src.whole()), f.to) }
		if n <= per {
			work()
		} else {
			go work()
		}
		draining = append(draining, f)
		return nil
	}
	defer func() {
		for _, f := range draining { // nobody reads a buffer that is given back, or dst before it is written
			<-f.drained
		}
	}()
	for to := 0; to < n; to += per {
		if len(copying) == len(s.slots)/2 {
			if err := hand(); err != nil {
				return err
			}
		}
		if len(copying)+len(draining) == len(s.slots) {
			<-draining[0].drained
			draining = draining[1:]
		}
		slot, err := s.take()
		if err != nil {
			return err
		}
		f := flight{slot, to, min(per, n-to), make(chan struct{})}
		if err := src.each(f.to, f.n, func(at Pointer, offset uintptr, bytes int) error {
			return s.drv.toHost(slot.memory+offset, at, bytes, s.stream)
		}); err != nil {
			return err
		}
		if err := s.drv.record(slot.event, s.stream); err != nil {
			return err
		}
		copying = append(copying, f)
	}
	for len(copying) > 0 {
		if err := hand(); err != nil {
			return err
		}
	}
	return nil
}

// encode fills dst with src in dtype, rounded to the nearest, ties to even; of Float32Low as splitAll does.
func encode(dst []byte, src []float32, dtype trace.DType) {
	switch dtype {
	case trace.Float32:
		copy(dst, floatBytes(src))
	case trace.BFloat16:
		for i := 0; i < len(dst)/2; i++ {
			binary.LittleEndian.PutUint16(dst[2*i:], bfloat16(src[i]))
		}
	case trace.Float16:
		for i := 0; i < len(dst)/2; i++ {
			binary.LittleEndian.PutUint16(dst[2*i:], float16(src[i]))
		}
	case trace.Float32Low:
		splitAll(dst, src)
	default:
		panic("cuda: floats written as " + string(dtype))
	}
}

// decode reads src in dtype into the head of dst.
func decode(dst []float32, src []byte, dtype trace.DType) {
	switch dtype {
	case trace.Float32:
		copy(floatBytes(dst), src)
	case trace.BFloat16:
		for i := 0; i < len(src)/2; i++ {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	case trace.Float16:
		for i := 0; i < len(src)/2; i++ {
			dst[i] = fromFloat16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case trace.Float32Low:
		joinAll(dst, src)
	default:
		panic("cuda: floats read from " + string(dtype))
	}
}

// floatBytes is the memory of x: CUDA's hosts are little-endian, as its devices are.
func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func bfloat16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // NaN stays NaN
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func float16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, a := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case a > 0x7f800000:
		return sign | 0x7e00
	case a >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7c00
	case a < 0x38800000: // below 2^-14: a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(a))*(1<<24)))
	}
	a -= 112 << 23 // the exponent's bias goes from 127 to 15
	return sign | uint16((a+0xfff+a>>13&1)>>13)
}

func fromFloat16(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(frac)/(1<<24)))
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
