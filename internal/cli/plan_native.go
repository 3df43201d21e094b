package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
	"github.com/snugml/snug/internal/units"
)

// cudaContext is what the context, snug's kernels and cuBLASLt's take beside the arena on an H200 (driver 580), rounded up;
// smaller cards take less.
const cudaContext = 544 * units.MiB

// nativeTarget is where snug's own engine would run, and what it would store and pay there.
type nativeTarget struct {
	fit.Target
	dtypes  gpt.Policy
	costs   train.Costs
	scratch func(*program.Op) units.Bytes
	context units.Bytes
}

// onCPU is the target of device=cpu, and of a machine for which no GPU is named or found.
func onCPU(c *config.Config) (nativeTarget, error) {
	d, err := cpuDevice(c)
	if err != nil {
		return nativeTarget{}, err
	}
	defer d.Exec.Close()
	t := fit.Target{Card: gpu.Card{Name: d.Name, Memory: train.FreeMemory()}, Limit: d.Limit}
	return nativeTarget{Target: t, dtypes: d.DTypes, costs: d.Costs, scratch: d.Exec.Scratch}, nil
}

// gpuCosts are those that a run would plan with: this machine's GPU's, as measured by an earlier run where there was one,
// unless another card is named.
func gpuCosts(ctx context.Context, o planOptions, t fit.Target) train.Costs {
	if o.gpu != "" {
		return train.GPUCosts(t.Card.SMs)
	}
	if here, ok := deviceHere(ctx); ok {
		if known, ok := train.KnownCosts(cacheFolder(), here.Name, gpt.Model(o.config.Model()), trace.DType(o.config.DType)); ok {
			return known
		}
		if card, ok := gpu.ForDevice(here.Name, here.Total); ok {
			return train.GPUCosts(card.SMs)
		}
	}
	return train.GPUCosts(t.Card.SMs)
}

// nativePlan is what snug's own engine takes: the fastest policy that fits, and the runners-up.
func nativePlan(ctx context.Context, o planOptions, t fit.Target) (*planReport, error) {
	n := nativeTarget{Target: t, dtypes: train.DTypes(trace.DType(o.config.DType)), costs: gpuCosts(ctx, o, t), context: cudaContext,
		scratch: cuda.Target{Major: t.Card.Capability().Major, Blas: true}.Scratch}
	if o.config.IsSet("device") && o.config.Device == "cpu" || t.Limit == 0 {
		var err error
		if n, err = onCPU(&o.config); err != nil {
			return nil, err
		}
	}
	p := &planReport{Engine: "native", Config: o.config.Map(config.Plan), Context: n.context, Suggestions: []planSuggestion{}, cfg: o.config, target: n.Target}
	room := n.Limit
	if room > 0 {
		room = max(1, n.Limit-n.context)
	}
	found, err := train.Candidates(gpt.Model(o.config.Model()), &o.config, n.dtypes, n.costs, n.scratch, room)
	var tight *train.FitError
	if errors.As(err, &tight) { // plan the least that it can take
		p.device(n.Target, false)
		found, err = train.Candidates(gpt.Model(o.config.Model()), &o.config, n.dtypes, n.costs, n.scratch, tight.Need)
		p.verdict = fmt.Sprintf("does not fit: the least it can take is %v, the limit is %v", tight.Need+n.context, n.Limit)
	}
	if err != nil {
		return nil, usageError(err)
	}
	p.native(found[0], n)
	for _, c := range found[1:] {
		changes := map[string]any{"micro_batch": c.Step.Policy.MicroBatch}
		if c.Step.Policy.MicroBatch == o.config.EffectiveBatch() { // with less at once gradients are sums, and have one type
			changes["gradient_dtype"] = string(c.Step.Policy.Gradient)
		}
		p.Suggestions = append(p.Suggestions, planSuggestion{Kind: "policy", Changes: changes,
			SameTraining: true, EffectiveBatch: o.config.EffectiveBatch(), Peak: n.peak(p.Peak.Phase, c.Layout.Size), Fits: tight == nil, RelativeSpeed: found[0].Cost / c.Cost, Why: policyText(c.Step)})
	}
	return p, nil
}

func (n nativeTarget) peak(phase string, size units.Bytes) fit.Peak {
	return fit.Peak{Phase: phase, Allocated: size, Reserved: size, Process: size + n.context}
}

// native fills in the plan of one candidate. The arena is one allocation, so allocated and reserved are the same.
func (p *planReport) native(c train.Candidate, n nativeTarget) {
	phase, ledger := c.Layout.Ledger()
	p.Peak, p.Breakdown = n.peak(phase, c.Layout.Size), breakdown(ledger)
	if p.verdict == "" {
		p.device(n.Target, true)
		p.verdict = fmt.Sprintf("takes %v, exactly %s bytes in one allocation", c.Layout.Size, units.Count(int(c.Layout.Size)))
	}
	t := c.Layout.Trace()
	var live units.Bytes
	for _, ph := range t.Phases {
		most := live
		for _, e := range ph.Events {
			if e.Free {
				live -= t.Tensors[e.Tensor].Bytes
			} else {
				live += t.Tensors[e.Tensor].Bytes
			}
			most = max(most, live)
		}
		p.Phases = append(p.Phases, planPhase{ph.Name, most, c.Layout.Size})
	}
	p.Notes = append(p.Notes, "policy: "+policyText(c.Step))
}

func sequences(n int) string {
	if n == 1 {
		return "1 sequence"
	}
	return fmt.Sprintf("%d sequences", n)
}

// policyText says how a step is run.
func policyText(s *gpt.Step) string {
	text := fmt.Sprintf("%s at once, logits of %d tokens", sequences(s.Policy.MicroBatch), s.Policy.LossChunk)
	if s.Policy.Gradient != trace.Float32 {
		text += fmt.Sprintf(", gradients in %s", s.Policy.Gradient)
	}
	if again := recomputed(s); again != "" {
		text += ", recomputing " + again
	}
	if s.Policy.EvalBatch > s.Policy.MicroBatch {
		text += fmt.Sprintf(", evaluating %d at once", s.Policy.EvalBatch)
	}
	return text
}
