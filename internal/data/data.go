// Package data owns training data on disk: token files, meta.pkl, and which window of tokens each sample is.
//
// It reads nanoGPT's train.bin and val.bin (uint16, little endian), llm.c's shards (the same after a header) and
// nanoGPT's meta.pkl. Files are memory-mapped and checked when opened. A sample is a pure function of its number and
// the seed. It never writes token files (prepare does) and never learns what the model does with a token.
package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Set is an open data set: the tokens of two splits, and meta.pkl where there is one.
type Set struct {
	Train, Val *Tokens
	Meta       *Meta // nil for GPT-2's tokens
}

// Open opens the data set in dir: train.bin and val.bin, or llm.c's shards, named …train….bin and …val….bin.
//
// Each split must hold a window of blockSize tokens and the token after it.
func Open(dir string, blockSize int) (*Set, error) {
	train, val, err := find(dir)
	if err != nil {
		return nil, err
	}
	s := new(Set)
	if s.Meta, err = ReadMeta(filepath.Join(dir, "meta.pkl")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if s.Train, err = OpenTokens(blockSize, train...); err != nil {
		return nil, err
	}
	if s.Val, err = OpenTokens(blockSize, val...); err != nil {
		return nil, errors.Join(err, s.Train.Close())
	}
	return s, nil
}

// Close unmaps the files. Nothing may use the set's tokens afterwards.
func (s *Set) Close() error { return errors.Join(s.Train.Close(), s.Val.Close()) }

// find lists the files of each split.
func find(dir string) (train, val []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("open data: no folder %s: snug prepare FILES… --out %s makes it", dir, dir)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open data: %w", err)
	}
	var shards [2][]string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || filepath.Ext(name) != ".bin" {
			continue
		}
		for i, split := range []string{"train", "val"} {
			if strings.Contains(name, split) {
				shards[i] = append(shards[i], filepath.Join(dir, name))
			}
		}
	}
	for i, split := range []string{"train", "val"} {
		if own := filepath.Join(dir, split+".bin"); slices.Contains(shards[i], own) {
			shards[i] = []string{own}
		}
		if len(shards[i]) == 0 {
			return nil, nil, fmt.Errorf("open data: no %s.bin in %s: snug prepare FILES… --out %s makes it", split, dir, dir)
		}
		slices.Sort(shards[i])
	}
	return shards[0], shards[1], nil
}
