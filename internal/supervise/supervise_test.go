//go:build unix

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
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

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

// linear plans a trainer that takes 1 GiB and a bit for each sequence of its micro-batch.
type linear struct{ each units.Bytes }

func (l linear) predict(batch int) Prediction {
	process := units.GiB + units.Bytes(batch)*l.each
	return Prediction{Phase: "eval", Allocated: process - units.GiB, Reserved: process - units.GiB/2, Process: process}
}

func (l linear) Predict(cfg config.Config, c Conditions) (Prediction, bool, error) {
	p := l.predict(cfg.BatchSize)
	return p, c.Limit == 0 || p.Process <= c.Limit, nil
}

func (l linear) Choices(cfg config.Config, c Conditions) ([]Choice, error) {
	var list []Choice
	whole := cfg.EffectiveBatch()
	for b := cfg.BatchSize; b >= 1; b-- {
		if p := l.predict(b); whole%b == 0 && whole/b%c.World == 0 && p.Process <= c.Limit {
			list = append(list, Choice{Prediction: p, Changes: map[string]string{"batch_size": strconv.Itoa(b), "gradient_accumulation_steps": strconv.Itoa(whole / b)}})
		}
	}
	return list, nil
}

// stage is a folder with a train.py, and a supervisor over the scripted trainer.
type stage struct {
	*Supervisor
	out, errs, said buffer
	signals         chan os.Signal
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

func newStage(t *testing.T, script string, fits int, args ...string) *stage {
	t.Helper()
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	cmd, err := Parse(append([]string{os.Args[0], "train.py"}, args...), "", "")
	if err != nil {
		t.Fatal(err)
	}
	st := &stage{signals: make(chan os.Signal, 1)}
	st.Supervisor = &Supervisor{
		Command: cmd, Planner: linear{175 * units.MiB}, Retries: 4, Signals: st.signals, Log: io.Discard,
		Env: append(os.Environ(), "SUPERVISE_SCRIPT="+script, "SUPERVISE_FITS="+strconv.Itoa(fits)),
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

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s for %s", what)
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
	const mb = 32
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

// fullCard is a machine on which the trainer (whatever its PID) holds nearly all.
type fullCard struct{}

func (fullCard) Snapshot(context.Context) (gpu.Snapshot, error) {
	m := gputest.One()
	m.Cards[0].Memory.Free = 10 * units.MiB
	s, err := m.Snapshot(gputest.Noon)
	for _, p := range descendants(os.Getpid()) {
		held := 9 * units.GiB
		s.Devices[0].Processes = append(s.Devices[0].Processes, gpu.Process{PID: p.pid, Kind: gpu.Compute, Memory: &held})
	}
	return s, err
}

func TestDeathWithTheDeviceFull(t *testing.T) {
	for script, want := range map[string]Outcome{"python error": Failed, "waits": OutOfMemory} {
		st := newStage(t, script, 1, "--batch_size=64", "--gradient_accumulation_steps=1")
		st.Prober, st.Retries = fullCard{}, 0
		if script == "waits" { // it ends by itself, without a word, once it was seen on the full card
			st.Publish = func(r runs.Run) {
				if r.Measured != nil {
					syscall.Kill(r.Processes[0], syscall.SIGTERM)
				}
			}
		}
		sum := st.run(t)
		if a := sum.Attempts[0]; a.Outcome != want {
			t.Errorf("%s: %s, want %s", script, a.Outcome, want)
		} else if want == OutOfMemory && a.Measured != 9*units.GiB {
			t.Errorf("measured %v", a.Measured)
		}
	}
}

// crowded is a card on which another process takes all but 8 GiB as soon as the trainer has been seen there.
type crowded struct{ looks int }

func (c *crowded) Snapshot(context.Context) (gpu.Snapshot, error) {
	if c.looks++; c.looks > 1 { // the first look has been taken in: the trainer may fail
		if err := os.WriteFile("looked", nil, 0o644); err != nil {
			return gpu.Snapshot{}, err
		}
	}
	s, err := gputest.One().Snapshot(gputest.Noon)
	d := &s.Devices[0]
	d.Total, d.Free = 80*units.GiB, 8*units.GiB
	for _, p := range descendants(os.Getpid()) {
		held := 30 * units.GiB
		d.Processes = append(d.Processes, gpu.Process{PID: p.pid, Kind: gpu.Compute, Memory: &held})
	}
	return s, err
}

// A message without numbers leaves the device itself to say how much there is for the next attempt.
func TestRoomIsAskedOfTheDevice(t *testing.T) {
	st := newStage(t, "fails without numbers", 40, "--batch_size=128")
	st.Prober, st.Limit, st.Preflight = &crowded{}, 80*units.GiB, true
	sum := st.run(t)
	want := []string{"128 x 40 resume false", "40 x 128 resume false"}
	if got := st.batches(); !slices.Equal(got, want) || sum.Exit != 0 {
		t.Errorf("%q, want %q: 8 GiB are left\n%s", got, want, &st.said)
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

// eager offers to compile first, as fit does where that is faster.
type eager struct{ linear }

func (e eager) Choices(cfg config.Config, c Conditions) ([]Choice, error) {
	list, err := e.linear.Choices(cfg, c)
	compiled := list[0]
	compiled.Changes = map[string]string{"compile": "True", "batch_size": compiled.Changes["batch_size"], "gradient_accumulation_steps": compiled.Changes["gradient_accumulation_steps"]}
	return append([]Choice{compiled}, list...), err
}

func TestWhatTheUserAskedForIsKept(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	write(t, "eager.py", "compile = False\n")
	for line, want := range map[string]string{
		"python train.py --batch_size=64":                 "--batch_size=20 --compile=True --gradient_accumulation_steps=128",
		"python train.py --batch_size=64 --compile=False": "--batch_size=20 --gradient_accumulation_steps=128",
		"python train.py eager.py --batch_size=64":        "--batch_size=20 --gradient_accumulation_steps=128",
	} {
		cmd, err := Parse(strings.Fields(line), "", "")
		if err != nil {
			t.Fatal(err)
		}
		p := &planned{cmd: cmd, planner: eager{linear{units.GiB / 4}}, tried: map[string]bool{}}
		if s, _, _, err := p.first(6 * units.GiB); err != nil || s.String() != want {
			t.Errorf("%s: %s, %v, want %s", line, s, err, want)
		}
	}
}

func TestTorchrunKeepsAccumulationDivisible(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	cmd, err := Parse(strings.Fields("torchrun --standalone --nproc_per_node=8 train.py --batch_size=12 --gradient_accumulation_steps=40"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	p := &planned{cmd: cmd, planner: linear{units.GiB}, tried: map[string]bool{}}
	s, _, _, err := p.first(8 * units.GiB)
	if err != nil || s.Batch.Accum%8 != 0 || s.Batch.Effective() != 480 {
		t.Errorf("%v, %v: want the product 480 and accumulation a multiple of 8", s, err)
	}
	st := &Supervisor{Command: cmd, Retries: 4, state: state{strategy: p}}
	if why := st.cannotRetry(1); why != "" {
		t.Errorf("one machine: %s", why)
	}
	cmd.Nodes = 2
	if why := st.cannotRetry(1); !strings.Contains(why, "other machines") {
		t.Errorf("two machines: %q", why)
	}
}

func TestLearned(t *testing.T) {
	gib := units.GiB
	for name, c := range map[string]struct {
		trainer Trainer
		given   Batch
		failed  int
		seen    Seen
		want    string // "" is an error
	}{
		"halved":                   {trainers[0], Batch{16, 2}, 16, Seen{}, "--per_device_train_batch_size=8 --gradient_accumulation_steps=4"},
		"scaled after steps":       {trainers[0], Batch{16, 3}, 16, Seen{Limit: 11 * gib, Need: 12 * gib, Progress: true}, "--per_device_train_batch_size=12 --gradient_accumulation_steps=4"},
		"scaled more than by half": {trainers[0], Batch{16, 2}, 16, Seen{Limit: 4 * gib, Need: 12 * gib}, "--per_device_train_batch_size=4 --gradient_accumulation_steps=8"},
		"a prime":                  {trainers[0], Batch{7, 1}, 7, Seen{}, "--per_device_train_batch_size=1 --gradient_accumulation_steps=7"},
		"one already":              {trainers[0], Batch{1, 8}, 1, Seen{}, ""},
		"litgpt":                   {trainers[1], Batch{8, 0}, 8, Seen{}, "--train.micro_batch_size=4"},
		"no accumulation flag":     {Trainer{Name: "other", BatchFlag: "--bs"}, Batch{8, 0}, 8, Seen{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := &learned{cmd: &Command{Trainer: &c.trainer, World: 1}, given: c.given}
			got, err := l.next(Setting{Batch: &Batch{Micro: c.failed}}, c.seen)
			if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
				t.Errorf("%s, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestSeen(t *testing.T) {
	read := func(text string) Seen {
		log, err := oom.Read(strings.NewReader(text))
		if err != nil || len(log.Failures) != 1 {
			t.Fatalf("%v, %+v", err, log)
		}
		return seen(&log.Failures[0].Facts)
	}
	capped := read(outOfMemory)
	if got := capped.Limit.GiB(); got != "12.15 GiB" {
		t.Errorf("limit %s, want the cap of 11.47 and 0.68 that are not PyTorch's", got)
	}
	if got := capped.Need.GiB(); got != "13.62 GiB" {
		t.Errorf("need %s, want 6.80 + 6.14 + 0.68", got)
	}
	shared := read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 11.69 GiB of which 1.00 GiB is free. " +
		"Process 77 has 4.00 GiB memory in use. Including non-PyTorch memory, this process has 6.69 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n")
	if got := shared.Limit.GiB(); got != "7.69 GiB" {
		t.Errorf("limit %s, want what the other process leaves", got)
	}
}

func TestMetrics(t *testing.T) {
	m := &Metrics{}
	loss, iter, limit := 3.25, int64(17), 12*units.GiB
	m.Set(runs.Run{Attempt: 2, Loss: &loss, Iteration: &iter, Limit: &limit})
	s, err := gputest.Lost().Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	m.SetDevices(s.Devices)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		"# TYPE snug_run_attempts_total counter\nsnug_run_attempts_total 2\n", "snug_run_restarts_total 1\n", "snug_run_iteration 17\n", "snug_run_loss 3.25\n",
		"snug_run_memory_limit_bytes 12884901888\n", `snug_gpu_memory_used_bytes{gpu="0",uuid="GPU-3060aaaa-0000-0000-0000-000000000001"} 10309599232` + "\n",
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("lacks %q:\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "step_seconds") || strings.Contains(w.Body.String(), `gpu="1"`) {
		t.Errorf("tells what is not known:\n%s", w.Body)
	}
	w = httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 404 {
		t.Errorf("/ answers %d", w.Code)
	}
}

func TestProgress(t *testing.T) {
	clock := time.Unix(0, 0)
	for name, c := range map[string]struct {
		text, want string
	}{
		"nanoGPT":      {"iter 250: loss 3.2104, time 312.04ms, mfu 41.20%\n", "250 3.2104 312.04ms"},
		"NaN":          {"iter 250: loss nan, time 312.00ms, mfu 41.20%\n", "250 NaN 312ms"},
		"Hugging Face": {" 5%|5   | 250/5000 [01:20<25:20,  3.12it/s]\r{'loss': 3.5, 'grad_norm': 1.0, 'epoch': 0.02}\n", "250 3.5 -"},
		"litgpt":       {"Epoch 1 | iter 250 step 31 | loss train: 3.210, val: n/a | iter time: 312.00 ms (step)\n", "250 3.21 312ms"},
		"nothing":      {"loss of signal | 3\n", "- - -"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProgressReader(func() time.Time { return clock })
			fmt.Fprint(r, c.text)
			n := r.Now()
			got := []string{"-", "-", "-"}
			if n.Iteration != nil {
				got[0] = fmt.Sprint(*n.Iteration)
			}
			if n.Loss != nil {
				got[1] = fmt.Sprint(*n.Loss)
			}
			if n.Step != nil {
				got[2] = n.Step.String()
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
		})
	}
	r := newProgressReader(func() time.Time { return clock })
	for i, ms := range []int{20000, 300, 310, 305, 900} {
		fmt.Fprintf(r, "iter %d: loss 3.2, time %d.00ms, mfu 1%%\n", i, ms)
	}
	if n := r.Now(); *n.Step != 900*time.Millisecond || *n.Usual != 305*time.Millisecond {
		t.Errorf("step %v, usual %v: the first holds the compiler's time", n.Step, n.Usual)
	}
}

// A script that mends a failure by itself and ends later for another reason has not run out of memory.
func TestWentOn(t *testing.T) {
	clock := time.Unix(100, 0)
	r := newProgressReader(func() time.Time { return clock })
	const iter = "iter 3: loss 3.2, time 300.00ms, mfu 1%\n"
	fmt.Fprint(r, iter, outOfMemory)
	fmt.Fprint(r, iter)
	if r.wentOn() {
		t.Error("a line of progress at once: that is Python's buffer, flushed at its end")
	}
	clock = clock.Add(time.Minute)
	if d, failed := r.silentSince(clock); !failed || d != time.Minute {
		t.Errorf("silent for %v, %v", d, failed)
	}
	fmt.Fprint(r, iter)
	if _, failed := r.silentSince(clock); failed || !r.wentOn() {
		t.Error("a line of progress after a minute: it went on")
	}
}

// Two streams never mix inside a line, and nothing is lost.
func TestLinesKeepStreamsApart(t *testing.T) {
	var out bytes.Buffer
	mu := &sync.Mutex{}
	a, b := &lines{mu: mu, to: &out}, &lines{mu: mu, to: &out}
	io.WriteString(a, "one ")
	io.WriteString(b, "two\nand ")
	io.WriteString(a, "line\nrest")
	io.WriteString(b, strings.Repeat("x", longLine))
	a.flush()
	b.flush()
	if want := "two\none line\nand " + strings.Repeat("x", longLine) + "rest"; out.String() != want {
		t.Errorf("%.80q", out.String())
	}
}

func FuzzProgress(f *testing.F) {
	f.Add([]byte("iter 250: loss 3.2104, time 312.04ms, mfu 41.20%\n"))
	f.Add([]byte("\r| 3/4 [\r\n{'loss': inf, x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := newProgressReader(time.Now)
		l := &lines{mu: &sync.Mutex{}, to: r}
		for len(text) > 0 {
			n := min(7, len(text))
			l.Write(text[:n])
			text = text[n:]
		}
		l.flush()
		if s := r.Now().Step; s != nil && *s < 0 {
			t.Errorf("a step of %v", *s)
		}
	})
}
