package arena

import (
	"math/rand/v2"
	"testing"
)

// overlap returns two items that are alive together and share a byte, or -1.
func overlap(items []Item, p Placement) (int, int) {
	for i, a := range items {
		for j, b := range items[:i] {
			if a.First <= b.Last && b.First <= a.Last && p.Offset[i] < p.Offset[j]+b.Size && p.Offset[j] < p.Offset[i]+a.Size {
				return i, j
			}
		}
	}
	return -1, -1
}

func TestPlaceNeverOverlaps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		items := make([]Item, 1+rng.IntN(80))
		for i := range items {
			first := rng.IntN(50)
			items[i] = Item{Size: rng.Int64N(5000), First: first, Last: first + rng.IntN(20)}
		}
		p := Place(items, 256)
		if i, j := overlap(items, p); i >= 0 {
			t.Fatalf("round %d: items %d %+v and %d %+v overlap at %d and %d", round, i, items[i], j, items[j], p.Offset[i], p.Offset[j])
		}
		for i, o := range p.Offset {
			if o%256 != 0 || o < 0 || o+items[i].Size > p.Size {
				t.Fatalf("round %d: item %d of %d bytes lies at %d in %d bytes", round, i, items[i].Size, o, p.Size)
			}
		}
		if p.Size < p.Bound {
			t.Fatalf("round %d: size %d is under the bound %d", round, p.Size, p.Bound)
		}
	}
}

func TestLive(t *testing.T) {
	for _, c := range []struct {
		name  string
		items []Item
		want  int64
	}{
		{"none", nil, 0},
		{"one", []Item{{10, 3, 3}}, 10},
		{"in turn", []Item{{10, 0, 1}, {20, 2, 3}}, 20},
		{"touching", []Item{{10, 0, 2}, {20, 2, 3}}, 30},
		{"nested", []Item{{10, 0, 9}, {20, 1, 3}, {25, 4, 8}}, 35},
	} {
		if got := Live(c.items); got != c.want {
			t.Errorf("%s: %d bytes alive, want %d", c.name, got, c.want)
		}
	}
}

// Brackets that nest must be placed without a gap.
func TestNestedReachesBound(t *testing.T) {
	var items []Item
	for i := range 100 {
		items = append(items, Item{Size: int64(256 * (1 + i*7%13)), First: i, Last: 1000 - i})
	}
	if p := Place(items, 256); p.Size != p.Bound {
		t.Errorf("%d bytes for a bound of %d", p.Size, p.Bound)
	}
}
