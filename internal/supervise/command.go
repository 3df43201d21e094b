package supervise

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/config"
)

// Trainer is a kind of training script: how its batch is set on the command line, and how it is made to resume.
type Trainer struct {
	Name         string
	BatchFlag    string
	AccumFlag    string // "" where accumulation follows from the batch by itself, as litgpt's global batch makes it
	DefaultBatch int    // what the script takes without the flag; 0 is unknown: the flag must be there
	DefaultAccum int
	resume       func(c *Command, newer checkpointTime) (args []string, path string)
}

// trainers are the known ones, asked in this order; nanoGPT is known by its script instead (see nanoGPT).
var trainers = []Trainer{
	{Name: "huggingface", BatchFlag: "--per_device_train_batch_size", AccumFlag: "--gradient_accumulation_steps", DefaultBatch: 8, DefaultAccum: 1, resume: resumeHuggingFace},
	{Name: "litgpt", BatchFlag: "--train.micro_batch_size", resume: resumeLitGPT},
}

// plain is a script whose command line gives both of these flags: they say enough, whatever the script.
var plain = Trainer{Name: "plain", BatchFlag: "--batch_size", AccumFlag: "--gradient_accumulation_steps"}

var nanoGPT = Trainer{Name: "nanogpt", BatchFlag: "--batch_size", AccumFlag: "--gradient_accumulation_steps", resume: resumeNanoGPT}

// Command is a training command line that snug understands well enough to change.
type Command struct {
	Args    []string
	Trainer *Trainer        // nil: snug doesn't know how to change it
	Config  *config.Config  // nanoGPT's settings as the command line gives them; nil for others
	World   int             // processes under torchrun, else 1
	Nodes   int             // machines under torchrun, else 1: the others are not in snug's hands
	Notes   []string        // what could not be read, for the user
	asked   map[string]bool // nanoGPT's keys that the user gave, on the command line or in a config file
	script  int             // index of the script in Args; its arguments follow
}

// Parse reads a training command line. batchFlag and accumFlag name an unknown script's flags; "" leaves it to Parse.
func Parse(args []string, batchFlag, accumFlag string) (*Command, error) {
	c := &Command{Args: slices.Clone(args), World: 1, Nodes: 1, script: -1}
	for i, a := range args {
		if strings.HasSuffix(a, ".py") && !strings.HasPrefix(a, "-") {
			c.script = i
			break
		}
	}
	c.readTorchrun()
	if batchFlag != "" || accumFlag != "" {
		if batchFlag == "" {
			return nil, fmt.Errorf("--accum-flag %s needs --batch-flag: which flag sets the batch?", accumFlag)
		}
		c.Trainer = &Trainer{Name: "other", BatchFlag: dashed(batchFlag), AccumFlag: dashed(accumFlag), DefaultAccum: 1}
		return c, nil
	}
	for i := range trainers {
		if t := &trainers[i]; c.has(t.BatchFlag) {
			c.Trainer = t
			return c, nil
		}
	}
	switch {
	case c.isNanoGPT():
		c.Trainer = &nanoGPT
		c.Config = c.readNanoGPT()
	case c.has(plain.AccumFlag) && c.has(plain.BatchFlag):
		c.Trainer = &plain
	case c.has(plain.AccumFlag): // Hugging Face's batch has a default
		c.Trainer = &trainers[0]
	}
	return c, nil
}

func dashed(flag string) string {
	if flag == "" || strings.HasPrefix(flag, "-") {
		return flag
	}
	return "--" + flag
}

// readTorchrun finds the number of processes in torchrun's own flags, which stand before the script.
func (c *Command) readTorchrun() {
	launcher := c.Args[:max(0, c.script)]
	isLauncher := slices.ContainsFunc(launcher, func(a string) bool {
		return filepath.Base(a) == "torchrun" || a == "torch.distributed.run" || a == "torch.distributed.launch"
	})
	if !isLauncher {
		return
	}
	number := func(names ...string) int {
		for i, a := range launcher {
			for _, name := range names {
				for _, dash := range []string{name, strings.ReplaceAll(name, "_", "-")} {
					value, joined := strings.CutPrefix(a, dash+"=")
					if a == dash && i+1 < len(launcher) {
						value, joined = launcher[i+1], true
					}
					if n, err := strconv.Atoi(value); joined && err == nil && n > 0 {
						return n
					}
				}
			}
		}
		return 1
	}
	c.Nodes = number("--nnodes")
	c.World = c.Nodes * number("--nproc_per_node")
}

// isNanoGPT knows nanoGPT's train.py by the configurator it runs, and by its name where it cannot be read.
func (c *Command) isNanoGPT() bool {
	if c.script < 0 {
		return false
	}
	text, err := os.ReadFile(c.Args[c.script])
	if err != nil {
		return filepath.Base(c.Args[c.script]) == "train.py"
	}
	return bytes.Contains(text, []byte("configurator.py")) && bytes.Contains(text, []byte("gradient_accumulation_steps"))
}

// assignment is a top-level literal of a Python script.
var assignment = regexp.MustCompile(`(?m)^(\w+) *= *([^#\n]+?) *(?:#.*)?$`)

// readNanoGPT reads the settings as train.py will: its own defaults, then files and overrides in their order.
func (c *Command) readNanoGPT() *config.Config {
	cfg := config.Default()
	note := func(err error) {
		if err != nil {
			c.Notes = append(c.Notes, err.Error())
		}
	}
	if text, err := os.ReadFile(c.Args[c.script]); err == nil {
		before, _, _ := strings.Cut(string(text), "configurator.py")
		for _, m := range assignment.FindAllStringSubmatch(before, -1) {
			if _, known := config.Lookup(m[1]); known {
				if product, ok := times(m[2]); ok {
					m[2] = product
				}
				_ = cfg.SetLiteral(m[1], m[2]) // what is no literal (dtype's choice by device) keeps snug's own default
			}
		}
	}
	asked := config.Default()
	for _, a := range c.Args[c.script+1:] {
		if key, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "="); ok {
			note(cfg.SetLiteral(key, value))
			_ = asked.SetLiteral(key, value) // noted already
		} else {
			note(cfg.LoadFile(a))
			_ = asked.LoadFile(a) // noted already
		}
	}
	c.asked = map[string]bool{}
	for i := range config.Table {
		c.asked[config.Table[i].Key] = asked.IsSet(config.Table[i].Key)
	}
	return &cfg
}

// times works out "5 * 8", as nanoGPT writes its accumulation.
func times(expr string) (string, bool) {
	product := 1
	for _, f := range strings.Split(expr, "*") {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || n <= 0 || product > 1<<40/n {
			return "", false
		}
		product *= n
	}
	return strconv.Itoa(product), true
}

func (c *Command) has(flag string) bool { _, ok := c.value(flag); return ok }

// value is what the last --flag=value or --flag value gives.
func (c *Command) value(flag string) (string, bool) {
	value, found := "", false
	for i, a := range c.Args {
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			value, found = v, true
		} else if a == flag && i+1 < len(c.Args) {
			value, found = c.Args[i+1], true
		}
	}
	return value, found
}

// Batch is what one process takes at once, and how many such an update adds up over all processes.
type Batch struct {
	Micro int `json:"batch"`
	Accum int `json:"accumulation"` // 0 where the script keeps the effective batch by itself
}

// Effective is the number of sequences an update sees; 0 where the script decides it.
func (b Batch) Effective() int { return b.Micro * b.Accum }

func (b Batch) String() string {
	if b.Accum == 0 {
		return strconv.Itoa(b.Micro)
	}
	return fmt.Sprintf("%d x %d", b.Micro, b.Accum)
}

// Batch reads the batch that the command line asks for.
func (c *Command) Batch() (Batch, error) {
	if c.Config != nil {
		return Batch{c.Config.BatchSize, c.Config.GradientAccumulationSteps}, nil
	}
	t := c.Trainer
	read := func(flag string, fallback int) (int, error) {
		if flag == "" {
			return 0, nil
		}
		text, ok := c.value(flag)
		if !ok {
			if fallback == 0 {
				return 0, fmt.Errorf("the command has no %s: give it, so that snug knows the batch it starts from", flag)
			}
			return fallback, nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return 0, fmt.Errorf("%s is %q: want a whole number above 0", flag, text)
		}
		return n, nil
	}
	micro, err := read(t.BatchFlag, t.DefaultBatch)
	if err != nil {
		return Batch{}, err
	}
	accum, err := read(t.AccumFlag, t.DefaultAccum)
	return Batch{micro, accum}, err
}

// With is the command line with flags changed: each old one is dropped and the new one stands last, where it wins over
// config files too. The user's own way of writing (--flag value or --flag=value) is kept.
func (c *Command) With(changes []Change) []string {
	args := slices.Clone(c.Args)
	for _, ch := range changes {
		joined := true
		for i := 0; i < len(args); {
			switch {
			case strings.HasPrefix(args[i], ch.Flag+"="):
				args = slices.Delete(args, i, i+1)
			case args[i] == ch.Flag && i+1 < len(args):
				joined = false
				args = slices.Delete(args, i, i+2)
			default:
				i++
			}
		}
		if joined {
			args = append(args, ch.Flag+"="+ch.Value)
		} else {
			args = append(args, ch.Flag, ch.Value)
		}
	}
	return args
}

// Change is one flag's new value.
type Change struct {
	Flag  string `json:"flag"` // with its dashes
	Value string `json:"value"`
}

func (c Change) String() string { return c.Flag + "=" + c.Value }
