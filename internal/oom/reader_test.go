package oom

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/snugml/snug/internal/units"
)

const torchMessage = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total capacity of 11.69 GiB of which 2.68 GiB is free. " +
	"Process 2101 has 224.90 MiB memory in use. Including non-PyTorch memory, this process has 7.04 GiB memory in use. " +
	"Of the allocated memory 6.78 GiB is allocated by PyTorch, and 51.43 MiB is reserved by PyTorch but unallocated. If reserved but " +
	"unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."

// facts reads a log and returns its failure's facts as JSON without nulls.
func facts(t testing.TB, log string) string {
	t.Helper()
	l, err := Read(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	f := l.Failure()
	if f == nil {
		return "none"
	}
	raw, err := json.Marshal(f.Facts)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range m {
		if v == nil || v == "" {
			delete(m, k)
		}
	}
	out, _ := json.Marshal(m)
	return string(out)
}

// The same message must read the same however the log around it is broken.
func TestReaderForms(t *testing.T) {
	want := facts(t, torchMessage)
	if !strings.Contains(want, `"tried":6592774799`) || !strings.Contains(want, `"process":7559142441`) {
		t.Fatalf("plain message: %s", want)
	}
	wrap := func(width int) string {
		var b strings.Builder
		for i, c := range []byte(torchMessage) {
			if i > 0 && i%width == 0 {
				b.WriteByte('\n')
			}
			b.WriteByte(c)
		}
		return b.String()
	}
	words := strings.Fields(torchMessage)
	var folded strings.Builder
	for i, w := range words {
		folded.WriteString(w)
		folded.WriteByte(" \n"[(i%9)/8])
	}
	for name, log := range map[string]string{
		"crlf":          "start\r\n" + torchMessage + "\r\nend\r\n",
		"bar before":    " 10%|█   | 1/10 [00:01<00:09, 1.00it/s]\r 20%|██  | 2/10 [00:02<00:08, 1.00it/s]" + torchMessage + "\n",
		"colours":       "\x1b[31m" + strings.Replace(torchMessage, "Tried to", "\x1b[1mTried\x1b[0m to", 1) + "\x1b[0m\n",
		"timestamp":     "2025-11-12T11:25:13.4961658Z " + torchMessage + "\n",
		"vllm":          "(EngineCore pid=2651) ERROR 05-08 11:47:02 [core.py:1136] " + torchMessage + "\n",
		"quoted":        "> Traceback (most recent call last):\n> " + torchMessage + "\n",
		"wrapped 80":    wrap(80) + "\n",
		"wrapped 57":    wrap(57) + "\n",
		"wrapped words": folded.String(),
		"no line break": strings.Repeat("loss 3.2 ", 20000) + torchMessage + strings.Repeat(" loss 3.2", 20000),
		"json":          `{"level":"error","msg":"Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    main()\n` + torchMessage + `"}` + "\n",
		"json in json":  `{"m":"{\\"e\\":\\"Traceback (most recent call last):\\\\n  File \\\\\\\"C:\\\\\\\\nn\\\\\\\\t.py\\\\\\\", line 3, in f\\\\n    g()\\\\n` + torchMessage + `\\"}"}` + "\n",
		"utf-16":        "\xff\xfe" + utf16(torchMessage+"\r\n"),
		"box":           "│ " + torchMessage + " │\n",
		"twice":         torchMessage + "\n" + torchMessage + "\n",
		"retry before":  "WARNING: CUDA out of memory, will retry\n" + torchMessage + "\n",
		"killed after":  torchMessage + "\nERROR:torch.distributed.elastic:failed (exitcode: -9) local_rank: 1\nKilled\n",
	} {
		if got := facts(t, log); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func utf16(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteByte(c)
		b.WriteByte(0)
	}
	return b.String()
}

// Bytes may arrive in any pieces.
func TestReaderPieces(t *testing.T) {
	log := "iter 0: loss 10.9, time 99.00ms, mfu 1%\r\n[rank1]: Traceback (most recent call last):\n[rank1]:   File \"train.py\", line 300, in <module>\n" +
		"[rank1]:     scaler.scale(loss).backward()\n[rank1]: " + torchMessage + "\n"
	whole := NewReader()
	io.WriteString(whole, log)
	want := whole.Finish()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := NewReader()
		for rest := log; rest != ""; {
			n := min(len(rest), 1+rng.IntN(40))
			io.WriteString(r, rest[:n])
			rest = rest[n:]
		}
		if diff := cmp.Diff(want.Failure(), r.Finish().Failure()); diff != "" {
			t.Fatal(diff)
		}
	}
	f := want.Failure()
	if f.Facts.Rank == nil || *f.Facts.Rank != 1 || f.Trace.Phase() != Backward || f.Line != 5 {
		t.Errorf("rank %v, phase %s, line %d; want 1, backward, 5", f.Facts.Rank, f.Trace.Phase(), f.Line)
	}
}

const (
	traceHead = "Traceback (most recent call last):\n"
	cutCalls  = traceHead + "  File \"train.py\", line 3, in <module>\n    main()\n  File \"train.py\", line 9, in main\n"
)

// What is cut, absurd or no failure gives no number.
func TestReaderInventsNothing(t *testing.T) {
	for log, want := range map[string]string{
		"": "none", "\x00\x01\xff\xfe": "none", "iter 1: loss 2.1, time 3ms\n": "none",
		"If you run into CUDA memory trouble, use a smaller batch.\n":                              "none",
		"triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072\n": "none",
		cutCalls + "    loss.backw":                              "none",
		"# trained OOM-free\n" + cutCalls + "ValueError: 3\n":    "none",
		"# PPO OOM\n" + cutCalls + "ValueError: 3 is no shape\n": "none",
		"I got OOM\n" + cutCalls + "KeyboardInterrupt\n":         "none",
		"ValueError    Traceback (most recent call last)\n" + strings.TrimPrefix(cutCalls, traceHead) + "\nIt is out of memory\n": "none",
		"To avoid OOM use fewer workers\n" + cutCalls:                                                   "none",
		"out of memory, I think\n" + cutCalls + "    loss.backw":                                        `{}`,
		"# PPO OOM\n" + cutCalls + "ValueError: 3\n" + cutCalls + "    loss.":                           `{}`,
		"# Fix OOM handling in the trainer\n\nThis adds a retry.\n":                                     "none",
		"# Report peak memory\n\nOne could see how far from OOM a run is.\n":                            "none",
		"# PPO is slow\n\nI also got an OOM error with the larger model.\n":                             `{}`,
		"# 请问\n\n微调的时候报显存不足\n":                                                                          `{}`,
		"Skilled workers killed the task\n":                                                             "none",
		"RuntimeError: CUDA out of memory. Tried to allocate 2":                                         `{"framework":"pytorch"}`,
		"RuntimeError: CUDA out of memory. Tried to allocate 2.00 Gi":                                   `{"framework":"pytorch"}`,
		"RuntimeError: CUDA out of memory. Tried to allocate 20.00 EiB (GPU 0; 1.00 GiB total capacity": `{"framework":"pytorch","gpu":0,"total":1073741824}`,
		"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.":      `{"framework":"pytorch"}`,
		"CUDA out of memory. Tried to allocate 99999999999999999999999999 GiB (GPU 99999999999999999;":  `{"framework":"pytorch"}`,
	} {
		if got := facts(t, log); got != want {
			t.Errorf("%.60q: got %s, want %s", log, got, want)
		}
	}
}

// A log's last run is the one that counts, unless it went well.
func TestReaderRuns(t *testing.T) {
	first := "Overriding: batch_size = 64\ntokens per iteration will be: 65,536\n" + torchMessage + "\n"
	second := "Overriding: batch_size = 32\ntokens per iteration will be: 32,768\n" + strings.Replace(torchMessage, "6.14", "3.07", 1) + "\n"
	good := "Overriding: batch_size = 8\ntokens per iteration will be: 8,192\niter 0: loss 10.9, time 99.00ms, mfu 1%\n"
	for _, c := range []struct {
		log, batch string
		tried      units.Bytes
	}{{first, "64", 6592774799}, {first + second, "32", 3296387400}, {first + second + good, "32", 3296387400}} {
		l, _ := Read(strings.NewReader(c.log))
		if f := l.Failure(); f == nil || *f.Facts.Tried != c.tried || l.Run.Settings["batch_size"] != c.batch {
			t.Errorf("got %+v batch %s, want %d batch %s", f, l.Run.Settings["batch_size"], c.tried, c.batch)
		}
	}
}

// Memory stays bounded whatever is fed: deep tracebacks, many ranks, endless lines, endless failures.
func TestReaderBounded(t *testing.T) {
	r := NewReader()
	for i := range 20000 {
		fmt.Fprintf(r, "[rank%d]:   File \"f%d.py\", line %d, in forward\n[rank%d]: CUDA out of memory. Tried to allocate %d.00 MiB\n", i, i, i, i, i)
		fmt.Fprintf(r, "  File \"deep%d.py\", line 1, in forward\n", i)
		fmt.Fprintf(r, "Overriding: key%d = 1\n", i)
	}
	r.Write(bytes.Repeat([]byte("x"), 10<<20))
	l := r.Finish()
	if len(l.Failures) > 2*maxFailures || len(r.stacks) > maxRanks || len(l.Run.Settings) > 300 || cap(r.line) > 2*maxPiece {
		t.Errorf("kept %d failures, %d stacks, %d settings, %d bytes of line", len(l.Failures), len(r.stacks), len(l.Run.Settings), cap(r.line))
	}
	for _, f := range l.Failures {
		if len(f.Trace) > maxFrames {
			t.Fatalf("kept %d calls", len(f.Trace))
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"6.14 GiB": {6592774799, 6587406091, 6598143508}, "0 bytes": {0, 0, 0}, "512 bytes": {512, 512, 512},
		"1,024 bytes": {1024, 1024, 1024}, "20.00 MiB": {20971520, 20966278, 20976762}, "890.06M": {933295555, 933290312, 933300797},
	} {
		if got, ok := parseSize(in); !ok || got != want {
			t.Errorf("parseSize(%q) = %v, %v, want %v", in, got, ok, want)
		}
	}
	if s, _ := parseSize("6.14 GiB"); !s.Holds(65536 * 50304 * 2) {
		t.Error("6.14 GiB does not hold 65536 x 50304 bfloat16")
	}
	for _, in := range []string{"", "GiB", "20.00 EiB", "1e9 GiB", "-1 GiB", "3 parsecs"} {
		if got, ok := parseSize(in); ok {
			t.Errorf("parseSize(%q) = %v", in, got)
		}
	}
}

// Nothing makes the reader panic, and every number it gives is printed in the log.
func FuzzReader(f *testing.F) {
	f.Add([]byte(torchMessage), 7)
	f.Add([]byte("\xff\xfeT\x00r\x00"), 1)
	f.Add([]byte("Traceback (most recent call last):\n  File \"a.py\", line 1, in forward\n    x = model(y)\nKilled\n"), 3)
	f.Add([]byte("MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB). Tried to allocate 768.00 MB on private pool."), 64)
	f.Add([]byte("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3743729664 bytes."), 5)
	f.Add([]byte("# Help\n\nTraining works, but when it is validating（验证时）the card\nruns out of memory at this line:\n\nout = model(x)\na.py:1 f -> b.py:2 g\n"), 9)
	f.Fuzz(func(t *testing.T, log []byte, step int) {
		r := NewReader()
		step = max(1, step%1000)
		for rest := log; len(rest) > 0; {
			n := min(step, len(rest))
			r.Write(rest[:n])
			rest = rest[n:]
		}
		l := r.Finish()
		l.Phase()
		l.guess(UnknownPhase)
		for _, failure := range l.Failures {
			failure.Trace.Phase()
			for name, size := range failure.Sizes {
				if size.Bytes < 0 || size.Low > size.Bytes || size.High < size.Bytes || size.Bytes > absurd {
					t.Fatalf("%s = %+v", name, size)
				}
			}
		}
	})
}
