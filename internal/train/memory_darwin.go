package train

import (
	"golang.org/x/sys/unix"

	"github.com/snugml/snug/internal/units"
)

// freeMemory is three quarters of the machine's memory: macOS gives no figure of what can be taken without swapping.
func freeMemory() units.Bytes {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return units.Bytes(total / 4 * 3)
}
