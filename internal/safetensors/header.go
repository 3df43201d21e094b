// Package safetensors owns the safetensors file format: named tensors of plain bytes behind a JSON header.
//
// Reading is strict: a file whose header, offsets or length are not exactly right is refused, so a truncated file never
// yields a tensor. Writing and reading stream: no tensor is held whole unless its caller asks for it.
// The package never interprets values beyond widening floats to float32, and knows no model.
package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
)

// DType is an element type under the format's own name.
type DType string

const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U8   DType = "U8"
	Bool DType = "BOOL"
)

// widths holds the bytes of one element of every type that is read.
var widths = map[DType]int64{F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, I16: 2, I8: 1, U8: 1, Bool: 1}

// Width is the bytes of one element, 0 for an unknown type.
func (d DType) Width() int64 { return widths[d] }

// maxHeader is the format's own limit on the header's length.
const maxHeader = 100_000_000

// entry is one tensor's line of the header; Offsets are relative to the end of the header.
type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// Elements is the product of shape, or false when a dimension is negative or the product does not fit.
func Elements(shape []int64) (int64, bool) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 || d > 0 && n > math.MaxInt64/d {
			return 0, false
		}
		n *= d
	}
	return n, true
}

// byteSize is the bytes of a tensor, or false when they do not fit in an int64 or the type is unknown.
func byteSize(d DType, shape []int64) (int64, bool) {
	n, ok := Elements(shape)
	w := d.Width()
	if !ok || w == 0 || n > math.MaxInt64/w {
		return 0, false
	}
	return n * w, true
}

type namedEntry struct {
	name string
	entry
}

// readHeader parses the header of a file of size bytes and checks that its tensors fill the rest exactly, without holes
// or overlaps. Entries come back in the order of their bytes, with offsets from the start of the file.
func readHeader(r io.ReaderAt, size int64) ([]namedEntry, map[string]string, error) {
	var prefix [8]byte
	if size < 8 {
		return nil, nil, fmt.Errorf("safetensors header needs 8 bytes, the file has %d: it is truncated", size)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, nil, fmt.Errorf("read safetensors header: %w", err)
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, nil, fmt.Errorf("safetensors header says %d bytes, the file has %d: not a safetensors file, or truncated", n, size-8)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, 8); err != nil {
		return nil, nil, fmt.Errorf("read safetensors header: %w", err)
	}
	entries, meta, err := parseHeader(text)
	if err != nil {
		return nil, nil, fmt.Errorf("parse safetensors header: %w", err)
	}
	start := 8 + int64(n)
	if err := place(entries, start, size); err != nil {
		return nil, nil, err
	}
	return entries, meta, nil
}

// parseHeader reads the JSON object by tokens, because a map would let a second tensor of the same name replace the first.
func parseHeader(text []byte) ([]namedEntry, map[string]string, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, nil, errors.New("not a JSON object")
	}
	var entries []namedEntry
	var meta map[string]string
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, nil, err
		}
		name := t.(string) // keys of an object are strings: the decoder refuses others
		if seen[name] {
			return nil, nil, fmt.Errorf("%q is there twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			if err := dec.Decode(&meta); err != nil {
				return nil, nil, fmt.Errorf("metadata: %w", err)
			}
			continue
		}
		var e entry
		if err := dec.Decode(&e); err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		entries = append(entries, namedEntry{name, e})
	}
	if _, err := dec.Token(); err != nil {
		return nil, nil, err
	}
	if len(bytes.TrimSpace(text[dec.InputOffset():])) != 0 {
		return nil, nil, errors.New("something follows the JSON object")
	}
	return entries, meta, nil
}

// place sorts entries by offset, checks them against the data part [start, size) and makes their offsets absolute.
func place(entries []namedEntry, start, size int64) error {
	sort.SliceStable(entries, func(i, j int) bool {
		a, b := entries[i].Offsets, entries[j].Offsets
		return a[0] < b[0] || a[0] == b[0] && a[1] < b[1]
	})
	at := int64(0)
	for i := range entries {
		e := &entries[i]
		want, ok := byteSize(e.DType, e.Shape)
		if !ok {
			return fmt.Errorf("safetensors tensor %q: dtype %q with shape %v cannot be read", e.name, e.DType, e.Shape)
		}
		if e.Offsets[0] != at || e.Offsets[1] < at || e.Offsets[1]-at != want {
			return fmt.Errorf("safetensors tensor %q: %s%v takes %d bytes from %d, its offsets are %v", e.name, e.DType, e.Shape, want, at, e.Offsets)
		}
		at = e.Offsets[1]
		if at > size-start {
			return fmt.Errorf("safetensors tensor %q ends at byte %d, the file has %d: it is truncated", e.name, at, size-start)
		}
		e.Offsets = [2]int64{start + e.Offsets[0], start + e.Offsets[1]}
	}
	if at != size-start {
		return fmt.Errorf("safetensors tensors take %d bytes, the file has %d: it is damaged", at, size-start)
	}
	return nil
}
