package torch

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
)

// compiler writes nanoGPT's forward and backward as Inductor fuses them: a kernel a layernorm with the residual
// additions before it, a kernel a cast, matmuls and attention by their libraries.
type compiler struct {
	*graph
	dims
	model   config.Model
	gpt     *model
	train   bool
	dropout bool
}

// readsThreshold is how many buffers a value may be computed from before Inductor writes it down
// (realize_reads_threshold in torch/_inductor/config.py).
const readsThreshold = 4

func (c *compiler) half32() bool { return c.half == trace.Float32 }

// temp adds a buffer that dies in this graph. It is named without its layer: Inductor uses its memory for all layers.
func (c *compiler) temp(name string, dtype trace.DType, shape ...int) gid {
	return c.buf(tensor(name, trace.Activation, dtype, shape...))
}

// kept adds a buffer for backward in training, else one that dies here.
func (c *compiler) kept(layer int, name string, dtype trace.DType, shape ...int) gid {
	if !c.train {
		return c.temp(name, dtype, shape...)
	}
	if layer >= 0 {
		name = fmt.Sprintf("h.%d.%s", layer, name)
	}
	id := c.buf(tensor(name, trace.Activation, dtype, shape...))
	c.keep(id)
	return id
}

// stream is the residual stream: a written-down value and what has been added to it since.
type stream struct {
	base  gid   // the value, or noBuf while it is read from the embeddings
	parts []gid // what has been added since
	masks []gid // dropout's masks that the next kernel draws
	reads int   // buffers that the sum is computed from
}

// compiledForward is what backward needs of a forward: ids in the forward's graph.
type compiledForward struct {
	*compiler
	pos, tokEmb, posEmb, embMask gid
	mean, rstd                   gid
	layers                       []compiledLayer
	lnf                          compiledNorm
	wte                          gid // its cast
	logits, amax, logsum         gid
	loss, weight                 gid
}

type compiledNorm struct{ xhat, half, scale gid }

type compiledLayer struct {
	ln1, ln2             compiledNorm
	attn, proj, fcW, fpW gid // casts of the weights
	qkv, att, lse        gid
	seed, offset         gid
	projMask, fpMask     gid
	fc, gelu             gid
}

// forward writes the graph.
func (c *compiler) forward() *compiledForward {
	f := &compiledForward{compiler: c, layers: make([]compiledLayer, c.model.NLayer)}
	f.embMask, f.wte = noBuf, noBuf
	s := f.embed()
	for i := range f.layers {
		f.attention(i, s)
		f.mlp(i, s)
	}
	f.head(s)
	c.plan()
	return f
}

// embed reads the embeddings. In training they are kept: the first layernorm is computed again from them.
func (f *compiledForward) embed() *stream {
	s := &stream{base: noBuf, reads: 3} // tokens, wte, wpe
	if !f.train {
		return s
	}
	f.pos = f.kept(-1, "pos", trace.Int64, f.T)
	f.add(gnode{name: "arange", outs: []gid{f.pos}})
	f.posEmb = f.kept(-1, "pos_emb", trace.Float32, f.T, f.C)
	f.add(gnode{name: "pos_emb", outs: []gid{f.posEmb}})
	f.tokEmb = f.kept(-1, "tok_emb", trace.Float32, f.B, f.T, f.C)
	s.parts = []gid{f.tokEmb, f.posEmb}
	s.reads = 2
	if f.dropout {
		f.embMask = f.kept(-1, "drop.mask", trace.Bool, f.B, f.T, f.C)
		s.masks = append(s.masks, f.embMask)
		s.reads = 3
	}
	return s
}

// norm is a layernorm fused with the additions before it. It writes its output in half precision; in training also the
// normalized value and a scale for backward; and the stream itself, once that is made of too many parts.
func (f *compiledForward) norm(layer int, name string, s *stream, last bool) compiledNorm {
	node := gnode{ins: append([]gid(nil), s.parts...)}
	if s.base != noBuf {
		node.ins = append(node.ins, s.base)
	}
	node.onto = node.ins
	node.outs = append(node.outs, s.masks...)
	s.masks = nil
	var n compiledNorm
	first := f.train && layer == 0 && name == "ln_1"
	realize := s.reads > readsThreshold && !last
	if realize {
		base := f.temp("x", trace.Float32, f.B, f.T, f.C)
		node.outs = append(node.outs, base)
		s.base, s.parts, s.reads = base, nil, 1
	}
	switch {
	case first:
		f.mean = f.kept(0, "ln_1.mean", trace.Float32, f.B, f.T)
		f.rstd = f.kept(0, "ln_1.rstd", trace.Float32, f.B, f.T)
		node.outs = append(node.outs, f.tokEmb, f.mean, f.rstd)
	case f.train:
		n.xhat = f.kept(layer, name+".normalized", trace.Float32, f.B, f.T, f.C)
		node.outs = append(node.outs, n.xhat)
	}
	n.half = f.kept(layer, name, f.half, f.B, f.T, f.C)
	node.outs = append(node.outs, n.half)
	if f.train && !first {
		n.scale = f.kept(layer, name+".rstd", trace.Float32, f.B, f.T)
		node.outs = append(node.outs, n.scale)
	}
	f.add(node)
	return n
}

// cast is a weight in half precision, kept for backward; the parameter itself in float32.
func (f *compiledForward) cast(layer int, name string, rows, cols int) gid {
	if f.half32() {
		return noBuf
	}
	id := f.kept(layer, name+" ("+string(f.half)+")", f.half, rows, cols)
	f.add(gnode{name: "cast " + name, outs: []gid{id}})
	return id
}

// linear is a matmul by cuBLAS. With a bias, its cast is read too.
func (f *compiledForward) linear(name string, x, w, out gid, cols int) {
	node := gnode{outs: []gid{out}, ins: []gid{x, w}, blas: forwardBlas}
	if f.model.Bias {
		node.blas = forwardBlasLt
		if !f.half32() {
			bias := f.temp(name+".bias ("+string(f.half)+")", f.half, cols)
			f.add(gnode{name: "cast " + name + ".bias", outs: []gid{bias}})
			node.ins = append(node.ins, bias)
		}
	}
	f.add(node)
}

func (f *compiledForward) attention(i int, s *stream) {
	l := &f.layers[i]
	l.ln1 = f.norm(i, "ln_1", s, false)
	l.attn = f.cast(i, "attn.c_attn.weight", 3*f.C, f.C)
	l.qkv = f.kept(i, "attn.c_attn", f.half, f.B, f.T, 3*f.C)
	f.linear("attn.c_attn", l.ln1.half, l.attn, l.qkv, 3*f.C)
	f.attend(i)
	l.proj = f.cast(i, "attn.c_proj.weight", f.C, f.C)
	proj := f.temp("attn.c_proj", f.half, f.B, f.T, f.C)
	f.linear("attn.c_proj", l.att, l.proj, proj, f.C)
	l.projMask = f.drop(i, "attn.resid_dropout.mask", s, proj)
}

// attend is scaled_dot_product_attention: its kernel allocates for itself.
func (f *compiledForward) attend(i int) {
	l := &f.layers[i]
	l.seed, l.offset, l.lse = noBuf, noBuf, noBuf
	node := gnode{ins: []gid{l.qkv}}
	lib := func(id gid) gid {
		f.bufs[id].library = true
		node.outs = append(node.outs, id)
		return id
	}
	kind := f.kernels.attention(f.dims)
	if kind == cudnnAttention {
		l.seed = lib(f.kept(i, "attn.philox_seed", trace.Int64))
		l.offset = lib(f.kept(i, "attn.philox_offset", trace.Int64))
		node.scratch = []trace.Tensor{tensor("attn.workspace", trace.Workspace, trace.UInt8, 256)}
	}
	l.att = lib(f.kept(i, "attn.y", f.half, f.B, f.NH, f.T, f.HS))
	if f.train || kind == flashAttention {
		l.lse = lib(f.kept(i, "attn.logsumexp", trace.Float32, f.B, f.NH, f.T))
	}
	if kind == flashAttention {
		l.seed = lib(f.kept(i, "attn.rng_state", trace.Int64, 2))
		l.offset = lib(f.kept(i, "attn.philox_offset", trace.Int64))
	}
	f.add(node)
}

func (f *compiledForward) mlp(i int, s *stream) {
	l := &f.layers[i]
	l.ln2 = f.norm(i, "ln_2", s, false)
	l.fcW = f.cast(i, "mlp.c_fc.weight", 4*f.C, f.C)
	l.fc = f.kept(i, "mlp.c_fc", f.half, f.B, f.T, 4*f.C)
	f.linear("mlp.c_fc", l.ln2.half, l.fcW, l.fc, 4*f.C)
	l.gelu = f.kept(i, "mlp.gelu", f.half, f.B, f.T, 4*f.C)
	f.add(gnode{name: "gelu", outs: []gid{l.gelu}, ins: []gid{l.fc}, onto: []gid{l.fc}})
	l.fpW = f.cast(i, "mlp.c_proj.weight", f.C, 4*f.C)
	fp := f.temp("mlp.c_proj", f.half, f.B, f.T, f.C)
	f.linear("mlp.c_proj", l.gelu, l.fpW, fp, f.C)
	l.fpMask = f.drop(i, "mlp.dropout.mask", s, fp)
}

// drop adds a branch's output to the stream, in training with dropout through a mask that the next layernorm's
// kernel draws and keeps.
func (f *compiledForward) drop(i int, name string, s *stream, out gid) gid {
	s.parts = append(s.parts, out)
	s.reads++
	if !f.train || !f.dropout {
		return noBuf
	}
	m := f.kept(i, name, trace.Bool, f.B, f.T, f.C)
	s.masks = append(s.masks, m)
	s.reads++
	return m
}

// padV is the vocabulary as lm_head's matmul has it: Inductor pads what tensor cores would read unaligned, to 16 bytes
// (torch/_inductor/fx_passes/pad_mm.py).
func (d dims) padV() int {
	n := 16 / int(d.half.Size())
	return ceilDiv(d.V, n) * n
}

// measurePadding is Inductor's timing of lm_head's matmul while it compiles, to decide on padding: operands and result
// are real tensors, and the L2 cache is flushed.
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

func (d dims) padded() bool { return d.padV() != d.V }

// head is ln_f, lm_head and the loss.
func (f *compiledForward) head(s *stream) {
	f.lnf = f.norm(-1, "ln_f", s, true)
	f.wte = f.cast(-1, "transformer.wte.weight", f.V, f.C)
	w := f.wte
	if f.padded() {
		w = f.temp("transformer.wte.weight (padded)", f.half, f.padV(), f.C)
		f.add(gnode{name: "pad wte", outs: []gid{w}, ins: []gid{f.wte}})
	}
	f.logits = f.buf(tensor("logits", trace.Activation, f.half, f.N(), f.padV()))
	f.keep(f.logits)
	f.add(gnode{outs: []gid{f.logits}, ins: []gid{f.lnf.half, w}, blas: forwardBlas})
	f.amax = f.kept(-1, "cross_entropy.amax", trace.Float32, f.B, f.T)
	f.logsum = f.kept(-1, "cross_entropy.logsum", trace.Float32, f.B, f.T)
	f.add(gnode{outs: []gid{f.amax, f.logsum}, ins: []gid{f.logits}})
	f.loss = f.buf(tensor("loss", trace.Activation, trace.Float32))
	f.keep(f.loss)
	node := gnode{outs: []gid{f.loss}, ins: []gid{f.logits, f.amax, f.logsum}}
	f.weight = noBuf
	if f.train {
		f.weight = f.kept(-1, "cross_entropy.total_weight", trace.Float32)
		node.outs = append(node.outs, f.weight)
	}
	f.add(node)
}
