package gpt

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/trace"
)

// Gradients in 16 bits are those that one product of an iteration writes alone: nothing adds to them, nothing zeroes them,
// and every other gradient is float32.
func TestHalfGradientsAreWrittenOnce(t *testing.T) {
	m := Model{NLayer: 2, NHead: 2, NEmbd: 8, BlockSize: 8, VocabSize: 40, Bias: true}
	p := Policy{MicroBatch: 3, EvalBatch: 2, LossChunk: 5, Recompute: []Recompute{RecomputeBlock, RecomputeNone},
		Weight: trace.BFloat16, Activation: trace.BFloat16, Gradient: trace.BFloat16}
	s, err := Build(m, Shape{Batch: 3, EvalBatch: 2, Adam: testAdam}, p)
	if err != nil {
		t.Fatal(err)
	}
	writes := map[program.ID]int{}
	for _, section := range s.Sections {
		for i := range section.Ops {
			op := &section.Ops[i]
			for k, a := range op.Args {
				if a.None() || op.Param(k).Access == program.Read {
					continue
				}
				writes[a.ID]++
				if tensor := s.Tensors[a.ID]; tensor.Category == trace.Gradient && tensor.DType != trace.Float32 && op.Reads(k) {
					t.Errorf("%s %s adds to %s, which is %s", op.Code, op.Name, tensor.Name, tensor.DType)
				}
			}
		}
	}
	for _, p := range s.Params {
		want, n := trace.Float32, writes[p.Grad]
		if strings.Contains(p.Name, ".c_") && strings.HasSuffix(p.Name, ".weight") {
			want = trace.BFloat16
			if n != 1 {
				t.Errorf("%s is written %d times", s.Tensors[p.Grad].Name, n)
			}
		}
		if got := s.Tensors[p.Grad].DType; got != want {
			t.Errorf("%s is %s, want %s", s.Tensors[p.Grad].Name, got, want)
		}
		if n == 0 {
			t.Errorf("nothing writes %s", s.Tensors[p.Grad].Name)
		}
	}
	if writes[s.Params[0].Grad] != 1+(3*8+4)/5 {
		t.Errorf("wte's gradient is written %d times, want once a loss chunk and once by the embedding", writes[s.Params[0].Grad])
	}
}

func TestHalfGradientsNeedTheWholeBatch(t *testing.T) {
	m := Model{NLayer: 1, NHead: 1, NEmbd: 8, BlockSize: 8, VocabSize: 40}
	for name, c := range map[string]struct {
		micro                int
		activation, gradient trace.DType
		ok                   bool
	}{
		"whole":                  {4, trace.Float16, trace.Float16, true},
		"more than there are":    {9, trace.Float16, trace.Float16, true},
		"sums":                   {3, trace.Float16, trace.Float16, false},
		"sums in float32":        {3, trace.Float16, trace.Float32, true},
		"another 16 bits":        {4, trace.Float16, trace.BFloat16, false},
		"activations in float32": {4, trace.Float32, trace.BFloat16, false},
		"everything in float32":  {4, trace.Float32, trace.Float32, true},
	} {
		_, err := Build(m, Shape{Batch: 4}, Policy{MicroBatch: c.micro, Weight: c.activation, Activation: c.activation, Gradient: c.gradient})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
