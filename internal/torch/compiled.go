package torch

import (
	"fmt"
	"slices"

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
	seeds gid   // what it draws them from
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

// again says whether backward computes the first layernorm again from the two embeddings, its mean and its deviation, which
// are then kept; else its normalized value and deviation are, as every other layernorm's. The cheaper cut wins, where
// keeping costs the bytes, times 1.1 for each operation between a value and backward, and double for a value that would
// otherwise stay inside a kernel (get_node_weight in torch/_functorch/partitioners.py). Position embeddings are shared by
// the batch, so small batches keep the normalized value.
func (f *compiledForward) again() bool {
	far := 1.1 * 1.1 * 1.1 // the additions and the subtraction that the embeddings are farther away
	if f.dropout {
		far *= 1.1 * 1.1
	}
	batch, row := float64(f.B), float64(f.C)
	embeddings := far*(1+1/batch) + 2*1.1*1.1/row + 2/row
	normalized := 2 + 2/row
	return f.train && embeddings < normalized
}

// embed reads the embeddings.
func (f *compiledForward) embed() *stream {
	s := &stream{base: noBuf, seeds: noBuf, reads: 3} // tokens, wte, wpe
	if !f.train {
		return s
	}
	f.pos = f.kept(-1, "pos", trace.Int64, f.T)
	f.add(gnode{name: "arange", outs: []gid{f.pos}})
	if f.again() {
		f.posEmb = f.kept(-1, "pos_emb", trace.Float32, f.T, f.C)
		f.add(gnode{name: "pos_emb", outs: []gid{f.posEmb}})
		f.tokEmb = f.kept(-1, "tok_emb", trace.Float32, f.B, f.T, f.C)
		s.parts = []gid{f.tokEmb, f.posEmb}
		s.reads = 2
	}
	if f.dropout {
		s.seeds = f.temp("dropout.seeds", trace.Int64, 1+2*f.model.NLayer)
		f.add(gnode{outs: []gid{s.seeds}})
		f.embMask = f.kept(-1, "drop.mask", trace.Bool, f.B, f.T, f.C)
		s.masks = append(s.masks, f.embMask)
		s.reads++
	}
	return s
}

// row is a float32 for each token.
func (d dims) row() int64 { return int64(4 * d.N()) }

// norm is a layernorm fused with the additions before it. It writes its output in half precision; in training also the
// normalized value and a scale for backward; and the stream itself, once that is made of too many parts.
func (f *compiledForward) norm(layer int, name string, s *stream, last bool) compiledNorm {
	node := gnode{inner: 3 * f.row()} // mean, variance and count, as Welford's algorithm has them
	gathers := s.base == noBuf && !f.again()
	if s.base != noBuf {
		node.ins = append(node.ins, s.base)
	}
	node.ins = append(node.ins, s.parts...)
	sum := slices.Clone(node.ins)
	if len(s.masks) > 0 { // a mask is a random number compared
		node.ins = append(node.ins, s.seeds)
		node.inner += int64(len(s.masks)) * int64(f.C) * f.row()
	}
	node.outs = append(node.outs, s.masks...)
	s.masks = nil
	var n compiledNorm
	first := f.again() && layer == 0 && name == "ln_1"
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
		node.ins = slices.DeleteFunc(slices.Clone(node.ins), func(id gid) bool { return id == f.tokEmb })
		node.outs = append(node.outs, f.tokEmb, f.mean, f.rstd)
		node.inner -= f.row()
	case f.train:
		n.xhat = f.kept(layer, name+".normalized", trace.Float32, f.B, f.T, f.C)
		node.outs = append(node.outs, n.xhat)
	}
	n.half = f.kept(layer, name, f.half, f.B, f.T, f.C)
	node.outs = append(node.outs, n.half)
	switch { // the value that reads the stream's parts may take over the memory of one
	case realize:
		node.heirs = []heir{{s.base, sum}}
	case f.train && !first:
		node.heirs = []heir{{n.xhat, sum}}
	case !f.train:
		node.heirs = []heir{{n.half, sum}}
	}
	if f.train && !first {
		n.scale = f.kept(layer, name+".rstd", trace.Float32, f.B, f.T)
		node.outs = append(node.outs, n.scale)
	}
	if f.timed(len(sum), realize, gathers) {
		node.name = fmt.Sprintf("norm of %d, %v, %v", len(sum), realize, last)
	}
	f.add(node)
	return n
}

// looped is the length of a row that a kernel no longer reads at once.
const looped = 1024

// timed says whether the kernel of a layernorm, which reads so many parts of the stream, is timed in two block sizes: one
// that loops over its row is, unless it loads and sums so many values that Inductor saves registers from the start
// (_dynamic_scale_rblock and _reduction_configs in torch/_inductor/runtime/triton_heuristics.py). In evaluation only kernels
// that gather rows from the embeddings have been seen timed.
func (f *compiledForward) timed(parts int, realize, gathers bool) bool {
	const short, sums, registers = 256, 2, 10
	loads := 2*parts + 1 // in each of two loops, and the weight
	switch {
	case gathers:
		loads += 3
	case realize:
		loads = parts + 2
	}
	if f.model.Bias {
		loads++
	}
	if !f.train {
		return gathers && (parts == 0 && f.C > short || realize && f.C > looped)
	}
	return f.C > looped && (realize || loads+sums < registers)
}

// cast is a weight in half precision, kept for backward; the parameter itself in float32.
func (f *compiledForward) cast(layer int, name string, rows, cols int) gid {
	if f.half32() {
		return noBuf
	}
	id := f.kept(layer, name+" ("+string(f.half)+")", f.half, rows, cols)
	f.add(gnode{name: fmt.Sprintf("cast %d", rows*cols), outs: []gid{id}}) // one kernel for all of a size
	return id
}

// linear is a matmul by cuBLAS. With a bias, its cast is read too.
func (f *compiledForward) linear(name string, x, w, out gid, cols int) {
	node := gnode{outs: []gid{out}, ins: []gid{x, w}, blas: forwardBlas}
	if f.model.Bias {
		node.blas = forwardBlasLt
		if !f.half32() {
			bias := f.temp(name+".bias ("+string(f.half)+")", f.half, cols)
			f.add(gnode{name: fmt.Sprintf("cast %d", cols), outs: []gid{bias}})
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
	node := gnode{call: true, ins: []gid{l.qkv}}
	lib := func(id gid) gid {
		f.bufs[id].library = true
		node.outs = append(node.outs, id)
		return id
	}
	kind := f.kernels.attention(f.dims)
	if kind == cudnnAttention {
		l.seed = lib(f.kept(i, "attn.philox_seed", trace.Int64))
		l.offset = lib(f.kept(i, "attn.philox_offset", trace.Int64))
		node.scratch = []scratch{{name: "attn.workspace", bytes: 256}}
	}
	l.att = lib(f.kept(i, "attn.y", f.half, f.B, f.NH, f.T, f.HS))
	if f.train || kind == flashAttention {
		l.lse = lib(f.kept(i, "attn.logsumexp", trace.Float32, f.B, f.NH, f.T))
	}
	if kind == flashAttention {
		if f.train && f.dropout { // the kernel's state takes the place of the default one
			lib(f.temp("attn.rng_state (default)", trace.Int64, 2))
			l.offset = lib(f.kept(i, "attn.philox_offset", trace.Int64))
			l.seed = lib(f.kept(i, "attn.rng_state", trace.Int64, 2))
		} else {
			l.seed = lib(f.kept(i, "attn.rng_state", trace.Int64, 2))
			l.offset = lib(f.kept(i, "attn.philox_offset", trace.Int64))
		}
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
	gelu := gnode{name: "gelu", outs: []gid{l.gelu}, ins: []gid{l.fc}, heirs: []heir{{l.gelu, []gid{l.fc}}}}
	if f.train && !f.model.Bias { // the weight is kept transposed, which is lowered before its input
		l.fpW = f.cast(i, "mlp.c_proj.weight", f.C, 4*f.C)
		f.add(gelu)
	} else {
		f.add(gelu)
		l.fpW = f.cast(i, "mlp.c_proj.weight", f.C, 4*f.C)
	}
	fp := f.temp("mlp.c_proj", f.half, f.B, f.T, f.C)
	f.linear("mlp.c_proj", l.gelu, l.fpW, fp, f.C)
	l.fpMask = f.drop(i, "mlp.dropout.mask", s, fp)
}

// drop adds a branch's output to the stream, in training with dropout through a mask that the next layernorm's
// kernel draws and keeps.
func (f *compiledForward) drop(i int, name string, s *stream, out gid) gid {
	s.parts = append(s.parts, out)
	s.reads++
	if f.model.Bias && f.half32() { // which this kernel adds
		s.reads++
	}
	if !f.train || !f.dropout {
		return noBuf
	}
	m := f.kept(i, name, trace.Bool, f.B, f.T, f.C)
	s.masks = append(s.masks, m)
	s.reads++
	return m
}

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
	sums := gnode{outs: []gid{f.amax, f.logsum}, ins: []gid{f.logits}}
	if f.train {
		sums.inner = f.row()
	}
	f.add(sums)
	f.loss = f.buf(tensor("loss", trace.Activation, trace.Float32))
	f.keep(f.loss)
	node := gnode{outs: []gid{f.loss}, ins: []gid{f.logits, f.amax, f.logsum}}
	if n := f.kernels.sumParts(f.N()); n > 1 {
		count, sum := f.temp("cross_entropy.counts", trace.Int64, n), f.temp("cross_entropy.sums", trace.Float32, n)
		f.add(gnode{outs: []gid{count, sum}, ins: node.ins})
		node.ins = []gid{count, sum}
	}
	f.weight = noBuf
	if f.train {
		f.weight = f.kept(-1, "cross_entropy.total_weight", trace.Float32)
		node.outs = append(node.outs, f.weight)
	}
	f.add(node)
}
