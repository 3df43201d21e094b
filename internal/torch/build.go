package torch

import (
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// Build returns the allocations of nanoGPT's train.py under the settings, as PyTorch performs them. Its phases are init
// (resume where the run resumes), eval, first_step and step; a run of eval_only ends with eval. What repeats is repeated
// only until memory has settled.
func Build(cfg config.Config, opt Options) (*trace.Trace, error) {
	return build(cfg, opt, passes{
		eval:  min(2*cfg.EvalIters, 2),
		micro: min(cfg.GradientAccumulationSteps/max(opt.WorldSize, 1), 2),
		steps: 2,
	})
}

func build(cfg config.Config, opt Options, n passes) (*trace.Trace, error) {
	if err := check(cfg, opt, n); err != nil {
		return nil, fmt.Errorf("trace a run: %w", err)
	}
	m, d := cfg.Model(), dimsOf(cfg)
	dEval := d
	if opt.EvalBatch > 0 {
		dEval.B = opt.EvalBatch
	}
	layers := m.NLayer + 2 // about as much again as two layers comes before and behind them
	b := newBuilder(120 * layers)
	e := &loop{
		builder: b, cfg: cfg, dropLogits: opt.DropLogits, passes: n, logits: nothing, loss: nothing, bestVal: nothing,
		gpt:     newModel(b, m, d.half),
		kernels: newKernels(opt.Device.orTypical()),
		train:   newActivations(b, d, m.NLayer),
	}
	e.eval = e.train
	e.batch = inputs(b, d)
	e.evalIn = e.batch
	if dEval != d {
		e.eval = newActivations(b, dEval, m.NLayer)
		e.evalIn = inputs(b, dEval)
	}
	resumed := opt.Resume || cfg.InitFrom == "resume"
	e.kernels.warm, e.kernels.unpadded = resumed, opt.Unpadded
	if cfg.Compile {
		e.compile(m)
	}
	if resumed {
		b.phase("resume", 50*layers)
		e.load()
	} else {
		b.phase("init", 15*layers)
	}
	e.weights()
	b.phase("eval", 40*layers*n.eval)
	if opt.DDP || opt.WorldSize > 1 {
		e.ddp = newDDP(e)
	}
	e.x, e.y = e.getBatch(e.batch)
	e.estimateLoss()
	if !cfg.EvalOnly || resumed { // train.py's `if iter_num == 0 and eval_only`: a resumed run goes on
		b.phase("first_step", 110*layers*n.micro+80*layers)
		e.step()
		b.phase("step", (110*layers*n.micro+60*layers)*n.steps)
		for range n.steps {
			e.step()
		}
	}
	if b.most > mostBytes {
		return nil, fmt.Errorf("trace a run: it would hold more than %v at once, more than any machine has: make batch_size %d or block_size %d smaller", mostBytes, cfg.BatchSize, cfg.BlockSize)
	}
	return b.tr, nil
}

// mostLayers keeps a trace to what a computer holds; the deepest model trained so far has a hundredth of it.
const mostLayers = 10000

// check says whether the settings describe a run that train.py would begin.
func check(cfg config.Config, opt Options, n passes) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	m, d := cfg.Model(), dimsOf(cfg)
	if min(d.B, d.T, d.C, d.NH, d.V, m.NLayer, n.eval) < 1 {
		return fmt.Errorf("batch_size %d, block_size %d, n_embd %d, n_head %d, n_layer %d, eval_iters %d must all be at least 1",
			d.B, d.T, d.C, d.NH, m.NLayer, cfg.EvalIters)
	}
	if m.NLayer > mostLayers {
		return fmt.Errorf("n_layer %d is more than the %d that can be traced: make it smaller", m.NLayer, mostLayers)
	}
	if w := max(opt.WorldSize, 1); n.micro < 1 || cfg.GradientAccumulationSteps%w != 0 {
		return fmt.Errorf("gradient_accumulation_steps %d is no multiple of the %d processes, as train.py asserts: make it %d",
			cfg.GradientAccumulationSteps, w, ceilDiv(max(cfg.GradientAccumulationSteps, 1), w)*w)
	}
	return nil
}

// mostBytes is where sums of sizes would come near the end of 64 bits.
const mostBytes = 256 * 1024 * units.TiB

// dimsOf are the sizes of a training batch.
func dimsOf(cfg config.Config) dims {
	m := cfg.Model()
	return dims{B: cfg.BatchSize, T: m.BlockSize, C: m.NEmbd, NH: m.NHead, HS: m.NEmbd / m.NHead, V: m.VocabSize, half: trace.DType(cfg.DType)}
}

func inputs(b *builder, d dims) [2]ref {
	return [2]ref{
		b.define(tensor("X", trace.Input, trace.Int64, d.B, d.T)),
		b.define(tensor("Y", trace.Input, trace.Int64, d.B, d.T)),
	}
}
