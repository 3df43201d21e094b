package durable

import (
	"os"

	"golang.org/x/sys/windows"
)

// SyncDir does nothing: NTFS journals a rename.
func SyncDir(string) error { return nil }

func lockFile(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, new(windows.Overlapped))
}

// unlockFile lets go of a locked file and removes it, in this order: an open file cannot be removed here, not by us before
// the close and, once another process has opened it to lock it, not after.
func unlockFile(f *os.File) {
	f.Close()
	os.Remove(f.Name())
}
