package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/term"
)

// As a gpu.Probe's child this binary is snug, and not another run of all the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == probeCommand {
		os.Exit(Run(os.Args[1:], term.System()))
	}
	testscript.Main(m, map[string]func(){
		"snug": func() { os.Exit(Run(os.Args[1:], term.System())) },
	})
}

// Each command's behaviour, as a person at a shell meets it: testdata/script/*.txtar. The scripts see no GPU of this
// machine's, and [driver] says whether it has one. SNUG_UPDATE=1 writes the golden parts anew.
func TestScripts(t *testing.T) {
	// What this process handles its children start with as usual, even where it was started under nohup itself.
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hup) })
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       os.Getenv("SNUG_UPDATE") != "",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("COLUMNS", "100")
			env.Setenv("LANG", "en_US.UTF-8")
			env.Setenv("SNUG_NVML", filepath.Join(env.WorkDir, "none", "libnvidia-ml.so"))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "driver":
				return driver(), nil
			case "fake-driver":
				_, err := fakeNVML()
				if errors.Is(err, gputest.ErrNoCompiler) {
					return false, nil
				}
				return true, err
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "machine": machine},
	})
}

// driver says whether NVIDIA's driver is installed here.
var driver = sync.OnceValue(func() bool {
	lib, err := gpu.Open("")
	if err != nil {
		return false
	}
	lib.Close()
	return true
})

// exits CODE program args… runs a program and checks its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program args…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	err = ts.Exec(args[1], args[2:]...)
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		code = ee.ExitCode()
	} else {
		ts.Check(err)
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

func TestSettingsReadAsNanoGPTReadsThem(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := dir + "/" + name
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one := write("one.py", "batch_size = 8\nn_layer = 2\n")
	two := write("two.py", "batch_size = batch_size * 2\n")
	for name, c := range map[string]struct {
		args []string
		want func(config.Config) bool
		err  string
	}{
		"defaults":               {nil, func(c config.Config) bool { return c.BatchSize == 12 }, ""},
		"file then override":     {[]string{one, "--batch_size=32", "--compile=False"}, func(c config.Config) bool { return c.BatchSize == 32 && c.NLayer == 2 && !c.Compile }, ""},
		"value as a word":        {[]string{"--batch_size", "32", "--compile", "False", one}, func(c config.Config) bool { return c.BatchSize == 32 && !c.Compile }, ""},
		"several files":          {[]string{one, two}, func(c config.Config) bool { return c.BatchSize == 16 && c.NLayer == 2 }, ""},
		"the last override wins": {[]string{"--batch_size=3", "--batch_size=4"}, func(c config.Config) bool { return c.BatchSize == 4 }, ""},
		"zero":                   {[]string{"--batch_size=0"}, nil, "--batch_size must be at least 1, not 0"},
		"no number":              {[]string{"--block_size=abc"}, nil, "--block_size must be int, not str ('abc')"},
		"unknown":                {[]string{"--batchsize=3"}, nil, "unknown key --batchsize: did you mean --batch_size"},
		"another command's":      {[]string{"--temperature=0.5"}, nil, "it belongs to snug sample"},
		"no value":               {[]string{"--batch_size"}, nil, "--batch_size needs a value"},
		"no dashes":              {[]string{"batch_size=3"}, nil, "to set batch_size write --batch_size=3"},
		"no file":                {[]string{dir + "/none.py"}, nil, "no such file"},
		"heads":                  {[]string{"--n_head=5"}, nil, "not a multiple of n_head 5"},
		"size":                   {[]string{"--vram=12"}, nil, "12GiB or 12MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			io := &term.IO{Out: &term.Stream{Writer: &out, Width: 80}, Err: &term.Stream{Writer: &errs, Width: 80}, Env: os.Getenv}
			var got config.Config
			root := newRoot(io)
			try := &cobra.Command{Use: "try"}
			s := addSettings(try, config.Train)
			try.RunE = func(_ *cobra.Command, args []string) (err error) {
				got, err = s.load(args)
				return err
			}
			root.AddCommand(try)
			root.SetArgs(append([]string{"try"}, c.args...))
			err := root.Execute()
			if c.err == "" {
				if err != nil || !c.want(got) {
					t.Errorf("%v: %v", got, err)
				}
				return
			}
			var ee *exitError
			if !errors.As(err, &ee) || ee.code != ExitUsage || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want usage error with %q", err, c.err)
			}
		})
	}
}
