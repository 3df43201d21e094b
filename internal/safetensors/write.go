package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// Write writes a file of the tensors, in the order given, after a header padded so that data starts on 8 bytes.
//
// The same tensors and metadata give the same bytes. A tensor whose Data writes more or less than its size fails the whole
// write: what w has received by then is not a file.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	header, err := formatHeader(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		c := &counter{w: w}
		if _, err := t.Data.WriteTo(c); err != nil {
			return fmt.Errorf("write tensor %q: %w", t.Name, err)
		}
		if c.n != t.Size() {
			return fmt.Errorf("write tensor %q: %s%v takes %d bytes, got %d", t.Name, t.DType, t.Shape, t.Size(), c.n)
		}
	}
	return nil
}

// formatHeader builds the length prefix and the JSON by hand, because a map would lose the order of the tensors.
func formatHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, 8))
	b.WriteByte('{')
	if len(metadata) > 0 {
		m, err := json.Marshal(metadata)
		if err != nil {
			return nil, fmt.Errorf("write safetensors metadata: %w", err)
		}
		b.WriteString(`"__metadata__":`)
		b.Write(m)
	}
	seen := map[string]bool{"__metadata__": true}
	at := int64(0)
	for _, t := range tensors {
		size, ok := byteSize(t.DType, t.Shape)
		if !ok || seen[t.Name] || size > math.MaxInt64-at {
			return nil, fmt.Errorf("write tensor %q: dtype %q, shape %v or a name used twice", t.Name, t.DType, t.Shape)
		}
		seen[t.Name] = true
		shape := t.Shape
		if shape == nil {
			shape = []int64{}
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, fmt.Errorf("write tensor %q: %w", t.Name, err)
		}
		line, err := json.Marshal(entry{t.DType, shape, [2]int64{at, at + size}})
		if err != nil {
			return nil, fmt.Errorf("write tensor %q: %w", t.Name, err)
		}
		if b.Len() > 9 {
			b.WriteByte(',')
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(line)
		at += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if n := b.Len() - 8; n > maxHeader {
		return nil, fmt.Errorf("write safetensors header: %d bytes, the format allows %d", n, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// Float32s is a []float32 as a tensor's Data. The slice is read when it is written, not copied before.
type Float32s []float32

// WriteTo writes the elements as little-endian float32.
func (x Float32s) WriteTo(w io.Writer) (int64, error) {
	buf := make([]byte, min(copyBuffer, 4*len(x)))
	total := int64(0)
	for len(x) > 0 {
		n := min(len(buf)/4, len(x))
		for i, v := range x[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], math.Float32bits(v))
		}
		k, err := w.Write(buf[:4*n])
		total += int64(k)
		if err != nil {
			return total, err
		}
		x = x[n:]
	}
	return total, nil
}

// Raw is the bytes themselves as a tensor's Data.
type Raw []byte

// WriteTo writes the bytes.
func (b Raw) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b)
	return int64(n), err
}

// F32Tensor is a float32 tensor over x.
func F32Tensor(name string, x []float32, shape ...int64) Tensor {
	return Tensor{Name: name, DType: F32, Shape: shape, Data: Float32s(x)}
}
