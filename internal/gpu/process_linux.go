package gpu

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is USER_HZ, in which /proc counts; Linux fixes it at 100 on every architecture Go knows.
const ticksPerSecond = 100

// ProcessFacts reads /proc. A process of another PID namespace, or one that ended, gives empty facts.
func ProcessFacts(pid int) Facts {
	var f Facts
	dir := fmt.Sprintf("/proc/%d", pid)
	if line, err := os.ReadFile(dir + "/cmdline"); err == nil {
		f.Command = string(bytes.TrimSpace(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	if info, err := os.Stat(dir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
				f.User = u.Username
			}
		}
	}
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return f
	}
	f.Started = started(string(stat), bootTime())
	return f
}

// started reads field 22 of /proc/PID/stat, the start in ticks after boot. The name in field 2 may hold spaces and brackets.
func started(stat string, boot time.Time) time.Time {
	end := strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[end+1:])
	if boot.IsZero() || len(fields) < 20 {
		return time.Time{}
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil || ticks < 0 || ticks > 1<<40 {
		return time.Time{}
	}
	return boot.Add(time.Duration(ticks) * (time.Second / ticksPerSecond))
}

// bootTime is /proc/stat's btime.
func bootTime() time.Time {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(stat)) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			if s, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64); err == nil {
				return time.Unix(s, 0)
			}
		}
	}
	return time.Time{}
}
