package torch

import (
	"slices"

	"github.com/snugml/snug/internal/trace"
)

// graph is a program as Inductor generates it: kernels in order over buffers. Inductor decides at compile time which
// buffer takes over the memory of which; plan does the same (torch/_inductor/codegen/wrapper.py).
type graph struct {
	b       *builder
	kernels *kernels
	bufs    []gbuf
	nodes   []gnode
	steps   []gstep // what one run does to memory
	live    []ref   // per storage, during a run
	tuned   map[string]bool
}

// gid numbers a graph's buffers.
type gid int32

const noBuf = gid(-1)

// gbuf is a buffer of a graph.
type gbuf struct {
	tensor  trace.Tensor
	ref     ref  // defined in the trace at first birth
	input   bool // came in from another graph, and dies at its last use
	output  bool // outlives the run
	library bool // a library allocated it: no buffer's memory is given to it, but its own may be given on
	held    bool // an input that others hold: it does not die here
	apart   bool // the scheduler does not count it: tokens, a kernel's workspace
	storage gid  // the buffer whose memory it lives in
	read    bool // some node reads it
	last    int  // the last node that reads it
}

// counted is what the scheduler takes a buffer for.
func (b *gbuf) counted() int64 {
	if b.apart {
		return 0
	}
	return b.tensor.Numel() * b.tensor.DType.Size()
}

// gnode is one kernel: it writes outs and reads ins. An out may take over the memory of an in that dies here.
type gnode struct {
	name    string // of a Triton kernel, which is timed at its first run; "" for a library's
	outs    []gid
	late    []gid // sums of so many rows, which PyTorch itself allocates and makes after the kernel
	rows    int
	ins     []gid
	changes []gid // ins that it adds to: who reads them later waits for it
	heirs   []heir
	blas    blasKind
	scratch []scratch
	inner   int64 // bytes that its fused parts hand each other: never allocated, but the scheduler counts them
	call    bool  // a library's call that returns several buffers: nodes of their own take them out
}

// scratch is a library's temporary, alive only during the node. The first of them, as many as after says, have gone
// before it is born.
type scratch struct {
	name         string
	bytes, after int
}

// heir is an out that may take over the memory of an in that dies here: the first of those that fits.
type heir struct {
	out gid
	of  []gid
}

type blasKind uint8

const (
	noBlas blasKind = iota
	forwardBlas
	forwardBlasLt
	backwardBlas
)

// gstep is one step of a run.
type gstep struct {
	kind gstepKind
	buf  gid // whose storage is born or dies
	node int
}

type gstepKind uint8

const (
	gAlloc gstepKind = iota
	gRun
	gSum // a late out
	gFree
	gSkip // a free whose memory was given on
)

// newGraph begins a graph with room for so many kernels and buffers.
func newGraph(b *builder, k *kernels, nodes, bufs int) *graph {
	return &graph{
		b: b, kernels: k, tuned: map[string]bool{},
		nodes: make([]gnode, 0, nodes), bufs: make([]gbuf, 0, bufs), steps: make([]gstep, 0, nodes+bufs),
	}
}

// buf adds a buffer.
func (g *graph) buf(t trace.Tensor) gid {
	g.bufs = append(g.bufs, gbuf{tensor: t, ref: nothing, storage: gid(len(g.bufs)), last: -1})
	return gid(len(g.bufs) - 1)
}

// in adds a buffer that another graph made.
func (g *graph) in(t trace.Tensor) gid {
	id := g.buf(t)
	g.bufs[id].input = true
	return id
}

// keep marks outputs.
func (g *graph) keep(ids ...gid) {
	for _, id := range ids {
		if id != noBuf {
			g.bufs[id].output = true
		}
	}
}

// add appends a node.
func (g *graph) add(n gnode) {
	g.nodes = append(g.nodes, n)
}

// settle finds the last reader of each buffer, once the order is known.
func (g *graph) settle() {
	for n := range g.nodes {
		node := &g.nodes[n]
		for _, ids := range [3][]gid{node.outs, node.late, node.ins} {
			for _, id := range ids {
				if id != noBuf {
					g.bufs[id].last = n
				}
			}
		}
	}
}

// reuseKey is what two buffers must share for one to take over the other's memory.
type reuseKey struct {
	dtype trace.DType
	bytes int64
}

func (g *graph) key(id gid) reuseKey {
	t := &g.bufs[id].tensor
	return reuseKey{t.DType, int64(t.Bytes)}
}

// freed is a buffer whose memory waits to be taken over.
type freed struct {
	buf  gid
	node int
	step int
}

// plan turns nodes into steps. A dead buffer's memory goes to the next buffer of its type and size, the latest dead
// first, where waiting for that does not raise the estimated peak; an estimate below zero counts as zero (EfficientPeakEstimate).
func (g *graph) plan() {
	g.schedule()
	g.settle()
	memory := g.estimate()
	peak := max(0, slices.Max(memory))
	pool := map[reuseKey][]freed{}
	var taken []gid // dead buffers whose memory is spoken for
	for n := range g.nodes {
		node := &g.nodes[n]
		taken = taken[:0]
		for _, out := range node.outs {
			b := &g.bufs[out]
			if b.library {
				g.steps = append(g.steps, gstep{gAlloc, out, n})
				continue
			}
			if in := g.onto(node, n, out, taken); in != noBuf {
				b.storage = g.bufs[in].storage
				taken = append(taken, in)
				continue
			}
			k := g.key(out)
			if waiting := pool[k]; len(waiting) > 0 {
				f := waiting[len(waiting)-1]
				if f.node+1 == n || k.bytes+max(0, slices.Max(memory[f.node+1:n])) <= peak {
					pool[k] = waiting[:len(waiting)-1]
					for i := f.node + 1; i < n; i++ {
						memory[i] += k.bytes
					}
					b.storage = g.bufs[f.buf].storage
					g.steps[f.step].kind = gSkip
					continue
				}
			}
			g.steps = append(g.steps, gstep{gAlloc, out, n})
		}
		g.steps = append(g.steps, gstep{gRun, noBuf, n})
		for _, out := range node.late {
			g.steps = append(g.steps, gstep{gSum, out, n})
		}
		g.bury(n, taken, pool)
	}
	g.live = make([]ref, len(g.bufs))
}

// onto finds the input that out may take over in place: it dies here and has out's type and size.
func (g *graph) onto(node *gnode, n int, out gid, taken []gid) gid {
	for _, h := range node.heirs {
		if h.out != out {
			continue
		}
		for _, in := range h.of {
			b := &g.bufs[in]
			if b.last == n && !b.output && !b.held && !slices.Contains(taken, in) && g.key(in) == g.key(out) {
				return in
			}
		}
	}
	return noBuf
}

// bury frees what node n was the last to use.
func (g *graph) bury(n int, taken []gid, pool map[reuseKey][]freed) {
	node := &g.nodes[n]
	for _, ids := range [3][]gid{node.outs, node.late, node.ins} {
		for _, id := range ids {
			if id == noBuf {
				continue
			}
			b := &g.bufs[id]
			if b.last != n || b.output || b.held || slices.Contains(taken, id) {
				continue
			}
			taken = append(taken, id)
			if !b.input {
				k := g.key(id)
				pool[k] = append(pool[k], freed{id, n, len(g.steps)})
			}
			g.steps = append(g.steps, gstep{gFree, id, n})
		}
	}
}

// estimate is the memory at each node if every buffer lived exactly from its birth to its last use, less that of all
// outputs: see scheduler.peak.
func (g *graph) estimate() []int64 {
	memory := make([]int64, len(g.nodes)+1)
	born := make([]int, len(g.bufs))
	for n := range g.nodes {
		for _, out := range g.nodes[n].outs {
			born[out] = n
		}
		for _, out := range g.nodes[n].late {
			born[out] = n
		}
		memory[n] += g.nodes[n].inner
		memory[n+1] -= g.nodes[n].inner
	}
	for id := range g.bufs {
		b := &g.bufs[id]
		bytes := b.counted()
		memory[born[id]] += bytes
		if b.output {
			memory[0] -= bytes
		} else if b.last+1 < len(memory) {
			memory[b.last+1] -= bytes
		}
	}
	for n := 1; n < len(memory); n++ {
		memory[n] += memory[n-1]
	}
	return memory[:len(g.nodes)]
}

// run appends one run to the trace. The graph's inputs must have been given with give.
func (g *graph) run() {
	for _, s := range g.steps {
		switch s.kind {
		case gAlloc:
			g.birth(s.buf)
		case gRun:
			g.execute(&g.nodes[s.node])
		case gSum:
			g.birth(s.buf)
			g.kernels.columnSum(g.b, g.nodes[s.node].rows, int(g.bufs[s.buf].tensor.Numel()))
		case gFree:
			g.b.free(g.live[g.bufs[s.buf].storage])
		}
	}
}

func (g *graph) birth(id gid) {
	b := &g.bufs[id]
	if b.ref == nothing {
		b.ref = g.b.define(b.tensor)
	}
	g.live[id] = g.b.birth(b.ref)
}

// execute is one kernel: a library's workspaces, or the timing of a pointwise kernel that runs for the first time.
func (g *graph) execute(n *gnode) {
	switch n.blas {
	case forwardBlas:
		g.kernels.blas(g.b, false)
	case forwardBlasLt:
		g.kernels.blas(g.b, true)
	case backwardBlas:
		g.kernels.blasBackward(g.b)
	}
	var temps []ref
	gone := 0
	for _, t := range n.scratch {
		for ; gone < t.after; gone++ {
			g.b.free(temps[gone])
		}
		temps = append(temps, g.kernels.scratch(g.b, t.name, t.bytes))
	}
	for i := len(temps) - 1; i >= gone; i-- {
		g.b.free(temps[i])
	}
	if n.name != "" && !g.tuned[n.name] && !g.kernels.warm {
		g.tuned[n.name] = true
		g.tune(n)
	}
}

// tune times a kernel. Inductor runs it once alone, then beside a buffer as large as the L2 cache that it writes over
// between runs (torch/_inductor/runtime/benchmarking.py), and both times on a copy of what the kernel changes in place, where
// that copy does not raise the peak so far (copy_args_to_cpu_if_needed in torch/_inductor/runtime/triton_heuristics.py).
func (g *graph) tune(n *gnode) {
	if g.kernels.dev.L2 == 0 {
		return
	}
	room := g.b.most - g.b.now
	copies := func() {
		for _, h := range n.heirs {
			if b := &g.bufs[h.out]; b.storage != h.out && b.tensor.Bytes <= room {
				g.b.free(g.kernels.scratch(g.b, "inductor.copy", int(b.tensor.Bytes)))
			}
		}
		for _, id := range n.changes {
			if b := &g.bufs[id]; b.tensor.Bytes <= room {
				g.b.free(g.kernels.scratch(g.b, "inductor.copy", int(b.tensor.Bytes)))
			}
		}
	}
	for range 2 { // configurations
		copies()
		flush := g.kernels.scratch(g.b, "inductor.l2_flush", int(g.kernels.dev.L2))
		copies()
		g.b.free(flush)
	}
}

// give hands a live tensor to the graph as its input.
func (g *graph) give(id gid, r ref) { g.live[id] = r }

// take is the live tensor that a run left as output id.
func (g *graph) take(id gid) ref { return g.live[g.bufs[id].storage] }
