package oom

import (
	"bytes"
	"fmt"
	"io"
	"testing"
)

// What gigabyte-long logs are made of, one kind a benchmark; MB/s is the figure (1 GiB in 10 s is 107).
func BenchmarkReader(b *testing.B) {
	for _, c := range []struct{ name, line string }{
		{"iterations", "iter %d: loss 3.1415, time 12.34ms, mfu 12.34%%\n"},
		{"bars", "\r 37%%|████████████▎            | %d/5000000 [12:34<20:00,  4.50it/s, loss=3.2, mem=8.9GB]"},
		{"logging", "[2025-11-12 11:25:13,496] [INFO] [train.py:123] step %d loss 2.3 lr 1e-4 memory 8123 in 3 s torch\n"},
		{"chatter", "2025-11-12 11:25:13 | INFO | epoch %d evaluating batch (3) loading shard File done\n"},
		{"one line", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx File \"a/b.py\", line %d, in forward "},
		{"oom again and again", "WARNING: CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 10.76 GiB total capacity; 4.%02d GiB already allocated; 356.00 MiB free; 5.54 GiB cached)\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var chunk bytes.Buffer
			for n := 0; chunk.Len() < 1<<20; n++ {
				fmt.Fprintf(&chunk, c.line, n)
			}
			r := NewReader()
			b.SetBytes(int64(chunk.Len()))
			for b.Loop() {
				if _, err := io.Copy(struct{ io.Writer }{r}, bytes.NewReader(chunk.Bytes())); err != nil {
					b.Fatal(err)
				}
			}
			r.Finish()
		})
	}
}
