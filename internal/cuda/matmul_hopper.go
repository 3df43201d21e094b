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

// hopperSplit shares a product's tiles out among clusters: those before `whole` are made one by one, the others' sums over K
// are cut so that every cluster has the same work. That pays where the last round of tiles would be nearly empty.
func hopperSplit(M, N, K, clusters int) (whole, tiles int) {
	const price = 30 // steps of K that it takes to write and to add partial sums
	tiles = ceil(M, hopperTile) * ceil(N, hopperTile)
	steps := ceil(K, hopperStep)
	cut := max(0, tiles/clusters-1) * clusters
	if cut/clusters*steps+ceil((tiles-cut)*steps, clusters)+price < ceil(tiles, clusters)*steps {
		return cut, tiles
	}
	return tiles, tiles
}

// hopperScratch is the room for a product's partial sums: two slots a cluster.
func hopperScratch(M, N, K, clusters int) units.Bytes {
	if whole, tiles := hopperSplit(M, N, K, clusters); whole < tiles {
		return units.Bytes(2 * clusters * hopperSlot)
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
	whole, tiles := hopperSplit(m.M, m.N, m.K, clusters)
	if m.space < hopperScratch(m.M, m.N, m.K, clusters) {
		whole = tiles
	}
	if whole == tiles {
		clusters = min(clusters, tiles)
	}
	// An operand whose rows hold K is copied 128 rows at a time, one whose columns do 64: a box is 64 elements wide.
	a, b := matrix{m.a, m.in, m.M, m.K, 128}, matrix{m.b, m.in, m.N, m.K, 128}
	if m.layout == "tn" {
		a = matrix{m.a, m.in, m.K, m.M, hopperStep}
	}
	if m.layout != "nt" {
		b = matrix{m.b, m.in, m.K, m.N, hopperStep}
	}
	maps := []matrix{a, b, {m.d, m.out, m.M, m.N, 16}}
	if whole < tiles {
		maps = append(maps, matrix{m.workspace, trace.Float32, 2 * clusters * hopperTile, hopperTile, 16})
	}
	job := []uint64{uint64(m.bias), uint64(m.d), uint64(m.M) | uint64(m.N)<<32, uint64(m.K) | uint64(whole)<<32,
		uint64(flag(m.accumulate)) | uint64(clusters)<<32}
	args := e.with().add(job...)
	for _, x := range maps {
		t, err := e.tensorMap(x)
		if err != nil {
			return err
		}
		args.add(t[:]...)
	}
	if whole == tiles {
		args.add(make([]uint64, len(tensorMap{}))...) // no partial sums
	}
	unit, sum := "matmul."+elements[m.in].suffix, ""
	if m.out == trace.Float32 {
		sum = "_sum"
	}
	if err := e.launch(unit, "matmul_"+m.layout+"_hopper"+sum, dim{x: 2 * clusters}, hopperThreads, hopperShared); err != nil || whole == tiles {
		return err
	}
	e.with().add(job...).ptr(m.workspace)
	return e.launch(unit, "matmul_hopper_reduce"+sum, dim{x: (tiles - whole) * 16}, 256, 0)
}
