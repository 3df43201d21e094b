//go:build !unix && !windows

package durable

import "os"

// SyncDir does nothing: there is no way to.
func SyncDir(string) error { return nil }

func lockFile(*os.File) error { return nil }

func unlockFile(f *os.File) { f.Close() }
