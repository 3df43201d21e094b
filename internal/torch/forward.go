package torch

// forward is a model's forward pass in eager mode. In training, autograd's graph keeps what backward needs; under
// no_grad everything dies as soon as Python lets go of it.
type forward struct {
	*activations
	gpt               *model
	kernels           *kernels
	train             bool
	dropout           bool
	emb               saved // what backward needs, where train
	layers            []savedLayer
	lnf               savedNorm
	lnfHalf           ref
	logSoft           ref
	logSoft32, weight ref
	logits            ref // nanoGPT's logits and loss: the caller's to free
	loss              ref
	tied              ref // lm_head's part of wte's gradient, until the embedding adds its own
	fresh             []freshGrad
	casts             []*param // autocast's cache, cleared when the caller leaves ctx
}

type saved struct{ pos, mask ref }

type savedNorm struct{ input, mean, rstd ref }

// savedLayer is what autograd holds for the backward of one block.
type savedLayer struct {
	ln1, ln2               savedNorm
	ln1Half, qkv, att, lse ref
	seed, offset           ref
	pads                   [4]ref // q, k, v and y with heads padded to a multiple of 8, else nothing
	projMask, fpMask       ref
	ln2Half, fc, gelu      ref
}

// forward appends the pass to the trace. Logits and loss are the caller's to free.
func (f *forward) forward() (logits, loss ref) {
	f.layers = make([]savedLayer, len(f.gpt.layers))
	f.emb = saved{pos: f.at(sPos), mask: nothing}
	tok, pos := f.at(sTokEmb), f.at(sPosEmb)
	x := f.at(sEmb)
	if f.dropout && f.train {
		f.emb.mask = f.at(sEmbMask)
		drop := f.at(sEmbDrop)
		f.free(x)
		x = drop
	}
	for i := range f.gpt.layers {
		x = f.block(i, x)
	}
	f.head(x, tok, pos)
	return f.logits, f.loss
}

// block is one layer: x = x + attn(ln_1(x)); x = x + mlp(ln_2(x)).
func (f *forward) block(i int, x ref) ref {
	l, s := &f.gpt.layers[i], &f.layers[i]
	ln1 := f.norm(&s.ln1, x, i, sLn1)
	s.ln1Half, s.qkv = f.linear(i, l.attn, ln1, sLn1Half, sQKV)
	f.attend(i)
	_, proj := f.linear(i, l.proj, nothing, 0, sProj)
	if !f.train {
		f.free(s.att, s.qkv)
	} else if s.pads[0] != nothing {
		f.free(s.qkv)
	}
	proj = f.drop(i, proj, &s.projMask, sProjMask, sProjDrop)
	f.letGo(ln1)
	res1 := f.in(i, sRes1)
	f.free(proj)

	ln2 := f.norm(&s.ln2, res1, i, sLn2)
	s.ln2Half, s.fc = f.linear(i, l.fc, ln2, sLn2Half, sFc)
	s.gelu = f.in(i, sGelu)
	if !f.train {
		f.free(s.fc)
	}
	_, fp := f.linear(i, l.fp, nothing, 0, sFp)
	if !f.train {
		f.free(s.gelu)
	}
	fp = f.drop(i, fp, &s.fpMask, sFpMask, sFpDrop)
	f.letGo(ln2)
	res2 := f.in(i, sRes2)
	f.free(fp)
	if !f.train {
		f.free(res1, x)
	}
	return res2
}

// norm is a layernorm: the output, and for backward the mean and the reciprocal deviation of each row.
func (f *forward) norm(s *savedNorm, x ref, layer int, out site) ref {
	y := f.in(layer, out)
	*s = savedNorm{input: x, mean: f.in(layer, out+1), rstd: f.in(layer, out+2)}
	if !f.train {
		f.free(s.mean, s.rstd)
	}
	return y
}

// linear is y = x W^T + b under autocast: the weights are cast once for the whole pass, the input each time.
// It returns what backward keeps of the input, and y. An input of nothing is in half precision already.
func (f *forward) linear(layer int, l linear, x ref, castTo, out site) (kept, y ref) {
	if l.bias != nil {
		f.cast(l.bias)
	}
	f.cast(l.weight)
	kept = x
	if x != nothing && l.weight.cast != nothing {
		kept = f.in(layer, castTo)
	}
	y = f.in(layer, out)
	f.kernels.blas(f.builder, l.bias != nil)
	if !f.train && kept != x {
		f.free(kept)
	}
	return kept, y
}

// cast puts a parameter's half-precision copy into autocast's cache.
func (f *forward) cast(p *param) {
	if p.cast != nothing {
		f.birth(p.cast)
		f.casts = append(f.casts, p)
	}
}

// letGo frees a layernorm's output when its block returns, unless backward needs it: in float32 it is the matmul's input.
func (f *forward) letGo(ln ref) {
	if !f.train || f.half != "float32" {
		f.free(ln)
	}
}

// drop is dropout: in training a mask for backward and the masked copy.
func (f *forward) drop(layer int, x ref, kept *ref, maskAt, out site) ref {
	*kept = nothing
	if !f.dropout || !f.train {
		return x
	}
	*kept = f.in(layer, maskAt)
	y := f.in(layer, out)
	f.free(x)
	return y
}

// head is ln_f, lm_head and the loss.
func (f *forward) head(x, tok, pos ref) {
	lnf := f.norm(&f.lnf, x, 0, sLnf)
	if !f.train {
		f.free(x)
	}
	f.lnfHalf, f.logits = f.linear(0, linear{weight: f.gpt.wte}, lnf, sLnfHalf, sLogits)
	f.logSoft = f.at(sLogSoftmax)
	f.logSoft32 = nothing
	if f.half != "float32" {
		f.logSoft32 = f.at(sLogSoftmax32)
	}
	f.loss, f.weight = f.at(sLoss), f.at(sTotalWeight)
	if !f.train {
		f.free(f.weight, f.logSoft32, f.logSoft, f.emb.pos)
	}
	f.free(tok, pos)
	if !f.train || f.half != "float32" {
		f.free(lnf)
	}
}

// leave is autocast's exit: its cache is emptied; what backward still needs of it lives on in the graph.
func (f *forward) leave() {
	if !f.train {
		for _, p := range f.casts {
			f.free(p.cast)
		}
	} else {
		for _, p := range f.casts {
			if !p.decays {
				f.free(p.cast) // a bias's copy is no input of any backward
			}
		}
	}
	f.casts = f.casts[:0]
}
