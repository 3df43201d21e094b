package train

import (
	"bufio"
	"bytes"
	"os"
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
	if limit, used := cgroupBytes("memory.max"), cgroupBytes("memory.current"); limit > 0 && used >= 0 && (free == 0 || limit-used < free) {
		free = max(limit-used, 1)
	}
	return free
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

// cgroupBytes reads a number of version 2's control group; -1 where there is none ("max", version 1).
func cgroupBytes(name string) units.Bytes {
	text, err := os.ReadFile("/sys/fs/cgroup/" + name)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return units.Bytes(n)
}
