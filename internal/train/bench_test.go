package train

import (
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// BenchmarkChoose is the planning of a run: a part of every start.
func BenchmarkChoose(b *testing.B) {
	for name, c := range map[string]struct {
		m     gpt.Model
		batch int
		limit units.Bytes
	}{
		"124M 11.15GiB": {gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}, 512, 11418 * units.MiB},
		"124M 3.48GiB":  {gpt.Model{NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304}, 512, 3564 * units.MiB},
		"774M 15.45GiB": {gpt.Model{NLayer: 36, NHead: 20, NEmbd: 1280, BlockSize: 1024, VocabSize: 50304}, 16, 15821 * units.MiB},
	} {
		b.Run(name, func(b *testing.B) {
			cfg := settings(func(s *config.Config) { s.BatchSize, s.GradientAccumulationSteps = c.batch, 1 })
			for b.Loop() {
				if _, _, err := Choose(c.m, cfg, DTypes(trace.BFloat16), GPUCosts(132), cuda.Target{Major: 9, Blas: true}.Scratch, c.limit); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
