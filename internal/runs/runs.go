// Package runs owns what a running trainer tells about itself: one small JSON file a run, in a folder of the user's,
// written by who runs it and read by who watches.
//
// It never starts, stops or judges a run. A file whose process has ended counts for nothing and is swept away.
package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/snugml/snug/internal/units"
)

// Run is the state of one run. Unknown figures are nil.
type Run struct {
	PID       int       `json:"pid"`       // who wrote this: snug
	Processes []int     `json:"processes"` // the trainer's, as the driver may list them
	Command   string    `json:"command"`
	Started   time.Time `json:"started"`
	Updated   time.Time `json:"updated"`
	Attempt   int       `json:"attempt"` // from 1

	Iteration   *int64   `json:"iteration"`
	Loss        *float64 `json:"loss"`
	StepSeconds *float64 `json:"step_seconds"`       // the last step
	UsualStep   *float64 `json:"usual_step_seconds"` // the median of the steps before

	Limit     *units.Bytes `json:"limit"`     // the memory the run may have
	Predicted *units.Bytes `json:"predicted"` // process memory, from the plan
	Measured  *units.Bytes `json:"measured"`  // process memory, the peak seen
	Allocated *units.Bytes `json:"allocated"` // in tensors, where the trainer tells
	Reserved  *units.Bytes `json:"reserved"`  // in PyTorch's segments, likewise
}

// Dir is where this user's runs are told: SNUG_RUNS, else the system's folder for the session, else Cache.
func Dir(env func(string) string) string {
	if dir := env("SNUG_RUNS"); dir != "" {
		return dir
	}
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "snug")
	}
	return filepath.Join(Cache(), "runs")
}

// Cache is the user's folder for what may be lost: in the system's for caches, or where there is none (a service or a
// container without HOME) in that for temporary files.
func Cache() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "snug")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("snug-%d", os.Getuid()))
}

// Publish writes the run's file in dir, aside and then renamed, so that a reader sees all of it or the one before.
func Publish(dir string, r Run) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("publish run: %w", err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("publish run: %w", err)
	}
	path := file(dir, r.PID)
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("publish run: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("publish run: %w", err)
	}
	return nil
}

// Withdraw removes the run's file. A missing one is no error.
func Withdraw(dir string, pid int) error {
	if err := os.Remove(file(dir, pid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("withdraw run: %w", err)
	}
	return nil
}

func file(dir string, pid int) string { return filepath.Join(dir, strconv.Itoa(pid)+".json") }

// List reads the runs that are alive, by start. Files it cannot read are left out: a monitor shows what there is.
func List(dir string) []Run {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var list []Run
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".json")
		pid, err := strconv.Atoi(name)
		if !ok || err != nil || pid <= 0 {
			continue
		}
		if !alive(pid) {
			_ = Withdraw(dir, pid) // its writer was killed; the next List tries again
			continue
		}
		text, err := os.ReadFile(file(dir, pid))
		var r Run
		if err == nil && json.Unmarshal(text, &r) == nil && r.PID == pid {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Run) int { return a.Started.Compare(b.Started) })
	return list
}
