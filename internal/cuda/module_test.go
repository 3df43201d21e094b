package cuda

import (
	"strconv"
	"strings"
	"testing"
)

// The committed outputs were made from these sources: whoever edits a kernel runs go generate.
func TestArchivesAreFresh(t *testing.T) {
	for _, target := range Archives {
		files, err := Archive(target)
		if err != nil {
			t.Fatal(err)
		}
		hashes := map[string]string{}
		for line := range strings.Lines(string(files[HashFile])) {
			unit, hash, _ := strings.Cut(strings.TrimSpace(line), " ")
			hashes[unit] = hash
		}
		for _, u := range Units() {
			if hashes[u.Name] != u.Hash() {
				t.Errorf("%s/%s was not made from the sources that are here: run go generate ./internal/cuda", target, u.Name)
			}
			if len(files[u.Name]) == 0 {
				t.Errorf("%s has no %s", target, u.Name)
			}
		}
	}
}

// PTX is for any card from Ampere on, in a version that drivers of CUDA 11.8 take.
func TestPTXIsGeneric(t *testing.T) {
	files, err := Archive("compute_80")
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range Units() {
		text := string(files[u.Name])
		for _, want := range []string{".version 7.8\n", ".target sm_80\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q", u.Name, want)
			}
		}
	}
}

// Limits of an RTX 3060 (sm_86): what every kernel must keep to be launched there.
const (
	mostShared    = 99 << 10
	mostRegisters = 64 << 10 // a block's
)

// Every kernel fits an RTX 3060, with the threads and the shared memory that it is launched with, and spills nothing.
func TestKernelsFitSmallCards(t *testing.T) {
	files, err := Archive("compute_80")
	if err != nil {
		t.Fatal(err)
	}
	type launch struct{ threads, shared int }
	launches := map[string]launch{"attention_any_forward": {threads: 128}, "attention_any_backward_q": {threads: 128}, "attention_any_backward_kv": {threads: 128}}
	for _, layout := range []string{"nt", "nn", "tn"} {
		for _, tile := range []ownTile{wideTile, squareTile, smallTile} {
			launches["matmul_"+layout+"_"+tile.name] = launch{tile.threads, tile.shared}
		}
	}
	for _, hs := range headSizes {
		s := attentionShapes[hs]
		for _, drop := range []string{"", "_drop"} {
			n := strconv.Itoa(hs) + drop
			launches["attention_forward_"+n] = launch{s.fw * 32, s.forwardShared(hs)}
			launches["attention_backward_kv_"+n] = launch{s.kw * 32, s.kvShared(hs)}
			launches["attention_backward_q_"+n] = launch{s.qw * 32, s.qShared(hs)}
		}
	}
	for packs, warps := range backwardWarps {
		launches["layernorm_backward_p"+strconv.Itoa(packs)] = launch{warps * 32, backwardShared(packs)}
	}
	kernels := 0
	for line := range strings.Lines(string(files[ResourceFile])) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 5 {
			continue
		}
		kernels++
		registers, _ := strconv.Atoi(f[2])
		shared, _ := strconv.Atoi(f[3])
		stack, _ := strconv.Atoi(f[4])
		l, ok := launches[f[1]]
		switch {
		case ok:
		case strings.Contains(f[1], "layernorm") && f[1] != "layernorm_backward_weight":
			l.threads = rowWarps * 32
		default:
			l.threads = 1024 // the most that any other kernel is launched with
		}
		if stack != 0 {
			t.Errorf("%s %s keeps %d bytes a thread in local memory", f[0], f[1], stack)
		}
		if shared+l.shared > mostShared {
			t.Errorf("%s %s takes %d bytes of shared memory, the card has %d", f[0], f[1], shared+l.shared, mostShared)
		}
		if registers*l.threads > mostRegisters {
			t.Errorf("%s %s: %d threads of %d registers, a block has %d", f[0], f[1], l.threads, registers, mostRegisters)
		}
	}
	if kernels < 100 {
		t.Errorf("%d kernels in %s, want all of them", kernels, ResourceFile)
	}
}

// The host's conversions are those of the hardware: to the nearest, ties to even, and exact on the way back.
func TestConversions(t *testing.T) {
	for h := range 1 << 16 {
		if f := fromFloat16(uint16(h)); f == f && float16(f) != uint16(h) {
			t.Fatalf("float16 %#04x is %g and comes back as %#04x", h, f, float16(f))
		}
	}
	for _, c := range []struct {
		x    float32
		want uint16
	}{{1, 0x3f80}, {1 + 1.0/256, 0x3f80}, {1 + 3.0/256, 0x3f82}, {-2, 0xc000}, {3.4e38, 0x7f80}} {
		if got := bfloat16(c.x); got != c.want {
			t.Errorf("bfloat16(%g) is %#04x, want %#04x", c.x, got, c.want)
		}
	}
	for _, c := range []struct {
		x    float32
		want uint16
	}{{65504, 0x7bff}, {65519, 0x7bff}, {65520, 0x7c00}, {1 + 1.0/2048, 0x3c00}, {1 + 3.0/2048, 0x3c02}, {6e-8, 1}, {2.9e-8, 0}} {
		if got := float16(c.x); got != c.want {
			t.Errorf("float16(%g) is %#04x, want %#04x", c.x, got, c.want)
		}
	}
}

// BenchmarkKernels is a part of every start.
func BenchmarkKernels(b *testing.B) {
	for b.Loop() {
		Kernels()
	}
}
