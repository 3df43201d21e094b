//go:build amd64 && !linux

package kernel

// allowAMX is false: only Linux's way to the tile registers is known to this package.
func allowAMX() bool { return false }
