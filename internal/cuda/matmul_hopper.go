package cuda

import (
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// matmul_hopper.cuh's shapes: a cluster of two blocks makes a tile of D, hopperTile each way, hopperStep of K at a time.
const (
	hopperTile    = 256
	hopperStep    = 64
	hopperThreads = 384
	hopperShared  = 4*(128+256)*hopperStep*2 + 8*2*2048 + 2*4*8 // four buffers, two boxes a warp, the buffers' barriers
	hopperCard    = 132                                         // multiprocessors of the largest Hopper card
	hopperSlot    = hopperTile * hopperTile * 4                 // bytes of a tile's partial sums
)

// hopperWork is how a product's tiles are shared out among clusters: Schedule of matmul_hopper.cuh.
type hopperWork struct {
	tiles, whole  int // whole: how many are made one by one
	parts, length int // how many clusters make `length` steps of K each of every other tile; the clusters left make its end
}

// hopperSplit cuts the sums over K of the last round of tiles where that round would leave most of the card idle.
func hopperSplit(M, N, K, clusters int) hopperWork {
	const price = 30 // steps of K that it takes to write and to add partial sums
	tiles, steps := ceil(M, hopperTile)*ceil(N, hopperTile), ceil(K, hopperStep)
	cut := tiles % clusters
	length := ceil(cut*steps, clusters)
	if cut == 0 || length+price >= steps {
		return hopperWork{tiles: tiles, whole: tiles}
	}
	return hopperWork{tiles: tiles, whole: tiles - cut, parts: min(clusters/cut, steps/length), length: length}
}

// hopperScratch is the room for the partial sums: a slot for each cluster, and one for each cut tile.
func hopperScratch(M, N, K, clusters int) units.Bytes {
	if w := hopperSplit(M, N, K, clusters); w.whole < w.tiles {
		return units.Bytes((clusters + w.tiles - w.whole) * hopperSlot)
	}
	return 0
}

// onHopper says that the Hopper kernels can multiply m.
func (d *Device) onHopper(m *matmul) bool {
	return d.target == hopperArchive && d.drv.hasMaps() && m.aligned()
}

// ownHopper multiplies 16-bit operands with matmul_hopper.cuh.
func (e *Executor) ownHopper(m *matmul) error {
	clusters := min(e.Multiprocessors, hopperCard) / 2
	w := hopperSplit(m.M, m.N, m.K, clusters)
	if m.space < hopperScratch(m.M, m.N, m.K, clusters) {
		w = hopperWork{tiles: w.tiles, whole: w.tiles}
	}
	cut := w.tiles - w.whole
	if cut == 0 {
		clusters = min(clusters, w.tiles)
	}
	// An operand whose rows hold K is copied 128 rows at a time, one whose columns do 64: a box is 64 elements wide.
	a, b, d := matrix{m.a, m.in, m.M, m.K, 128}, matrix{m.b, m.in, m.N, m.K, 128}, matrix{m.d, m.out, m.M, m.N, 16}
	if m.layout == "tn" {
		a = matrix{m.a, m.in, m.K, m.M, hopperStep}
	}
	if m.layout != "nt" {
		b = matrix{m.b, m.in, m.K, m.N, hopperStep}
	}
	partial := d // not used
	if cut > 0 {
		partial = matrix{m.workspace, trace.Float32, (clusters + cut) * hopperTile, hopperTile, 16}
	}
	unit, sum, add := "matmul."+elements[m.in].suffix, "", ""
	if m.out == trace.Float32 {
		sum = "_sum"
	}
	if m.layout == "nn" && m.accumulate {
		add = "_add"
	}
	job := []uint64{uint64(m.bias), uint64(m.d), uint64(m.M) | uint64(m.N)<<32, uint64(m.K) | uint64(w.whole)<<32,
		uint64(flag(m.accumulate)) | uint64(clusters)<<32, uint64(w.parts) | uint64(w.length)<<32}
	args := e.with().add(job...)
	for _, x := range []matrix{a, b, d, partial} {
		t, err := e.tensorMap(x)
		if err != nil {
			return err
		}
		args.add(t[:]...)
	}
	if err := e.launch(unit, "matmul_"+m.layout+"_hopper"+sum+add, dim{x: 2 * clusters}, hopperThreads, hopperShared); err != nil || cut == 0 {
		return err
	}
	e.with().add(job...).ptr(m.workspace)
	return e.launch(unit, "matmul_hopper_reduce"+sum, dim{x: cut * 16}, 256, 0)
}
