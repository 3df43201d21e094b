package gpt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

var testAdam = Adam{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}

// configurations are many: sizes from toy to GPT-2 XL, odd shapes, every recompute level and mixtures, all dtypes.
func configurations(yield func(name string, m Model, s Shape, p Policy)) {
	models := map[string]Model{
		"char":  {NLayer: 4, NHead: 4, NEmbd: 128, BlockSize: 64, VocabSize: 65},
		"baby":  {NLayer: 6, NHead: 6, NEmbd: 384, BlockSize: 256, VocabSize: 65, Dropout: 0.2},
		"odd":   {NLayer: 3, NHead: 5, NEmbd: 35, BlockSize: 37, VocabSize: 101, Bias: true, Dropout: 0.1},
		"124M":  {NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304},
		"350M":  {NLayer: 24, NHead: 16, NEmbd: 1024, BlockSize: 1024, VocabSize: 50257, Bias: true},
		"1558M": {NLayer: 48, NHead: 25, NEmbd: 1600, BlockSize: 1024, VocabSize: 50304},
	}
	policies := [][]Recompute{{RecomputeNone}, {RecomputeGelu}, {RecomputeLn}, {RecomputeAttention}, {RecomputeBlock},
		{RecomputeBlock, RecomputeBlock, RecomputeLn, RecomputeNone}, {RecomputeGelu, RecomputeAttention}}
	for name, m := range models {
		for _, rec := range policies {
			for _, b := range [][2]int{{1, 1}, {12, 12}, {40, 16}} {
				for _, chunk := range []int{0, 1000} {
					for _, half := range []bool{false, true} {
						p := inFloat32(b[1])
						if half {
							p.Weight, p.Activation = trace.BFloat16, trace.BFloat16
						}
						p.Recompute, p.LossChunk = rec, chunk
						yield(fmt.Sprintf("%s/b%d of %d/chunk %d/%v/half %v", name, b[1], b[0], chunk, rec, half),
							m, Shape{Batch: b[0], EvalBatch: 3 * b[0], Adam: testAdam}, p)
					}
				}
			}
		}
	}
}

// A parameter's state is what its weights' type and AdamW need and no bit twice: the weight, what completes it to fp32, two moments.
func TestStateBytes(t *testing.T) {
	for _, c := range []struct {
		dtype   trace.DType
		bytes   units.Bytes // a parameter
		weights bool        // a section writes the weights from the masters
	}{{trace.BFloat16, 2 + 2 + 4 + 4, false}, {trace.Float16, 2 + 4 + 4 + 4, true}, {trace.Float32, 4 + 4 + 4, false}} {
		m := Model{NLayer: 2, NHead: 3, NEmbd: 48, BlockSize: 33, VocabSize: 70, Bias: true}
		step, err := Build(m, Shape{Batch: 2}, Policy{MicroBatch: 1, Weight: c.dtype, Activation: c.dtype, Gradient: trace.Float32})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range step.Params {
			var got units.Bytes
			for i := range step.Tensors {
				if x := &step.Tensors[i]; strings.HasPrefix(x.Name, p.Name) && (x.Category == trace.Weight || x.Category == trace.Optimizer) {
					got += x.Bytes
				}
			}
			if want := c.bytes * units.Bytes(p.Len()); got != want {
				t.Errorf("%s: %s takes %d bytes, want %d", c.dtype, p.Name, got, want)
			}
		}
		if got := step.Weights >= 0; got != c.weights {
			t.Errorf("%s: a section for the weights: %v, want %v", c.dtype, got, c.weights)
		}
	}
}

func TestPackingNearBound(t *testing.T) {
	worst, n, atBound := 0.0, 0, 0
	worstName := ""
	configurations(func(name string, m Model, s Shape, p Policy) {
		if testing.Short() && n > 60 {
			return
		}
		step, err := Build(m, s, p)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		step.AddScratch(func(op *program.Op) units.Bytes {
			if op.Code == program.AttentionBackward {
				return units.Bytes(4 * op.Attrs.N * op.Attrs.C)
			}
			return 0
		})
		l := step.Place()
		if l.Live != step.Live() {
			t.Fatalf("%s: the layout says %d live bytes, the program %d", name, l.Live, step.Live())
		}
		over := float64(l.Size)/float64(l.Live) - 1
		if !(over <= 0.05) {
			t.Errorf("%s: %v placed for %v live: %.2f %% over", name, l.Size, l.Live, 100*over)
		}
		if over > worst {
			worst, worstName = over, name
		}
		n++
		if over < 1e-4 {
			atBound++
		}
	})
	t.Logf("%d configurations, worst %.3f %% over the bound (%s), %d within 0.01 %%", n, 100*worst, worstName, atBound)
}
