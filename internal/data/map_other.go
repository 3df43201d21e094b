//go:build !unix && !windows

package data

import "os"

// mapFile reads the file: there is no memory mapping here.
func mapFile(path string) ([]byte, error) { return os.ReadFile(path) }

func unmapFile([]byte) error { return nil }
