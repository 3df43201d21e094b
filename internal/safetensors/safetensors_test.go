package safetensors

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func file(t testing.TB, tensors []Tensor, meta map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, tensors, meta); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func sample() []Tensor {
	return []Tensor{
		F32Tensor("b", []float32{1, -2, 3, float32(math.Inf(1)), 0.5, 6}, 2, 3),
		{Name: "a", DType: I32, Shape: []int64{2}, Data: Raw{1, 0, 0, 0, 2, 0, 0, 0}},
		F32Tensor("scalar", []float32{7}),
		F32Tensor("empty", nil, 0, 4),
	}
}

func TestRoundTripKeepsOrderShapesAndBytes(t *testing.T) {
	raw := file(t, sample(), map[string]string{"format": "pt"})
	f, err := Read(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata["format"] != "pt" {
		t.Errorf("metadata = %v", f.Metadata)
	}
	var again bytes.Buffer
	if err := Write(&again, f.Tensors, f.Metadata); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, again.Bytes()) {
		t.Error("writing what was read gives other bytes")
	}
	b, _ := f.Lookup("b")
	got, err := b.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]float32{1, -2, 3, float32(math.Inf(1)), 0.5, 6}, got); diff != "" {
		t.Error(diff)
	}
	at, _ := f.Offset("b")
	if header, err := formatHeader(sample(), f.Metadata); err != nil || at != int64(len(header)) || at%8 != 0 {
		t.Errorf("first tensor at %d, header of %d bytes, %v", at, len(header), err)
	}
}

// Every cut and every change of a header byte must be refused or leave the tensors' sizes consistent: nothing reads past the end.
func TestTruncatedFilesAreRefused(t *testing.T) {
	raw := file(t, sample(), nil)
	for n := range len(raw) {
		if _, err := Read(bytes.NewReader(raw[:n]), int64(n)); err == nil {
			t.Fatalf("a file cut to %d of %d bytes was read", n, len(raw))
		}
	}
	if _, err := Read(bytes.NewReader(append(raw, 0)), int64(len(raw)+1)); err == nil {
		t.Fatal("a file with a byte too many was read")
	}
}

func TestBadHeaders(t *testing.T) {
	for name, c := range map[string]struct{ header, data, want string }{
		"not JSON":         {`hello`, "", "JSON"},
		"array":            {`[]`, "", "JSON object"},
		"twice":            {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "x", "twice"},
		"overlap":          {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, "xyz", `tensor "b"`},
		"hole":             {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, "xy", `tensor "a"`},
		"shape and size":   {`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, "wxyz", "takes 8 bytes"},
		"negative":         {`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, "wxyz", "cannot be read"},
		"overflow":         {`{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,4]}}`, "wxyz", "cannot be read"},
		"unknown type":     {`{"a":{"dtype":"Q4","shape":[4],"data_offsets":[0,4]}}`, "wxyz", "Q4"},
		"past the end":     {`{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}`, "wxyz", "truncated"},
		"too much":         {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, "wxyz", "damaged"},
		"two objects":      {`{} {}`, "", "follows"},
		"metadata numbers": {`{"__metadata__":{"a":1}}`, "", "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := binary.LittleEndian.AppendUint64(nil, uint64(len(c.header)))
			raw = append(append(raw, c.header...), c.data...)
			_, err := Read(bytes.NewReader(raw), int64(len(raw)))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error = %v, want one line with %q", err, c.want)
			}
		})
	}
}

func TestWriteRefuses(t *testing.T) {
	for name, tensors := range map[string][]Tensor{
		"data too short": {{Name: "a", DType: F32, Shape: []int64{2}, Data: Raw{1, 2, 3, 4}}},
		"data too long":  {{Name: "a", DType: U8, Shape: []int64{2}, Data: Raw{1, 2, 3, 4}}},
		"name twice":     {F32Tensor("a", nil, 0), F32Tensor("a", nil, 0)},
		"unknown dtype":  {{Name: "a", DType: "F4", Shape: []int64{2}, Data: Raw{1}}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Write(io.Discard, tensors, nil); err == nil {
				t.Fatal("written")
			}
		})
	}
}

type trickle []byte

func (d trickle) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, iotest.OneByteReader(bytes.NewReader(d)))
}

// Every float type widens exactly, also when the bytes come one at a time.
func TestFloatsWiden(t *testing.T) {
	for name, c := range map[string]struct {
		dtype DType
		raw   []byte
		want  []float32
	}{
		"F32":  {F32, []byte{0, 0, 128, 63, 0, 0, 0, 192}, []float32{1, -2}},
		"F64":  {F64, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, []float32{1}},
		"BF16": {BF16, []byte{0x80, 0x3f, 0x00, 0xc0, 0x80, 0xff}, []float32{1, -2, float32(math.Inf(-1))}},
		"F16": {F16, []byte{0x00, 0x3c, 0x00, 0xc0, 0x01, 0x00, 0xff, 0x03, 0xff, 0x7b, 0x00, 0xfc, 0x01, 0x80},
			[]float32{1, -2, 0x1p-24, 1023 * 0x1p-24, 65504, float32(math.Inf(-1)), -0x1p-24}},
	} {
		t.Run(name, func(t *testing.T) {
			tensor := Tensor{Name: "x", DType: c.dtype, Shape: []int64{int64(len(c.want))}, Data: trickle(c.raw)}
			got, err := tensor.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if err := tensor.Floats(make([]float32, len(c.want)+1)); err == nil {
				t.Error("a slice of the wrong length was filled")
			}
		})
	}
	if err := (Tensor{Name: "i", DType: I32, Shape: []int64{1}, Data: Raw{0, 0, 0, 0}}).Floats(make([]float32, 1)); err == nil {
		t.Error("integers were read as floats")
	}
	if v := halfToFloat(0x7e00); v == v {
		t.Errorf("half NaN became %v", v)
	}
}

func TestFailingDataFailsTheRead(t *testing.T) {
	short := Tensor{Name: "x", DType: F32, Shape: []int64{3}, Data: Section{bytes.NewReader(make([]byte, 10)), 0, 12}}
	if _, err := short.Float32s(); err == nil {
		t.Error("a tensor past the end of its file was read")
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "absent.safetensors")); err == nil || !strings.Contains(err.Error(), "absent.safetensors") {
		t.Errorf("error = %v", err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error = %v", err)
	}
}

// Whatever the bytes: no panic, and what is accepted can be written again to the same tensors.
func FuzzRead(f *testing.F) {
	f.Add(file(f, sample(), map[string]string{"a": "b"}))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<62))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Read(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		sum := int64(0)
		for _, x := range s.Tensors {
			b, err := x.Bytes()
			if err != nil {
				t.Fatalf("accepted tensor %q does not read: %v", x.Name, err)
			}
			sum += int64(len(b))
		}
		if sum > int64(len(raw)) {
			t.Fatalf("tensors hold %d bytes of a file of %d", sum, len(raw))
		}
		var b bytes.Buffer
		if err := Write(&b, s.Tensors, s.Metadata); err != nil {
			t.Fatalf("accepted file does not write: %v", err)
		}
	})
}
