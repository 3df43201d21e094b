package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/snugml/snug/internal/trace"
)

// tensorMap is a CUtensorMap: a matrix in device memory and the box of it that one bulk copy moves (kernels/tma.cuh).
type tensorMap [16]uint64

// matrix is what a tensorMap is made from.
type matrix struct {
	at         Pointer
	dtype      trace.DType
	rows, cols int // cols elements lie together, rows one after the other
	box        int // rows of a box; it is 128 bytes wide
}

// Values of the driver's enumerations.
const (
	mapNoInterleave = 0
	mapSwizzle128   = 3
	mapPromote256   = 3 // to the L2 cache come 256 bytes at once
	mapZeros        = 0 // outside the matrix
)

var mapTypes = map[trace.DType]uintptr{trace.Float16: 6, trace.Float32: 7, trace.BFloat16: 9}

// encode makes m's tensorMap. Rows start at multiples of 16 bytes. Drivers before CUDA 12 do not have the call: hasMaps.
//
//	CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
//	    const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *elementStrides,
//	    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
func (d *driver) encode(m matrix) (*tensorMap, error) {
	size := int(m.dtype.Size())
	space := heap(make([]uint64, 2*len(tensorMap{}))) // the driver wants 64-byte alignment
	at := (address(&space[0]) + 63) &^ 63
	dims, strides := heap([]uint64{uint64(m.cols), uint64(m.rows)}), heap([]uint64{uint64(m.cols * size)})
	box, ones := heap([]uint32{uint32(128 / size), uint32(m.box)}), heap([]uint32{1, 1})
	code := call(d.encodeTiled, at, mapTypes[m.dtype], 2, uintptr(m.at), address(&dims[0]), address(&strides[0]), address(&box[0]), address(&ones[0]),
		mapNoInterleave, mapSwizzle128, mapPromote256, mapZeros)
	if code != 0 {
		return nil, d.check(fmt.Sprintf("cuTensorMapEncodeTiled(%d x %d %s at %#x)", m.rows, m.cols, m.dtype, m.at), code)
	}
	words := space[(at-address(&space[0]))/8:]
	result := (*tensorMap)(unsafe.Pointer(&words[0]))
	runtime.KeepAlive(dims)
	runtime.KeepAlive(strides)
	runtime.KeepAlive(box)
	runtime.KeepAlive(ones)
	return result, nil
}

// hasMaps says that the driver makes tensorMaps.
func (d *driver) hasMaps() bool { return d.encodeTiled != 0 }

// tensorMap finds m's, made once while the arena stays where it is.
func (e *Executor) tensorMap(m matrix) (*tensorMap, error) {
	if t := e.maps[m]; t != nil {
		return t, nil
	}
	t, err := e.drv.encode(m)
	if err == nil {
		e.maps[m] = t
	}
	return t, err
}
