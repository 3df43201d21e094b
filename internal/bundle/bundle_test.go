package bundle

import (
	"math"
	"path/filepath"
	"testing"
)

// Every committed bundle is whole and consistent: the first step's loss follows from its logits, and its norm from its gradients.
func TestCommittedBundles(t *testing.T) {
	paths, _ := filepath.Glob("../gpt/testdata/bundle_*.safetensors")
	if len(paths) < 4 {
		t.Fatalf("%d bundles, want at least 4", len(paths))
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			b, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			var squares float64
			for _, name := range b.Names {
				if len(b.Grad[name]) != len(b.Param[name]) || len(b.Final[name]) != len(b.Param[name]) {
					t.Errorf("%s: %d values, %d gradients, %d after the last step", name, len(b.Param[name]), len(b.Grad[name]), len(b.Final[name]))
				}
				for _, g := range b.Grad[name] {
					squares += float64(g) * float64(g)
				}
			}
			if norm := math.Sqrt(squares); !(math.Abs(norm-b.Norm[0]) <= 1e-6*b.Norm[0]) {
				t.Errorf("gradients have norm %g, the bundle says %g", norm, b.Norm[0])
			}
			if b.Config.GradientAccumulationSteps == 1 {
				if loss := crossEntropy(b); !(math.Abs(loss-b.Loss[0]) <= 1e-6*b.Loss[0]) {
					t.Errorf("logits give loss %g, the bundle says %g", loss, b.Loss[0])
				}
			}
		})
	}
}

func crossEntropy(b *Bundle) float64 {
	_, targets := b.Batch(0, 0)
	V, total := b.Config.VocabSize, 0.0
	for i, target := range targets {
		row, sum := b.Logits[i*V:(i+1)*V], 0.0
		for _, x := range row {
			sum += math.Exp(float64(x))
		}
		total += math.Log(sum) - float64(row[target])
	}
	return total / float64(len(targets))
}
