package torch

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
)

// param is one parameter of the model: its tensors live through the whole run.
type param struct {
	weight   ref // float32, on the GPU from init on
	grad     ref // float32, once a backward has reached it
	gradHalf ref // as the matmul makes it, in half precision
	step     ref // AdamW's state, from the first step on
	avg      ref
	avgSq    ref
	cast     ref // autocast's copy in half precision; nothing in float32 and for layernorms and embeddings
	numel    int64
	decays   bool // at least two dimensions: in the first of the optimizer's groups
	gradNow  ref  // the live gradient, or nothing
}

// linear and norm are a layer's modules; bias is nil without bias.
type linear struct{ weight, bias *param }
type norm struct{ weight, bias *param }

// layer is one block of the transformer.
type layer struct {
	ln1, ln2           norm
	attn, proj, fc, fp linear // c_attn, attn.c_proj, c_fc, mlp.c_proj
}

// model is the GPT with its parameters in the order of model.parameters().
type model struct {
	wte, wpe *param
	layers   []layer
	lnf      norm
	params   []*param // in order of named_parameters; decaying ones first is the optimizer's order
}

// newModel defines the parameters under nanoGPT's names. half is autocast's type, or float32 for none.
func newModel(b *builder, m config.Model, half trace.DType) *model {
	gpt := &model{}
	add := func(name string, cast bool, shape ...int) *param {
		p := &param{cast: nothing, gradHalf: nothing, gradNow: nothing, decays: len(shape) > 1, numel: 1}
		for _, n := range shape {
			p.numel *= int64(n)
		}
		p.weight = b.define(tensor(name, trace.Weight, trace.Float32, shape...))
		p.grad = b.define(tensor(name+".grad", trace.Gradient, trace.Float32, shape...))
		p.step = b.define(tensor(name+".step", trace.Optimizer, trace.Float32))
		p.avg = b.define(tensor(name+".exp_avg", trace.Optimizer, trace.Float32, shape...))
		p.avgSq = b.define(tensor(name+".exp_avg_sq", trace.Optimizer, trace.Float32, shape...))
		if cast && half != trace.Float32 {
			p.cast = b.define(tensor(name+" ("+string(half)+")", trace.Activation, half, shape...))
			p.gradHalf = b.define(tensor(name+".grad ("+string(half)+")", trace.Gradient, half, shape...))
		}
		gpt.params = append(gpt.params, p)
		return p
	}
	lin := func(name string, in, out int) linear {
		l := linear{weight: add(name+".weight", true, out, in)}
		if m.Bias {
			l.bias = add(name+".bias", true, out)
		}
		return l
	}
	ln := func(name string) norm {
		n := norm{weight: add(name+".weight", false, m.NEmbd)}
		if m.Bias {
			n.bias = add(name+".bias", false, m.NEmbd)
		}
		return n
	}
	c := m.NEmbd
	gpt.wte = add("transformer.wte.weight", true, m.VocabSize, c)
	gpt.wpe = add("transformer.wpe.weight", false, m.BlockSize, c)
	gpt.layers = make([]layer, m.NLayer)
	for i := range gpt.layers {
		h := fmt.Sprintf("transformer.h.%d.", i)
		l := &gpt.layers[i]
		l.ln1 = ln(h + "ln_1")
		l.attn = lin(h+"attn.c_attn", c, 3*c)
		l.proj = lin(h+"attn.c_proj", c, c)
		l.ln2 = ln(h + "ln_2")
		l.fc = lin(h+"mlp.c_fc", c, 4*c)
		l.fp = lin(h+"mlp.c_proj", 4*c, c)
	}
	gpt.lnf = ln("transformer.ln_f")
	return gpt
}

// groups calls f for each parameter in the order of the optimizer's groups: those that decay, then the others.
func (g *model) groups(f func(*param)) {
	for _, decays := range []bool{true, false} {
		for _, p := range g.params {
			if p.decays == decays {
				f(p)
			}
		}
	}
}

// add gives the parameter its gradient: the first is kept, later ones are added to it and freed.
func (p *param) add(b *builder, d ref) {
	if p.gradNow == nothing {
		p.gradNow = d
	} else {
		b.free(d)
	}
}
