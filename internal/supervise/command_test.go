package supervise

import (
	"archive/zip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// nanoTrain is the part of nanoGPT's train.py that snug reads.
const nanoTrain = `import os
out_dir = 'out'
gradient_accumulation_steps = 5 * 8 # used to simulate larger batch sizes
batch_size = 12 # micro-batch size
block_size = 512
dtype = 'bfloat16' if torch.cuda.is_available() else 'float16'
exec(open('configurator.py').read()) # overrides from command line or config file
batch_size = 99
`

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParse(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	write(t, "other.py", "import argparse\n")
	write(t, "config/x.py", "batch_size = 16\n")
	for line, want := range map[string]struct {
		trainer string
		batch   Batch
		world   int
	}{
		"python train.py": {"nanogpt", Batch{12, 40}, 1},
		"python -u train.py config/x.py --batch_size=64":                                     {"nanogpt", Batch{64, 40}, 1},
		"python train.py --batch_size=64 config/x.py":                                        {"nanogpt", Batch{16, 40}, 1},
		"python train.py --batch_size=8 --gradient_accumulation_steps=4":                     {"nanogpt", Batch{8, 4}, 1},
		"torchrun --standalone --nproc_per_node=4 train.py":                                  {"nanogpt", Batch{12, 40}, 4},
		"torchrun --nproc-per-node 8 --nnodes=2 train.py":                                    {"nanogpt", Batch{12, 40}, 16},
		"python -m torch.distributed.run --nproc_per_node=2 train.py":                        {"nanogpt", Batch{12, 40}, 2},
		"python run_clm.py --per_device_train_batch_size 16 --gradient_accumulation_steps 2": {"huggingface", Batch{16, 2}, 1},
		"python run_clm.py --gradient_accumulation_steps=4":                                  {"huggingface", Batch{8, 4}, 1},
		"litgpt pretrain pythia-14m --train.micro_batch_size 8":                              {"litgpt", Batch{8, 0}, 1},
		"python other.py --batch_size=64 --gradient_accumulation_steps=8":                    {"plain", Batch{64, 8}, 1},
		"python other.py --batch_size=4":                                                     {"", Batch{}, 1},
		"bash train.sh":                                                                      {"", Batch{}, 1},
		"python":                                                                             {"", Batch{}, 1},
	} {
		c, err := Parse(strings.Fields(line), "", "")
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		name := ""
		var b Batch
		if c.Trainer != nil {
			name = c.Trainer.Name
			if b, err = c.Batch(); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
		if name != want.trainer || b != want.batch || c.World != want.world {
			t.Errorf("%s: %q, %v, world %d, want %+v", line, name, b, c.World, want)
		}
	}
	if c, _ := Parse(strings.Fields("python train.py"), "", ""); c.Config.BlockSize != 512 {
		t.Errorf("block_size %d, want train.py's own 512", c.Config.BlockSize)
	}
}

func TestParseFlagsOfOthers(t *testing.T) {
	c, err := Parse([]string{"python", "mine.py", "--bs", "32"}, "bs", "--accumulate")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := c.Batch(); err != nil || b != (Batch{32, 1}) {
		t.Errorf("%v, %v", b, err)
	}
	if got := strings.Join(c.With([]Change{{"--bs", "16"}, {"--accumulate", "2"}}), " "); got != "python mine.py --bs 16 --accumulate=2" {
		t.Errorf("%s", got)
	}
	for name, bad := range map[string]struct {
		args         []string
		batch, accum string
	}{
		"no batch flag":        {[]string{"python", "mine.py"}, "", "--accumulate"},
		"flag not given":       {[]string{"python", "mine.py"}, "--bs", ""},
		"no number":            {[]string{"python", "mine.py", "--bs=big"}, "--bs", ""},
		"zero":                 {[]string{"python", "mine.py", "--bs=0"}, "--bs", ""},
		"flag without a value": {[]string{"python", "mine.py", "--bs"}, "--bs", ""},
	} {
		c, err := Parse(bad.args, bad.batch, bad.accum)
		if err == nil {
			_, err = c.Batch()
		}
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want one line", name, err)
		}
	}
}

func TestWithStandsLast(t *testing.T) {
	c := &Command{Args: strings.Fields("python train.py --batch_size=64 config/x.py --batch_size=32 --compile=False")}
	got := c.With([]Change{{"--batch_size", "8"}, {"--gradient_accumulation_steps", "8"}})
	want := strings.Fields("python train.py config/x.py --compile=False --batch_size=8 --gradient_accumulation_steps=8")
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q: nanoGPT lets the last one win, config files included", got, want)
	}
}

// archive writes what torch.save writes: a zip.
func archive(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := zip.NewWriter(f)
	if _, err := w.Create("archive/data.pkl"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func TestNewestCheckpoint(t *testing.T) {
	began := time.Now().Add(-time.Minute)
	old := began.Add(-time.Hour)
	for name, c := range map[string]struct {
		line  string
		setup func(t *testing.T)
		want  string // arguments; "" is none
	}{
		"none":         {"python train.py", func(*testing.T) {}, ""},
		"fresh":        {"python train.py", func(t *testing.T) { archive(t, "out/ckpt.pt") }, "--init_from=resume"},
		"other folder": {"python train.py --out_dir=mine", func(t *testing.T) { archive(t, "mine/ckpt.pt") }, "--init_from=resume"},
		"half saved":   {"python train.py", func(t *testing.T) { write(t, "out/ckpt.pt", "PK\x03\x04 and no end") }, ""},
		"of an older run": {"python train.py", func(t *testing.T) {
			archive(t, "out/ckpt.pt")
			if err := os.Chtimes("out/ckpt.pt", old, old); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"of an older run that is resumed": {"python train.py --init_from=resume", func(t *testing.T) {
			archive(t, "out/ckpt.pt")
			if err := os.Chtimes("out/ckpt.pt", old, old); err != nil {
				t.Fatal(err)
			}
		}, "--init_from=resume"},
		"hugging face": {"python run_clm.py --per_device_train_batch_size=4 --output_dir o", func(t *testing.T) {
			write(t, "o/checkpoint-500/trainer_state.json", "{}")
			write(t, "o/checkpoint-1000/trainer_state.json", "{}")
			write(t, "o/checkpoint-1500/model.safetensors", "")
		}, "--resume_from_checkpoint=" + filepath.Join("o", "checkpoint-1000")},
		"litgpt": {"litgpt pretrain x --train.micro_batch_size 8 --out_dir o", func(t *testing.T) { write(t, "o/step-00010/lit_model.pth", "") }, "--resume=auto"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			write(t, "train.py", nanoTrain)
			c.setup(t)
			cmd, err := Parse(strings.Fields(c.line), "", "")
			if err != nil {
				t.Fatal(err)
			}
			got, _ := cmd.newest(began)
			if strings.Join(got.Args, " ") != c.want {
				t.Errorf("%q, want %q", got.Args, c.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("python train.py --batch_size=64", "")
	f.Add("torchrun --nproc_per_node=4 train.py", "--bs")
	f.Fuzz(func(t *testing.T, line, batch string) {
		c, err := Parse(strings.Fields(line), batch, "")
		if err != nil || c.Trainer == nil {
			return
		}
		if b, err := c.Batch(); err == nil && b.Micro < 1 {
			t.Errorf("batch %v", b)
		}
	})
}
