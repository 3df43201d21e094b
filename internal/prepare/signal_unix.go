//go:build unix

package prepare

import (
	"os/signal"

	"golang.org/x/sys/unix"
)

// ignoreFileSizeSignal makes writing past the shell's ulimit -f an error like a full disk, not the end of the process.
func ignoreFileSizeSignal() { signal.Ignore(unix.SIGXFSZ) }
