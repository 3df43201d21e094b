// Package cpu owns the CPU executor: every op of the program, on every processor Go runs on.
//
// # Two layers
//
// The exported functions named after the ops (LayernormForward, AttentionBackward, …) are the reference: plain Go,
// generic over float32 and float64, one op a function, nanoGPT's mathematics written as it is read. Gradients are
// checked against central differences in float64, and the CUDA kernels are checked against these functions.
//
// Executor runs a program's ops with kernels chosen once by what the processor has (AMX, AVX-512, AVX2 with FMA, or plain
// Go), over a pool of threads. Its results are bit-equal for any number of threads: the order of every sum is fixed by
// the shape alone.
//
// # Letters
//
// B sequences, T tokens a sequence, N = B*T tokens, C channels (n_embd), OC output channels, NH heads of HS = C/NH
// channels, V vocabulary. Tensors are row-major; the shape stands beside each argument.
//
// The package never decides what runs, in which order or where a tensor lies: that is program's and arena's business.
package cpu

// Float is the element type of the reference functions.
type Float interface{ ~float32 | ~float64 }

// layernormEps is nanoGPT's epsilon (F.layer_norm(..., 1e-5)).
const layernormEps = 1e-5
