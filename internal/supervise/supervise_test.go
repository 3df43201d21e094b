//go:build unix

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// stage is a folder with a train.py, and a supervisor over the scripted trainer.
type stage struct {
	*Supervisor
	out, errs, said buffer
	signals         chan os.Signal
	dir             string // the trainer's folder
	published       []runs.Run
}

// buffer is a bytes.Buffer that a test may read while the trainer writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// teller lets the trainer go on once something of its output has been read.
type teller struct {
	io.Writer
	sign string
}

func (w teller) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	return n, errors.Join(err, os.WriteFile(w.sign, nil, 0o644))
}

func newStage(t *testing.T, script string, fits int, args ...string) *stage {
	t.Helper()
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := Parse(append([]string{self, "train.py"}, args...), "", "")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	st := &stage{signals: make(chan os.Signal, 1), dir: dir}
	st.Supervisor = &Supervisor{
		Command: cmd, Planner: linear{175 * units.MiB}, Retries: 4, Signals: st.signals, Log: io.Discard,
		// a trainer built with the race detector would rest a second before it exits
		Env: append(os.Environ(), "SUPERVISE_SCRIPT="+script, "SUPERVISE_FITS="+strconv.Itoa(fits), "GORACE=atexit_sleep_ms=0"),
		Say: func(line string) { fmt.Fprintln(&st.said, line) }, Explain: func(*oom.Log) []string { return []string{"diagnosis"} },
		Publish:  func(r runs.Run) { st.published = append(st.published, r) },
		Interval: 5 * time.Millisecond, Grace: 100 * time.Millisecond, Silence: time.Minute,
	}
	st.Streams = Streams{In: strings.NewReader(""), Out: &st.out, Err: &st.errs}
	return st
}

func (st *stage) run(t *testing.T) Summary {
	t.Helper()
	first, given, err := st.Plan()
	if err != nil {
		t.Fatal(err)
	}
	sum, err := st.Run(context.Background(), first, given)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// batches are the batch lines that the trainer printed, one an attempt.
func (st *stage) batches() []string {
	var list []string
	for _, line := range strings.Split(st.out.String(), "\n") {
		if rest, ok := strings.CutPrefix(line, "batch "); ok {
			list = append(list, rest[:strings.Index(rest, " args")])
		}
	}
	return list
}

func TestRestarts(t *testing.T) {
	for name, c := range map[string]struct {
		script    string
		fits      int
		args      string
		preflight bool
		limit     units.Bytes
		want      []string // what each attempt ran with
		outcome   Outcome
	}{
		"fits":                        {"start", 64, "--batch_size=64", true, 12 * units.GiB, []string{"64 x 40 resume false"}, Done},
		"planned before the start":    {"start", 40, "--batch_size=64", true, 8 * units.GiB, []string{"40 x 64 resume false"}, Done},
		"at the start":                {"start", 48, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "40 x 128 resume false"}, Done},
		"in eval":                     {"eval", 66, "--batch_size=128 --gradient_accumulation_steps=1", false, 0, []string{"128 x 1 resume false", "64 x 2 resume false"}, Done},
		"in the middle":               {"middle", 66, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume true"}, Done},
		"in the middle, other folder": {"middle", 66, "--batch_size=128 --out_dir=mine", false, 0, []string{"128 x 40 resume false", "64 x 80 resume true"}, Done},
		"split over two writes":       {"split", 66, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume false"}, Done},
		"deaf to SIGTERM":             {"deaf", 66, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume false"}, Done},
		"leaves a worker":             {"leaves a worker", 66, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume false"}, Done},
		"stdout flushed at the end":   {"flushes late", 66, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume false"}, Done},
		"twice, the second at resume": {"at resume", 68, "--batch_size=128", false, 0, []string{"128 x 40 resume false", "64 x 80 resume true", "32 x 160 resume true"}, Done},
		"more than the plan said":     {"start", 20, "--batch_size=64 --gradient_accumulation_steps=1", true, 12 * units.GiB, []string{"64 x 1 resume false", "16 x 4 resume false"}, Done},
		"never fits":                  {"start", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, OutOfMemory},
		"nothing smaller":             {"start", 0, "--batch_size=1 --gradient_accumulation_steps=1", false, 0, []string{"1 x 1 resume false"}, OutOfMemory},
		"a Python error":              {"python error", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, Failed},
		"NaN":                         {"nan", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, Failed},
		"another exit code":           {"exit 3", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, Failed},
		"killed":                      {"killed", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, Failed},
		"a signal":                    {"terminated", 0, "--batch_size=64", false, 0, []string{"64 x 40 resume false"}, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStage(t, c.script, c.fits, strings.Fields(c.args)...)
			st.Preflight, st.Limit = c.preflight, c.limit
			st.Streams.Err = teller{&st.errs, filepath.Join(st.dir, looked)}
			if c.script == "deaf" {
				st.Silence = 30 * time.Millisecond
			}
			sum := st.run(t)
			if got := st.batches(); !slices.Equal(got, c.want) {
				t.Errorf("attempts %q, want %q\n%s", got, c.want, &st.said)
			}
			last := sum.Attempts[len(sum.Attempts)-1]
			if last.Outcome != c.outcome {
				t.Errorf("%s, want %s\n%s%s", last.Outcome, c.outcome, &st.said, &st.errs)
			}
			for _, a := range sum.Attempts {
				if b, _ := st.Command.Batch(); a.Batch.Effective() != b.Effective() {
					t.Errorf("effective batch %d, want %d", a.Batch.Effective(), b.Effective())
				}
			}
			if n := strings.Count(st.said.String(), "diagnosis"); c.outcome == Done && n != len(c.want)-1 {
				t.Errorf("%d diagnoses for %d failures", n, len(c.want)-1)
			}
		})
	}
}

// The same failure never comes twice: each attempt is predicted to take less than all that failed before.
func TestContradictionRaisesTheMargin(t *testing.T) {
	st := newStage(t, "start", 10, "--batch_size=64", "--gradient_accumulation_steps=1")
	st.Preflight, st.Limit = true, 12*units.GiB
	st.Planner = linear{50 * units.MiB} // far too low: everything seems to fit
	sum := st.run(t)
	if last := sum.Attempts[len(sum.Attempts)-1]; last.Outcome != Done || last.Batch.Micro > 10 || len(sum.Attempts) < 3 {
		t.Errorf("%+v\n%s", last, &st.said)
	}
	for i, a := range sum.Attempts[1:] {
		if before := sum.Attempts[i]; a.Predicted.Process >= before.Predicted.Process {
			t.Errorf("attempt %d is predicted to take %v, the one before it %v", i+2, a.Predicted.Process, before.Predicted.Process)
		}
	}
}

func TestExitCodesPassThrough(t *testing.T) {
	for script, want := range map[string][2]int{"exit 3": {3, 0}, "start": {0, 0}, "python error": {1, 0}, "killed": {137, 9}, "terminated": {143, 15}} {
		sum := newStage(t, script, 64).run(t)
		if sum.Exit != want[0] || sum.Signal != want[1] {
			t.Errorf("%s: exit %d, signal %d, want %v", script, sum.Exit, sum.Signal, want)
		}
	}
}

func TestOutputPassesThroughUntouched(t *testing.T) {
	st := newStage(t, "python error", 64)
	log := &buffer{}
	st.Log = log
	st.run(t)
	if st.errs.String() != traceback+"ValueError: bad batch\n" || !strings.HasPrefix(st.out.String(), "batch 12 x 40") || strings.Contains(st.out.String(), "ValueError") {
		t.Errorf("stdout %q, stderr %q", &st.out, &st.errs)
	}
	for _, want := range []string{st.out.String(), st.errs.String()} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q", want)
		}
	}
}

// waitFor may be called from any goroutine. A test that ends before has failed by itself.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok() && t.Context().Err() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("waited a minute for %s", what)
			return
		}
	}
}

func TestSignalsPassThrough(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		send   []os.Signal
		exit   int
		out    string
	}{
		"answered":              {"waits", []os.Signal{syscall.SIGUSR1, syscall.SIGTERM}, 7, "got user defined signal 1\ngot terminated\n"},
		"interrupt":             {"waits", []os.Signal{syscall.SIGINT}, 7, "got interrupt\n"},
		"ignored, then it ends": {"waits deaf", []os.Signal{syscall.SIGTERM, syscall.SIGUSR1}, 0, "ready\n"},
		"during a failure":      {"interrupted in failure", []os.Signal{syscall.SIGINT}, 1, "ready\n"},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStage(t, c.script, 1, "--batch_size=64")
			go func() {
				for i, s := range c.send {
					waitFor(t, "the trainer", func() bool { return strings.Count(st.out.String(), "\n") > 1+min(i, strings.Count(c.out, "got")) })
					st.signals <- s
				}
			}()
			sum := st.run(t)
			if sum.Exit != c.exit || !strings.HasSuffix(st.out.String(), c.out) || len(sum.Attempts) != 1 || sum.Attempts[0].Outcome != Interrupted {
				t.Errorf("exit %d, %d attempts, %s, output %q", sum.Exit, len(sum.Attempts), sum.Attempts[0].Outcome, &st.out)
			}
		})
	}
}

// Ctrl-C between two attempts reaches no trainer: there is no second one.
func TestInterruptBetweenAttempts(t *testing.T) {
	st := newStage(t, "start", 16, "--batch_size=64")
	st.Explain = func(*oom.Log) []string {
		st.signals <- syscall.SIGINT
		return nil
	}
	sum := st.run(t)
	if len(sum.Attempts) != 1 || sum.GaveUp != "interrupted" || sum.Exit != 1 {
		t.Errorf("%d attempts, gave up %q, exit %d", len(sum.Attempts), sum.GaveUp, sum.Exit)
	}
}

func TestLeftoversAreSwept(t *testing.T) {
	st := newStage(t, "leaves a worker", 64, "--batch_size=128")
	st.run(t)
	text, err := os.ReadFile("worker.pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(string(text))
	waitFor(t, "the worker's end", func() bool { return startOf(pid) == "" })
}

// Whatever the trainer prints, snug keeps little of it: memory stays flat and the log within its limit.
func TestLongOutput(t *testing.T) {
	mb := 32
	if testing.Short() {
		mb = 8
	}
	st := newStage(t, "chatters", 64, "--batch_size=128")
	st.Env = append(st.Env, "SUPERVISE_MB="+strconv.Itoa(mb))
	log, err := NewLog("logs/run.log", 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	st.Log, st.Streams.Out = log, io.Discard
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sum := st.run(t)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if len(sum.Attempts) != 2 || sum.Attempts[1].Outcome != Done {
		t.Errorf("%+v", sum.Attempts)
	}
	var disk int64
	matches, _ := filepath.Glob("logs/*")
	for _, m := range matches {
		info, err := os.Stat(m)
		if err != nil {
			t.Fatal(err)
		}
		disk += info.Size()
	}
	if disk > 4<<20 || disk < 2<<20 {
		t.Errorf("the log takes %d bytes, want between half of and all of 4 MiB", disk)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes over %d MiB of output", grown, 2*mb)
	}
}

func TestPreflightSaysWhatDoesNotFit(t *testing.T) {
	st := newStage(t, "start", 64, "--batch_size=64")
	st.Preflight, st.Limit = true, 512*units.MiB
	_, _, err := st.Plan()
	var none *DoesNotFitError
	if !errors.As(err, &none) || !strings.Contains(err.Error(), "needs 11.94 GiB, has 0.50 GiB") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}
