package torch

import "github.com/snugml/snug/internal/trace"

// scaler gives birth to GradScaler's scale and growth tracker, once.
func (e *loop) scaler() {
	if e.scale == nil {
		for _, name := range []string{"scaler.scale", "scaler.growth_tracker"} {
			e.scale = append(e.scale, e.birth(e.define(tensor(name, trace.Optimizer, trace.Float32))))
		}
	}
}

// normChunk is how many elements one block of the multi-tensor norm takes (kChunkSize in MultiTensorApply.cuh).
const normChunk = 65536

// optimize is unscale_, clip_grad_norm_, the fused AdamW's step, update and zero_grad.
func (e *loop) optimize(fp16 bool) {
	found := nothing
	clip := e.cfg.GradClip != 0
	if fp16 && clip {
		found = e.unscale()
	}
	if clip {
		e.clip()
	}
	var inverse ref = nothing
	if fp16 {
		if !clip {
			found = e.unscale()
		}
		inverse = e.kernels.scratch(e.builder, "scaler.found_inf (step)", 4)
	}
	e.gpt.groups(func(p *param) {
		if !e.alive[p.step] {
			e.birth(p.step)
			e.birth(p.avg)
			e.birth(p.avgSq)
		}
	})
	e.free(inverse, found)
	e.gpt.groups(func(p *param) {
		e.free(p.gradNow)
		p.gradNow = nothing
	})
}

// unscale is GradScaler.unscale_; found_inf lives until update.
func (e *loop) unscale() ref {
	a, b := e.kernels.scratch(e.builder, "scaler.scale (float64)", 8), e.kernels.scratch(e.builder, "scaler.inverse (float64)", 8)
	e.free(a)
	inv := e.kernels.scratch(e.builder, "scaler.inverse", 4)
	e.free(b)
	found := e.kernels.scratch(e.builder, "scaler.found_inf", 4)
	foundDev := e.kernels.scratch(e.builder, "scaler.found_inf (device)", 4)
	e.free(e.kernels.scratch(e.builder, "scaler.inverse (device)", 4))
	e.free(inv, found)
	return foundDev
}

// clip is clip_grad_norm_: the norm of every gradient, then of the norms.
func (e *loop) clip() {
	chunks := int64(1)
	for _, p := range e.gpt.params {
		chunks = max(chunks, (p.numel+normChunk-1)/normChunk)
	}
	n := len(e.gpt.params)
	partial := e.kernels.scratch(e.builder, "clip_grad_norm.partial", 4*n*int(chunks))
	norms := make([]ref, n)
	for i := range norms {
		norms[i] = e.kernels.scratch(e.builder, "clip_grad_norm.norm", 4)
	}
	e.free(partial)
	stacked := e.kernels.scratch(e.builder, "clip_grad_norm.norms", 4*n)
	total := e.kernels.scratch(e.builder, "clip_grad_norm.total_norm", 4)
	e.free(stacked)
	for i := n - 1; i >= 0; i-- {
		e.free(norms[i])
	}
	sum := e.kernels.scratch(e.builder, "clip_grad_norm.total_norm + eps", 4)
	rec := e.kernels.scratch(e.builder, "clip_grad_norm.reciprocal", 4)
	coef := e.kernels.scratch(e.builder, "clip_grad_norm.clip_coef", 4)
	e.free(rec, sum)
	clamped := e.kernels.scratch(e.builder, "clip_grad_norm.clip_coef_clamped", 4)
	e.free(coef, clamped, total)
}
