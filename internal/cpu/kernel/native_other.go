//go:build !amd64

package kernel

// native is empty: there is no assembly for this architecture.
func native() []*Set { return nil }
