package train

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// freeMemory is MemAvailable, or what the process's control group leaves where that is less.
func freeMemory() units.Bytes {
	free := units.Bytes(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		free = memAvailable(text)
	}
	if left, ok := groupAvailable("/sys/fs/cgroup"); ok && (free == 0 || left < free) {
		free = max(left, 1)
	}
	return free
}

// groupAvailable is what a control group (version 2) leaves of its limit. Files' pages that were not used of late count as
// used there, but are given up when memory is wanted. ok is false where there is no group, or none with a limit.
func groupAvailable(dir string) (left units.Bytes, ok bool) {
	limit, used := cgroupBytes(filepath.Join(dir, "memory.max")), cgroupBytes(filepath.Join(dir, "memory.current"))
	if limit <= 0 || used < 0 {
		return 0, false
	}
	if text, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			if n, ok := strings.CutPrefix(lines.Text(), "inactive_file "); ok {
				idle, _ := strconv.ParseInt(n, 10, 64)
				used -= min(used, units.Bytes(max(idle, 0)))
			}
		}
	}
	return limit - used, true
}

// memAvailable reads the kernel's own estimate of what can be taken without swapping.
func memAvailable(meminfo []byte) units.Bytes {
	for lines := bufio.NewScanner(bytes.NewReader(meminfo)); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "MemAvailable:" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				return units.Bytes(n) * units.KiB
			}
		}
	}
	return 0
}

// cgroupBytes reads a number of a control group; -1 where there is none ("max", version 1).
func cgroupBytes(path string) units.Bytes {
	text, err := os.ReadFile(path)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return units.Bytes(n)
}
