package supervise

import (
	"archive/zip"
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// checkpointTime is when the supervised run began: a checkpoint from before belongs to another run, unless the command
// itself asked to resume.
type checkpointTime time.Time

// Checkpoint is a place to go on from.
type Checkpoint struct {
	Path    string
	Args    []string // what makes the script go on from it
	Written time.Time
}

// newest finds the checkpoint that an attempt left, or one that the command itself resumes from.
func (c *Command) newest(began time.Time) (Checkpoint, bool) {
	if c.Trainer == nil || c.Trainer.resume == nil {
		return Checkpoint{}, false
	}
	args, path := c.Trainer.resume(c, checkpointTime(began))
	if path == "" {
		return Checkpoint{}, false
	}
	info, err := os.Stat(path)
	if err != nil {
		return Checkpoint{}, false
	}
	return Checkpoint{Path: path, Args: args, Written: info.ModTime()}, true
}

// isNewer says that path exists and was written since the run began. File systems may keep whole seconds only, and
// stamp with a clock that lags by up to a tick.
func (t checkpointTime) isNewer(path string) bool {
	const tick = 20 * time.Millisecond
	info, err := os.Stat(path)
	return err == nil && !info.ModTime().Before(time.Time(t).Add(-tick).Truncate(time.Second))
}

// resumeNanoGPT wants out_dir/ckpt.pt whole: a run that dies while it saves leaves half a zip archive.
func resumeNanoGPT(c *Command, since checkpointTime) ([]string, string) {
	path := filepath.Join(c.Config.OutDir, "ckpt.pt")
	if c.Config.InitFrom != "resume" && !since.isNewer(path) || !whole(path) {
		return nil, ""
	}
	return []string{"--init_from=resume"}, path
}

// whole says that a file written by torch.save ends as a zip archive must.
func whole(path string) bool {
	r, err := zip.OpenReader(path)
	if err != nil {
		return false
	}
	r.Close()
	return true
}

// resumeHuggingFace takes the output folder's checkpoint-N with the largest N that has its trainer_state.json, which the
// Trainer writes last.
func resumeHuggingFace(c *Command, since checkpointTime) ([]string, string) {
	dir, ok := c.value("--output_dir")
	if !ok {
		return nil, ""
	}
	best, found := -1, ""
	matches, _ := filepath.Glob(filepath.Join(dir, "checkpoint-*")) // the only error is a bad pattern
	for _, m := range matches {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(m), "checkpoint-"))
		if err == nil && n > best && since.isNewer(filepath.Join(m, "trainer_state.json")) {
			best, found = n, m
		}
	}
	if found == "" {
		return nil, ""
	}
	return []string{"--resume_from_checkpoint=" + found}, found
}

// resumeLitGPT lets litgpt find its own newest checkpoint, where this run has written one.
func resumeLitGPT(c *Command, since checkpointTime) ([]string, string) {
	dir, _ := c.value("--out_dir")
	matches, _ := filepath.Glob(filepath.Join(cmp.Or(dir, "out"), "step-*", "lit_model.pth"))
	for _, m := range matches {
		if since.isNewer(m) {
			return []string{"--resume=auto"}, m
		}
	}
	return nil, ""
}
