package supervise

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// descendants are the processes under root, root itself left out.
func descendants(root int) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parents, starts := map[int]int{}, map[int]string{}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if fields := statOf(pid); len(fields) > 19 {
				parents[pid], _ = strconv.Atoi(fields[1]) // 0 where the kernel writes no number, which is nobody's parent here
				starts[pid] = fields[19]
			}
		}
	}
	var list []process
	for pid := range parents {
		for p, steps := parents[pid], 0; p > 1 && steps < 64; p, steps = parents[p], steps+1 {
			if p == root {
				list = append(list, process{pid, starts[pid]})
				break
			}
		}
	}
	return list
}

// startOf is when the process began, in the kernel's ticks; "" where it is gone or a zombie.
func startOf(pid int) string {
	if fields := statOf(pid); len(fields) > 19 && fields[0] != "Z" {
		return fields[19]
	}
	return ""
}

// statOf are the fields of /proc/PID/stat from the third on: state, parent, … , start (index 19).
func statOf(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
}
