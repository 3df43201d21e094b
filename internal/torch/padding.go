package torch

import (
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
)

// Inductor pads lm_head's three products where a row of logits is no multiple of 16 bytes: GPT-2's 50257 words, or 65
// characters (torch/_inductor/fx_passes/pad_mm.py). It first asks whether a product is bound by arithmetic; PyTorch 2.11
// compares with the card's rate a thousand times too small (get_device_tflops gives Triton megahertz for kilohertz), so the
// answer is yes. Then it times the product as it is against 1.1 times the padded one with the copies that padding needs.
//
// The logits and their gradient times the weights gain too much to be in doubt: a half and less of the time in every
// recorded run of 50257 words. The weights' gradient reads the logits' gradient across, and its copy costs about as much
// as the product gains.

// padV is the vocabulary as padded.
func (d dims) padV() int {
	n := 16 / int(d.half.Size())
	return ceilDiv(d.V, n) * n
}

func (d dims) padded() bool { return d.padV() != d.V }

// What Inductor's timings on an H200 took, as the repetitions show that it made in 25 ms each (1536 tokens of 320 and 4096
// of 768, 50257 words, bfloat16). The product of odd rows is faster for larger matrices.
const (
	oddSlow, oddFast = 107e12, 139e12 // operations a second, rows of an odd length
	evenRate         = 771e12         // padded
	crossing         = 7.0e-12        // seconds to copy an element across, and to have filled its place
	padsBelow        = 1 / 1.1        // the share of the time that padding must stay below (is_padded_faster)
	launches         = 1e-4           // seconds, below which launching kernels is what is timed
)

// padsGrad says whether Inductor pads the weights' gradient, and whether that is known. Where it is not, the answer is
// yes, which takes more memory.
func (k *kernels) padsGrad(d dims) (pads, known bool) {
	perWord := 2 * float64(d.C)
	slow, fast, even := perWord/oddSlow, perWord/oddFast, perWord/evenRate+crossing
	words := float64(d.N()) * float64(d.V)
	switch {
	case k.dev.Capability != 90 || d.half == trace.Float32 || words*slow < launches:
		return true, false
	case even >= padsBelow*slow:
		return false, true
	}
	return true, even < padsBelow*fast
}

// PaddingKnown says whether it is known what a compiled run does with lm_head's gradient. If not, Inductor's timing on the
// machine decides: Build supposes the copy that takes more memory, and with Options.Unpadded that there is none.
func PaddingKnown(cfg config.Config, opt Options) bool {
	d := dimsOf(cfg)
	if !cfg.Compile || !d.padded() {
		return true
	}
	_, known := newKernels(opt.Device.orTypical()).padsGrad(d)
	return known
}

// measurePadding is Inductor's timing of lm_head's product: operands and result are real tensors, and the L2 cache is
// flushed.
func (f *compiledForward) measurePadding() {
	k, b := f.kernels, f.b
	size := int(f.half.Size())
	x, w := k.scratch(b, "pad_mm.mat1", f.N()*f.C*size), k.scratch(b, "pad_mm.mat2", f.V*f.C*size)
	out := k.scratch(b, "pad_mm.out", f.N()*f.V*size)
	k.blas(b, false)
	b.free(out)
	if k.dev.L2 > 0 {
		b.free(k.scratch(b, "inductor.l2_flush", int(k.dev.L2)))
	}
	b.free(k.scratch(b, "pad_mm.out (padded)", f.N()*f.padV()*size), x, w)
}
