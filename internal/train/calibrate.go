package train

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// calibrator times one and two layers of a model. Their difference is a layer alone, whatever embedding and head cost.
type calibrator struct {
	exec   program.Executor
	model  gpt.Model
	dtypes gpt.Policy
	limit  units.Bytes // of an arena; 0 is none
	now    func() time.Time
}

// Calibrate measures a device's costs on layers as wide as m's, in less than a second on a GPU. prior is what they are taken
// for before: a measurement far from it is a disturbed one, and goes only a part of the way.
//
// A layer over n tokens takes a (n + Overhead): two numbers of tokens give both, of a size that runs use. Below that a device
// loses more than the overhead: 1,024 and 8,192 tokens on an H200 say 1,770 where whole runs of 25 and 103 sequences say 1,240.
// Each level of recompute is timed against none.
func (c *calibrator) Calibrate(prior Costs) (Costs, error) {
	if x, ok := c.exec.(hasty); ok {
		x.Hasty(true)
		defer x.Hasty(false)
	}
	T := c.model.BlockSize
	few := max(1, int(4*prior.Overhead)/T)
	many := max(2*few, int(30*prior.Overhead)/T)
	small, _, err := c.layer(few)
	if err != nil {
		return prior, err
	}
	large, none, err := c.layer(many)
	if err != nil {
		return prior, err
	}
	costs := prior
	n1, n2 := float64(few*T), float64(many*T)
	costs.scale(near((small*n2-large*n1)/(large-small), prior.Overhead))
	for level := gpt.RecomputeGelu; level <= gpt.RecomputeBlock; level++ {
		t, err := c.time(2, many, level)
		if err != nil {
			return prior, err
		}
		costs.Recompute[level] = max(costs.Recompute[level-1], near((t-none)/(2*large), prior.Recompute[level]))
	}
	return costs, nil
}

// scale sets the overhead, and with it how many tokens at once are worth it.
func (c *Costs) scale(overhead float64) {
	c.Tokens, c.Overhead = max(8192, int(float64(c.Tokens)*overhead/c.Overhead)), overhead
}

// measuredWithin is the factor of what was expected that a measurement is believed within.
const measuredWithin = 4

// near is x, kept within that of what was expected. What is no number is as expected.
func near(x, expected float64) float64 {
	if math.IsNaN(x) {
		return expected
	}
	return min(max(x, expected/measuredWithin), measuredWithin*expected)
}

// hasty is an executor that can be told to look for no fast algorithm: what is timed is compared with itself alone.
type hasty interface{ Hasty(on bool) }

// layer is the seconds of one layer's forward and backward over micro sequences, and those of two with what is around them.
func (c *calibrator) layer(micro int) (one, two float64, err error) {
	single, err := c.time(1, micro, gpt.RecomputeNone)
	if err != nil {
		return 0, 0, err
	}
	two, err = c.time(2, micro, gpt.RecomputeNone)
	return two - single, two, err
}

// time is the seconds of a micro-batch's forward and backward: the best of three, each the mean of two in a row.
func (c *calibrator) time(layers, micro int, level gpt.Recompute) (float64, error) {
	const tries, row, vocabulary = 3, 2, 1024
	m, p := c.model, c.dtypes
	m.NLayer, m.VocabSize = layers, vocabulary
	p.MicroBatch, p.Recompute = micro, gpt.Uniform(level)
	step, err := gpt.Build(m, gpt.Shape{Batch: micro}, p)
	if err != nil {
		return 0, err
	}
	step.AddScratch(c.exec.Scratch)
	layout := step.Place()
	if c.limit > 0 && layout.Size > c.limit {
		return 0, &FitError{Need: layout.Size, Limit: c.limit}
	}
	if err := c.exec.Load(layout); err != nil {
		return 0, err
	}
	tokens := make([]int32, micro*m.BlockSize)
	for i := range tokens {
		tokens[i] = int32(i % vocabulary)
	}
	for _, id := range []program.ID{step.Idx, step.Targets} {
		if err := c.exec.SetInts(id, tokens); err != nil {
			return 0, err
		}
	}
	best := math.Inf(1)
	for try := range 1 + tries { // the first one warms up
		began := c.now()
		for range row {
			if err := c.exec.Run(step.First, program.Step{LossScale: 1}); err != nil {
				return 0, err
			}
		}
		var one [1]float32
		if err := c.exec.Floats(step.LossSum, one[:]); err != nil { // waits for all of it
			return 0, err
		}
		if try > 0 {
			best = min(best, c.now().Sub(began).Seconds()/row)
		}
	}
	return best, nil
}

// costFile remembers the costs of a device, by what they were measured on. Losing it costs a second at start.
type costFile string

// costFileIn is the file of a device and these kernels in a folder, none where there is no folder; blas says that the library multiplies.
func costFileIn(folder, device string, blas bool) costFile {
	if folder == "" {
		return ""
	}
	by := "own"
	if blas {
		by = "cublaslt"
	}
	return costFile(filepath.Join(folder, fmt.Sprintf("costs-%s-%s-%s.json", filepath.Base(strings.ReplaceAll(device, " ", "-")), by, cuda.Kernels())))
}

// read is what the file holds: nothing, where it is missing or broken.
func (f costFile) read() map[string]Costs {
	known := map[string]Costs{}
	if data, err := os.ReadFile(string(f)); err != nil || json.Unmarshal(data, &known) != nil || known == nil {
		return map[string]Costs{}
	}
	return known
}

// add remembers c under key.
func (f costFile) add(key string, c Costs) error {
	if f == "" {
		return nil
	}
	known := f.read()
	known[key] = c
	data, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return fmt.Errorf("remember costs: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o755); err != nil {
		return fmt.Errorf("remember costs: %w", err)
	}
	return durable.WriteFile(string(f), data)
}

// costKey names what a layer's costs depend on.
func costKey(m gpt.Model, dtype trace.DType) string {
	return fmt.Sprintf("n_embd %d, n_head %d, block_size %d, bias %v, dropout %v, %s", m.NEmbd, m.NHead, m.BlockSize, m.Bias, m.Dropout > 0, dtype)
}

// find is what was remembered under key.
func (f costFile) find(key string) (Costs, bool) {
	c, ok := f.read()[key]
	return c, ok && c.Tokens > 0 && c.Eval > 0 && c.Overhead > 0
}

// KnownCosts are what running m in dtype was found to cost on a GPU by an earlier run, if there was one.
func KnownCosts(folder, device string, m gpt.Model, dtype trace.DType) (Costs, bool) {
	return costFileIn(folder, device, true).find(costKey(m, dtype))
}

// calibrated are the costs of running c's model: remembered, or measured now. A measurement that fails leaves prior.
func (f costFile) calibrated(c *calibrator, prior Costs) Costs {
	key := costKey(c.model, c.dtypes.Activation)
	if known, ok := f.find(key); ok {
		return known
	}
	costs, err := c.Calibrate(prior)
	if err == nil {
		_ = f.add(key, costs) // a folder that cannot be written is no reason not to run
	}
	return costs
}
