package torch

import (
	"fmt"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// compiledBackward is the graph of a forward's backward. Every gradient of a parameter is an output: all of them are
// alive together at its end, beside those of earlier micro-steps.
type compiledBackward struct {
	*compiler
	f       *compiledForward
	saved   map[gid]gid // from the forward's buffers to this graph's inputs
	x, y    gid
	grads   []paramGrad
	dlogits gid
	tied    gid // lm_head's part of wte's gradient, in half precision
	emb     gid // the embedding's part
	tangent ref
}

type paramGrad struct {
	p  *param
	id gid
}

// backward writes the graph for a training forward.
func (f *compiledForward) backward() *compiledBackward {
	c := *f.compiler
	layers := f.model.NLayer + 1
	c.graph = newGraph(f.b, f.kernels, 28*layers, 54*layers)
	g := &compiledBackward{compiler: &c, f: f, saved: map[gid]gid{}, tied: noBuf, emb: noBuf, tangent: nothing}
	g.x = g.in(tensor("X", trace.Input, trace.Int64, g.B, g.T))
	g.y = g.in(tensor("Y", trace.Input, trace.Int64, g.B, g.T))
	g.bufs[g.x].apart, g.bufs[g.y].apart = true, true
	dx := g.head()
	for i := len(f.layers) - 1; i >= 0; i-- {
		dx = g.mlp(i, dx)
		dx = g.attention(i, dx)
	}
	g.embeddings()
	g.plan()
	return g
}

// input is a buffer that the forward kept.
func (g *compiledBackward) input(id gid) gid {
	if id == noBuf {
		return noBuf
	}
	in, ok := g.saved[id]
	if !ok {
		in = g.in(g.f.bufs[id].tensor)
		g.saved[id] = in
	}
	return in
}

// grad is a parameter's gradient, an output in float32.
func (g *compiledBackward) grad(p *param) gid {
	id := g.buf(g.b.tr.Tensors[p.grad])
	g.bufs[id].ref = p.grad
	g.keep(id)
	g.grads = append(g.grads, paramGrad{p, id})
	return id
}

// residual is the gradient of the stream and of the branch that is next: the same in half precision, through the mask.
type residual struct{ full, branch gid }

// head is the backward of the loss, lm_head and ln_f.
func (g *compiledBackward) head() residual {
	f := g.f
	g.dlogits = g.buf(g.rows("logits.grad", g.V))
	logits := g.in(tensor("logits", trace.Activation, g.half, g.B, g.T, g.V))
	g.bufs[logits].held = true
	g.add(gnode{
		outs:  []gid{g.dlogits},
		ins:   []gid{g.y, g.input(f.amax), g.input(f.logsum), g.input(f.weight), logits},
		inner: g.row(),
	})
	dlogits, w := g.dlogits, g.input(f.wte)
	switch {
	case g.padded(): // both products read padded copies, one of them across
		wide := g.temp("transformer.wte.weight (padded)", g.half, g.padV(), g.C)
		dlogits = g.buf(g.rows("logits.grad (padded)", g.padV()))
		pad := gnode{name: "pad logits.grad", outs: []gid{dlogits}, ins: []gid{g.dlogits}}
		if pads, known := g.kernels.padsGrad(g.dims); pads && (known || !g.kernels.unpadded) {
			across := g.buf(g.rows("logits.grad (padded, transposed)", g.padV()))
			pad.outs = []gid{across, dlogits}
			g.add(pad)
			g.lmHead(across, g.padV())
		} else {
			g.lmHead(g.dlogits, g.V)
			g.add(pad)
		}
		g.add(gnode{name: "pad wte", outs: []gid{wide}, ins: []gid{w}})
		w = wide
	default:
		g.lmHead(dlogits, g.V)
	}
	dh := g.temp("ln_f.grad", g.half, g.B, g.T, g.C)
	g.add(gnode{outs: []gid{dh}, ins: []gid{dlogits, w}, blas: backwardBlas})
	mask := g.input(f.layers[len(f.layers)-1].fpMask)
	return g.norm(g.gpt.lnf, f.lnf, dh, residual{noBuf, noBuf}, mask)
}

// lmHead makes lm_head's part of wte's gradient, of so many rows. In float32 an unpadded one waits for the embedding's
// part and is added to it.
func (g *compiledBackward) lmHead(dlogits gid, rows int) {
	if g.half32() && rows == g.V {
		return
	}
	g.tied = g.temp("transformer.wte.weight.grad (lm_head)", g.half, rows, g.C)
	g.add(gnode{outs: []gid{g.tied}, ins: []gid{dlogits, g.input(g.f.lnf.half)}, blas: backwardBlas})
}

// rows is a tensor of a row of cols for each token. Inductor starts each row at a multiple of 128 bytes where rows are
// longer than 320 elements (padding_alignment_bytes and padding_stride_threshold in torch/_inductor/config.py).
func (g *compiledBackward) rows(name string, cols int) trace.Tensor {
	const align, threshold = 128, 320
	t := tensor(name, trace.Activation, g.half, g.N(), cols)
	size := int(g.half.Size())
	if stride := ceilDiv(cols*size, align) * align; cols > threshold && g.padded() {
		t.Bytes = units.Bytes((g.N()-1)*stride + cols*size)
	}
	return t
}

// mixedOrder says whether Inductor sums a layernorm's weight gradient in the kernel that makes its input's, into a
// workspace (MixOrderReduction in torch/_inductor/scheduler.py).
func (g *compiledBackward) mixedOrder() bool {
	return g.N()*g.C >= 5<<20 && g.N() >= 4096 && g.N() >= 2*g.C
}

// mixedOrderRows is how many rows that kernel leaves in the workspace: each is a sum of a power of two of them
// (_codegen_mix_order_reduction in torch/_inductor/codegen/simd.py).
func (g *compiledBackward) mixedOrderRows() int {
	return ceilDiv(g.N(), min(max(powerOfTwo(g.N()/(8*g.kernels.dev.SMs)), 16), 128))
}

// norm is the backward of a layernorm, with the gradient of the branch before it: the same kernel writes it, unless that
// sums into a workspace and has no mask to apply.
func (g *compiledBackward) norm(n norm, s compiledNorm, dy gid, dx residual, mask gid) residual {
	out := residual{full: g.temp("x.grad", trace.Float32, g.B, g.T, g.C)}
	out.branch = out.full
	node := gnode{outs: []gid{out.full}, ins: []gid{dy, g.input(s.xhat), g.input(s.scale), mask, dx.full}}
	switch {
	case dx.full != noBuf:
		node.heirs = []heir{{out.full, []gid{dx.full}}}
	case !g.mixedOrder():
		node.heirs = []heir{{out.full, []gid{g.input(s.xhat)}}}
		if g.C > looped {
			node.name = "ln_f backward"
		}
	}
	masked, branches := mask != noBuf, !g.half32() || mask != noBuf
	if branches {
		out.branch = g.temp("x.grad ("+string(g.half)+")", g.half, g.B, g.T, g.C)
	}
	within := branches && (masked || !g.mixedOrder())
	if within {
		node.outs = append(node.outs, out.branch)
	}
	g.normGrads(node, n, dy, g.input(s.xhat))
	if branches && !within {
		g.add(gnode{name: "cast x.grad", outs: []gid{out.branch}, ins: []gid{out.full}})
	}
	return out
}

// normGrads adds a layernorm's backward kernel and what makes its parameters' gradients: sums of that kernel itself in a
// workspace, or kernels that read ins.
func (g *compiledBackward) normGrads(node gnode, n norm, ins ...gid) {
	params := []*param{n.weight}
	if n.bias != nil {
		params = append(params, n.bias)
	}
	node.inner += 2 * g.row() // the sums over each row
	if g.mixedOrder() {
		node.rows = g.mixedOrderRows()
		space := g.temp("layernorm.grad.workspace", trace.Float32, len(params)*node.rows*g.C)
		g.bufs[space].apart = true
		node.outs = append(node.outs, space)
		for _, p := range params {
			node.late = append(node.late, g.grad(p))
		}
		g.add(node)
		return
	}
	g.add(node)
	sums := gnode{ins: ins}
	for range params {
		sums.outs = append(sums.outs, g.temp("layernorm.grad.partial", trace.Float32, g.C, g.kernels.columnParts(g.N(), g.C)))
	}
	g.add(sums)
	for i, p := range params {
		g.add(gnode{outs: []gid{g.grad(p)}, ins: []gid{sums.outs[i]}})
	}
}

// linear is the backward of a linear module: gradients of its weight, its bias, and its input, born as dxName.
func (g *compiledBackward) linear(l linear, dy, x, w gid, dxName string, cols int) gid {
	dx := g.temp(dxName, g.half, g.B, g.T, cols)
	input := gnode{outs: []gid{dx}, ins: []gid{dy, w}, blas: backwardBlas}
	shape := g.b.tr.Tensors[l.weight.weight].Shape
	dW := noBuf
	if g.half32() {
		dW = g.grad(l.weight)
	} else {
		dW = g.temp("weight.grad ("+string(g.half)+")", g.half, shape...)
	}
	weight := gnode{outs: []gid{dW}, ins: []gid{dy, x}, blas: backwardBlas}
	if l.bias == nil {
		g.add(weight)
		g.add(input)
	} else {
		g.add(input)
		g.add(weight)
		part := g.temp("bias.grad.partial", trace.Float32, shape[0], g.kernels.columnParts(g.N(), shape[0]))
		g.add(gnode{outs: []gid{part}, ins: []gid{dy}})
		g.add(gnode{outs: []gid{g.grad(l.bias)}, ins: []gid{part}})
	}
	if !g.half32() {
		g.add(gnode{name: fmt.Sprintf("cast grad %dx%d", shape[0], shape[1]), outs: []gid{g.grad(l.weight)}, ins: []gid{dW}})
	}
	return dx
}

func (g *compiledBackward) mlp(i int, dx residual) residual {
	l, s := &g.gpt.layers[i], &g.f.layers[i]
	dgelu := g.linear(l.fp, dx.branch, g.input(s.gelu), g.input(s.fpW), "mlp.gelu.grad", 4*g.C)
	dfc := g.temp("mlp.c_fc.grad", g.half, g.B, g.T, 4*g.C)
	g.add(gnode{name: "gelu backward", outs: []gid{dfc}, ins: []gid{dgelu, g.input(s.fc)}, heirs: []heir{{dfc, []gid{dgelu}}}})
	dln := g.linear(l.fc, dfc, g.input(s.ln2.half), g.input(s.fcW), "ln_2.grad", g.C)
	return g.norm(l.ln2, s.ln2, dln, dx, g.input(s.projMask))
}

func (g *compiledBackward) attention(i int, dx residual) residual {
	l, s := &g.gpt.layers[i], &g.f.layers[i]
	att := g.input(s.att)
	datt := g.linear(l.proj, dx.branch, att, g.input(s.proj), "attn.y.grad", g.C)
	dqkv := g.attend(s, datt)
	dln := g.linear(l.attn, dqkv, g.input(s.ln1.half), g.input(s.attn), "ln_1.grad", g.C)
	if i > 0 {
		return g.norm(l.ln1, s.ln1, dln, dx, g.input(g.f.layers[i-1].fpMask))
	}
	g.firstNorm(l.ln1, dln, dx)
	return residual{noBuf, noBuf}
}

// attend is the attention's backward and the concatenation of its three gradients.
func (g *compiledBackward) attend(s *compiledLayer, datt gid) gid {
	heads := g.B * g.NH * g.T
	node := gnode{call: true, ins: []gid{datt, g.input(s.qkv), g.input(s.att), g.input(s.lse), g.input(s.seed), g.input(s.offset)}}
	var d [3]gid
	for i, name := range []string{"attn.q.grad", "attn.k.grad", "attn.v.grad"} {
		d[i] = g.temp(name, g.half, g.B, g.NH, g.T, g.HS)
		g.bufs[d[i]].library = true
		node.outs = append(node.outs, d[i])
	}
	space := func(name string, bytes int) { node.scratch = append(node.scratch, scratch{name: name, bytes: bytes}) }
	switch g.kernels.attention(g.dims) {
	case cudnnAttention:
		space("attn.backward.workspace", heads*g.HS*4+heads*4+256)
	case flashAttention:
		rows, head := ceilDiv(g.T, 128)*128, ceilDiv(g.padHS(), 32)*32
		space("attn.softmax.grad.sum", g.B*g.NH*rows*4)
		space("attn.backward.workspace", g.B*rows*g.NH*head*4)
	case efficientAttention:
		space("attn.y * attn.y.grad", heads*g.HS*int(g.half.Size()))
		space("attn.delta", heads*4)
		space("attn.delta (transposed)", heads*4)
		bytes := g.B * g.NH * ceilDiv(g.T, 64) * ceilDiv(g.HS, 64) * (64*64*4 + 16)
		node.scratch = append(node.scratch, scratch{name: "attn.backward.workspace", bytes: bytes, after: 2})
	}
	g.add(node)
	dqkv := g.temp("attn.c_attn.grad", g.half, g.B, g.T, 3*g.C)
	g.add(gnode{name: "cat", outs: []gid{dqkv}, ins: d[:]})
	return dqkv
}

// firstNorm is the backward of layer 0's ln_1, whose kernel adds to wte's gradient. What ln_1 wrote is computed again
// from the embeddings, or was kept.
func (g *compiledBackward) firstNorm(n norm, dy gid, dx residual) {
	f := g.f
	shape := g.b.tr.Tensors[g.gpt.wte.weight].Shape
	g.emb = g.temp("transformer.wte.weight.grad (embedding)", trace.Float32, shape...)
	full := g.temp("x.grad", trace.Float32, g.B, g.T, g.C)
	node := gnode{
		outs: []gid{full}, ins: []gid{dy, dx.full, g.x, g.emb, g.input(f.embMask)}, changes: []gid{g.emb},
		heirs: []heir{{full, []gid{dx.full}}},
	}
	sums := g.normalized(&node, dy)
	dwpe := g.grad(g.gpt.wpe)
	zeroWpe := gnode{name: "zero wpe.grad", outs: []gid{dwpe}}
	if g.B == 1 { // it has the stream's shape: the same kernel adds to it
		g.add(zeroWpe)
		node.ins, node.changes = append(node.ins, g.input(f.pos), dwpe), append(node.changes, dwpe)
	}
	g.add(gnode{name: "zero wte.grad", outs: []gid{g.emb}})
	g.normGrads(node, n, sums...)
	if g.B == 1 {
		return
	}
	g.add(zeroWpe)
	wpe := gnode{name: "wpe.grad", ins: []gid{dwpe, full, g.input(f.pos)}, changes: []gid{dwpe}}
	if g.B >= unrolled {
		wpe.inner = int64(4 * g.T * g.C)
	}
	g.add(wpe)
}

// normalized gives node layer 0's ln_1 to read, and lists what the sums for its parameters read.
func (g *compiledBackward) normalized(node *gnode, dy gid) []gid {
	f := g.f
	if !f.again() {
		xhat := g.input(f.layers[0].ln1.xhat)
		node.ins = append(node.ins, xhat, g.input(f.layers[0].ln1.scale))
		return []gid{dy, xhat}
	}
	ln := []gid{g.input(f.tokEmb), g.input(f.posEmb), g.input(f.mean), g.input(f.rstd)}
	if f.embMask == noBuf {
		node.ins = append(node.ins, ln...)
		return append([]gid{dy}, ln...)
	}
	xhat := g.temp("h.0.ln_1.normalized", trace.Float32, g.B, g.T, g.C)
	inherits := heir{xhat, ln[:1]}
	if g.mixedOrder() { // by a kernel of its own
		g.add(gnode{name: "normalize again", outs: []gid{xhat}, ins: append(ln, g.input(f.embMask)), heirs: []heir{inherits}})
		node.ins = append(node.ins, xhat, g.input(f.rstd))
		return nil
	}
	node.ins = append(node.ins, ln...)
	node.outs = append([]gid{xhat}, node.outs...)
	node.heirs = append(node.heirs, inherits)
	return []gid{dy, xhat}
}

// unrolled is the least number of terms that Inductor sums in a loop (unroll_reductions_threshold in
// torch/_inductor/config.py).
const unrolled = 8

// embeddings adds the two parts of wte's gradient.
func (g *compiledBackward) embeddings() {
	d := g.grad(g.gpt.wte)
	if g.tied == noBuf {
		g.add(gnode{outs: []gid{d}, ins: []gid{g.emb, g.dlogits, g.input(g.f.lnf.half)}, blas: backwardBlas})
		return
	}
	g.add(gnode{name: "wte.grad", outs: []gid{d}, ins: []gid{g.tied, g.emb}})
}

// compiledPass is one forward, in training with its backward, of the compiled model.
type compiledPass struct {
	f *compiledForward
	g *compiledBackward // nil in evaluation
	b *builder

	measured bool // Inductor has timed lm_head's matmul with and without padding
}

func (p *compiledPass) forward() (logits, loss ref) {
	if p.f.padded() && !p.measured && !p.f.kernels.warm {
		p.f.measurePadding()
		p.measured = true
	}
	p.f.run()
	return p.f.take(p.f.logits), p.f.take(p.f.loss)
}

// leave is autocast's exit: casts are buffers of the graph, so nothing is cached.
func (p *compiledPass) leave() {}

// backward runs the graph. The gradient of the output logits is a tensor of zeros, which autograd's engine holds to the
// end, as it does the loss's.
func (p *compiledPass) backward(x, y, dloss ref) {
	g := p.g
	if g.tangent == nothing {
		g.tangent = p.b.define(tensor("logits.grad (zeros)", trace.Activation, g.half, g.B, g.T, g.V))
	}
	zeros := p.b.birth(g.tangent)
	for from, to := range g.saved {
		g.give(to, p.f.take(from))
	}
	g.give(g.x, x)
	g.give(g.y, y)
	g.run()
	p.b.free(zeros, dloss)
	for _, d := range g.grads {
		d.p.add(p.b, g.take(d.id))
	}
}
