package torch

import "github.com/snugml/snug/internal/trace"

// attentionKind is the kernel that scaled_dot_product_attention chooses.
type attentionKind int

const (
	cudnnAttention     attentionKind = iota
	flashAttention                   // FlashAttention 2
	efficientAttention               // the memory-efficient one, from xFormers
)

// attention is the kernel for these sizes on the device.
func (k *kernels) attention(d dims) attentionKind {
	if d.half == trace.Float32 {
		return efficientAttention
	}
	return cudnnAttention
}

// attend is the forward of scaled_dot_product_attention.
func (f *forward) attend(i int) {
	s := &f.layers[i]
	s.seed, s.offset, s.lse = nothing, nothing, nothing
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
	}
}

// attendBackward is its backward, and the concatenation of the three gradients into c_attn's.
func (g *backward) attendBackward(i int, datt ref) ref {
	s := &g.layers[i]
	dq, dk, dv := g.in(i, sDQ), g.in(i, sDK), g.in(i, sDV)
	switch g.kernels.attention(g.dims) {
	case cudnnAttention:
		rows := g.B * g.NH * g.T
		space := g.bytes(i, sDAttSpace, rows*g.HS*4+rows*4+256)
		g.free(space)
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
