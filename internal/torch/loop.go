package torch

import (
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
)

// loop is nanoGPT's train.py: its data, its model, what its variables hold.
type loop struct {
	*builder
	cfg        config.Config
	gpt        *model
	kernels    *kernels
	train      *activations
	eval       *activations
	passes     passes
	x, y       ref // the batch that the loop has fetched
	batch      [2]ref
	evalIn     [2]ref
	bestVal    ref            // a resumed checkpoint's, until the first evaluation replaces it
	compiled   []compiledPass // evaluation's and training's; nil in eager mode
	ddp        *ddp           // nil without DDP
	logits     ref            // what the loop's variables hold
	loss       ref
	scale      []ref
	dropLogits bool
}

// passes says how often a trace repeats what repeats: evaluation batches, micro-steps of a step, later steps.
type passes struct{ eval, micro, steps int }

// pass is one forward of the model; in training, also its backward.
type pass interface {
	forward() (logits, loss ref) // logits and loss are the caller's to free
	leave()                      // the end of autocast's block
	backward(x, y, dloss ref)    // frees the batch and the loss's gradient
}

func (e *loop) pass(train bool) pass {
	switch {
	case e.compiled == nil && train:
		return &forward{activations: e.train, gpt: e.gpt, kernels: e.kernels, train: true, dropout: e.cfg.Dropout > 0}
	case e.compiled == nil:
		return &forward{activations: e.eval, gpt: e.gpt, kernels: e.kernels}
	case train:
		return &e.compiled[1]
	}
	return &e.compiled[0]
}

// compile writes the graphs of evaluation and of training.
func (e *loop) compile(m config.Model) {
	layers := m.NLayer + 1
	for i, a := range []*activations{e.eval, e.train} {
		c := &compiler{graph: newGraph(e.builder, e.kernels, 18*layers, 26*layers), dims: a.dims, model: m, gpt: e.gpt, train: i == 1, dropout: e.cfg.Dropout > 0}
		p := compiledPass{f: c.forward(), b: e.builder}
		if c.train {
			p.g = p.f.backward()
		}
		e.compiled = append(e.compiled, p)
	}
}

// getBatch is get_batch: tokens and targets on the GPU.
func (e *loop) getBatch(in [2]ref) (x, y ref) { return e.birth(in[0]), e.birth(in[1]) }

func (e *loop) weights() {
	for _, p := range e.gpt.params {
		e.birth(p.weight)
	}
}

// load is torch.load(ckpt_path, map_location=device): the checkpoint's tensors come onto the GPU in its own order. The
// optimizer keeps its state; train.py's variable state_dict keeps the checkpoint's weights beside the model's own.
func (e *loop) load() {
	for _, p := range e.gpt.params {
		t := e.tr.Tensors[p.weight]
		t.Name = "checkpoint: " + t.Name
		e.birth(e.define(t))
	}
	e.gpt.groups(func(p *param) {
		e.birth(p.step)
		e.birth(p.avg)
		e.birth(p.avgSq)
	})
	e.bestVal = e.birth(e.define(tensor("checkpoint: best_val_loss", trace.Weight, trace.Float32)))
}

// estimateLoss is the evaluation at step 0: the last batch's logits live until the next ones replace them.
func (e *loop) estimateLoss() {
	x, y, logits, loss := nothing, nothing, nothing, nothing
	for range e.passes.eval {
		nx, ny := e.getBatch(e.evalIn)
		e.free(x, y)
		x, y = nx, ny
		f := e.pass(false)
		newLogits, newLoss := f.forward()
		e.free(logits, loss)
		logits, loss = newLogits, newLoss
		f.leave()
	}
	e.free(x, y, logits, loss)
	if e.bestVal != nothing {
		e.free(e.kernels.scratch(e.builder, "losses['val'] < best_val_loss", 1), e.bestVal)
		e.bestVal = nothing
	}
}

// step is one iteration: micro-steps, clipping, the optimizer.
func (e *loop) step() {
	fp16 := e.train.half == trace.Float16
	for range e.passes.micro {
		e.stage("forward")
		e.ddp.forward(e)
		f := e.pass(true)
		logits, loss := f.forward()
		e.free(e.logits, e.loss)
		e.logits = logits
		e.loss = e.train.at(sLossScaled)
		e.free(loss)
		f.leave()
		x, y := e.x, e.y
		e.x, e.y = e.getBatch(e.batch)
		e.stage("backward")
		scaled := nothing
		if fp16 {
			e.scaler()
			scaled = e.train.at(sScaled)
		}
		ones := e.train.at(sOnes)
		d := e.train.at(sDLoss)
		if fp16 {
			d2 := e.train.at(sDLoss)
			e.free(d)
			d = d2
		}
		f.backward(x, y, d)
		e.free(ones, scaled)
		if e.dropLogits {
			e.free(e.logits)
			e.logits = nothing
		}
	}
	e.stage("optimizer")
	e.optimize(fp16)
}
