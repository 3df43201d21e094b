package checkpoint

import (
	"testing"

	"github.com/snugml/snug/internal/gpt"
)

// benchState is a model of 25M parameters with AdamW's state: 300 MB.
func benchState() (*State, int64) {
	s := newState(gpt.Model{NLayer: 8, NHead: 8, NEmbd: 512, BlockSize: 64, VocabSize: 256}, 1)
	size := int64(0)
	for _, t := range s.Params {
		size += 3 * t.Size()
	}
	return s, size
}

func BenchmarkSave(b *testing.B) {
	s, size := benchState()
	dir := b.TempDir()
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		save(b, dir, s)
	}
}

func BenchmarkLoad(b *testing.B) {
	s, size := benchState()
	dir := b.TempDir()
	save(b, dir, s)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		got, err := Load(dir, Everything)
		if err != nil {
			b.Fatal(err)
		}
		got.Close()
	}
}
