package safetensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// Tensor is a named block of little-endian elements in row-major order.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64
	// Data writes the tensor's bytes, exactly Size() of them, and may be asked to do so more than once.
	// It may read a file, an array or a device: nothing in between holds the tensor whole.
	Data io.WriterTo
}

// Size is the tensor's bytes. The shape must be one that Elements accepts.
func (t Tensor) Size() int64 {
	n, ok := byteSize(t.DType, t.Shape)
	if !ok {
		panic(fmt.Sprintf("safetensors: tensor %q has dtype %q and shape %v", t.Name, t.DType, t.Shape))
	}
	return n
}

// File is an open safetensors file.
type File struct {
	// Tensors are in the order of their bytes. Their Data reads the file, so they live until Close.
	Tensors  []Tensor
	Metadata map[string]string
	offsets  []int64
	index    map[string]int
	file     *os.File
}

// Open reads the header of the file at path and checks it against the file's length.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	s, err := Read(f, info.Size())
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.file = f
	return s, nil
}

// Read reads the header of a safetensors file of size bytes. Tensors read from r later.
func Read(r io.ReaderAt, size int64) (*File, error) {
	entries, meta, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	f := &File{Metadata: meta, index: make(map[string]int, len(entries))}
	for i, e := range entries {
		from, n := e.Offsets[0], e.Offsets[1]-e.Offsets[0]
		f.Tensors = append(f.Tensors, Tensor{e.name, e.DType, e.Shape, Section{r, from, n}})
		f.offsets = append(f.offsets, from)
		f.index[e.name] = i
	}
	return f, nil
}

// Close closes the file that Open opened.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}

// Lookup finds a tensor by name.
func (f *File) Lookup(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.Tensors[i], true
}

// Offset is the place of a tensor's first byte in the file, or false when there is no such tensor.
func (f *File) Offset(name string) (int64, bool) {
	i, ok := f.index[name]
	if !ok {
		return 0, false
	}
	return f.offsets[i], true
}

// Section is a run of bytes in a larger file, as a tensor's Data.
type Section struct {
	R    io.ReaderAt
	From int64
	N    int64
}

// WriteTo copies the section to w and fails when the file ends early.
func (s Section) WriteTo(w io.Writer) (int64, error) {
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.NewSectionReader(s.R, s.From, s.N)}, make([]byte, max(1, min(s.N, copyBuffer))))
	if err == nil && n != s.N {
		err = fmt.Errorf("read %d bytes at %d: the file ends after %d", s.N, s.From, n)
	}
	return n, err
}

const copyBuffer = 1 << 18

// Floats fills dst with the tensor's elements, widened or rounded to float32. dst must have the tensor's length.
func (t Tensor) Floats(dst []float32) error {
	n, ok := Elements(t.Shape)
	if !ok || n != int64(len(dst)) {
		return fmt.Errorf("read tensor %q: it has shape %v, %d values are wanted", t.Name, t.Shape, len(dst))
	}
	convert := floatReaders[t.DType]
	if convert == nil {
		return fmt.Errorf("read tensor %q: dtype %s is not a float type", t.Name, t.DType)
	}
	w := &floatWriter{dst: dst, width: int(t.DType.Width()), convert: convert}
	if _, err := t.Data.WriteTo(w); err != nil {
		return fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	if w.at != len(dst) || len(w.rest) != 0 {
		return fmt.Errorf("read tensor %q: got %d of %d values", t.Name, w.at, len(dst))
	}
	return nil
}

// Float32s is Floats into a fresh slice.
func (t Tensor) Float32s() ([]float32, error) {
	n, ok := Elements(t.Shape)
	if !ok || n > math.MaxInt/8 {
		return nil, fmt.Errorf("read tensor %q: shape %v is too large", t.Name, t.Shape)
	}
	dst := make([]float32, n)
	return dst, t.Floats(dst)
}

// Bytes reads the whole tensor.
func (t Tensor) Bytes() ([]byte, error) {
	w := &sliceWriter{dst: make([]byte, t.Size())}
	if _, err := t.Data.WriteTo(w); err != nil {
		return nil, fmt.Errorf("read tensor %q: %w", t.Name, err)
	}
	if w.at != len(w.dst) {
		return nil, fmt.Errorf("read tensor %q: got %d of %d bytes", t.Name, w.at, len(w.dst))
	}
	return w.dst, nil
}

// SameShape reports whether the tensor has exactly these dimensions.
func (t Tensor) SameShape(shape ...int64) bool { return slices.Equal(t.Shape, shape) }

type sliceWriter struct {
	dst []byte
	at  int
}

func (w *sliceWriter) Write(p []byte) (int, error) {
	if len(p) > len(w.dst)-w.at {
		return 0, fmt.Errorf("more than %d bytes", len(w.dst))
	}
	w.at += copy(w.dst[w.at:], p)
	return len(p), nil
}

var floatReaders = map[DType]func(dst []float32, src []byte){
	F32: func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	},
	F64: func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	},
	BF16: func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	},
	F16: func(dst []float32, src []byte) {
		for i := range dst {
			dst[i] = halfToFloat(binary.LittleEndian.Uint16(src[2*i:]))
		}
	},
}

// halfToFloat widens an IEEE half. A subnormal half is m * 2^-24, exact in float32.
func halfToFloat(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exp {
	case 0:
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// floatWriter converts a stream of elements, whatever the sizes of its writes.
type floatWriter struct {
	dst     []float32
	at      int
	width   int
	convert func([]float32, []byte)
	rest    []byte // the start of an element whose end is in the next write
}

func (w *floatWriter) Write(p []byte) (int, error) {
	total := len(p)
	if len(w.rest) > 0 {
		take := min(w.width-len(w.rest), len(p))
		w.rest, p = append(w.rest, p[:take]...), p[take:]
		if len(w.rest) < w.width {
			return total, nil
		}
		if err := w.put(w.rest); err != nil {
			return 0, err
		}
		w.rest = w.rest[:0]
	}
	whole := len(p) / w.width * w.width
	if err := w.put(p[:whole]); err != nil {
		return 0, err
	}
	w.rest = append(w.rest, p[whole:]...)
	return total, nil
}

func (w *floatWriter) put(p []byte) error {
	n := len(p) / w.width
	if n > len(w.dst)-w.at {
		return fmt.Errorf("more than %d values", len(w.dst))
	}
	w.convert(w.dst[w.at:w.at+n], p)
	w.at += n
	return nil
}
