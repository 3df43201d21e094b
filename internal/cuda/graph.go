package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// graph is a section that the driver replays: one call queues all of it, and its kernels follow each other faster than
// launches do. Between two runs only what comes from program.Step changes, and a launch has that in its arguments: they are
// set anew in the graph's nodes before a replay. Which ops have such arguments is found by trying, so no op can be forgotten.
//
// The first run launches plainly, because drivers and libraries load some of their code then. Sections whose launches change
// their shape (a generated row's), runs under a timer or with Options.Sync, and drivers that cannot, stay with plain launches.
type graph struct {
	ran     bool
	plain   bool // it cannot be a graph
	graph   uintptr
	exec    uintptr
	step    program.Step // whose arguments the nodes hold
	varying []tape       // the ops that the step changes
}

// graphLeast is the fewest ops that are worth a graph.
const graphLeast = 2

// The driver keeps a graph's nodes on the device: about half of graphNode each was seen (docs/performance.md). Room for
// graphNodes of them is set aside beside the arena; sections that find no room any more stay with plain launches.
const (
	graphNode  = 6 * units.KiB
	graphNodes = 4096
	graphRoom  = graphNodes * graphNode
)

// tape is the launches of one op, in order, as a graph has them.
type tape struct {
	op       int // of its section
	launches []launched
	dry      bool // launches are compared with those of the tape and not queued
	next     int
	changed  func(d *Device, l *launched) error // is told of a launch whose arguments differ
}

// launched is a kernel's launch.
type launched struct {
	node            uintptr
	f               uintptr
	grid            dim
	threads, shared int
	slots           []uint64 // the arguments
}

var errShape = errors.New("the step changes a launch's shape")

// add records the launch that was just captured.
func (t *tape) add(d *Device, l launched) (err error) {
	l.slots = slices.Clone(d.args.slots[:d.args.slot])
	l.node, err = d.drv.lastNode(d.stream)
	t.launches = append(t.launches, l)
	return err
}

// compare holds the launch that would come now against the recorded one.
func (t *tape) compare(d *Device, l launched) error {
	if t.next == len(t.launches) {
		return errShape
	}
	was := &t.launches[t.next]
	t.next++
	if l.f != was.f || l.grid != was.grid || l.threads != was.threads || l.shared != was.shared {
		return errShape
	}
	if slices.Equal(was.slots, d.args.slots[:d.args.slot]) {
		return nil
	}
	return t.changed(d, was)
}

// rehearse runs an op without queueing anything, and tells changed of the launches whose arguments differ under s.
func (e *Executor) rehearse(t *tape, op *program.Op, s program.Step, changed func(d *Device, l *launched) error) error {
	t.dry, t.next, t.changed = true, 0, changed
	e.tape = t
	defer func() { e.tape = nil }()
	if err := ops[op.Code](e, op, s); err != nil {
		return err
	}
	if t.next != len(t.launches) {
		return errShape
	}
	return nil
}

// queue queues a section, as a graph where it is one.
func (e *Executor) queue(section int, s program.Step) error {
	g, sec := &e.graphs[section], &e.layout.Sections[section]
	if g.exec == 0 && g.ran && e.replays(g, sec) {
		if err := e.capture(g, sec, s); err != nil {
			g.plain = true // whatever is wrong, launching shows it or does without
		}
	}
	if g.exec == 0 || !e.replays(g, sec) {
		g.ran = true
		return e.launchAll(sec, s)
	}
	if err := e.set(g, sec, s); err != nil {
		return err
	}
	if err := e.drv.launchGraph(g.exec, e.stream); err != nil {
		return fmt.Errorf("run %s: %w", sec.Name, err)
	}
	return nil
}

// replays says whether a section is to be a graph.
func (e *Executor) replays(g *graph, sec *program.Section) bool {
	return e.graphing() && e.timer == nil && !g.plain && len(sec.Ops) >= graphLeast
}

// graphing says whether sections may become graphs at all.
func (d *Device) graphing() bool { return d.drv.graphs && !d.plain && !d.sync }

// capture makes the graph of a section under s. After an error there is none, and nothing was queued.
func (e *Executor) capture(g *graph, sec *program.Section, s program.Step) error {
	if err := e.drv.beginCapture(e.stream); err != nil {
		return err
	}
	err := e.record(g, sec, s)
	made, end := e.drv.endCapture(e.stream)
	g.graph, g.step = made, s
	nodes := 0
	if err = errors.Join(err, end); err == nil {
		nodes, err = e.drv.nodes(made)
	}
	switch {
	case err != nil:
	case e.nodes+nodes > graphNodes:
		err = fmt.Errorf("%d nodes and %d before them: there is room for %d", nodes, e.nodes, graphNodes)
	default:
		g.exec, err = e.drv.instantiate(made)
		e.nodes += nodes
	}
	if err != nil {
		err = errors.Join(err, g.close(e.drv))
	}
	return err
}

// record runs the ops of a section into the capture, and finds those whose arguments another step would change.
func (e *Executor) record(g *graph, sec *program.Section, s program.Step) error {
	other := program.Step{Seed: ^s.Seed, Sample: s.Sample + 1, LR: s.LR + 1, T: s.T + 1, LossScale: s.LossScale * 3, Pos: s.Pos + 1}
	for i := range sec.Ops {
		op, t := &sec.Ops[i], tape{op: i}
		e.tape = &t
		err := ops[op.Code](e, op, s)
		e.tape = nil
		if err != nil {
			return err
		}
		last, err := e.drv.lastNode(e.stream)
		if err != nil {
			return err
		}
		varies := false
		if err := e.rehearse(&t, op, other, func(*Device, *launched) error { varies = true; return nil }); err != nil {
			return err
		}
		if now, err := e.drv.lastNode(e.stream); err != nil || now != last {
			return errors.Join(err, fmt.Errorf("the rehearsal of %s queued work", op.Code))
		}
		if varies {
			g.varying = append(g.varying, t)
		}
	}
	return nil
}

// set brings the arguments in the graph's nodes to those of s. What is queued already keeps its own.
func (e *Executor) set(g *graph, sec *program.Section, s program.Step) error {
	if s == g.step {
		return nil
	}
	for i := range g.varying {
		t := &g.varying[i]
		err := e.rehearse(t, &sec.Ops[t.op], s, func(d *Device, l *launched) error {
			copy(l.slots, d.args.slots[:])
			return d.drv.setNode(g.exec, l, &d.args)
		})
		if err != nil {
			return opError(sec, t.op, err)
		}
	}
	g.step = s
	return nil
}

// close gives back what capture made.
func (g *graph) close(d *driver) (err error) {
	if g.exec != 0 {
		err = d.do(cuGraphExecDestroy, g.exec) // CUresult cuGraphExecDestroy(CUgraphExec exec)
	}
	if g.graph != 0 {
		err = errors.Join(err, d.do(cuGraphDestroy, g.graph)) // CUresult cuGraphDestroy(CUgraph graph)
	}
	*g = graph{}
	return err
}

// Graphs is how many sections are graphs by now.
func (e *Executor) Graphs() (n int) {
	_ = e.on(func() error {
		for i := range e.graphs {
			if e.graphs[i].exec != 0 {
				n++
			}
		}
		return nil
	})
	return n
}

// beginCapture makes what this thread queues on a stream the nodes of a graph, until endCapture:
// CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode).
func (d *driver) beginCapture(stream uintptr) error {
	const threadLocal = 1 // other threads' calls have nothing to do with it
	return d.do(cuStreamBeginCapture, stream, threadLocal)
}

// endCapture: CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph). After an error of it the stream takes work again.
func (d *driver) endCapture(stream uintptr) (graph uintptr, err error) {
	g := fresh[uintptr]()
	err = d.do(cuStreamEndCapture, stream, address(g))
	return *g, err
}

// lastNode is the node that was captured last: CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
// cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *numDependencies).
func (d *driver) lastNode(stream uintptr) (uintptr, error) {
	const active = 1
	status, nodes, n := fresh[int32](), fresh[unsafe.Pointer](), fresh[uint64]()
	if err := d.do(cuStreamGetCaptureInfo, stream, address(status), 0, 0, address(nodes), address(n)); err != nil {
		return 0, err
	}
	if *status != active || *n != 1 {
		return 0, fmt.Errorf("capture state %d with %d last nodes, want %d with 1", *status, *n, active)
	}
	return *(*uintptr)(*nodes), nil
}

// nodes is how many a graph has: CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *numNodes).
func (d *driver) nodes(graph uintptr) (int, error) {
	n := fresh[uint64]()
	err := d.do(cuGraphGetNodes, graph, 0, address(n))
	return int(*n), err
}

// instantiate: CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags).
func (d *driver) instantiate(graph uintptr) (exec uintptr, err error) {
	p := fresh[uintptr]()
	err = d.do(cuGraphInstantiate, address(p), graph, 0)
	return *p, err
}

// nodeParams is CUDA_KERNEL_NODE_PARAMS_v2.
type nodeParams struct {
	f           uintptr
	grid, block [3]uint32
	shared      uint32
	params      unsafe.Pointer
	_           [3]uintptr // extra, kern, ctx: none
}

// setNode gives a kernel's node other arguments, for replays that are queued from now on. graph must still be there:
// CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params).
func (d *driver) setNode(exec uintptr, l *launched, a *arguments) error {
	p := fresh[nodeParams]()
	*p = nodeParams{f: l.f, grid: [3]uint32{uint32(l.grid.x), uint32(l.grid.y), uint32(l.grid.z)}, block: [3]uint32{uint32(l.threads), 1, 1},
		shared: uint32(l.shared), params: unsafe.Pointer(&a.ptrs)}
	err := d.do(cuGraphExecKernelNodeSetParams, exec, l.node, address(p))
	runtime.KeepAlive(p)
	return err
}

// launchGraph: CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream).
func (d *driver) launchGraph(exec, stream uintptr) error { return d.do(cuGraphLaunch, exec, stream) }
