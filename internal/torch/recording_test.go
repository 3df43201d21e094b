package torch

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recording is one run of train.py as scripts/record/record.py wrote it down.
type recording struct {
	name    string
	summary runSummary
	stacks  []string
	events  []recordedEvent
}

// runSummary is a measured run: the first line of a recording, and a line of torch-memory.jsonl.
type runSummary struct {
	Name       string            `json:"name"`
	Config     map[string]any    `json:"config"`
	Env        map[string]string `json:"env"`
	Ampere     bool              `json:"ampere"` // recorded with FlashAttention and cuBLAS's small workspace
	AfterInit  int64             `json:"after_init"`
	Eval       *phaseSummary     `json:"eval"`
	FirstStep  *phaseSummary     `json:"first_step"`
	Step       *phaseSummary     `json:"step"`
	ProcessMiB int64             `json:"process_mib"`
}

type phaseSummary struct {
	PeakAllocated int64 `json:"peak_allocated"`
	PeakReserved  int64 `json:"peak_reserved"`
	After         int64 `json:"after"`
}

type recordedEvent struct {
	action string // alloc, free_completed, segment_alloc, segment_map
	addr   int64
	size   int64
	stack  int
	phase  string // the phase that the event belongs to
}

// recordings reads every recording kept as test data, and those in SNUG_RECORDINGS, a folder of further ones.
func recordings(t testing.TB) []recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("SNUG_RECORDINGS"); dir != "" {
		more, err := filepath.Glob(filepath.Join(dir, "*.json.gz"))
		if err != nil {
			t.Fatal(err)
		}
		files = more
	}
	var all []recording
	for _, f := range files {
		r, err := readRecording(f)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all = append(all, r)
	}
	return all
}

func readRecording(file string) (recording, error) {
	r := recording{name: strings.TrimSuffix(filepath.Base(file), ".json.gz")}
	f, err := os.Open(file)
	if err != nil {
		return r, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return r, err
	}
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 64<<20)
	for n := 0; lines.Scan(); n++ {
		switch n {
		case 0:
			err = json.Unmarshal(lines.Bytes(), &r.summary)
			r.summary.Name = r.name
		case 1:
			err = json.Unmarshal(lines.Bytes(), &r.stacks)
		default:
			var e recordedEvent
			err = json.Unmarshal(lines.Bytes(), &[]any{&e.action, &e.addr, &e.size, &e.stack, &e.phase})
			r.events = append(r.events, e)
		}
		if err != nil {
			return r, fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return r, lines.Err()
}

// The simulated allocator, given a recorded run's requests and the addresses of its segments, hands out the same blocks,
// asks the driver for the same segments at the same moments, and ends up with PyTorch's own figures.
func TestAllocatorReplaysRecordings(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			conf, err := ParseAllocConf(r.summary.Env["PYTORCH_CUDA_ALLOC_CONF"])
			if err != nil {
				t.Fatal(err)
			}
			a := newAllocator(conf, 0)
			at := map[int64]int32{}
			peaks := map[string]*phaseSummary{}
			var grown, allocatedAt, segment int64
			a.address = func(int64) int64 { return segment }
			for n, e := range r.events {
				switch e.action {
				case "segment_alloc", "segment_map":
					grown += e.size
					segment = e.addr
					continue
				case "free_completed":
					a.release(at[e.addr])
				case "alloc":
					before := a.reserved
					at[e.addr] = a.alloc(e.size)
					if got := a.reserved - before; got != grown {
						t.Fatalf("event %d (%s, %s): request of %d grew reserved by %d, PyTorch by %d, at %d allocated",
							n, e.phase, r.stacks[e.stack], e.size, got, grown, allocatedAt)
					}
					if got := a.blocks[at[e.addr]].addr; got != e.addr && !conf.Expandable {
						t.Fatalf("event %d (%s, %s): request of %d put at %#x, by PyTorch at %#x", n, e.phase, r.stacks[e.stack], e.size, got, e.addr)
					}
					grown = 0
				default:
					t.Fatalf("event %d: %s", n, e.action)
				}
				allocatedAt = a.allocated
				p := peaks[e.phase]
				if p == nil {
					p = &phaseSummary{}
					peaks[e.phase] = p
				}
				p.PeakAllocated, p.PeakReserved, p.After = max(p.PeakAllocated, a.allocated), max(p.PeakReserved, a.reserved), a.allocated
			}
			for name, want := range map[string]*phaseSummary{"eval": r.summary.Eval, "first_step": r.summary.FirstStep, "step": r.summary.Step} {
				if got := peaks[name]; want != nil && (got == nil || *got != *want) {
					t.Errorf("%s: got %+v, PyTorch has %+v", name, got, want)
				}
			}
		})
	}
}
