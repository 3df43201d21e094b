package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

// train.py's keys and defaults at 3adf61e, as Python prints them.
var nanoGPT = map[string]string{
	"out_dir": "'out'", "eval_interval": "2000", "log_interval": "1", "eval_iters": "200", "eval_only": "False",
	"always_save_checkpoint": "True", "init_from": "'scratch'", "wandb_log": "False", "wandb_project": "'owt'",
	"wandb_run_name": "'gpt2'", "dataset": "'openwebtext'", "gradient_accumulation_steps": "40", "batch_size": "12",
	"block_size": "1024", "n_layer": "12", "n_head": "12", "n_embd": "768", "dropout": "0.0", "bias": "False",
	"learning_rate": "0.0006", "max_iters": "600000", "weight_decay": "0.1", "beta1": "0.9", "beta2": "0.95",
	"grad_clip": "1.0", "decay_lr": "True", "warmup_iters": "2000", "lr_decay_iters": "600000", "min_lr": "6e-05",
	"backend": "'nccl'", "device": "'cuda'", "dtype": "'bfloat16'", "compile": "True",
}

func TestDefaultsAreNanoGPTs(t *testing.T) {
	c := Default()
	for key, want := range nanoGPT {
		s, ok := Lookup(key)
		if !ok {
			t.Errorf("no setting %s", key)
			continue
		}
		if got := Python(s.Value(&c)); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	sample := DefaultFor(Sample)
	if sample.InitFrom != "resume" || sample.Compile || sample.Start != "\n" || sample.TopK != 200 || sample.Temperature != 0.8 {
		t.Errorf("sample.py's defaults differ: %+v", sample)
	}
}

// Every field of Config belongs to exactly one row, and every row is complete.
func TestTableIsWhole(t *testing.T) {
	var c Config
	seen := map[any]string{}
	for i := range Table {
		s := &Table[i]
		p := s.field(&c)
		if other, ok := seen[p]; ok {
			t.Errorf("%s and %s share a field", s.Key, other)
		}
		seen[p] = s.Key
		if s.Help == "" || s.Group == "" || s.Commands == 0 {
			t.Errorf("%s lacks help, group or commands", s.Key)
		}
		if reflect.TypeOf(p).Elem() != reflect.TypeOf(s.Default) {
			t.Errorf("%s: field %T, default %T", s.Key, p, s.Default)
		}
	}
	if fields := reflect.TypeOf(c).NumField() - 1; fields != len(Table) { // less the map of keys that were set
		t.Errorf("%d fields, %d rows", fields, len(Table))
	}
}

// The seven files have nanoGPT's assignments in our own surroundings; the values are what Python gives for them.
func TestNanoGPTConfigFiles(t *testing.T) {
	for name, want := range map[string]map[string]string{
		"eval_gpt2.py":        {"batch_size": "8", "eval_iters": "500", "eval_only": "True", "wandb_log": "False", "init_from": "'gpt2'"},
		"eval_gpt2_medium.py": {"batch_size": "8", "eval_iters": "500", "eval_only": "True", "wandb_log": "False", "init_from": "'gpt2-medium'"},
		"eval_gpt2_large.py":  {"batch_size": "8", "eval_iters": "500", "eval_only": "True", "wandb_log": "False", "init_from": "'gpt2-large'"},
		"eval_gpt2_xl.py":     {"batch_size": "8", "eval_iters": "500", "eval_only": "True", "wandb_log": "False", "init_from": "'gpt2-xl'"},
		"finetune_shakespeare.py": {"out_dir": "'out-shakespeare'", "eval_interval": "5", "eval_iters": "40", "wandb_log": "False",
			"wandb_project": "'shakespeare'", "wandb_run_name": `'ft-[0-9]{10}\.[0-9]+'`, "dataset": "'shakespeare'", "init_from": "'gpt2-xl'",
			"always_save_checkpoint": "False", "batch_size": "1", "gradient_accumulation_steps": "32", "max_iters": "20",
			"learning_rate": "3e-05", "decay_lr": "False"},
		"train_gpt2.py": {"wandb_log": "True", "wandb_project": "'owt'", "wandb_run_name": "'gpt2-124M'", "batch_size": "12", "block_size": "1024",
			"gradient_accumulation_steps": "40", "max_iters": "600000", "lr_decay_iters": "600000", "eval_interval": "1000", "eval_iters": "200",
			"log_interval": "10", "weight_decay": "0.1"},
		"train_shakespeare_char.py": {"out_dir": "'out-shakespeare-char'", "eval_interval": "250", "eval_iters": "200", "log_interval": "10",
			"always_save_checkpoint": "False", "wandb_log": "False", "wandb_project": "'shakespeare-char'", "wandb_run_name": "'mini-gpt'",
			"dataset": "'shakespeare_char'", "gradient_accumulation_steps": "1", "batch_size": "64", "block_size": "256", "n_layer": "6",
			"n_head": "6", "n_embd": "384", "dropout": "0.2", "learning_rate": "0.001", "max_iters": "5000", "lr_decay_iters": "5000",
			"min_lr": "0.0001", "beta2": "0.99", "warmup_iters": "100"},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			if err := c.LoadFile(filepath.Join("testdata", name)); err != nil {
				t.Fatal(err)
			}
			for i := range Table {
				s := &Table[i]
				expect, given := want[s.Key]
				if given != c.IsSet(s.Key) {
					t.Errorf("%s: set %v, want %v", s.Key, c.IsSet(s.Key), given)
				}
				if !given {
					expect = regexp.QuoteMeta(Python(s.Default))
				} else if s.Key != "wandb_run_name" {
					expect = regexp.QuoteMeta(expect)
				}
				if got := Python(s.Value(&c)); !regexp.MustCompile("^" + expect + "$").MatchString(got) {
					t.Errorf("%s = %s, want %s", s.Key, got, expect)
				}
			}
		})
	}
}

func TestLoad(t *testing.T) {
	for name, c := range map[string]struct {
		src  string
		want func(c Config) bool
	}{
		"arithmetic":         {"batch_size = 5 * 8 // 2", func(c Config) bool { return c.BatchSize == 20 }},
		"products anywhere":  {"def _f(x):\n    return x * 2\n_l = [i * 2 for i in range(3) if i * 1]\n_d = {'a' * 2: 3 * 1}\nbatch_size = len([0] * 3) * (_f(2) if 2 * 1 else 1) * -(-1 * 1)\nbatch_size *= len(_l) * _d['aa']\n", func(c Config) bool { return c.BatchSize == 72 }},
		"repeated":           {"out_dir = 'ab' * 2 + 2 * 'c' + 'x' * -1", func(c Config) bool { return c.OutDir == "ababcc" }},
		"present values":     {"lr_decay_iters = max_iters\nbatch_size = batch_size * 2", func(c Config) bool { return c.LrDecayIters == 600000 && c.BatchSize == 24 }},
		"conditional":        {"if n_layer > 6:\n    bias = True\nelse:\n    bias = False\n", func(c Config) bool { return c.Bias }},
		"branch not taken":   {"if n_layer > 600:\n    bias = True\n", func(c Config) bool { return !c.Bias && !c.IsSet("n_layer") }},
		"own names":          {"_epoch = 301_966\nmax_iters = 3 * _epoch // 1000", func(c Config) bool { return c.MaxIters == 905 }},
		"whole for a float":  {"dropout = 0\ngrad_clip = 2", func(c Config) bool { return c.Dropout == 0 && c.GradClip == 2 }},
		"size":               {"vram = '12GiB'", func(c Config) bool { return c.Vram == 12*units.GiB }},
		"crlf and bom":       {"\ufeffbatch_size = 4\r\nblock_size = 8\r\n", func(c Config) bool { return c.BatchSize == 4 && c.BlockSize == 8 }},
		"str of a float":     {"wandb_run_name = 'r' + str(1500000000.25) + str(2.0) + str(3)", func(c Config) bool { return c.WandbRunName == "r1500000000.252.03" }},
		"underscore strings": {"out_dir = 'out_1_000'  # 1_000", func(c Config) bool { return c.OutDir == "out_1_000" }},
		"math":               {"import math\nmax_iters = int(math.sqrt(100))", func(c Config) bool { return c.MaxIters == 10 }},
		"empty":              {"", func(c Config) bool { return reflect.DeepEqual(c, Default()) }},
	} {
		t.Run(name, func(t *testing.T) {
			got := Default()
			if err := got.Load("x.py", []byte(c.src)); err != nil {
				t.Fatal(err)
			}
			if !c.want(got) {
				t.Errorf("%q gave %+v", c.src, got)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"loop":          {"while True:\n    pass\n", "x.py:1: more than 1000000 steps"},
		"growth":        {"_x = [0]\nfor _i in range(100):\n    _x = _x + _x\n", ": more than 64 MiB of values"},
		"repetition":    {"_x = 1\n_x = [0] * 1000000000\n", "x.py:2: 1 values repeated 1000000000 times, more than the 1048576 that a step may make"},
		"a nested one":  {"batch_size = len([0, 1] * (1000 * 1000))", "x.py:1: 2 values repeated 1000000 times"},
		"in place":      {"_x = 'ab'\n_x *= 1 << 70\n", "x.py:2: 2 values repeated 1180591620717411303424 times"},
		"range":         {"_x = sorted(range(1000000000))", "x.py:1: range of 1000000000 values, more than the 1048576"},
		"load":          {"load('y.py', 'z')\n", "x.py:1: cannot load y.py: a config file may use"},
		"binary":        {"\x00\x01\xff", "x.py is not text"},
		"syntax":        {"batch_size = = 3", "x.py:1: "},
		"unknown key":   {"\nbatchsize = 3", "x.py:2: unknown key batchsize: did you mean batch_size"},
		"list":          {"batch_size = [3]", "x.py:1: batch_size must be int, not list"},
		"string":        {"batch_size = '3'", "x.py:1: batch_size must be int, not str ('3')"},
		"float for int": {"batch_size = 3.0", "x.py:1: batch_size must be int, not float (3.0)"},
		"bool for int":  {"batch_size = True", "x.py:1: batch_size must be int, not bool (True)"},
		"zero":          {"batch_size = 0", "x.py:1: batch_size must be at least 1, not 0"},
		"beyond 64 bit": {"batch_size = 1 << 100", "beyond 64 bits"},
		"open":          {"batch_size = open('/etc/passwd')", "x.py:1: undefined: open"},
		"import":        {"import os", "x.py:1: cannot import os: a config file may use"},
		"from":          {"from time import time", "x.py:1: cannot import time"},
		"nan":           {"dropout = float('nan')", "must be a finite number"},
		"dtype":         {"dtype = 'int8'", "dtype must be one of float32, bfloat16, float16"},
		"division":      {"batch_size = 8 / 0", "x.py:1: floating-point division by zero"},
		"def":           {"def batch_size(): return 3", "must be int, not function"},
		"bad size":      {"vram = '12'", "write 12GiB or 12MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Default()
			err := got.Load("x.py", []byte(c.src))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
			if !reflect.DeepEqual(got, Default()) {
				t.Errorf("a refused file changed the settings")
			}
		})
	}
}

func TestLargeFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "large.py")
	if err := os.WriteFile(path, make([]byte, maxFileBytes+1), 0o644); err != nil {
		t.Fatal(err)
	}
	c := Default()
	if err := c.LoadFile(path); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("error %v", err)
	}
	if err := c.LoadFile(filepath.Join(t.TempDir(), "none.py")); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}

func TestSetLiteral(t *testing.T) {
	for _, c := range []struct {
		key, text, want string // want: a value, or ! and part of the error
	}{
		{"batch_size", "32", "32"}, {"compile", "False", "False"}, {"learning_rate", "3e-4", "0.0003"}, {"out_dir", "out-x", "'out-x'"},
		{"out_dir", "'quoted'", "'quoted'"}, {"max_iters", "600_000", "600000"}, {"start", `"a\nb"`, `'a\nb'`}, {"vram", "11.69 GiB", "'12552041923B'"},
		{"batch_size", "0", "!at least 1"}, {"batch_size", "abc", "!must be int, not str ('abc')"}, {"learning_rate", "1", "!write 1.0"},
		{"compile", "false", "!write True or False"}, {"compile", "1", "!write True or False"}, {"dropout", "1.0", "!below 1"}, {"dropout", "nan", "!must be float, not str"},
		{"vram", "-1GiB", "!want a number"}, {"out_dir", "5", "!must be str, not int"}, {"n_layers", "5", "!did you mean n_layer"},
	} {
		got := Default()
		err := got.SetLiteral(c.key, c.text)
		if part, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s=%s: error %v, want %q", c.key, c.text, err, part)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s=%s: %v", c.key, c.text, err)
			continue
		}
		s, _ := Lookup(c.key)
		if v := Python(s.Value(&got)); v != c.want {
			t.Errorf("%s=%s gave %s, want %s", c.key, c.text, v, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		set  map[string]any
		want string
	}{
		"defaults": {nil, ""},
		"heads":    {map[string]any{"n_head": 7}, "n_embd 768 is not a multiple of n_head 7: try n_head=6"},
		"overflow": {map[string]any{"batch_size": 1 << 40, "block_size": 1 << 20}, "more than any machine can count"},
		"preset":   {map[string]any{"init_from": "gpt2", "block_size": 2048}, "longer than the 1024 positions of gpt2"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Default()
			for k, v := range c.set {
				if err := got.Set(k, v); err != nil {
					t.Fatal(err)
				}
			}
			err := got.Check()
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Check = %v, want %q", err, c.want)
			}
		})
	}
}

func TestCopiesDoNotShareWhatWasSet(t *testing.T) {
	a := Default()
	if err := a.Set("batch_size", 3); err != nil {
		t.Fatal(err)
	}
	b := a
	if err := b.Set("n_layer", 3); err != nil {
		t.Fatal(err)
	}
	if a.IsSet("n_layer") || !b.IsSet("batch_size") {
		t.Error("a copy changed its original")
	}
}

func TestUnknownKey(t *testing.T) {
	if err := UnknownKey("temperature", Train); !strings.Contains(err.Error(), "belongs to snug sample") {
		t.Error(err)
	}
	if !slices.Contains(Keys(Plan), "batch_size") || slices.Contains(Keys(Plan), "temperature") {
		t.Error("Keys(Plan) is wrong")
	}
}

// Whatever a file holds, it loads or is refused in one line, and a refused file changes nothing.
func FuzzLoad(f *testing.F) {
	for _, s := range []string{"batch_size = 5 * 8", "import time\nwandb_run_name = str(time.time())", "if bias:\n x = 1", "while True: pass", "a = [i for i in range(10)]", "\x00", "dropout = 1e400", "batch_size, n_layer = 1, 2"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		c := Default()
		err := c.Load("f.py", src)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("error has several lines: %q", err)
			}
			if !reflect.DeepEqual(c, Default()) {
				t.Fatal("a refused file changed the settings")
			}
			return
		}
		again := c
		for i := range Table { // what loads can be written and read back
			s := &Table[i]
			if c.IsSet(s.Key) && s.Type() != "size" {
				if err := again.Load("g.py", []byte(fmt.Sprintf("%s = %s", s.Key, Python(s.Value(&c))))); err != nil {
					t.Fatalf("%s = %s does not read back: %v", s.Key, Python(s.Value(&c)), err)
				}
			}
		}
	})
}
