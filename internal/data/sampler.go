package data

import (
	"fmt"
	"math/bits"

	"github.com/snugml/snug/internal/philox"
)

// Order is how samples follow one another.
type Order string

const (
	// Random draws each window's beginning anywhere, with replacement, as nanoGPT's get_batch does.
	Random Order = "random"
	// Sequential takes the windows one after the other without overlap, and begins again at the end.
	Sequential Order = "sequential"
)

// Sampler says which window a sample is. It keeps no state: sample n is the same however a run is split into
// micro-batches, threads and restarts. It allocates nothing.
type Sampler struct {
	set       *Set
	order     Order
	key       [2]uint32
	vocabSize int
}

// NewSampler returns the sampler of a set. vocabSize is the model's: a token beyond it is an error.
func NewSampler(set *Set, order Order, seed uint64, vocabSize int) (*Sampler, error) {
	if order != Random && order != Sequential {
		return nil, fmt.Errorf("data_order=%q: use random or sequential", string(order))
	}
	return &Sampler{set: set, order: order, key: philox.Key(seed), vocabSize: vocabSize}, nil
}

// stream keeps the draws of training and of the two evaluations apart, and apart from what else draws by the seed.
type stream uint32

const (
	trainStream stream = 0x64617461 + iota
	evalTrainStream
	evalValStream
)

// Train fills x and y with training samples n, n+1, …: as many as len(x) holds windows of block_size.
// y is x one token later.
func (s *Sampler) Train(n uint64, x, y []int32) error {
	return s.fill(s.set.Train, trainStream, 0, n, x, y)
}

// Eval fills x and y with samples n, n+1, … of the evaluation at iteration it, from split "train" or "val".
//
// In random order each evaluation draws its own windows, as nanoGPT's does; in sequential order all take the same.
func (s *Sampler) Eval(split string, it int, n uint64, x, y []int32) error {
	if split == "val" {
		return s.fill(s.set.Val, evalValStream, uint32(it), n, x, y)
	}
	return s.fill(s.set.Train, evalTrainStream, uint32(it), n, x, y)
}

func (s *Sampler) fill(t *Tokens, which stream, it uint32, n uint64, x, y []int32) error {
	T := t.blockSize
	if len(x) != len(y) || len(x)%T != 0 {
		panic(fmt.Sprintf("data: %d and %d tokens asked for, want the same multiple of block_size %d", len(x), len(y), T))
	}
	for at := 0; at < len(x); at += T {
		shard, start := t.window(s.order, s.draw(which, it, n), n)
		if err := shard.fill(start, x[at:at+T], y[at:at+T], s.vocabSize); err != nil {
			return err
		}
		n++
	}
	return nil
}

// draw is 64 random bits for sample n.
func (s *Sampler) draw(which stream, it uint32, n uint64) uint64 {
	w := philox.Block([4]uint32{uint32(n), uint32(n >> 32), it, uint32(which)}, s.key)
	return uint64(w[0])<<32 | uint64(w[1])
}

// window finds a sample's file and the place in it where its window begins.
func (t *Tokens) window(order Order, draw, n uint64) (*shard, int64) {
	high, _ := bits.Mul64(draw, uint64(t.starts)) // floor(draw / 2^64 * starts)
	at, step := int64(high), 1
	if order == Sequential {
		at, step = int64(n%uint64(t.windows)), t.blockSize
	}
	for i := range t.shards {
		s := &t.shards[i]
		here := s.starts(t.blockSize, step)
		if at < here {
			return s, at * int64(step)
		}
		at -= here
	}
	panic("data: a window beyond the last file")
}
