package oom

import (
	"regexp"
	"strings"
	"sync"
)

// dialect is one wording of a memory failure. A new wording is a new entry in dialects.
type dialect struct {
	name      string
	anchor    string // lower-case literal that every such message holds; the scanner looks for it
	guard     string // what must hold around the anchor for the line to be a failure; "" when the anchor is enough
	unless    string // what must not
	framework string
	device    string
	kind      Kind
	clauses   []string // see clause
	detailed  bool     // without at least one clause it is only talk about memory
	leading   bool     // clauses may stand before the anchor
	tells     int      // how much more or less than others it says of the failure, where a log holds several
}

// A clause is a piece of a message with its numbers in braces: "{free} is free". Clauses of one message follow
// one another closely, in any order. Blanks match any white space, line breaks included; letters any case.
var (
	// c10/cuda/CUDACachingAllocator.cpp, 1.0 to 2.11. "cached" (until 1.3) is reserved minus allocated.
	torchClauses = []string{
		"tried to allocate {tried}",
		"GPU {gpu};", "NPU {gpu};", "MLU {gpu};", "XPU {gpu};",
		"GPU {gpu} has a total capacity of {total}", "GPU {gpu} has a total capacty of {total}", "has a total capacity of {total}", // the card's number was printed as a character
		"NPU {gpu} has a total capacity of {total}",
		"of which {free} is free", "{total} total capacity", "{free} free;", "{free} free)",
		"{allocated} already allocated", "{active} current active",
		"{reserved_unallocated} cached", "{reserved} reserved in total by PyTorch", "{reserved} reserved in total",
		"{limit} allowed;", "process {pid} has {other} memory in use", "this process has {process} memory in use",
		"{allocated} is allocated by PyTorch", "with {private_pools} allocated in private pools",
		"{reserved_unallocated} is reserved by PyTorch but unallocated",
	}
	// aten/src/ATen/mps/MPSAllocator.mm: what MPS holds outside PyTorch is "other allocations".
	// c10/cuda/CUDAMallocAsyncAllocator.cpp, PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync; one row a figure.
	asyncClauses = []string{
		"allocation on device {gpu} would exceed", "currently allocated : {allocated}", "requested : {tried}", "device limit : {total}", "free (according to CUDA): {free}",
		"memory fraction) : {limit}",
	}
	mpsClauses = []string{
		"MPS allocated: {allocated}", "other allocations: {other_allocations}", "max allowed: {limit}",
		"tried to allocate {tried}",
	}
	cpuClauses  = []string{"you tried to allocate {tried}", "you tried to reallocate {tried}"}
	ncclClauses = []string{"failed to CUDA calloc {tried}", "failed to CUDA malloc {tried}", "failed to CUDA calloc async {tried}"}
	xlaClauses  = []string{
		"out of memory while trying to allocate {tried}", "out of memory allocating {tried}", "trying to allocate {tried}",
		"failed to allocate request for {approximate} ({tried})", "on device ordinal {gpu}",
		"attempting to reserve {tried}", "attempting to allocate {tried}", "there are {free} free",
		"used {used} of {total} hbm", "used {used} of {total} memory",
	}
	tensorflowClauses = []string{
		"shape[{shape}] and type {dtype}", "of shape [{shape}] and type {dtype}", "device:GPU:{gpu} by",
		"ran out of memory trying to allocate {tried}", "failed to allocate {approximate} ({tried}) from device",
		"failed to allocate {tried} from device", "ran out of GPU memory when allocating {tried}",
	}
	numpyClauses  = []string{"unable to allocate {tried} for an array with shape ({shape}) and data type {dtype}", "unable to allocate {tried} for an array"}
	cupyClauses   = []string{"out of memory allocating {tried}", "(allocated so far: {allocated}", "limit set to: {limit}"}
	onnxClauses   = []string{"requested buffer of size {tried_bytes}"}
	paddleClauses = []string{
		"out of memory error on GPU {gpu}", "cannot allocate {tried} memory on GPU",
		"{allocated} memory has been allocated", "available memory is only {free}",
	}
	mlxClauses  = []string{"unable to allocate {tried}", "attempting to allocate {tried}", "maximum allowed buffer size of {limit}"}
	ggmlClauses = []string{"allocating {tried} on device {gpu}", "current device: {gpu}"}
)

// raisedGuard wants an exception's name or a stream of errors before a bare "out of memory": prose talks about it too.
const raisedGuard = `(?i)(error|exception|fail|terminate|abort|warning|what\(\):)[\s\S]{0,160}out of memory`

// tells is the dialects' column of that name.
var tells = sync.OnceValue(func() map[string]int {
	column := map[string]int{}
	for _, d := range dialects {
		column[d.name] = d.tells
	}
	return column
})

// dialects are tried in order; the first that explains most of a message names it.
var dialects = []dialect{
	{name: "pytorch-pinned", anchor: "cachinghostallocator", guard: `(?i)out of memory`, framework: "pytorch", device: "cpu", kind: Host, tells: 2},
	{name: "pytorch-cuda", anchor: "cuda out of memory", framework: "pytorch", device: "cuda", kind: Device, clauses: torchClauses},
	{name: "pytorch-cuda-article", anchor: "cuda out of the memory", framework: "pytorch", device: "cuda", kind: Device, clauses: torchClauses},
	{name: "pytorch-cuda-cut", anchor: "runtimeerror: cuda out of", guard: `(?i)cuda out of[ \t]*(m[a-z]*)?[ \t]*(\n|\z)`, framework: "pytorch", device: "cuda", kind: Device},
	{name: "pytorch-async", anchor: "would exceed allowed memory", framework: "pytorch", device: "cuda", kind: Device, clauses: asyncClauses, leading: true},
	{name: "pytorch-async-bare", anchor: "allocation on device", guard: `(?im)(error|exception|!!!)[^\n]{0,40}allocation on device *(\d+ *)?$`, framework: "pytorch", device: "cuda", kind: Device}, // as ComfyUI prints it
	{name: "pytorch-hip", anchor: "hip out of memory", framework: "pytorch", device: "hip", kind: Device, clauses: torchClauses},
	{name: "pytorch-xpu", anchor: "xpu out of memory", framework: "pytorch", device: "xpu", kind: Device, clauses: torchClauses},
	{name: "pytorch-ur", anchor: "ur_result_error_out_of_", framework: "pytorch", device: "xpu", kind: Device, clauses: torchClauses},
	{name: "pytorch-level-zero", anchor: "pi_error_out_of_resources", framework: "pytorch", device: "xpu", kind: Device, clauses: torchClauses},
	{name: "pytorch-dpcpp", anchor: "dpcpp out of memory", framework: "pytorch", device: "xpu", kind: Device, clauses: torchClauses},
	{name: "pytorch-npu", anchor: "npu out of memory", framework: "pytorch", device: "npu", kind: Device, clauses: torchClauses},
	{name: "pytorch-mps", anchor: "mps backend out of memory", framework: "pytorch", device: "mps", kind: Device, clauses: mpsClauses},
	{name: "pytorch-tail", anchor: "tried to allocate", guard: `(?i)(total capac|\bGPU \d)`, framework: "pytorch", kind: Device, clauses: torchClauses, detailed: true},
	{name: "pytorch-cpu", anchor: "defaultcpuallocator", guard: `(?i)allocate|not enough memory|out of memory`, framework: "pytorch", device: "cpu", kind: Host, clauses: cpuClauses},
	{name: "pytorch-th", anchor: "torch: not enough memory", framework: "pytorch", device: "cpu", kind: Host, clauses: cpuClauses},
	{name: "pytorch-cpu-enforce", anchor: "posix_memalign", guard: `(?i)12 vs 0`, framework: "pytorch", device: "cpu", kind: Host},
	{name: "pytorch-runtime-error", anchor: "cuda runtime error (2)", framework: "pytorch", device: "cuda", kind: Device},
	{name: "pytorch-thc", anchor: "thcudacheck fail", guard: `(?i)error=2\b`, framework: "pytorch", device: "cuda", kind: Device},
	{name: "cublas", anchor: "cublas_status_alloc_failed", device: "cuda", kind: Library},
	{name: "cublas-create", anchor: "cublas_status_not_initialized", guard: `(?i)cublasCreate`, device: "cuda", kind: Library},
	{name: "cudnn-create", anchor: "cudnn_status_not_initialized", device: "cuda", kind: Library},
	{name: "cudnn", anchor: "cudnn_status_alloc_failed", device: "cuda", kind: Library},
	{name: "cudnn-algorithm", anchor: "unable to find a valid cudnn algorithm", device: "cuda", kind: Library}, // none whose workspace fits
	{name: "cusolver", anchor: "cusolver_status_alloc_failed", device: "cuda", kind: Library},
	{name: "nccl", anchor: "nccl", guard: `(?i)cuda failure (\d+ )?'?out of memory|failed to cuda (c|m)alloc`, device: "cuda", kind: Library, clauses: ncclClauses},
	{name: "jax", anchor: "resource_exhausted", guard: `(?i)out of memory|allocate|hbm|attempting to reserve`, framework: "jax", kind: Device, clauses: xlaClauses},
	{name: "jax-request", anchor: "resource exhausted: failed to allocate", framework: "jax", kind: Device, clauses: xlaClauses},
	{name: "xla-attempt", anchor: "resource exhausted: attempting to", kind: Device, clauses: xlaClauses},
	{name: "jax-old", anchor: "resource exhausted: out", guard: `(?i)resource exhausted: out\s+of\s+memory`, framework: "jax", kind: Device, clauses: xlaClauses},
	{name: "xla-buffers", anchor: "operator: op_name=", guard: `(?i)xla label:`, kind: Device},
	{name: "xla-buffers-typed", anchor: "operator: op_type=", guard: `(?i)xla label:`, kind: Device},
	{name: "tensorflow-cpu", anchor: "oom when allocating tensor", guard: `(?i)device:CPU:\d+ by allocator|by allocator (mkl)?cpu|_device="[^"\n]*/cpu:\d`, framework: "tensorflow", device: "cpu", kind: Host, clauses: tensorflowClauses},
	{name: "tensorflow", anchor: "oom when allocating tensor", framework: "tensorflow", kind: Device, clauses: tensorflowClauses},
	{name: "tensorflow-pinned", anchor: "could not allocate pinned host memory", framework: "tensorflow", device: "cpu", kind: Host, clauses: []string{"pinned host memory of size: {tried_bytes}"}},
	{name: "tensorflow-host-bfc", anchor: "ran out of memory trying to allocate", guard: `(?i)\(cuda_host_bfc\) ran out`, framework: "tensorflow", device: "cpu", kind: Host, clauses: tensorflowClauses, tells: 2},
	{name: "tensorflow-bfc", anchor: "ran out of memory trying to allocate", framework: "tensorflow", kind: Device, clauses: tensorflowClauses},
	{name: "tensorflow-driver", anchor: "failed to allocate", guard: `(?i)failed to allocate .* from device: (\w*out_?of_?memory|hipError_t\(1002\))`, framework: "tensorflow", kind: Device, clauses: tensorflowClauses, tells: -5}, // it asks again for less,
	{name: "tensorflow-exhausted", anchor: "resourceexhaustederror", framework: "tensorflow", kind: Device, clauses: tensorflowClauses},
	{name: "paddle", anchor: "out of memory error on gpu", framework: "paddle", device: "cuda", kind: Device, clauses: paddleClauses},
	{name: "cupy", anchor: "cupy.cuda.memory.outofmemoryerror", framework: "cupy", device: "cuda", kind: Device, clauses: cupyClauses},
	{name: "onnxruntime-arena", anchor: "bfcarena::allocaterawinternal", framework: "onnxruntime", kind: Device, clauses: []string{"smaller than requested bytes of {tried_bytes}"}},
	{name: "onnxruntime", anchor: "failed to allocate memory for requested buffer", framework: "onnxruntime", kind: Device, clauses: onnxClauses},
	{name: "ggml", anchor: "cudamalloc failed: out of memory", device: "cuda", kind: Device, clauses: ggmlClauses, leading: true},
	{name: "vllm-cache", anchor: "no available memory for the cache blocks", framework: "pytorch", kind: Device},
	{name: "vllm-kv", anchor: "larger than the available kv cache memory", framework: "pytorch", kind: Device},
	{name: "accelerate", anchor: "no executable batch size found", framework: "pytorch", kind: Device},
	{name: "mxnet", anchor: "cudamalloc retry failed: out of memory", framework: "mxnet", device: "cuda", kind: Device},
	{name: "mlx-metal", anchor: "callbackerroroutofmemory", framework: "mlx", device: "mps", kind: Device},
	{name: "mlx-buffer", anchor: "[metal::malloc]", framework: "mlx", device: "mps", kind: Device, clauses: mlxClauses},
	{name: "mlx-wait", anchor: "[malloc_or_wait]", framework: "mlx", device: "mps", kind: Device, clauses: mlxClauses},
	{name: "tensorrt", anchor: "requested amount of gpu memory", guard: `(?i)could not be allocated`, framework: "tensorrt", device: "cuda", kind: Device, clauses: []string{"requested amount of GPU memory ({tried})"}},
	{name: "tensorrt-tactic", anchor: "insufficient to use tactic", framework: "tensorrt", device: "cuda", kind: Device, clauses: []string{"tactic device request: {tried}", "available: {free}"}, leading: true},
	{name: "tensorrt-code", anchor: "error code 2: outofmemory", framework: "tensorrt", device: "cuda", kind: Device, clauses: []string{"requested size was {tried}"}},
	{name: "faiss", anchor: "alloc fail type", guard: `(?i)cudamalloc error`, device: "cuda", kind: Device, clauses: []string{"size {tried}"}},
	{name: "xla-constant", anchor: "for new constant", guard: `(?i)failed to allocate`, framework: "jax", kind: Device, clauses: []string{"failed to allocate {tried} for new constant"}, leading: true},
	{name: "habana", anchor: "pt_devmem allocation failed", framework: "pytorch", device: "hpu", kind: Device, clauses: []string{"allocation failed for size::{tried_bytes}"}},
	{name: "rocm-hsa", anchor: "hsa_status_error_out_of_resources", device: "hip", kind: Device},
	{name: "windows-page-file", anchor: "paging file is too small", device: "cpu", kind: Host},
	{name: "numpy", anchor: "unable to allocate", framework: "numpy", device: "cpu", kind: Host, clauses: numpyClauses, detailed: true},
	{name: "cuda-error", anchor: "cuda error: out of memory", device: "cuda", kind: Device, clauses: ggmlClauses},
	{name: "cuda-error-tight", anchor: "cuda error:out of memory", device: "cuda", kind: Device},
	{name: "cuda-error-2", anchor: "error 2", guard: `(?i)cuda[^\n]{0,80}error 2\W+out of memory`, device: "cuda", kind: Device},
	{name: "cuda-malloc", anchor: "out of memory cudamalloc(", device: "cuda", kind: Device},
	{name: "cuda-host", anchor: "cumemhostalloc failed", guard: `(?i)out of memory`, device: "cpu", kind: Host, tells: 2},
	{name: "cuda-driver", anchor: "cuda_error_out_of_memory", device: "cuda", kind: Device},
	{name: "cuda-runtime", anchor: "cudaerrormemoryallocation", device: "cuda", kind: Device},
	{name: "hip-error", anchor: "hip error: out of memory", device: "hip", kind: Device},
	{name: "hip-runtime", anchor: "hiperroroutofmemory", device: "hip", kind: Device},
	{name: "torch-exception", anchor: "outofmemoryerror", guard: `(?i)(torch|cuda)[\w.]*OutOfMemoryError`, unless: `(?i)out of resource`, framework: "pytorch", kind: Device, clauses: torchClauses},
	{name: "torch-notebook", anchor: "outofmemoryerror", guard: `OutOfMemoryError\s{3,}Traceback \(most recent call last\)`, framework: "pytorch", kind: Device},
	{name: "exception-alone", anchor: "outofmemoryerror", guard: `(?m)^[#\s]*OutOfMemoryError:?[ \t]*$`, kind: Device},
	{name: onlySaid, anchor: "out of memory error", guard: `(?im)^[#\s]*(?:cuda )?out of memory error\b`, kind: Device, tells: -3},
	{name: "ray", anchor: "node running low on memory", device: "cpu", kind: Host},
	{name: "opencv", anchor: "insufficient memory) failed to allocate", device: "cpu", kind: Host, clauses: []string{"failed to allocate {tried_bytes} bytes"}},
	{name: "dataloader-killed", anchor: "is killed by signal", guard: `(?i)killed by signal(?:: killed|\W*\n|\W*\z)`, framework: "pytorch", device: "cpu", kind: Host},
	{name: "dataloader-shm", anchor: "out of shared memory", guard: `(?i)worker|/dev/shm|bus error`, framework: "pytorch", device: "cpu", kind: Host},
	{name: "errno-12", anchor: "cannot allocate memory", device: "cpu", kind: Host},
	{name: "process-pool", anchor: "process pool was terminated abruptly", device: "cpu", kind: Host},
	{name: "allocation-failure", anchor: "memory allocation failure", guard: `(?m)^\s*Memory allocation failure\b`, device: "cpu", kind: Host},
	{name: "bad-alloc", anchor: "bad_alloc", device: "cpu", kind: Host},
	{name: "memory-error", anchor: "memoryerror", guard: `(?m)(^|[\s|:])(builtins\.|numpy\.[\w.]*)?_?(Array)?MemoryError\b`, device: "cpu", kind: Host},
	{name: "kernel", anchor: "out of memory: kill", device: "cpu", kind: Host},
	{name: "kernel-oom-kill", anchor: "oom-kill", device: "cpu", kind: Host},
	{name: "kernel-oom_kill", anchor: "oom_kill", device: "cpu", kind: Host},
	{name: "shell-killed", anchor: " killed ", guard: `: line \d+:\s+\d+ Killed\s`, device: "cpu", kind: Host},
	{name: "megengine", anchor: "out of memory to allocate", kind: Device, clauses: []string{"out of memory to allocate {tried}", "(total {total})"}},
	{name: "nd4j", anchor: "from device [", guard: `(?i)failed to allocate \d+ bytes from device`, device: "cuda", kind: Device, clauses: []string{"failed to allocate {tried} from device [{gpu}]"}, leading: true},
	{name: "container", anchor: "oomkilled", device: "cpu", kind: Host},
	{name: "slurm", anchor: "exceeded", guard: `(?i)exceeded (job|step) memory limit`, device: "cpu", kind: Host},
	{name: "batch-system", anchor: "exceeded memory allocation", guard: `(?i)\bjob \S+ has exceeded memory allocation`, device: "cpu", kind: Host},
	{name: "slurm-handler-dashed", anchor: "out-of-memory handler", device: "cpu", kind: Host},
	{name: "slurm-handler", anchor: "out of memory handler", device: "cpu", kind: Host},
	{name: "colab", anchor: "using all available ram", device: "cpu", kind: Host},
	{name: "exit-9", anchor: "exitcode", guard: `(?i)exitcode\s*:\s*-9\b`, device: "cpu", kind: Host},
	{name: "exit-minus-9", anchor: "code -9", device: "cpu", kind: Host},
	{name: "exit-137", anchor: "137", guard: `(?i)(exit(ed)? ?(code|status|with)?|status|code)( code)?[: =]+\(?137\b`, device: "cpu", kind: Host},
	{name: "sigkill", anchor: "sigkill", guard: `(?i)(signal 9|signals\.sigkill|died with|killed by signal|terminated by signal|received|return code = -9)`, device: "cpu", kind: Host},
	{name: "return-code-9", anchor: "return code = -9", device: "cpu", kind: Host},
	{name: "killed", anchor: "killed", guard: `(?m)[}\]%|]\s*Killed\s*$|\]\s*\S+: line \d+:\s+\d*\s*Killed\b|^\s*(\S+: line \d+:\s+)?(\[?\d*\]?[+-]?\s*\d*\s*)?\**Killed\**(\s*$|:? ?9?\s*$|\s{2,}\S|\s+(python|torchrun|accelerate|deepspeed|nohup|sh |bash ))`, device: "cpu", kind: Host},
	{name: "out-of-memory", anchor: "out of memory", guard: raisedGuard, kind: Device, tells: -3},
}

// rule is a dialect, compiled as far as it is used.
type rule struct {
	*dialect
	guard   func() *regexp.Regexp
	unless  func() *regexp.Regexp
	clauses []*clause
}

// clause is a piece of a message: the longest of its words, which is quick to look for, and the whole.
type clause struct {
	word string
	expr func() *regexp.Regexp
}

// compileDialects prepares the table; dialects share the clauses that they have in common.
func compileDialects() []rule {
	shared := map[string]*clause{}
	rules := make([]rule, len(dialects))
	for i := range dialects {
		d := &dialects[i]
		rules[i] = rule{dialect: d, guard: lazy(d.guard), unless: lazy(d.unless)}
		for _, text := range d.clauses {
			if shared[text] == nil {
				shared[text] = &clause{longestWord(text), sync.OnceValue(func() *regexp.Regexp { return compileClause(text) })}
			}
			rules[i].clauses = append(rules[i].clauses, shared[text])
		}
	}
	return rules
}

// longestWord is the longest word of a clause that is no number's name, in lower case.
func longestWord(text string) string {
	longest := ""
	for _, w := range strings.FieldsFunc(fieldNameExpr().ReplaceAllString(strings.ToLower(text), " "), func(c rune) bool { return c < 'a' || c > 'z' }) {
		if len(w) > len(longest) {
			longest = w
		}
	}
	return longest
}

// fields are the patterns of a clause's numbers; a field not listed here is a size.
var fields = map[string]string{
	"gpu": `\d{1,4}`, "pid": `\d{1,10}`, "shape": `[\d, ]{1,200}`, "dtype": `\w+`, "tried_bytes": `\d+`,
}

var fieldNameExpr = lazy(`\{\w+\}`)

var fieldExpr = lazy(`\\\{(\w+)\\\}`)

// compileClause turns "{free} is free" into an expression with one named group a field.
func compileClause(c string) *regexp.Regexp {
	expr := fieldExpr().ReplaceAllStringFunc(regexp.QuoteMeta(c), func(m string) string {
		name := strings.Trim(m, `\{}`)
		pattern, ok := fields[name]
		if !ok {
			pattern = sizePattern
		}
		return "(?P<" + name + ">" + pattern + ")"
	})
	return regexp.MustCompile(`(?i)` + strings.ReplaceAll(expr, " ", `\s*`))
}
