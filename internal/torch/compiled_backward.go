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
	c.graph = newGraph(f.b, f.kernels)
	g := &compiledBackward{compiler: &c, f: f, saved: map[gid]gid{}, tied: noBuf, emb: noBuf, tangent: nothing}
	g.x = g.in(tensor("X", trace.Input, trace.Int64, g.B, g.T))
	g.y = g.in(tensor("Y", trace.Input, trace.Int64, g.B, g.T))
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
	g.add(gnode{
		outs: []gid{g.dlogits},
		ins:  []gid{g.y, g.input(f.amax), g.input(f.logsum), g.input(f.weight)},
	})
	dlogits, w := g.dlogits, g.input(f.wte)
	switch {
	case g.padded() && !g.half32(): // both matmuls read padded copies, one of them transposed
		across := g.buf(g.rows("logits.grad (padded, transposed)", g.padV()))
		dlogits = g.buf(g.rows("logits.grad (padded)", g.padV()))
		g.add(gnode{name: "pad logits.grad", outs: []gid{across, dlogits}, ins: []gid{g.dlogits}})
		g.lmHead(across)
		wide := g.temp("transformer.wte.weight (padded)", g.half, g.padV(), g.C)
		g.add(gnode{name: "pad wte", outs: []gid{wide}, ins: []gid{w}})
		w = wide
	case !g.half32():
		g.lmHead(dlogits)
	}
	dh := g.temp("ln_f.grad", g.half, g.B, g.T, g.C)
	g.add(gnode{outs: []gid{dh}, ins: []gid{dlogits, w}, blas: backwardBlas})
	mask := g.input(f.layers[len(f.layers)-1].fpMask)
	return g.norm(g.gpt.lnf, f.lnf, dh, residual{noBuf, noBuf}, mask)
}

// lmHead makes lm_head's part of wte's gradient.
func (g *compiledBackward) lmHead(dlogits gid) {
	g.tied = g.temp(g.b.tr.Tensors[g.gpt.wte.gradHalf].Name, g.half, g.padV(), g.C)
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

// mixedOrderRows is how many rows that kernel sums before it writes to the workspace.
const mixedOrderRows = 16

// splitRows is how many rows each part of a reduction over all rows takes, when it is split.
const splitRows = 128

// norm is the backward of a layernorm, with the gradient of the branch before it.
func (g *compiledBackward) norm(n norm, s compiledNorm, dy gid, dx residual, mask gid) residual {
	ins := []gid{dy, g.input(s.xhat), g.input(s.scale), mask}
	if dx.full != noBuf {
		ins = append(ins, dx.full)
	}
	out := residual{full: g.temp("x.grad", trace.Float32, g.B, g.T, g.C)}
	out.branch = out.full
	node := gnode{outs: []gid{out.full}, ins: ins}
	if dx.full != noBuf {
		node.onto = []gid{dx.full}
	}
	g.normGrads(&node, n, &out, s, dy, mask != noBuf)
	return out
}

// normGrads finishes a layernorm's backward: its kernel, the branch's gradient, and the sums for weight and bias.
func (g *compiledBackward) normGrads(node *gnode, n norm, out *residual, s compiledNorm, dy gid, masked bool) {
	params := []*param{n.weight}
	if n.bias != nil {
		params = append(params, n.bias)
	}
	branch := noBuf
	if !g.half32() || masked {
		branch = g.temp("x.grad ("+string(g.half)+")", g.half, g.B, g.T, g.C)
		out.branch = branch
	}
	if g.mixedOrder() {
		space := g.temp("layernorm.grad.workspace", trace.Float32, len(params)*ceilDiv(g.N(), mixedOrderRows)*g.C)
		node.outs = append(node.outs, space)
		g.add(*node)
		for _, p := range params {
			id := g.grad(p)
			g.bufs[id].library = true
			g.add(gnode{outs: []gid{id}, ins: []gid{space}})
		}
		if branch != noBuf {
			g.add(gnode{name: "cast x.grad", outs: []gid{branch}, ins: []gid{out.full}})
		}
		return
	}
	if branch != noBuf {
		node.outs = append(node.outs, branch)
	}
	g.add(*node)
	sums := gnode{ins: []gid{dy, g.input(s.xhat)}}
	var parts []gid
	for range params {
		parts = append(parts, g.temp("layernorm.grad.partial", trace.Float32, g.C, ceilDiv(g.N(), splitRows)))
	}
	sums.outs = parts
	g.add(sums)
	for i, p := range params {
		g.add(gnode{outs: []gid{g.grad(p)}, ins: []gid{parts[i]}})
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
	g.add(weight)
	g.add(input)
	if l.bias != nil {
		part := g.temp("bias.grad.partial", trace.Float32, shape[0], ceilDiv(g.N(), splitRows))
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
	g.add(gnode{name: "gelu backward", outs: []gid{dfc}, ins: []gid{dgelu, g.input(s.fc)}, onto: []gid{dgelu}})
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
	return g.firstNorm(l.ln1, dln, dx)
}

// attend is the attention's backward and the concatenation of its three gradients.
func (g *compiledBackward) attend(s *compiledLayer, datt gid) gid {
	heads := g.B * g.NH * g.T
	node := gnode{ins: []gid{datt, g.input(s.qkv), g.input(s.att), g.input(s.lse), g.input(s.seed), g.input(s.offset)}}
	var d [3]gid
	for i, name := range []string{"attn.q.grad", "attn.k.grad", "attn.v.grad"} {
		d[i] = g.temp(name, g.half, g.B, g.NH, g.T, g.HS)
		g.bufs[d[i]].library = true
		node.outs = append(node.outs, d[i])
	}
	space := func(name string, bytes int) {
		node.scratch = append(node.scratch, tensor(name, trace.Workspace, trace.UInt8, bytes))
	}
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
		space("attn.backward.workspace", g.B*g.NH*ceilDiv(g.T, 64)*ceilDiv(g.HS, 64)*(64*64*4+16))
	}
	g.add(node)
	dqkv := g.temp("attn.c_attn.grad", g.half, g.B, g.T, 3*g.C)
	g.add(gnode{name: "cat", outs: []gid{dqkv}, ins: d[:]})
	return dqkv
}

// firstNorm is the backward of layer 0's ln_1, which computes its input again from the embeddings and adds to wte's.
func (g *compiledBackward) firstNorm(n norm, dy gid, dx residual) residual {
	wte := g.gpt.wte
	emb := g.temp("transformer.wte.weight.grad (embedding)", trace.Float32, g.b.tr.Tensors[wte.weight].Shape...)
	g.add(gnode{name: "zero wte.grad", outs: []gid{emb}})
	f := g.f
	ins := []gid{dy, dx.full, g.input(f.tokEmb), g.input(f.posEmb), g.input(f.mean), g.input(f.rstd), g.input(f.embMask), g.x, emb}
	out := residual{full: g.temp("x.grad", trace.Float32, g.B, g.T, g.C)}
	node := gnode{outs: []gid{out.full}, ins: ins, onto: []gid{dx.full}}
	params := []*param{n.weight}
	if n.bias != nil {
		params = append(params, n.bias)
	}
	parts := g.temp("layernorm.grad.partial", trace.Float32, g.C, ceilDiv(g.N(), splitRows), len(params))
	if g.mixedOrder() {
		parts = g.temp("layernorm.grad.workspace", trace.Float32, len(params)*ceilDiv(g.N(), mixedOrderRows)*g.C)
	}
	node.outs = append(node.outs, parts)
	g.add(node)
	for _, p := range params {
		g.add(gnode{outs: []gid{g.grad(p)}, ins: []gid{parts}})
	}
	dwpe := g.grad(g.gpt.wpe)
	g.add(gnode{name: "zero wpe.grad", outs: []gid{dwpe}})
	g.add(gnode{name: "wpe.grad", outs: nil, ins: []gid{dwpe, out.full, g.input(f.pos)}})
	g.emb = emb
	return out
}

// embeddings adds the two parts of wte's gradient.
func (g *compiledBackward) embeddings() {
	d := g.grad(g.gpt.wte)
	if g.half32() { // by one matmul that adds to the embedding's part: the logits' gradient has waited for it
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
	if p.f.padded() && !p.measured {
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
