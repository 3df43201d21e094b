package oom

import (
	"testing"

	"github.com/snugml/snug/internal/units"
)

// Sizes from public reports that are logits of GPT-2, and sizes that are not.
func TestTokensFor(t *testing.T) {
	for _, c := range []struct {
		printed string
		row     int64 // bytes of one token's logits
		want    int64
	}{
		{"786.00 MiB", 50257 * 4, 4096}, {"198.00 MiB", 50257 * 4, 1024}, {"6.14 GiB", 50304 * 2, 65536}, {"6.14 GiB", 50304 * 4, 32768},
		{"9.20 GiB", 50304 * 2, 0}, {"20.00 MiB", 50304 * 2, 0}, {"0 bytes", 50304 * 2, 0},
	} {
		size, ok := parseSize(c.printed)
		if !ok {
			t.Fatal(c.printed)
		}
		got, ok := tokensFor(size, c.row)
		if got != c.want || ok != (c.want > 0) {
			t.Errorf("%s in rows of %d: %d, want %d", c.printed, c.row, got, c.want)
		}
	}
}

func TestProduct(t *testing.T) {
	for _, c := range []struct {
		shape []int
		want  int64
	}{{nil, 1}, {[]int{65536, 50304}, 65536 * 50304}, {[]int{0, 5}, 0}, {[]int{1 << 40, 1 << 40}, 1 << 60}} {
		if got := product(c.shape); got != c.want {
			t.Errorf("product(%v) = %d, want %d", c.shape, got, c.want)
		}
	}
}

// The parts of a budget add up, and what does not is left out.
func TestBudget(t *testing.T) {
	b := func(n units.Bytes) *units.Bytes { return &n }
	got := budget(Facts{Total: b(100 * units.GiB), Free: b(10 * units.GiB), Process: b(70 * units.GiB), Allocated: b(60 * units.GiB), ReservedUnallocated: b(8 * units.GiB)})
	if value(got.Others) != 20*units.GiB || value(got.NonPyTorch) != 2*units.GiB {
		t.Errorf("others %v, non-PyTorch %v, want 20 and 2 GiB", got.Others, got.NonPyTorch)
	}
	if got := budget(Facts{Total: b(8 * units.GiB), Free: b(0), Allocated: b(14 * units.GiB), Reserved: b(15 * units.GiB)}); got.Others != nil {
		t.Errorf("a card that spills into host memory has others %v", *got.Others)
	}
	if got := budget(Facts{Total: b(80 * units.GiB), Free: b(units.GiB), Process: b(0), Allocated: b(12 * units.GiB), ReservedUnallocated: b(0)}); value(got.Others) < 60*units.GiB || got.Process != nil {
		t.Errorf("a process of 0 bytes: others %v, process %v", got.Others, got.Process)
	}
	if room := (Facts{Free: b(2), Allocated: b(3), ReservedUnallocated: b(4), Limit: b(8)}).Room(); room != 8 {
		t.Errorf("room %d, want the cap 8", room)
	}
}
