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
func WriteFile(path string, data []byte) (err error) {
	aside := path + ".tmp"
	f, err := os.Create(aside)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(aside)
		return err
	}
	return Rename(aside, path)
}

// Rename moves a synced file into place, and makes the move itself survive a power cut.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// Lock takes the lock file path for this process, which keeps it until unlock is called or it ends, however it ends.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, ErrLocked)
	}
	return func() { f.Close() }, nil
}
