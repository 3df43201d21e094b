package cuda

import (
	"math"
	"unsafe"
)

// A float32 value is kept without a bit twice as a bfloat16 weight and 16 low bits:
//
//	value = weight<<16 + low, as bits; low is signed, -32768 to 32767
//
// So low is the value's lower half as it stands, and weight its upper half plus low's highest bit: the value rounded to the nearest.
// A tie goes away from zero. PyTorch's cast takes one to the even neighbour, which is the other where the lower half is 0x8000
// and the upper one even, of all values one in 2^17: to go down there, low would have to be +32768. Every other weight is the cast's.
//
// A carry into the exponent is that of any rounding: weight is infinite from half a step above the largest bfloat16 on, as
// PyTorch's is, and low takes it back. An infinity's low is 0. In a NaN a carry could reach the sign, and a NaN that lies in the
// lower half alone is none in the upper one: a NaN is kept as its upper half made quiet, with low 0.

// split is the rule, from a value's bits.
func split(value uint32) (weight, low uint16) {
	if value&0x7fffffff > 0x7f800000 {
		value = (value | 0x400000) &^ 0xffff
	}
	return uint16((value + 0x8000) >> 16), uint16(value)
}

// join is a value's bits again.
func join(weight, low uint16) uint32 { return uint32(weight)<<16 + uint32(int32(int16(low))) }

// splitAll fills dst with the weights of src, then their low bits.
func splitAll(dst []byte, src []float32) {
	weights, lows := halves(dst)
	src = src[:len(weights)]
	for i := range src {
		weights[i], lows[i] = split(math.Float32bits(src[i]))
	}
}

// joinAll reads the head of dst from weights followed by their low bits.
func joinAll(dst []float32, src []byte) {
	weights, lows := halves(src)
	dst = dst[:len(weights)]
	for i := range dst {
		dst[i] = math.Float32frombits(join(weights[i], lows[i]))
	}
}

// halves is a buffer's memory, which is little-endian and aligned, as weights and as low bits.
func halves(buf []byte) (weights, lows []uint16) {
	n := len(buf) / 4
	both := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(buf))), 2*n)
	return both[:n], both[n:][:n]
}
