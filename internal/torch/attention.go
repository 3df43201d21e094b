package torch

import "github.com/snugml/snug/internal/trace"

// attentionKind is the kernel that scaled_dot_product_attention chooses.
type attentionKind int

const (
	cudnnAttention     attentionKind = iota
	flashAttention                   // FlashAttention 2
	efficientAttention               // the memory-efficient one, from xFormers
)

// headMultiple is what heads must be a multiple of: others are padded for flash, and cuDNN refuses them.
const headMultiple = 8

// attention is the kernel for these sizes on the device, in PyTorch's order of preference (aten/src/ATen/native/
// transformers/cuda/sdp_utils.cpp): cuDNN on Hopper and data-centre Blackwell, flash from Ampere on, both in half precision.
func (k *kernels) attention(d dims) attentionKind {
	switch {
	case d.half == trace.Float32 || k.dev.Capability < 80 || d.HS > 256:
		return efficientAttention
	case (k.dev.Capability == 90 || k.dev.Capability == 100) && d.HS%headMultiple == 0:
		return cudnnAttention
	}
	return flashAttention
}

// attend is the forward of scaled_dot_product_attention, and of y.transpose(1, 2).contiguous().
func (f *forward) attend(i int) {
	s := &f.layers[i]
	s.seed, s.offset, s.lse, s.pads = nothing, nothing, nothing, [4]ref{nothing, nothing, nothing, nothing}
	switch f.kernels.attention(f.dims) {
	case cudnnAttention:
		s.seed, s.offset = f.in(i, sSeed), f.in(i, sOffset)
		s.att = f.in(i, sAtt)
		if f.train {
			s.lse = f.in(i, sLse)
		}
		f.free(f.bytes(i, sAttSpace, 256))
		if !f.train {
			f.free(s.seed, s.offset)
		}
	case efficientAttention:
		s.att = f.in(i, sAtt)
		if f.train {
			s.lse = f.in(i, sLse)
		}
	case flashAttention:
		f.flash(i)
	}
}

// flash is FlashAttention 2's forward. Heads of an odd size are padded before and cut after.
func (f *forward) flash(i int) {
	s := &f.layers[i]
	padded := f.HS%headMultiple != 0
	if padded {
		s.pads[0], s.pads[1], s.pads[2] = f.in(i, sPadQ), f.in(i, sPadK), f.in(i, sPadV)
		s.pads[3] = f.in(i, sPadY)
	} else {
		s.att = f.in(i, sAtt)
	}
	s.lse = f.in(i, sLse)
	s.seed, s.offset = f.bytes(i, sRngState, 16), f.in(i, sOffset)
	if f.train && f.dropout { // the kernel's state takes the place of the default one
		state := f.bytes(i, sRngState, 16)
		f.free(s.seed)
		s.seed = state
	}
	if !f.train {
		f.free(s.lse, s.seed, s.offset, s.pads[2], s.pads[1], s.pads[0])
	}
	if padded {
		s.att = f.in(i, sAtt)
		if !f.train {
			f.free(s.pads[3])
		}
	}
}

// attendBackward is its backward, and the concatenation of the three gradients into c_attn's.
func (g *backward) attendBackward(i int, datt ref) ref {
	s := &g.layers[i]
	if s.pads[0] != nothing {
		return g.flashPaddedBackward(i, datt)
	}
	dq, dk, dv := g.in(i, sDQ), g.in(i, sDK), g.in(i, sDV)
	switch g.kernels.attention(g.dims) {
	case cudnnAttention:
		heads := g.B * g.NH * g.T
		g.free(g.bytes(i, sDAttSpace, heads*g.HS*4+heads*4+256))
	case flashAttention:
		g.flashSpace(i)
	case efficientAttention:
		product, delta, delta2 := g.in(i, sDAttProduct), g.in(i, sDAttDelta), g.in(i, sDAttDelta2)
		g.free(delta, product)
		space := g.bytes(i, sDAttSpace, g.B*g.NH*ceilDiv(g.T, 64)*ceilDiv(g.HS, 64)*(64*64*4+16))
		g.free(delta2, space)
	}
	g.free(datt, s.qkv, s.lse, s.att, s.offset, s.seed)
	dqkv := g.in(i, sDQKV)
	g.free(dq, dk, dv)
	return dqkv
}

// flashSpace is what FlashAttention 2's backward takes: a row sum, and dq in float32 to add to, rounded up to
// 128 rows and to heads of 32.
func (g *backward) flashSpace(i int) {
	rows := ceilDiv(g.T, 128) * 128
	head := ceilDiv(g.padHS(), 32) * 32
	sum := g.bytes(i, sDSoftmaxSum, g.B*g.NH*rows*4)
	acc := g.bytes(i, sDAttSpace, g.B*rows*g.NH*head*4)
	g.free(acc, sum)
}

// flashPaddedBackward is the same around padded heads: the gradients are cut back to their size and copied.
func (g *backward) flashPaddedBackward(i int, datt ref) ref {
	s := &g.layers[i]
	dy := g.in(i, sDPadY)
	g.free(datt)
	copyY, copyDY := g.in(i, sPadYCopy), g.in(i, sDPadYCopy)
	dq, dk, dv := g.in(i, sDPadQ), g.in(i, sDPadK), g.in(i, sDPadV)
	g.flashSpace(i)
	g.free(copyDY, copyY, dy, s.pads[0], s.pads[1], s.pads[2], s.lse, s.pads[3], s.seed, s.offset)
	v := g.in(i, sDV)
	g.free(dv)
	k := g.in(i, sDK)
	g.free(dk)
	q := g.in(i, sDQ)
	g.free(dq)
	v2 := g.in(i, sDV)
	g.free(v)
	q2 := g.in(i, sDQ)
	g.free(q)
	k2 := g.in(i, sDK)
	g.free(k)
	dqkv := g.in(i, sDQKV)
	g.free(q2, k2, v2)
	return dqkv
}

// padHS is the head's size as flash computes with it.
func (d dims) padHS() int { return ceilDiv(d.HS, headMultiple) * headMultiple }
