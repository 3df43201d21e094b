package gpt

import (
	"fmt"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// norm is what layernorm's backward needs beside its input: the output, and one mean and rstd a token.
type norm struct{ out, mean, rstd program.Arg }

// kept is what a layer's forward leaves for its backward. What the level gives up is zero, so Absent.
type kept struct {
	x         program.Arg // (N,C) the layer's input
	ln1, ln2  norm
	qkv       program.Arg // (N,3C)
	att, lse  program.Arg // (N,C), (B,NH,T)
	mid       program.Arg // (N,C) the stream after attention
	pre, gelu program.Arg // (N,4C) before and after GELU
}

// train is forward, chunked head and loss, and backward of one micro-batch.
func (b *builder) train() {
	layers := make([]kept, b.Model.NLayer)
	x, ln := b.encoder()
	for l := range layers {
		k, mlp := b.forward(l, x, ln, b.Policy.level(l) < RecomputeBlock)
		x, ln = b.nextLayer(l, k.mid, mlp)
		layers[l] = b.keep(l, k)
	}
	b.headLoss(ln.out, true)
	dx := b.act("dx", b.Model.NEmbd)
	b.normBackward("ln_f", dx, false, ln.out, x, ln)
	for l := len(layers) - 1; l >= 0; l-- {
		b.backward(l, b.again(l, layers[l]), dx)
	}
	at := b.attrs()
	at.Dropout, at.Overwrite = b.Model.Dropout, b.fresh
	b.op(program.EncoderBackward, "wte", at, b.dweight("wte"), b.dweight("wpe"), dx, b.head(b.Idx, b.tokens()))
}

// eval is forward and loss, without dropout; nothing outlives its last reader.
func (b *builder) eval() {
	dropout, in, losses := b.Model.Dropout, inputs{b.Idx, b.Targets}, b.losses
	b.Model.Dropout = 0
	defer func() { b.Model.Dropout, b.Idx, b.Targets, b.losses = dropout, in.idx, in.targets, losses }()
	if b.b > b.Policy.MicroBatch {
		b.ownInputs()
	}
	x, ln := b.encoder()
	for l := range b.Model.NLayer {
		k, mlp := b.forward(l, x, ln, false)
		x, ln = b.nextLayer(l, k.mid, mlp)
	}
	b.headLoss(ln.out, false)
}

// ownInputs gives the section tokens and losses of its own, where what training has is too small: no byte of them lives
// beside training's.
func (b *builder) ownInputs() {
	T := b.Model.BlockSize
	b.Idx = b.Add(program.Given, trace.Input, trace.Int32, "eval.idx", b.b, T)
	b.Targets = b.Add(program.Given, trace.Input, trace.Int32, "eval.targets", b.b, T)
	b.losses = b.Add(program.Temporary, trace.Activation, trace.Float32, "eval.losses", b.b, T)
	if b.given == nil {
		b.given = map[int]inputs{}
	}
	b.given[len(b.Sections)] = inputs{b.Idx, b.Targets}
}

func (b *builder) attrs() program.Attrs {
	return program.Attrs{B: b.b, T: b.Model.BlockSize, C: b.Model.NEmbd, NH: b.Model.NHead, N: b.tokens(), V: b.Model.VocabSize}
}

// encoder embeds the tokens and normalises them for the first layer.
func (b *builder) encoder() (x program.Arg, ln norm) {
	x = b.act("x", b.Model.NEmbd)
	at := b.attrs()
	at.Dropout = b.Model.Dropout
	b.op(program.EncoderForward, "wte", at, x, b.head(b.Idx, b.tokens()), b.weight("wte"), b.weight("wpe"))
	return x, b.layernorm("h.0.ln_1", x)
}

// forward runs layer l as far as the MLP's output, which nextLayer adds to the stream. Without pre, what GELU read is not written.
func (b *builder) forward(l int, x program.Arg, ln1 norm, pre bool) (k kept, mlp program.Arg) {
	h := fmt.Sprintf("h.%d.", l)
	k = kept{x: x, ln1: ln1}
	b.attention(&k, l)
	k.mid, k.ln2 = b.residual(h+"ln_2", 2+3*l, x, b.matmul(h+"attn.c_proj", k.att, b.Model.NEmbd))
	b.mlp(&k, l, pre)
	return k, b.matmul(h+"mlp.c_proj", k.gelu, b.Model.NEmbd)
}

// nextLayer adds the MLP's output to the stream and normalises it for layer l+1, or for the head.
func (b *builder) nextLayer(l int, mid, mlp program.Arg) (x program.Arg, ln norm) {
	name := "ln_f"
	if l+1 < b.Model.NLayer {
		name = fmt.Sprintf("h.%d.ln_1", l+1)
	}
	return b.residual(name, 3+3*l, mid, mlp)
}

// attention fills k.qkv, k.att and, where nothing is cached, k.lse from k.ln1.
func (b *builder) attention(k *kept, l int) {
	h := fmt.Sprintf("h.%d.", l)
	k.qkv = b.matmul(h+"attn.c_attn", k.ln1.out, 3*b.Model.NEmbd)
	k.att = b.act(h+"attn", b.Model.NEmbd)
	at := b.attrs()
	if b.caches != nil {
		c := b.caches[l]
		at.T = c.keys.Len / at.C
		b.op(program.AttentionCached, h+"attn", at, k.att, c.keys, c.values, k.qkv)
		return
	}
	k.lse = b.stat(h+"attn.lse", b.Model.NHead)
	at.Dropout, at.Site = b.Model.Dropout, 1+3*l
	b.op(program.AttentionForward, h+"attn", at, k.att, k.lse, k.qkv)
}

// mlp fills k.gelu, and with pre k.pre, from k.ln2.
func (b *builder) mlp(k *kept, l int, pre bool) {
	name := fmt.Sprintf("h.%d.mlp.c_fc", l)
	k.pre, k.gelu = program.Absent, b.act(fmt.Sprintf("h.%d.mlp.gelu", l), 4*b.Model.NEmbd)
	if pre {
		k.pre = b.act(name, 4*b.Model.NEmbd)
	}
	b.op(program.MatmulGeluForward, name, b.linear(b.Model.NEmbd, 4*b.Model.NEmbd), k.gelu, k.pre, k.ln2.out, b.weight(name), b.bias(name))
}

// keep drops from k what layer l's level computes again. A tensor's life ends with its last use, so dropping is forgetting.
func (b *builder) keep(l int, k kept) kept {
	level := b.Policy.level(l)
	if level >= RecomputeGelu {
		k.gelu = program.Arg{}
	}
	if level >= RecomputeLn {
		k.ln1, k.ln2 = norm{}, norm{}
	}
	if level >= RecomputeAttention {
		k.qkv, k.att, k.lse = program.Arg{}, program.Arg{}, program.Arg{}
	}
	if level >= RecomputeBlock {
		k.mid, k.pre = program.Arg{}, program.Arg{}
	}
	return k
}

// again is lazy: each value that keep dropped is computed when backward first asks for it, so that it lives shortly.
// The order is backward's: the MLP first. What attention needs waits until the MLP is done, unless mid depends on it.
func (b *builder) again(l int, k kept) *lazy { return &lazy{builder: b, l: l, kept: k} }

type lazy struct {
	*builder
	l int
	kept
}

func (z *lazy) name(part string) string { return fmt.Sprintf("h.%d.%s", z.l, part) }

// needMid computes the stream after attention, which brings ln_2 with it.
func (z *lazy) needMid() {
	if !z.mid.None() {
		return
	}
	z.needAtt()
	z.mid, z.ln2 = z.residual(z.name("ln_2"), 2+3*z.l, z.x, z.matmul(z.name("attn.c_proj"), z.att, z.Model.NEmbd))
}

func (z *lazy) needLn1() {
	if z.ln1.out.None() {
		z.ln1 = z.layernorm(z.name("ln_1"), z.x)
	}
}

func (z *lazy) needLn2() {
	z.needMid()
	if z.ln2.out.None() {
		z.ln2 = z.layernorm(z.name("ln_2"), z.mid)
	}
}

func (z *lazy) needAtt() {
	if z.att.None() {
		z.needLn1()
		z.attention(&z.kept, z.l)
	}
}

func (z *lazy) needGelu() {
	if z.pre.None() {
		z.needLn2()
		z.mlp(&z.kept, z.l, true)
		return
	}
	if z.gelu.None() {
		z.gelu = z.act(z.name("mlp.gelu"), 4*z.Model.NEmbd)
		z.op(program.GeluForward, z.name("mlp.gelu"), z.linear(z.Model.NEmbd, 4*z.Model.NEmbd), z.gelu, z.pre)
	}
}

// backward turns dx, the gradient of the layer's output, into that of its input, and adds to the layer's gradients.
func (b *builder) backward(l int, k *lazy, dx program.Arg) {
	C := b.Model.NEmbd
	k.needGelu()
	dout := b.dropoutBackward(k.name("mlp"), 3+3*l, dx)
	dgelu := b.linearBackward(k.name("mlp.c_proj"), "dgelu", dout, k.gelu, 4*C, C)
	b.op(program.GeluBackward, k.name("mlp.gelu"), b.linear(C, 4*C), dgelu, dgelu, k.pre)
	k.needLn2()
	dln2 := b.linearBackward(k.name("mlp.c_fc"), "dln_2", dgelu, k.ln2.out, C, 4*C)
	b.normBackward(k.name("ln_2"), dx, true, dln2, k.mid, k.ln2)

	k.needAtt()
	dout = b.dropoutBackward(k.name("attn"), 2+3*l, dx)
	datt := b.linearBackward(k.name("attn.c_proj"), "dattn", dout, k.att, C, C)
	dqkv, at := b.act(k.name("attn.dqkv"), 3*C), b.attrs()
	at.Dropout, at.Site = b.Model.Dropout, 1+3*l
	b.op(program.AttentionBackward, k.name("attn"), at, dqkv, b.stat(k.name("attn.dlse"), b.Model.NHead), datt, k.qkv, k.att, k.lse)
	k.needLn1()
	dln1 := b.linearBackward(k.name("attn.c_attn"), "dln_1", dqkv, k.ln1.out, C, 3*C)
	b.normBackward(k.name("ln_1"), dx, true, dln1, k.x, k.ln1)
}

// headLoss runs the tied head and the loss chunk by chunk; with grad, x (N,C) becomes its own gradient on the way.
func (b *builder) headLoss(x program.Arg, grad bool) {
	N, C, V := b.tokens(), b.Model.NEmbd, b.Model.VocabSize
	chunk := b.Policy.LossChunk
	if !grad && b.Policy.EvalChunk > 0 {
		chunk = b.Policy.EvalChunk
	}
	if chunk <= 0 || chunk > N {
		chunk = N
	}
	logits := b.Add(program.Temporary, trace.Activation, b.Policy.Activation, "logits", chunk, V)
	losses := b.head(b.losses, N)
	for at := 0; at < N; at += chunk {
		n := min(chunk, N-at)
		rows := program.Arg{ID: x.ID, Offset: at * C, Len: n * C}
		out := program.Arg{ID: logits, Len: n * V}
		linear := b.linear(C, V)
		linear.N = n
		b.op(program.MatmulForward, "lm_head", linear, out, rows, b.weight("wte"), program.Absent)
		loss := program.Attrs{N: n, V: V, NoGrad: !grad, Scale: 1 / (float64(b.Shape.Batch) * float64(b.Model.BlockSize))}
		b.op(program.Loss, "loss", loss, program.Arg{ID: b.losses, Offset: at, Len: n}, out, program.Arg{ID: b.Targets, Offset: at, Len: n})
		if grad {
			first := linear
			first.Overwrite = b.fresh && at == 0
			b.op(program.MatmulBackwardWeight, "lm_head", first, b.dweight("wte"), out, rows)
			b.op(program.MatmulBackwardInput, "lm_head", linear, rows, out, b.weight("wte"))
		}
	}
	b.op(program.LossSum, "loss", program.Attrs{N: N}, b.Whole(b.LossSum), losses)
}

// linear are the attributes of a matmul from C to OC channels over all tokens of the section.
func (b *builder) linear(C, OC int) program.Attrs {
	at := b.attrs()
	at.C, at.OC = C, OC
	return at
}

// matmul emits out (N,OC) = inp weight^T + bias.
func (b *builder) matmul(name string, inp program.Arg, OC int) program.Arg {
	out := b.act(name, OC)
	b.op(program.MatmulForward, name, b.linear(inp.Len/b.tokens(), OC), out, inp, b.weight(name), b.bias(name))
	return out
}

// linearBackward adds to the gradients of a matmul from C to OC channels and returns that of its input.
// The weight's comes first: inp may be dead after it.
func (b *builder) linearBackward(name, dname string, dout, inp program.Arg, C, OC int) program.Arg {
	at := b.linear(C, OC)
	first := at
	first.Overwrite = b.fresh
	if db := b.dbias(name); !db.None() {
		b.op(program.BiasBackward, name, first, db, dout)
	}
	b.op(program.MatmulBackwardWeight, name, first, b.dweight(name), dout, inp)
	dinp := b.act(dname, C)
	b.op(program.MatmulBackwardInput, name, at, dinp, dout, b.weight(name))
	return dinp
}

func (b *builder) layernorm(name string, inp program.Arg) norm {
	n := norm{out: b.act(name, b.Model.NEmbd), mean: b.stat(name+".mean", 1), rstd: b.stat(name+".rstd", 1)}
	b.op(program.LayernormForward, name, b.attrs(), n.out, n.mean, n.rstd, inp, b.weight(name), b.bias(name))
	return n
}

func (b *builder) normBackward(name string, dinp program.Arg, accumulate bool, dout, inp program.Arg, n norm) {
	at := b.attrs()
	at.Accumulate, at.Overwrite = accumulate, b.fresh
	b.op(program.LayernormBackward, name, at, dinp, b.dweight(name), b.dbias(name), dout, inp, b.weight(name), n.mean, n.rstd)
}

// residual emits sum = a + dropout(branch), in branch's place, and its layernorm, called name.
func (b *builder) residual(name string, site int, a, branch program.Arg) (sum program.Arg, n norm) {
	return b.residualInto(b.act(name, b.Model.NEmbd), name, site, a, branch)
}

// residualInto is residual with the layernorm in out.
func (b *builder) residualInto(out program.Arg, name string, site int, a, branch program.Arg) (sum program.Arg, n norm) {
	n = norm{out: out, mean: b.stat(name+".mean", 1), rstd: b.stat(name+".rstd", 1)}
	at := b.attrs()
	at.Dropout, at.Site = b.Model.Dropout, site
	b.op(program.ResidualLayernormForward, name, at, branch, n.out, n.mean, n.rstd, a, branch, b.weight(name), b.bias(name))
	return branch, n
}

// dropoutBackward returns the gradient of a residual's branch: dx itself where nothing is dropped.
func (b *builder) dropoutBackward(name string, site int, dx program.Arg) program.Arg {
	if b.Model.Dropout == 0 {
		return dx
	}
	dout, at := b.act(name+".ddropout", b.Model.NEmbd), b.attrs()
	at.Dropout, at.Site = b.Model.Dropout, site
	b.op(program.DropoutBackward, name, at, dout, dx)
	return dout
}
