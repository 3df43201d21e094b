package torch

import (
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/trace"
)

// dims are the sizes that shapes are made of: B sequences of T tokens, C wide, NH heads of HS, V words.
type dims struct {
	B, T, C, NH, HS, V int
	half               trace.DType // what autocast computes in; float32 for none
}

// N is the tokens of a batch.
func (d dims) N() int { return d.B * d.T }

// site is a place in the step where a tensor is born. Sites of a layer exist once for each layer.
type site uint8

const (
	sPos site = iota
	sTokEmb
	sPosEmb
	sEmb
	sEmbMask
	sEmbDrop
	sLn1
	sLn1Mean
	sLn1Rstd
	sLn1Half
	sQKV
	sSeed
	sOffset
	sAtt
	sLse
	sAttSpace
	sProj
	sProjMask
	sProjDrop
	sRes1
	sLn2
	sLn2Mean
	sLn2Rstd
	sLn2Half
	sFc
	sGelu
	sFp
	sFpMask
	sFpDrop
	sRes2
	sLnf
	sLnfMean
	sLnfRstd
	sLnfHalf
	sLogits
	sLogSoftmax
	sLogSoftmax32
	sLoss
	sTotalWeight
	sLossScaled
	sOnes
	sDLoss
	sDLogSoftmax32
	sDLogSoftmax
	sDLogits
	sDLnfHalf
	sDLnf
	sDX
	sDXHalf
	sDMasked
	sDGelu
	sDFc
	sDLn2Half
	sDLn2
	sDRes1
	sDAtt
	sDQ
	sDK
	sDV
	sDAttSpace
	sDAttProduct
	sDAttDelta
	sDAttDelta2
	sDQKV
	sDLn1Half
	sDLn1
	sDRes2
	sDPosEmb
	sDTokEmb
	sScaled
	sRngState
	sPadQ
	sPadK
	sPadV
	sPadY
	sPadYCopy
	sDPadY
	sDPadYCopy
	sDPadQ
	sDPadK
	sDPadV
	sDSoftmaxSum
	numSites
)

// shapeOf tells a site's shape and type from the sizes.
type shapeOf func(d dims) (trace.DType, []int)

func full(shape func(d dims) []int) shapeOf {
	return func(d dims) (trace.DType, []int) { return trace.Float32, shape(d) }
}

func halved(shape func(d dims) []int) shapeOf {
	return func(d dims) (trace.DType, []int) { return d.half, shape(d) }
}

func mask(shape func(d dims) []int) shapeOf {
	return func(d dims) (trace.DType, []int) { return trace.Bool, shape(d) }
}

func scalar(dtype trace.DType) shapeOf {
	return func(dims) (trace.DType, []int) { return dtype, nil }
}

func btc(d dims) []int    { return []int{d.B, d.T, d.C} }
func bt3c(d dims) []int   { return []int{d.B, d.T, 3 * d.C} }
func bt4c(d dims) []int   { return []int{d.B, d.T, 4 * d.C} }
func btv(d dims) []int    { return []int{d.B, d.T, d.V} }
func tokens(d dims) []int { return []int{d.B * d.T, d.V} } // logits.view(-1, V)
func tc(d dims) []int     { return []int{d.T, d.C} }
func rows(d dims) []int   { return []int{d.B, d.T} }
func heads(d dims) []int  { return []int{d.B, d.NH, d.T, d.HS} }
func padded(d dims) []int { return []int{d.B, d.NH, d.T, d.padHS()} }
func headsT(d dims) []int { return []int{d.B, d.NH, d.T} }

// siteSpec names a site and tells its shape; "(half)" in a name stands for autocast's type. A layer's site carries the layer in its name: h.3.attn.c_attn.
type siteSpec struct {
	name    string
	layered bool
	cat     trace.Category
	shape   shapeOf // nil: the size is given where it is born
}

// siteSpecs is every activation, gradient of an activation and workspace of a step, under the names of nanoGPT's modules.
var siteSpecs = [numSites]siteSpec{
	sPos:     {"pos", false, trace.Activation, func(d dims) (trace.DType, []int) { return trace.Int64, []int{d.T} }},
	sTokEmb:  {"tok_emb", false, trace.Activation, full(btc)},
	sPosEmb:  {"pos_emb", false, trace.Activation, full(tc)},
	sEmb:     {"tok_emb + pos_emb", false, trace.Activation, full(btc)},
	sEmbMask: {"drop.mask", false, trace.Activation, mask(btc)},
	sEmbDrop: {"drop", false, trace.Activation, full(btc)},

	sLn1:      {"ln_1", true, trace.Activation, full(btc)},
	sLn1Mean:  {"ln_1.mean", true, trace.Activation, full(rows)},
	sLn1Rstd:  {"ln_1.rstd", true, trace.Activation, full(rows)},
	sLn1Half:  {"ln_1 (half)", true, trace.Activation, halved(btc)},
	sQKV:      {"attn.c_attn", true, trace.Activation, halved(bt3c)},
	sSeed:     {"attn.philox_seed", true, trace.Activation, scalar(trace.Int64)},
	sOffset:   {"attn.philox_offset", true, trace.Activation, scalar(trace.Int64)},
	sAtt:      {"attn.y", true, trace.Activation, halved(heads)},
	sLse:      {"attn.logsumexp", true, trace.Activation, full(headsT)},
	sAttSpace: {"attn.workspace", true, trace.Workspace, nil},
	sProj:     {"attn.c_proj", true, trace.Activation, halved(btc)},
	sProjMask: {"attn.resid_dropout.mask", true, trace.Activation, mask(btc)},
	sProjDrop: {"attn.resid_dropout", true, trace.Activation, halved(btc)},
	sRes1:     {"x + attn", true, trace.Activation, full(btc)},
	sLn2:      {"ln_2", true, trace.Activation, full(btc)},
	sLn2Mean:  {"ln_2.mean", true, trace.Activation, full(rows)},
	sLn2Rstd:  {"ln_2.rstd", true, trace.Activation, full(rows)},
	sLn2Half:  {"ln_2 (half)", true, trace.Activation, halved(btc)},
	sFc:       {"mlp.c_fc", true, trace.Activation, halved(bt4c)},
	sGelu:     {"mlp.gelu", true, trace.Activation, halved(bt4c)},
	sFp:       {"mlp.c_proj", true, trace.Activation, halved(btc)},
	sFpMask:   {"mlp.dropout.mask", true, trace.Activation, mask(btc)},
	sFpDrop:   {"mlp.dropout", true, trace.Activation, halved(btc)},
	sRes2:     {"x + mlp", true, trace.Activation, full(btc)},

	sLnf:          {"ln_f", false, trace.Activation, full(btc)},
	sLnfMean:      {"ln_f.mean", false, trace.Activation, full(rows)},
	sLnfRstd:      {"ln_f.rstd", false, trace.Activation, full(rows)},
	sLnfHalf:      {"ln_f (half)", false, trace.Activation, halved(btc)},
	sLogits:       {"logits", false, trace.Activation, halved(btv)},
	sLogSoftmax:   {"cross_entropy.log_softmax", false, trace.Activation, halved(tokens)},
	sLogSoftmax32: {"cross_entropy.log_softmax (float32)", false, trace.Activation, full(tokens)},
	sLoss:         {"loss", false, trace.Activation, scalar(trace.Float32)},
	sTotalWeight:  {"cross_entropy.total_weight", false, trace.Activation, scalar(trace.Float32)},
	sLossScaled:   {"loss / gradient_accumulation_steps", false, trace.Activation, scalar(trace.Float32)},
	sScaled:       {"scaler.scale(loss)", false, trace.Activation, scalar(trace.Float32)},

	sOnes:          {"backward.ones", false, trace.Activation, scalar(trace.Float32)},
	sDLoss:         {"loss.grad", false, trace.Activation, scalar(trace.Float32)},
	sDLogSoftmax32: {"cross_entropy.log_softmax.grad (float32)", false, trace.Activation, full(tokens)},
	sDLogSoftmax:   {"cross_entropy.log_softmax.grad", false, trace.Activation, halved(tokens)},
	sDLogits:       {"logits.grad", false, trace.Activation, halved(btv)},
	sDLnfHalf:      {"ln_f.grad (half)", false, trace.Activation, halved(btc)},
	sDLnf:          {"ln_f.grad", false, trace.Activation, full(btc)},
	sDX:            {"x.grad", false, trace.Activation, full(btc)},
	sDXHalf:        {"x.grad (half)", true, trace.Activation, halved(btc)},
	sDMasked:       {"dropout.grad", true, trace.Activation, halved(btc)},
	sDGelu:         {"mlp.gelu.grad", true, trace.Activation, halved(bt4c)},
	sDFc:           {"mlp.c_fc.grad", true, trace.Activation, halved(bt4c)},
	sDLn2Half:      {"ln_2.grad (half)", true, trace.Activation, halved(btc)},
	sDLn2:          {"ln_2.grad", true, trace.Activation, full(btc)},
	sDRes1:         {"x + attn.grad", true, trace.Activation, full(btc)},
	sDAtt:          {"attn.y.grad", true, trace.Activation, halved(heads)},
	sDQ:            {"attn.q.grad", true, trace.Activation, halved(heads)},
	sDK:            {"attn.k.grad", true, trace.Activation, halved(heads)},
	sDV:            {"attn.v.grad", true, trace.Activation, halved(heads)},
	sDAttSpace:     {"attn.backward.workspace", true, trace.Workspace, nil},
	sDAttProduct:   {"attn.y * attn.y.grad", true, trace.Activation, halved(heads)},
	sDAttDelta:     {"attn.delta", true, trace.Activation, full(headsT)},
	sDAttDelta2:    {"attn.delta (contiguous)", true, trace.Activation, full(headsT)},
	sRngState:      {"attn.rng_state", true, trace.Activation, nil},
	sPadQ:          {"attn.q (padded)", true, trace.Activation, halved(padded)},
	sPadK:          {"attn.k (padded)", true, trace.Activation, halved(padded)},
	sPadV:          {"attn.v (padded)", true, trace.Activation, halved(padded)},
	sPadY:          {"attn.y (padded)", true, trace.Activation, halved(padded)},
	sPadYCopy:      {"attn.y (padded copy)", true, trace.Activation, halved(padded)},
	sDPadY:         {"attn.y.grad (padded)", true, trace.Activation, halved(padded)},
	sDPadYCopy:     {"attn.y.grad (padded copy)", true, trace.Activation, halved(padded)},
	sDPadQ:         {"attn.q.grad (padded)", true, trace.Activation, halved(padded)},
	sDPadK:         {"attn.k.grad (padded)", true, trace.Activation, halved(padded)},
	sDPadV:         {"attn.v.grad (padded)", true, trace.Activation, halved(padded)},
	sDSoftmaxSum:   {"attn.softmax.grad.sum", true, trace.Workspace, nil},
	sDQKV:          {"attn.c_attn.grad", true, trace.Activation, halved(bt3c)},
	sDLn1Half:      {"ln_1.grad (half)", true, trace.Activation, halved(btc)},
	sDLn1:          {"ln_1.grad", true, trace.Activation, full(btc)},
	sDRes2:         {"x + mlp.grad", true, trace.Activation, full(btc)},
	sDPosEmb:       {"pos_emb.grad", false, trace.Activation, full(tc)},
	sDTokEmb:       {"tok_emb.grad", false, trace.Activation, full(btc)},
}

// activations gives birth to the tensors of one batch size at their sites.
type activations struct {
	*builder
	dims
	refs [numSites][]ref        // by site and layer, defined at first birth
	like [numSites]trace.Tensor // a site's tensor without its layer's name
}

func newActivations(b *builder, d dims, layers int) *activations {
	a := &activations{builder: b, dims: d}
	all := make([]ref, int(numSites)*layers)
	for i := range all {
		all[i] = nothing
	}
	for s := range a.refs {
		a.refs[s], all = all[:layers], all[layers:]
	}
	return a
}

// at gives birth to the tensor of a site that exists once.
func (a *activations) at(s site) ref { return a.in(0, s) }

// in gives birth to the tensor of a layer's site.
func (a *activations) in(layer int, s site) ref {
	r := &a.refs[s][layer]
	if *r == nothing {
		t := &a.like[s]
		if t.DType == "" {
			dtype, shape := siteSpecs[s].shape(a.dims)
			*t = tensor("", siteSpecs[s].cat, dtype, shape...)
		}
		named := *t
		named.Name = a.name(layer, s)
		*r = a.define(named)
	}
	return a.birth(*r)
}

// bytes gives birth to a site's tensor of the given size.
func (a *activations) bytes(layer int, s site, size int) ref {
	r := &a.refs[s][layer]
	if *r == nothing {
		*r = a.define(tensor(a.name(layer, s), siteSpecs[s].cat, trace.UInt8, size))
	}
	return a.birth(*r)
}

func (a *activations) name(layer int, s site) string {
	spec := &siteSpecs[s]
	name := strings.Replace(spec.name, "(half)", "("+string(a.half)+")", 1)
	if spec.layered {
		return "h." + strconv.Itoa(layer) + "." + name
	}
	return name
}
