package torch

import "github.com/snugml/snug/internal/trace"

// backward is autograd's pass over what a forward kept, in eager mode. A weight's gradient is made in half precision,
// cast to float32, and becomes the parameter's gradient or is added to it.
type backward struct {
	*forward
	x, y ref // tokens and targets, which the graph holds
}

// backward goes from the gradient of the loss to the embeddings.
func (f *forward) backward(x, y, dloss ref) {
	g := &backward{f, x, y}
	dlogits := g.crossEntropy(dloss)
	dlnf := g.lmHead(dlogits)
	dx := g.at(sDX) // the gradient of the residual stream: blocks add to it in place
	grads := g.normGrads(g.gpt.lnf)
	g.free(dlnf)
	g.dropNorm(g.lnf)
	g.accumulate(grads)
	for i := len(g.gpt.layers) - 1; i >= 0; i-- {
		g.mlp(i, dx)
		g.attention(i, dx)
	}
	g.embeddings(dx)
}

func (g *backward) full() bool { return g.half == trace.Float32 }

// crossEntropy ends with the gradient of the logits.
func (g *backward) crossEntropy(dloss ref) ref {
	if g.full() {
		d := g.at(sDLogSoftmax)
		g.free(dloss, g.y, g.weight)
		dlogits := g.at(sDLogits)
		g.free(d, g.logSoft)
		return dlogits
	}
	d32 := g.at(sDLogSoftmax32)
	g.free(dloss, g.logSoft32, g.y, g.weight)
	d := g.at(sDLogSoftmax)
	g.free(d32)
	dlogits := g.at(sDLogits)
	g.free(d, g.logSoft)
	return dlogits
}

// lmHead makes the first part of wte's gradient; the embedding adds the second at the end.
func (g *backward) lmHead(dlogits ref) ref {
	wte := g.gpt.wte
	if g.full() {
		g.tied = g.birth(wte.grad)
		g.kernels.blasBackward(g.builder)
		d := g.at(sDLnf)
		g.free(dlogits, g.lnfHalf)
		return d
	}
	dW := g.birth(wte.gradHalf)
	g.kernels.blasBackward(g.builder)
	dHalf := g.at(sDLnfHalf)
	g.free(dlogits, wte.cast, g.lnfHalf)
	d := g.at(sDLnf)
	g.free(dHalf)
	g.tied = g.birth(wte.grad)
	g.free(dW)
	return d
}

// mlp is the backward of x + mlp(ln_2(x)).
func (g *backward) mlp(i int, dx ref) {
	l, s := &g.gpt.layers[i], &g.layers[i]
	dy := g.branch(i, dx, s.fpMask)
	dgelu := g.linearGrad(i, l.fp, dy, s.gelu, sDGelu, sDGelu)
	dfc := g.in(i, sDFc)
	g.free(dgelu, s.fc)
	dln := g.linearGrad(i, l.fc, dfc, s.ln2Half, sDLn2Half, sDLn2)
	g.normBackward(i, l.ln2, s.ln2, dln, sDRes1)
}

// attention is the backward of x + attn(ln_1(x)).
func (g *backward) attention(i int, dx ref) {
	l, s := &g.gpt.layers[i], &g.layers[i]
	dy := g.branch(i, dx, s.projMask)
	kept := nothing // attention's backward frees y, unless it is a copy of what attention made
	if s.pads[0] != nothing {
		kept = s.att
	}
	datt := g.linearGrad(i, l.proj, dy, kept, sDAtt, sDAtt)
	dqkv := g.attendBackward(i, datt)
	dln := g.linearGrad(i, l.attn, dqkv, s.ln1Half, sDLn1Half, sDLn1)
	g.normBackward(i, l.ln1, s.ln1, dln, sDRes2)
}

// branch turns the residual stream's gradient into the gradient of a branch: cast to half, through the dropout's mask.
// Without either it is the stream's own, and nothing is returned.
func (g *backward) branch(i int, dx, mask ref) ref {
	dy := nothing
	if !g.full() {
		dy = g.in(i, sDXHalf)
	}
	if mask != nothing {
		masked := g.in(i, sDMasked)
		g.free(dy, mask)
		dy = masked
	}
	return dy
}

// linearGrad is the backward of a linear module. kept is its input; the input's gradient is born at site half and, where
// the input was cast, cast to site cast.
func (g *backward) linearGrad(i int, l linear, dy, kept ref, half, cast site) ref {
	if g.full() {
		half = cast
	}
	var dx, dW, db ref = nothing, nothing, nothing
	weight, bias := l.weight.gradHalf, ref(nothing)
	if g.full() {
		weight = l.weight.grad
	}
	if l.bias == nil {
		dW = g.birth(weight)
		dx = g.in(i, half)
		g.free(dy, l.weight.cast, kept)
	} else {
		bias = l.bias.gradHalf
		if g.full() {
			bias = l.bias.grad
		}
		dx = g.in(i, half)
		dW = g.birth(weight)
		db = g.birth(bias)
		g.kernels.columnSum(g.builder, g.N(), int(l.bias.numel))
		g.free(dy, kept, l.weight.cast)
	}
	if cast != half {
		d := g.in(i, cast)
		g.free(dx)
		dx = d
	}
	g.finishGrad(l.weight, dW)
	if l.bias != nil {
		g.finishGrad(l.bias, db)
	}
	return dx
}

// finishGrad casts a half-precision gradient and adds it to the parameter's.
func (g *backward) finishGrad(p *param, d ref) {
	if !g.full() {
		fresh := g.birth(p.grad)
		g.free(d)
		d = fresh
	}
	p.add(g.builder, d)
}

// freshGrad is a parameter's gradient before it is added.
type freshGrad struct {
	p *param
	d ref
}

func (g *backward) normGrads(n norm) []freshGrad {
	grads := append(g.fresh[:0], freshGrad{n.weight, g.birth(n.weight.grad)})
	if n.bias != nil {
		grads = append(grads, freshGrad{n.bias, g.birth(n.bias.grad)})
	}
	g.fresh = grads
	return grads
}

func (g *backward) accumulate(grads []freshGrad) {
	for _, f := range grads {
		f.p.add(g.builder, f.d)
	}
}

func (g *backward) dropNorm(s savedNorm) { g.free(s.input, s.mean, s.rstd) }

// normBackward is the backward of a layernorm; its input's gradient is added to the residual stream's.
func (g *backward) normBackward(i int, n norm, s savedNorm, dy ref, out site) {
	d := g.in(i, out)
	grads := g.normGrads(n)
	g.free(dy)
	g.dropNorm(s)
	g.free(d)
	g.accumulate(grads)
}

// embeddings ends the pass: wpe's gradient is summed over the batch, wte's is added to lm_head's.
func (g *backward) embeddings(dx ref) {
	if g.emb.mask != nothing {
		masked := g.at(sDTokEmb)
		g.free(dx, g.emb.mask)
		dx = masked
	}
	sum := g.at(sDPosEmb)
	d := g.kernels.embeddingGrad(g.activations, g.gpt.wpe, g.T)
	g.free(sum, g.emb.pos)
	g.gpt.wpe.add(g.builder, d)
	d = g.kernels.embeddingGrad(g.activations, g.gpt.wte, g.N())
	if g.full() { // lm_head's part is a transposed view, so the sum is a tensor of its own
		g.free(dx, g.x)
		sum := g.birth(g.gpt.wte.grad)
		g.free(g.tied, d)
		g.gpt.wte.add(g.builder, sum)
		return
	}
	g.free(dx, g.x, d)
	g.gpt.wte.add(g.builder, g.tied)
}
