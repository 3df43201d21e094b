package torch

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// h200 is the card that every recording and every line of torch-memory.jsonl was measured on.
var h200 = Device{Capability: 90, SMs: 132, L2: 60 * units.MiB}

// vocabularies are the data sets of scripts/record/matrix.py that have a meta.pkl.
var vocabularies = map[string]int{"shakespeare_char": 65, "v65": 65, "v1000": 1000, "v50257": 50257}

// settings turns a measured run's overrides into settings, with the passes that it made.
func (s *runSummary) settings(t testing.TB) (config.Config, Options, AllocConf, passes) {
	t.Helper()
	cfg := config.Default()
	opt := Options{Device: h200}
	for key, v := range s.Config {
		if f, ok := v.(float64); ok {
			if setting, ok := config.Lookup(key); ok && setting.Type() == "int" {
				v = int(f)
			}
		}
		if err := cfg.Set(key, v); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
	}
	cfg.VocabSize = vocabularies[cfg.Dataset]
	if s.Ampere {
		opt.Device.Capability = 80
	}
	opt.Resume = cfg.InitFrom == "resume"
	if n, err := strconv.Atoi(s.Env["WORLD_SIZE"]); err == nil {
		opt.WorldSize = n
		opt.DDP = true
	}
	conf, err := ParseAllocConf(s.Env["PYTORCH_CUDA_ALLOC_CONF"])
	if err != nil {
		t.Fatal(err)
	}
	steps := cfg.MaxIters
	if opt.Resume {
		steps = 1
	}
	return cfg, opt, conf, passes{eval: 2 * cfg.EvalIters, micro: cfg.GradientAccumulationSteps, steps: steps}
}

// life is one event of a trace or of a recording, comparable with the other: what was allocated, or the allocation,
// by its number, that was freed.
type life struct {
	size  int64
	frees int // the number of the allocation that ends, or -1
	what  string
}

func (l life) String() string {
	if l.frees >= 0 {
		return fmt.Sprintf("free of allocation %d, %s", l.frees, l.what)
	}
	return fmt.Sprintf("allocation of %d bytes, %s", l.size, l.what)
}

// earlier is the number of what was allocated before the phase in question.
const earlier = 1 << 30

// lives are the events of a phase, or with "" of the whole run.
func (r *recording) lives(phase string) []life {
	var out []life
	number := map[int64]int{}
	what := map[int]string{earlier: "born earlier"}
	n := 0
	for _, e := range r.events {
		within := phase == "" || e.phase == phase
		switch {
		case e.action == "alloc" && !within:
			number[e.addr] = earlier
		case e.action == "alloc":
			number[e.addr] = n
			what[n] = e.phase + ": " + r.stacks[e.stack]
			out = append(out, life{e.size, -1, what[n]})
			n++
		case e.action == "free_completed" && within:
			out = append(out, life{e.size, number[e.addr], what[number[e.addr]]})
		}
	}
	return normal(out)
}

func lives(tr *trace.Trace, phase string) []life {
	var out []life
	number := make([]int, len(tr.Tensors))
	n := 0
	for _, p := range tr.Phases {
		within := phase == "" || p.Name == phase
		for _, e := range p.Events {
			name, size := p.Name+": "+tr.Tensors[e.Tensor].Name, int64(tr.Tensors[e.Tensor].Bytes)
			switch {
			case e.Free && within:
				out = append(out, life{size, number[e.Tensor], name})
			case e.Free:
			case within:
				number[e.Tensor] = n
				out = append(out, life{size, -1, name})
				n++
			default:
				number[e.Tensor] = earlier
			}
		}
	}
	return normal(out)
}

// normal sorts neighbouring frees: their order changes nothing, and autocast's cache has none.
func normal(all []life) []life {
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].frees >= 0 {
			j++
		}
		slices.SortFunc(all[i:j], func(a, b life) int { return cmp.Or(a.frees-b.frees, int(default512(a.size)-default512(b.size))) })
		i = max(j, i+1)
	}
	return all
}

// firstDifference names the first event in which a trace and a recording differ.
func firstDifference(ours, theirs []life) (int, string) {
	for i := range min(len(ours), len(theirs)) {
		if default512(ours[i].size) != default512(theirs[i].size) || ours[i].frees != theirs[i].frees {
			return i, fmt.Sprintf("event %d of %d: ours is %v; recorded is %v", i, len(theirs), ours[i], theirs[i])
		}
	}
	if len(ours) != len(theirs) {
		return min(len(ours), len(theirs)), fmt.Sprintf("ours has %d events, recorded are %d", len(ours), len(theirs))
	}
	return -1, ""
}

// default512 is the block that a request takes: two requests of one block are the same to memory.
func default512(bytes int64) int64 { return (bytes + minBlock - 1) / minBlock * minBlock }

// other are recorded runs whose compiled step the trace does not know event by event, and why.
var other = map[string]string{
	"c_char":        "the timing of 65 columns, which is one of launches, left lm_head unpadded",
	"c_small_all16": "the timing of 65 columns, which is one of launches, left lm_head unpadded",
	"c_small_hs36":  "the timing of products 180 wide padded some of them",
	"c_char128":     "of several dead buffers of one size, Inductor takes the first by name",
	"c_small_ddp":   "DDP cuts the graph at its buckets",
}

// Every run's trace equals its recording, event by event: an eager one's whole, a compiled one's steps after the first,
// in which kernels are no longer timed.
func TestTraceEqualsRecording(t *testing.T) {
	for _, r := range recordings(t) {
		t.Run(r.name, func(t *testing.T) {
			cfg, opt, _, n := r.summary.settings(t)
			phase := ""
			switch {
			case other[r.name] != "":
				t.Skip(other[r.name])
			case cfg.Compile:
				phase = "step"
			case strings.HasSuffix(r.name, "_save"):
				t.Skip("has a later evaluation, which the trace leaves out")
			}
			tr, err := build(cfg, opt, n)
			if err != nil {
				t.Fatal(err)
			}
			if at, diff := firstDifference(lives(tr, phase), r.lives(phase)); at >= 0 {
				t.Error(diff)
			}
		})
	}
}
