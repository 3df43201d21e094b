//go:build unix

package durable

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// SyncDir writes a folder's entries to disk, so that a rename in it survives a power cut. File systems that cannot do so for a folder are left alone.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// unlockFile removes a locked file and lets go of it, in this order: the name is ours only while we hold the lock.
func unlockFile(f *os.File) {
	if named(f) {
		os.Remove(f.Name())
	}
	f.Close()
}
