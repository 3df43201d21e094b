//go:build !amd64

package kernel

// native is empty: there is no assembly for this architecture.
func native() []*Set { return nil }

func nativeScales(isa, *[256]float32, [4]uint32, [2]uint32, uint32, float32) {
	panic("kernel: no assembly for this architecture")
}
