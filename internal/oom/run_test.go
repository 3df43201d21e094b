package oom

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
)

// What a log says of its settings, and what it does not.
func TestRunConfig(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want func(*config.Config) bool // nil: the settings are not known
	}{
		"overrides": {"Overriding: batch_size = 64\nOverriding: compile = False\nOverriding: dataset = shakespeare\n", func(c *config.Config) bool {
			return c.BatchSize == 64 && !c.Compile && c.Dataset == "shakespeare" && c.BlockSize == 1024
		}},
		"a printed config file, then overrides": {"Overriding config with config/a.py:\n# c\nbatch_size = 4 * 3\nblock_size=256 # b\nunknown_key = 3\n\nOverriding: batch_size = 5\ntokens per iteration will be: 1\n",
			func(c *config.Config) bool { return c.BatchSize == 5 && c.BlockSize == 256 }},
		"a config file that is not shown": {"$ python train.py config/a.py\nstep 0: train loss 1, val loss 2\n", nil},
		"a command line":                  {"$ python train.py --batch_size=32 --compile=False\n", func(c *config.Config) bool { return c.BatchSize == 32 && !c.Compile }},
		"somebody else's train.py":        {"$ python train.py --batch_size=32 --img 640\n", nil},
		"another trainer":                 {"***** Running training *****\n  Instantaneous batch size per device = 8\n", nil},
		"eager by its silence":            {"tokens per iteration will be: 491,520\nusing fused AdamW: True\niter 0: loss 1, time 3.00ms, mfu 1%\n", func(c *config.Config) bool { return !c.Compile }},
		"compiled":                        {"tokens per iteration will be: 491,520\nusing fused AdamW: True\ncompiling the model... (takes a ~minute)\n", func(c *config.Config) bool { return c.Compile }},
		"vocabulary of the data":          {"found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)\ntokens per iteration will be: 1\n", func(c *config.Config) bool { return c.VocabSize == 65 }},
		"nonsense values":                 {"Overriding: batch_size = many\ntokens per iteration will be: 1\n", func(c *config.Config) bool { return c.BatchSize == 12 }},
	} {
		l, err := Read(strings.NewReader(c.log))
		if err != nil {
			t.Fatal(err)
		}
		got := l.Run.Config()
		if (got == nil) != (c.want == nil) || got != nil && !c.want(got) {
			t.Errorf("%s: %+v (trainer %q, settings %v, file %v)", name, got, l.Run.Trainer, l.Run.Settings, l.Run.File)
		}
	}
}

func TestRunNotes(t *testing.T) {
	l, _ := Read(strings.NewReader("PyTorch version: 2.4.1+cu121\nCUDA used to build PyTorch: 12.1\nGPU 0: NVIDIA GeForce RTX 3060\n" +
		"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\ntorchrun --nproc_per_node=4 train.py --batch_size=8\n" +
		" 40%|████      | 40/100 [00:20<00:30,  2.00it/s]\n"))
	r := l.Run
	if r.Torch != "2.4.1+cu121" || r.GPUName != "NVIDIA GeForce RTX 3060" || r.AllocConf != "expandable_segments:True" ||
		r.Ranks != 4 || r.Progress.Steps != 40 || r.Progress.StepTime != 0.5 {
		t.Errorf("%+v", r)
	}
	hint, _ := Read(strings.NewReader(torchMessage))
	if hint.Run.AllocConf != "" {
		t.Errorf("the message's advice was read as a setting: %q", hint.Run.AllocConf)
	}
}

// Memory that only grows is a leak; memory that settles is not.
func TestRising(t *testing.T) {
	for log, want := range map[string]bool{
		"memory: 4000\nmemory: 4500\nmemory: 5000\nmemory: 5500\n":               true,
		"memory: 4000\nmemory: 6800\nmemory: 6800\nmemory: 6800\nmemory: 6700\n": false,
		"memory: 6814\nmemory: 6814\nmemory: 6814\nmemory: 6814\n":               false,
		"memory: 4000\nmemory: 8000\n":                                           false,
	} {
		l, _ := Read(strings.NewReader(log))
		if got := l.Run.Progress.Rising(); got != want {
			t.Errorf("%q: rising %v, memory %v", log, got, l.Run.Progress.Memory)
		}
	}
}
