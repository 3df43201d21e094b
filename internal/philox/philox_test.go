package philox

import "testing"

// The known-answer vectors of Random123, the library of Philox's authors (kat_vectors, philox 4x32 10).
func TestKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Block(c.counter, c.key); got != c.want {
			t.Errorf("Block(%x, %x) = %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

// A block's rounds with the keys of Rounds are Block.
func TestRounds(t *testing.T) {
	counter, key := [4]uint32{7, 8, 9, 10}, Key(99<<33|5)
	c := counter
	for _, k := range Rounds(key) {
		a, b := 0xD2511F53*uint64(c[0]), 0xCD9E8D57*uint64(c[2])
		c = [4]uint32{uint32(b>>32) ^ c[1] ^ k[0], uint32(b), uint32(a>>32) ^ c[3] ^ k[1], uint32(a)}
	}
	if want := Block(counter, key); c != want {
		t.Errorf("by rounds %x, Block %x", c, want)
	}
}

func BenchmarkBlock(b *testing.B) {
	var sum uint32
	for i := range b.N {
		sum += Block([4]uint32{uint32(i)}, [2]uint32{1337})[0]
	}
	_ = sum
}

func TestDrop(t *testing.T) {
	for _, c := range []struct {
		p     float64
		limit uint32
		scale float64
	}{{0, 0, 1}, {1e-6, 0, 1}, {0.2, 13107 << 16, 65536.0 / 52429}, {0.5, 1 << 31, 2}, {1, 0xffff << 16, 65536}} {
		if limit, scale := Drop(c.p); limit != c.limit || scale != c.scale {
			t.Errorf("Drop(%g) = %#x, %g, want %#x, %g", c.p, limit, scale, c.limit, c.scale)
		}
	}
	block := [4]uint32{0x00010002, 0x00030004, 0x00050006, 0x00070008}
	for i, want := range []uint32{2, 1, 4, 3, 6, 5, 8, 7} {
		if got := Half(block, i) >> 16; got != want {
			t.Errorf("half %d is %d, want %d", i, got, want)
		}
	}
}
