package torch

import (
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
)

// Two chains that were lowered side by side run one after the other, because that holds one large buffer at a time; and
// who reads what another adds to still waits for it.
func TestScheduleTakesTheLowestPeak(t *testing.T) {
	g := newGraph(newBuilder(8), newKernels(h200), 5, 4)
	var small, large [2]gid
	for i := range large {
		large[i] = g.buf(tensor("large", trace.Activation, trace.Float32, 1000))
		small[i] = g.buf(tensor("small", trace.Activation, trace.Float32, 1))
		g.keep(small[i])
	}
	g.add(gnode{name: "a", outs: large[:1]})
	g.add(gnode{name: "b", outs: large[1:]})
	g.add(gnode{name: "add to a", ins: large[:1], changes: large[:1]})
	g.add(gnode{name: "read a", outs: small[:1], ins: large[:1]})
	g.add(gnode{name: "read b", outs: small[1:], ins: large[1:]})
	g.schedule()
	order := ""
	for _, n := range g.nodes {
		order += n.name + ", "
	}
	if want := "a, add to a, read a, b, read b, "; order != want {
		t.Errorf("runs %s, not %s", order, want)
	}
}

// Padding is what the timings on an H200 say where they say it, and else the larger of the two.
func TestPaddingOfTheGradient(t *testing.T) {
	for name, c := range map[string]struct {
		dev         Device
		d           dims
		pads, known bool
	}{
		"c_small_hs160":   {h200, dims{B: 6, T: 256, C: 320, V: 50257, half: trace.BFloat16}, false, true},
		"c_v50257_b4":     {h200, dims{B: 4, T: 1024, C: 768, V: 50257, half: trace.BFloat16}, true, true},
		"GPT-2 XL":        {h200, dims{B: 1, T: 1024, C: 1600, V: 50257, half: trace.Float16}, true, true},
		"between":         {h200, dims{B: 4, T: 1024, C: 512, V: 50257, half: trace.BFloat16}, true, false},
		"characters":      {h200, dims{B: 64, T: 256, C: 384, V: 65, half: trace.BFloat16}, true, false},
		"float32":         {h200, dims{B: 4, T: 1024, C: 320, V: 50257, half: trace.Float32}, true, false},
		"not timed there": {rtx3060, dims{B: 4, T: 1024, C: 320, V: 50257, half: trace.BFloat16}, true, false},
	} {
		if pads, known := newKernels(c.dev).padsGrad(c.d); pads != c.pads || known != c.known {
			t.Errorf("%s: pads %v, known %v", name, pads, known)
		}
	}
	cfg := config.Default()
	cfg.VocabSize = 50257
	for _, dtype := range []string{"bfloat16", "float32"} {
		cfg.DType = dtype
		padded := Simulate(mustBuild(t, cfg, Options{Device: rtx3060}), AllocConf{}, 0)
		left := Simulate(mustBuild(t, cfg, Options{Device: rtx3060, Unpadded: true}), AllocConf{}, 0)
		if left.Peak().PeakAllocated >= padded.Peak().PeakAllocated {
			t.Errorf("%s: %v without the copy, %v with it", dtype, left.Peak().PeakAllocated, padded.Peak().PeakAllocated)
		}
	}
}

// Over the settings that people train with, a compiled run never costs less for a larger batch or more layers, and is never far
// from an eager one.
func TestCompiledIsSmooth(t *testing.T) {
	peak := func(cfg config.Config) float64 {
		r := Simulate(mustBuild(t, cfg, Options{Device: h200}), AllocConf{}, 0)
		return float64(r.Peak().PeakAllocated)
	}
	for _, dtype := range []string{"bfloat16", "float32"} {
		for _, vocabulary := range []int{65, 50257, 50304} {
			for _, other := range []bool{false, true} {
				for _, shape := range [][4]int{{3, 384, 6, 256}, {4, 768, 12, 1024}, {2, 1280, 20, 512}} {
					cfg := config.Default()
					cfg.DType, cfg.VocabSize, cfg.GradientAccumulationSteps = dtype, vocabulary, 2
					cfg.NLayer, cfg.NEmbd, cfg.NHead, cfg.BlockSize = shape[0], shape[1], shape[2], shape[3]
					if cfg.Bias = other; other {
						cfg.Dropout = 0.1
					}
					last := 0.0
					for _, cfg.BatchSize = range []int{1, 2, 8, 23, 24, 64} {
						cfg.Compile = true
						now, deeper := peak(cfg), cfg
						deeper.NLayer++
						if now < last || peak(deeper) < now {
							t.Errorf("%s, %d words, %v, batch %d: %.0f after %.0f, a layer more %.0f", dtype, vocabulary, shape, cfg.BatchSize, now, last, peak(deeper))
						}
						cfg.Compile = false
						if eager := peak(cfg); now > 1.3*eager || now < 0.5*eager {
							t.Errorf("%s, %d words, %v, batch %d: %.0f compiled, %.0f eager", dtype, vocabulary, shape, cfg.BatchSize, now, eager)
						}
						last = now
					}
				}
			}
		}
	}
}

// What backward keeps of the first layernorm is what PyTorch's own partitioner answers for nanoGPT's model. The answers are
// torch 2.15's on a CPU, whose weights of a cut are 2.11's; batches of 1 and 2 at 768 and more were recorded as well.
func TestKeepsWhatThePartitionerKeeps(t *testing.T) {
	for _, c := range []struct {
		batch, width int
		dropout      bool
		embeddings   bool
	}{
		{1, 64, false, false}, {2, 64, false, false}, {3, 64, false, true}, {8, 64, false, true},
		{2, 640, false, false}, {2, 672, false, false}, {2, 696, false, true}, {2, 768, false, true},
		{1, 256, true, false}, {4, 64, true, false}, {4, 768, true, false}, {4, 2048, true, false},
		{5, 32, true, false}, {5, 64, true, true}, {6, 256, true, true},
	} {
		f := compiledForward{compiler: &compiler{dims: dims{B: c.batch, T: 64, C: c.width}, train: true, dropout: c.dropout}}
		if f.again() != c.embeddings {
			t.Errorf("batch %d, %d wide, dropout %v: keeps the embeddings %v", c.batch, c.width, c.dropout, f.again())
		}
	}
}
