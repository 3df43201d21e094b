package torch

import (
	"fmt"

	"github.com/snugml/snug/internal/trace"
)

// ddp is DistributedDataParallel around the model: gradients are copied into buckets for their all-reduce
// (torch/csrc/distributed/c10d/reducer.cpp). NCCL's own buffers are no tensors: the process has them.
type ddp struct {
	buckets []ref
	steps   int
}

// Bucket limits of DDP: the first bucket closes at 1 MiB, further ones at 25 MiB; the model's first broadcast goes in
// parts of 250 MiB, two under way (torch/nn/parallel/distributed.py).
const (
	firstBucket     = 1 << 20
	laterBucket     = 25 << 20
	broadcastBucket = 250 << 20
)

// newDDP checks the parameters' shapes, sends them to all, and makes one bucket of everything until the first
// step has shown in which order gradients come.
func newDDP(e *loop) *ddp {
	k, b := e.kernels, e.builder
	var dims int
	for _, p := range e.gpt.params {
		dims += 2 * len(b.tr.Tensors[p.weight].Shape)
	}
	mine, all := k.scratch(b, "ddp.params", 8), k.scratch(b, "ddp.params (all)", 8)
	b.free(k.scratch(b, "ddp.params (copy)", 8))
	b.free(k.scratch(b, "ddp.shapes", 8*dims))
	b.free(all, mine)
	var flight []ref
	for _, bytes := range bucketSizes(e.gpt.params, broadcastBucket, broadcastBucket) {
		if len(flight) == 2 {
			b.free(flight[0])
			flight = flight[1:]
		}
		flight = append(flight, k.scratch(b, "ddp.broadcast", int(bytes)))
	}
	b.free(flight...)
	var total int64
	for _, p := range e.gpt.params {
		total += 4 * p.numel
	}
	return &ddp{buckets: []ref{b.birth(b.define(tensor("ddp.bucket.0", trace.Gradient, trace.Float32, int(total/4))))}}
}

// forward is DDP's part of a training forward: the first after a synchronized backward rebuilds the buckets.
func (d *ddp) forward(e *loop) {
	if d == nil {
		return
	}
	if d.steps++; d.steps != e.passes.micro+1 {
		return
	}
	sizes := bucketSizes(e.gpt.arrival(), firstBucket, laterBucket)
	k, b := e.kernels, e.builder
	order := k.scratch(b, "ddp.order", 4*(len(e.gpt.params)+1))
	b.free(k.scratch(b, "ddp.bucket_sizes", 4*len(sizes)), order)
	b.free(d.buckets...)
	d.buckets = nil
	for i, bytes := range sizes {
		d.buckets = append(d.buckets, b.birth(b.define(tensor(fmt.Sprintf("ddp.bucket.%d", i), trace.Gradient, trace.Float32, int(bytes/4)))))
	}
}

// bucketSizes packs parameters in order into buckets that close once they reach their limit, in bytes.
func bucketSizes(params []*param, first, later int64) []int64 {
	var sizes []int64
	var open int64
	limit := first
	for _, p := range params {
		if open += 4 * p.numel; open >= limit {
			sizes = append(sizes, open)
			open, limit = 0, later
		}
	}
	if open > 0 {
		sizes = append(sizes, open)
	}
	return sizes
}

// arrival lists the parameters in the order in which backward finishes their gradients.
func (g *model) arrival() []*param {
	var order []*param
	add := func(ps ...*param) {
		for _, p := range ps {
			if p != nil {
				order = append(order, p)
			}
		}
	}
	add(g.lnf.weight, g.lnf.bias)
	for i := len(g.layers) - 1; i >= 0; i-- {
		l := &g.layers[i]
		add(l.fp.weight, l.fp.bias, l.fc.weight, l.fc.bias, l.ln2.weight, l.ln2.bias)
		add(l.proj.weight, l.proj.bias, l.attn.weight, l.attn.bias, l.ln1.weight, l.ln1.bias)
	}
	add(g.wpe, g.wte)
	return order
}
