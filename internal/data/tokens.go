package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
)

// Tokens is one split: a sequence of token files, memory-mapped. Windows never cross from one file to the next.
type Tokens struct {
	blockSize int
	shards    []shard
	starts    int64 // places at which a window can begin
	windows   int64 // windows that do not overlap
}

// shard is one file's tokens, two bytes each, little endian.
type shard struct {
	path string
	raw  []byte // the mapping
	data []byte // the tokens in it
}

func (s *shard) len() int64 { return int64(len(s.data) / 2) }

// starts is the number of places, step tokens apart, at which a window of blockSize and the token after it can begin.
func (s *shard) starts(blockSize, step int) int64 {
	return (s.len() - int64(blockSize) + int64(step) - 1) / int64(step)
}

// llm.c's header: 256 int32, of which the first three are magic, version and number of tokens
// (github.com/karpathy/llm.c, llmc/dataloader.h, f1e2ace).
const (
	shardMagic   = 20240520
	shardVersion = 1
	shardHeader  = 256 * 4
)

// foreignMagic are llm.c's other files, which hold something else than GPT-2's tokens.
var foreignMagic = map[uint32]string{
	20240522: "llm.c's multiple-choice questions",
	20240801: "Llama 3's 32-bit tokens",
}

// OpenTokens maps the files of one split.
func OpenTokens(blockSize int, paths ...string) (*Tokens, error) {
	t := &Tokens{blockSize: blockSize}
	for _, path := range paths {
		s, err := openShard(path)
		if err != nil {
			return nil, errors.Join(err, t.Close())
		}
		t.shards = append(t.shards, s)
		if n := s.len(); n < int64(blockSize)+1 {
			err := fmt.Errorf("open %s: %d tokens are fewer than block_size + 1 = %d: use more text, or --block_size=%d or less",
				path, n, blockSize+1, max(1, n-1))
			return nil, errors.Join(err, t.Close())
		}
		t.starts += s.starts(blockSize, 1)
		t.windows += s.starts(blockSize, blockSize)
	}
	return t, nil
}

func openShard(path string) (shard, error) {
	raw, err := mapFile(path)
	if err != nil {
		return shard{}, fmt.Errorf("open tokens: %w", err)
	}
	s := shard{path: path, raw: raw}
	if s.data, err = payload(raw); err != nil {
		return shard{}, errors.Join(fmt.Errorf("open %s: %w", path, err), unmapFile(raw))
	}
	return s, nil
}

// payload finds the tokens in a file: after the header if it has llm.c's, else all of it.
func payload(raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return nil, errors.New("empty: run snug prepare again")
	}
	if len(raw)%2 != 0 {
		return nil, fmt.Errorf("%d bytes are an odd number, tokens take 2 each: the file is cut short", len(raw))
	}
	if len(raw) < shardHeader {
		return raw, nil
	}
	magic, version := binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint32(raw[4:])
	if what, ok := foreignMagic[magic]; ok {
		return nil, fmt.Errorf("holds %s, not GPT-2's tokens: move it out of the folder", what)
	}
	if magic != shardMagic { // as tokens it would be 55432, 308, and 55432 is beyond GPT-2's vocabulary
		return raw, nil
	}
	if version != shardVersion {
		return nil, fmt.Errorf("llm.c's format version %d, only %d is read: write it again with llm.c's dev/data scripts", version, shardVersion)
	}
	if said, there := int64(binary.LittleEndian.Uint32(raw[8:])), int64(len(raw)-shardHeader)/2; said != there {
		return nil, fmt.Errorf("its header says %d tokens, %d are there: the file is cut short", said, there)
	}
	return raw[shardHeader:], nil
}

// Close unmaps the files.
func (t *Tokens) Close() error {
	var errs []error
	for _, s := range t.shards {
		errs = append(errs, unmapFile(s.raw))
	}
	t.shards = nil
	return errors.Join(errs...)
}

// Len is the number of tokens.
func (t *Tokens) Len() int64 {
	n := int64(0)
	for _, s := range t.shards {
		n += s.len()
	}
	return n
}

// Windows is the number of samples in one pass over the data: windows of block_size that do not overlap.
func (t *Tokens) Windows() int64 { return t.windows }

// checkAll is how many tokens of a file Check reads whole; of larger ones it reads that many in even stripes.
const (
	checkAll    = 32 << 20
	checkStripe = 64 << 10
)

// Check looks for a token beyond the vocabulary: in all of a small file, in even stripes of a large one.
// Reading a sample checks every token again, so what is missed here fails there.
func (t *Tokens) Check(vocabSize int) error {
	for _, s := range t.shards {
		step := int64(checkStripe)
		if s.len() > checkAll {
			step = s.len() / (checkAll / checkStripe)
		}
		for from := int64(0); from < s.len(); from += step {
			if err := s.check(from, min(from+checkStripe, s.len()), vocabSize); err != nil {
				return err
			}
		}
	}
	return nil
}

// check looks at tokens from to to.
func (s *shard) check(from, to int64, vocabSize int) (err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	for i := from; i < to; i++ {
		if id := binary.LittleEndian.Uint16(s.data[2*i:]); int(id) >= vocabSize {
			return s.beyond(int32(id), i, vocabSize)
		}
	}
	return nil
}

func (s *shard) beyond(id int32, at int64, vocabSize int) error {
	return fmt.Errorf("read %s: token %d at %d is beyond the vocabulary of %d: GPT-2's tokens take --vocab_size=50304, characters the meta.pkl made with %s",
		s.path, id, at, vocabSize, filepath.Base(s.path))
}

// fill writes the window at start, and the same window one token later. x and y are block_size long.
func (s *shard) fill(start int64, x, y []int32, vocabSize int) (err error) {
	defer s.recoverFault(debug.SetPanicOnFault(true), &err)
	window := s.data[2*start : 2*(start+int64(len(x))+1)]
	last := int32(binary.LittleEndian.Uint16(window))
	top := last
	for i := range x {
		next := int32(binary.LittleEndian.Uint16(window[2*i+2:]))
		x[i], y[i] = last, next
		top, last = max(top, next), next
	}
	if int(top) < vocabSize {
		return nil
	}
	for i := range len(x) + 1 {
		if id := int32(binary.LittleEndian.Uint16(window[2*i:])); int(id) >= vocabSize {
			return s.beyond(id, start+int64(i), vocabSize)
		}
	}
	return nil
}

// recoverFault turns the fault of a file that shrank, or of a disk that failed, under its mapping into an error.
func (s *shard) recoverFault(before bool, err *error) {
	debug.SetPanicOnFault(before)
	r := recover()
	if r == nil {
		return
	}
	if _, ok := r.(interface{ Addr() uintptr }); !ok {
		panic(r)
	}
	*err = fmt.Errorf("read %s: it is shorter than when it was opened, or its disk failed", s.path)
}
