package torch

import "github.com/snugml/snug/internal/trace"

// newKernels is the state at the start of a process.
func newKernels(dev Device) *kernels {
	return &kernels{dev: dev, forward: nothing, reverse: nothing, lt: nothing, scratches: map[scratchKey]ref{}}
}

// kernels knows what PyTorch's libraries take for themselves on a device.
type kernels struct {
	dev              Device
	forward, reverse ref  // cuBLAS's workspaces: one a thread, and backward runs in its own
	lt               ref  // cublasLt's
	warm             bool // Inductor's cache holds the kernels: none is timed
	unpadded         bool // where timing decides, Inductor leaves lm_head's gradient unpadded
	scratches        map[scratchKey]ref
}

// blasSpace is cuBLAS's workspace: 32 MiB on Hopper and Blackwell, else 2·4 MiB + 8·16 KiB (PyTorch's default for
// CUBLAS_WORKSPACE_CONFIG, parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp).
func (k *kernels) blasSpace() int {
	if k.dev.Capability >= 90 {
		return 32 << 20
	}
	return 2*4096<<10 + 8*16<<10
}

// ltSpace is cublasLt's workspace (CUBLASLT_WORKSPACE_SIZE's default, 1 MiB).
const ltSpace = 1 << 20

// blas is a forward matmul: the first takes the workspace for the whole run. A bias makes it one of cublasLt's.
func (k *kernels) blas(b *builder, bias bool) {
	if k.forward == nothing {
		k.forward = b.birth(b.define(tensor("cuBLAS workspace (forward)", trace.Workspace, trace.UInt8, k.blasSpace())))
	}
	if bias && k.lt == nothing {
		k.lt = b.birth(b.define(tensor("cublasLt workspace", trace.Workspace, trace.UInt8, ltSpace)))
	}
}

// blasBackward is a matmul on autograd's thread.
func (k *kernels) blasBackward(b *builder) {
	if k.reverse == nothing {
		k.reverse = b.birth(b.define(tensor("cuBLAS workspace (backward)", trace.Workspace, trace.UInt8, k.blasSpace())))
	}
}

// threadsPerSM is the most threads a multiprocessor holds (CUDA C++ programming guide, table of compute capabilities).
func (d Device) threadsPerSM() int {
	switch {
	case d.Capability == 75:
		return 1024
	case d.Capability == 86, d.Capability == 87, d.Capability == 89, d.Capability >= 120:
		return 1536
	}
	return 2048
}

// columnSum is PyTorch's own reduction of rows x cols, which makes a bias's gradient. Where rows are many, blocks share a column and
// meet in a buffer (setReduceConfig and global_memory_size in aten/src/ATen/native/cuda/Reduce.cuh).
func (k *kernels) columnSum(b *builder, rows, cols int) {
	const minValues, maxValues, warp = 16, 256, 32
	vec := 4
	if cols%vec != 0 {
		vec = 1
	}
	threads := 512 / vec
	width := min(powerOfTwo(cols/vec), warp)
	height := min(powerOfTwo(rows), threads/width)
	values := ceilDiv(rows, height)
	grid := ceilDiv(cols/vec, width)
	target := k.dev.SMs * (k.dev.threadsPerSM() / (width * height))
	if values < maxValues || grid > target {
		return
	}
	blocks := max(min(ceilDiv(target, grid), ceilDiv(values, minValues)), ceilDiv(values, maxValues))
	if blocks > 1 {
		buffer := k.scratch(b, "bias.grad.partial", 4*cols*blocks*width*vec)
		semaphores := k.scratch(b, "bias.grad.semaphores", 4*grid)
		b.free(semaphores, buffer)
	}
}

// Inductor makes a sum of many values for few results in parts (reduction_split_factor in torch/_inductor/choices.py).
const (
	partLeast, partMost = 32, 512 // values a thread adds up
	partThreads         = 256
	partColumns         = 128 // that a block takes
	partValues          = 4   // that a thread takes at once
)

// sumParts is how many parts make the sum of n values.
func (k *kernels) sumParts(n int) int {
	if n <= partLeast*partThreads {
		return 1
	}
	return ceilDiv(n, partLeast*partThreads) // beyond 32 values for each thread of a device parts grow; no batch is so large
}

// columnParts is how many parts make the sum of rows for each column.
func (k *kernels) columnParts(rows, cols int) int {
	threads := k.dev.SMs * k.dev.threadsPerSM()
	each := partLeast
	switch {
	case rows*cols < partLeast*threads:
	case rows*cols < partMost*threads:
		blocks := ceilDiv(threads/partThreads, ceilDiv(cols, partColumns))
		each = ceilDiv(rows, partValues*blocks)
		if even := nearestDivisor(rows, each); abs(even-each) < 20 {
			each = max(even, partLeast)
		}
	default:
		each = partMost
		if even := nearestDivisor(rows, each); abs(even-each) < 50 {
			each = even
		}
	}
	return ceilDiv(rows, partValues*each)
}

// nearestDivisor is the divisor of n that is nearest to near, the smaller of two.
func nearestDivisor(n, near int) int {
	best := 1
	for d := 1; d*d <= n; d++ {
		if n%d != 0 {
			continue
		}
		for _, e := range [2]int{d, n / d} {
			if a, b := abs(e-near), abs(best-near); a < b || a == b && e < best {
				best = e
			}
		}
	}
	return best
}

func abs(n int) int { return max(n, -n) }

// embeddingGrad is embedding_dense_backward: rows of a (words, cols) table get the sum of what their tokens got.
// Up to 3072 tokens one kernel does it; more are sorted first (aten/src/ATen/native/cuda/Embedding.cu and
// EmbeddingBackwardKernel.cu: NROWS_PER_THREAD is 10).
func (k *kernels) embeddingGrad(a *activations, p *param, tokens int) ref {
	const fewTokens, rowsPerThread, warp = 3072, 10, 32
	b := a.builder
	if tokens <= fewTokens {
		return b.birth(p.grad)
	}
	words, cols := b.tr.Tensors[p.weight].Shape[0], b.tr.Tensors[p.weight].Shape[1]
	sorted, original := k.scratch(b, "embedding.grad.sorted", 8*tokens), k.scratch(b, "embedding.grad.original", 8*tokens)
	order := k.scratch(b, "embedding.grad.range", 8*tokens)
	b.free(k.scratch(b, "embedding.grad.sort", sortSpace(tokens)), order)
	d := b.birth(p.grad)
	offsets, count := k.scratch(b, "embedding.grad.segment_offsets", 8*tokens), k.scratch(b, "embedding.grad.segments", 8)
	dummy := k.scratch(b, "embedding.grad.unique", 8*tokens)
	b.free(k.scratch(b, "embedding.grad.scan", scanSpace), dummy)
	segments := min(tokens, words)
	partials := k.scratch(b, "embedding.grad.partials", 8*segments)
	partialOffsets := k.scratch(b, "embedding.grad.partial_offsets", 8*segments)
	b.free(k.scratch(b, "embedding.grad.scan", scanSpace))
	parts := k.scratch(b, "embedding.grad.parts", 8)
	most := tokens/rowsPerThread + segments
	partOffsets := k.scratch(b, "embedding.grad.part_offsets", 8*most)
	sums := nothing
	if words < tokens/rowsPerThread { // few words: partial sums go straight to their word, by its number
		sums = k.scratch(b, "embedding.grad.part_words", 8*most)
	} else {
		sums = k.scratch(b, "embedding.grad.sums", 4*most*ceilDiv(cols, warp)*warp)
	}
	b.free(sums, partOffsets, parts, partialOffsets, partials, count, offsets, original, sorted)
	return d
}

// scanSpace is what CUB's scans and unique take here; sortSpace is what its radix sort of 64-bit pairs takes: a second
// buffer, the histograms of eight passes, and 256 counters a tile of 4096.
const scanSpace = 1279

func sortSpace(n int) int { return 2*8*n + 8*256*8 + 511 + ceilDiv(n, 4096)*256*4 }

// scratch gives birth to a library's temporary.
func (k *kernels) scratch(b *builder, name string, bytes int) ref {
	key := scratchKey{name, bytes}
	r, ok := k.scratches[key]
	if !ok {
		r = b.define(tensor(name, trace.Workspace, trace.UInt8, bytes))
		k.scratches[key] = r
	}
	return b.birth(r)
}

// scratchKey tells temporaries of one name and different sizes apart.
type scratchKey struct {
	name  string
	bytes int
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// powerOfTwo is the largest power of two up to n, at least 1.
func powerOfTwo(n int) int {
	p := 1
	for p*2 <= n {
		p *= 2
	}
	return p
}
