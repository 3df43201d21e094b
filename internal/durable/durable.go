// Package durable writes files that survive a kill or a power cut whole: written aside, synced, renamed.
//
// It also keeps two processes out of one folder. It never decides what is in a file.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrLocked is returned by Lock when another process holds the lock.
var ErrLocked = errors.New("held by another process")

// WriteFile replaces path with data: whoever opens it sees the old bytes or the new, never a part.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already, where all went well
	_, err = f.Write(data)
	for _, next := range []func() error{f.Sync, func() error { return f.Chmod(0o644) }} {
		if err == nil {
			err = next()
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return Rename(f.Name(), path)
}

// Rename moves a synced file into place, and makes the move itself survive a power cut.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Lock takes the lock file path for this process, which keeps it until unlock is called or it ends, however it ends.
// unlock removes the file.
func Lock(path string) (unlock func(), err error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, err
		}
		if err := lockFile(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ErrLocked)
		}
		if named(f) {
			return func() { unlockFile(f) }, nil
		}
		f.Close() // its holder removed it between our opening and our locking it: it keeps nobody out
	}
}

// named says whether f is still the file of its name.
func named(f *os.File) bool {
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(f.Name())
	return err == nil && os.SameFile(ours, there)
}
