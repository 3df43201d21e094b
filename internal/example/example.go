// Package example owns the run that snug train makes when it is given nothing: a small character model on a text that
// a fresh machine has.
//
// The text is Newton's Opticks, which every Go installation carries among its test data; where there is none it is a text
// of the project's own. It trains nothing itself.
package example

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/snugml/snug/internal/config"
)

// Text is what the example learns to write.
type Text struct {
	Name  string // as a report names it: "Newton's Opticks"
	Start string // a prompt in its manner
	Bytes []byte
}

// opticks is where a Go installation keeps the text.
const opticks = "src/testdata/Isaac.Newton-Opticks.txt"

// Find returns Opticks from a Go installation on this machine, or the project's own text.
func Find(env func(string) string) Text {
	for _, root := range goRoots(env) {
		if text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(opticks))); err == nil && len(text) > 100_000 {
			return Text{Name: "Newton's Opticks (" + filepath.Join(root, filepath.FromSlash(opticks)) + ")", Start: "\nPROP. I.\n", Bytes: text}
		}
	}
	return Text{Name: "a log book of snug's own", Start: "\nCHAPTER ", Bytes: []byte(ownText(300_000))}
}

// goRoots are the places where Go may be installed, without asking the go command.
func goRoots(env func(string) string) []string {
	roots := []string{env("GOROOT")}
	if path, err := exec.LookPath("go"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			roots = append(roots, filepath.Dir(filepath.Dir(path)))
		}
	}
	return append(roots, "/usr/local/go", "/usr/lib/go", "/opt/homebrew/opt/go/libexec", `C:\Program Files\Go`)
}

// OutDir is where the example's run lies; its data are in a folder below it.
const (
	OutDir  = "out-example"
	Dataset = "data"
)

// Settings gives c the example's values: about a minute on two cores.
func Settings(c *config.Config) error {
	for key, v := range map[string]any{
		"out_dir": OutDir, "data_dir": OutDir, "dataset": Dataset,
		"eval_interval": 300, "eval_iters": 20, "log_interval": 10,
		"batch_size": 12, "gradient_accumulation_steps": 1, "block_size": 64,
		"n_layer": 4, "n_head": 4, "n_embd": 128, "dropout": 0.0,
		"learning_rate": 3e-3, "max_iters": 3000, "lr_decay_iters": 3000, "min_lr": 1e-4, "warmup_iters": 100, "beta2": 0.99,
	} {
		if err := c.Set(key, v); err != nil {
			return err
		}
	}
	return nil
}
