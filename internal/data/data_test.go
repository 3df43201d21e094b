package data

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// write puts tokens into a file of dir and returns its path.
func write(t testing.TB, dir, name string, header []uint32, tokens []uint16) string {
	t.Helper()
	var b []byte
	if header != nil {
		b = make([]byte, shardHeader)
		for i, h := range header {
			binary.LittleEndian.PutUint32(b[4*i:], h)
		}
	}
	for _, id := range tokens {
		b = binary.LittleEndian.AppendUint16(b, id)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// counting is 0, 1, 2, …, n-1 from first on: a token tells its place.
func counting(first, n int) []uint16 {
	tokens := make([]uint16, n)
	for i := range tokens {
		tokens[i] = uint16(first + i)
	}
	return tokens
}

func open(t testing.TB, dir string, blockSize int) *Set {
	t.Helper()
	s, err := Open(dir, blockSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func sampler(t testing.TB, s *Set, order Order, seed uint64) *Sampler {
	t.Helper()
	p, err := NewSampler(s, order, seed, 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOpenRefuses(t *testing.T) {
	good := counting(0, 100)
	for name, c := range map[string]struct {
		train []byte
		want  string
	}{
		"empty":             {[]byte{}, "empty"},
		"odd length":        {make([]byte, 201), "201 bytes are an odd number"},
		"shorter than T+1":  {make([]byte, 2*8), "8 tokens are fewer than block_size + 1 = 9: use more text, or --block_size=7"},
		"a shard cut short": {shardBytes(shardMagic, 1, 500, 100), "says 500 tokens, 100 are there"},
		"another version":   {shardBytes(shardMagic, 2, 100, 100), "version 2"},
		"an eval file":      {shardBytes(20240522, 1, 100, 100), "multiple-choice"},
		"Llama's tokens":    {shardBytes(20240801, 7, 100, 100), "Llama 3"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "val.bin", nil, good)
			if err := os.WriteFile(filepath.Join(dir, "train.bin"), c.train, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := Open(dir, 8)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
	t.Run("no folder", func(t *testing.T) {
		if _, err := Open(filepath.Join(t.TempDir(), "nowhere"), 8); err == nil || !strings.Contains(err.Error(), "snug prepare") {
			t.Errorf("error %v, want advice", err)
		}
	})
	t.Run("no val", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "train.bin", nil, good)
		if _, err := Open(dir, 8); err == nil || !strings.Contains(err.Error(), "no val.bin") {
			t.Errorf("error %v, want no val.bin", err)
		}
	})
	t.Run("a folder called train.bin", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "val.bin", nil, good)
		if err := os.Mkdir(filepath.Join(dir, "train.bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, 8); err == nil {
			t.Error("opened")
		}
	})
	t.Run("code in meta.pkl", func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "train.bin", nil, good)
		write(t, dir, "val.bin", nil, good)
		if err := os.WriteFile(filepath.Join(dir, "meta.pkl"), []byte("cos\nsystem\n(S'true'\ntR."), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, 8); err == nil || !strings.Contains(err.Error(), `refuses "os.system"`) {
			t.Errorf("error %v, want it refused by name", err)
		}
	})
}

func shardBytes(magic, version, said uint32, n int) []byte {
	b := make([]byte, shardHeader+2*n)
	for i, h := range []uint32{magic, version, said} {
		binary.LittleEndian.PutUint32(b[4*i:], h)
	}
	return b
}

func TestBeyondTheVocabulary(t *testing.T) {
	dir := t.TempDir()
	tokens := counting(0, 100)
	tokens[70] = 65
	write(t, dir, "train.bin", nil, tokens[70:90])
	write(t, dir, "val.bin", nil, make([]uint16, 20))
	s := open(t, dir, 4)
	if err := s.Train.Check(65); err == nil || !strings.Contains(err.Error(), "token 65 at 0 is beyond the vocabulary of 65") {
		t.Errorf("Check: %v", err)
	}
	if err := s.Val.Check(1); err != nil {
		t.Errorf("Check of zeros: %v", err)
	}
	p, err := NewSampler(s, Sequential, 1, 65)
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]int32, 4), make([]int32, 4)
	if err := p.Train(0, x, y); err == nil || !strings.Contains(err.Error(), "token 65 at 0") {
		t.Errorf("Train: %v", err)
	}
}

// TestWindows: every sample is a window of consecutive tokens of one file, y is x shifted, and order is as asked.
func TestWindows(t *testing.T) {
	const T = 8
	dir := t.TempDir()
	write(t, dir, "a_train_000002.bin", []uint32{shardMagic, shardVersion, 33}, counting(1000, 33))
	write(t, dir, "a_train_000001.bin", []uint32{shardMagic, shardVersion, 16}, counting(0, 16))
	write(t, dir, "a_val_000000.bin", []uint32{shardMagic, shardVersion, 9}, counting(5000, 9))
	s := open(t, dir, T)
	if got := s.Train.Len(); got != 49 {
		t.Errorf("Len = %d, want 49", got)
	}
	if got := s.Train.Windows(); got != 1+4 {
		t.Errorf("Windows = %d, want 5", got)
	}
	x, y := make([]int32, T), make([]int32, T)
	var order []int32
	for n := range uint64(7) {
		if err := sampler(t, s, Sequential, 1).Train(n, x, y); err != nil {
			t.Fatal(err)
		}
		order = append(order, x[0])
	}
	if want := []int32{0, 1000, 1008, 1016, 1024, 0, 1000}; !slices.Equal(order, want) {
		t.Errorf("sequential windows begin at %v, want %v", order, want)
	}
	seen := map[int32]int{}
	for n := range uint64(4000) {
		if err := sampler(t, s, Random, 1).Train(n, x, y); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if y[i] != x[i]+1 || x[i] != x[0]+int32(i) {
				t.Fatalf("sample %d is x %v, y %v: want consecutive tokens", n, x, y)
			}
		}
		seen[x[0]]++
	}
	if want := 16 - T + 33 - T; len(seen) != want {
		t.Errorf("windows begin at %d places, want all %d", len(seen), want)
	}
	for at, n := range seen {
		if n < 60 || n > 200 { // 4000/33 = 121, five standard deviations are 55
			t.Errorf("%d windows of 4000 begin at %d, want about 121", n, at)
		}
	}
	if err := sampler(t, s, Random, 1).Eval("val", 0, 3, x, y); err != nil || x[0] != 5000 {
		t.Errorf("the only val window: %v, %v", x, err)
	}
}

// TestSamplesDoNotDependOnTheSplit: samples drawn one by one and many at once are the same.
func TestSamplesDoNotDependOnTheSplit(t *testing.T) {
	const T, N = 4, 24
	dir := t.TempDir()
	write(t, dir, "train.bin", nil, counting(0, 5000))
	write(t, dir, "val.bin", nil, counting(0, 5000))
	s := open(t, dir, T)
	for _, order := range []Order{Random, Sequential} {
		p := sampler(t, s, order, 1337)
		whole, y := make([]int32, N*T), make([]int32, N*T)
		if err := p.Train(100, whole, y); err != nil {
			t.Fatal(err)
		}
		for _, micro := range []int{1, 2, 3, 8} {
			parts := make([]int32, 0, N*T)
			for n := 0; n < N; n += micro {
				x, y := make([]int32, micro*T), make([]int32, micro*T)
				if err := p.Train(uint64(100+n), x, y); err != nil {
					t.Fatal(err)
				}
				parts = append(parts, x...)
			}
			if !slices.Equal(parts, whole) {
				t.Errorf("%s order: micro-batches of %d see other samples", order, micro)
			}
		}
	}
}

// TestStreams: training, the two evaluations, seeds and iterations draw apart.
func TestStreams(t *testing.T) {
	const T = 4
	dir := t.TempDir()
	write(t, dir, "train.bin", nil, counting(0, 60000))
	write(t, dir, "val.bin", nil, counting(0, 60000))
	s := open(t, dir, T)
	draws := map[int32]string{}
	x, y := make([]int32, T), make([]int32, T)
	for name, draw := range map[string]func() error{
		"train":            func() error { return sampler(t, s, Random, 1).Train(0, x, y) },
		"next":             func() error { return sampler(t, s, Random, 1).Train(1, x, y) },
		"far":              func() error { return sampler(t, s, Random, 1).Train(1<<32, x, y) },
		"seed 2":           func() error { return sampler(t, s, Random, 2).Train(0, x, y) },
		"eval train":       func() error { return sampler(t, s, Random, 1).Eval("train", 0, 0, x, y) },
		"eval val":         func() error { return sampler(t, s, Random, 1).Eval("val", 0, 0, x, y) },
		"eval val, later":  func() error { return sampler(t, s, Random, 1).Eval("val", 250, 0, x, y) },
		"eval val, second": func() error { return sampler(t, s, Random, 1).Eval("val", 0, 1, x, y) },
	} {
		if err := draw(); err != nil {
			t.Fatal(err)
		}
		if other, ok := draws[x[0]]; ok {
			t.Errorf("%s and %s draw the same window", name, other)
		}
		draws[x[0]] = name
	}
	if _, err := NewSampler(s, "shuffled", 1, 10); err == nil {
		t.Error("an unknown order was accepted")
	}
}

func TestFillAllocatesNothing(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "train.bin", nil, counting(0, 5000))
	write(t, dir, "val.bin", nil, counting(0, 5000))
	p := sampler(t, open(t, dir, 64), Random, 1)
	x, y := make([]int32, 640), make([]int32, 640)
	n := uint64(0)
	if got := testing.AllocsPerRun(100, func() {
		if err := p.Train(n, x, y); err != nil {
			t.Fatal(err)
		}
		n++
	}); got != 0 {
		t.Errorf("%v allocations a batch", got)
	}
}

// TestFileShrinksWhileOpen: a file cut under its mapping is an error, not the end of the process.
func TestFileShrinksWhileOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere a mapped file cannot be cut, or the fault differs")
	}
	dir := t.TempDir()
	path := write(t, dir, "train.bin", nil, make([]uint16, 1<<16))
	write(t, dir, "val.bin", nil, counting(0, 100))
	s := open(t, dir, 8)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	x, y := make([]int32, 8), make([]int32, 8)
	if err := sampler(t, s, Random, 1).Train(0, x, y); err == nil || !strings.Contains(err.Error(), "shorter than when it was opened") {
		t.Errorf("error %v", err)
	}
	if err := s.Train.Check(10); err == nil {
		t.Error("Check of a cut file passed")
	}
}

func TestMeta(t *testing.T) {
	raw, err := os.ReadFile("../pickle/testdata/meta.pkl") // written by Python
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseMeta(raw)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := m.Chars.EncodePrompt("hello world\n")
	if err != nil || m.VocabSize != 9 || m.Chars.Len() != 9 {
		t.Fatalf("vocab_size %d, %v", m.VocabSize, err)
	}
	if text, err := m.Chars.AppendDecode(nil, ids...); err != nil || string(text) != "hello world\n" {
		t.Errorf("decode(encode) = %q, %v", text, err)
	}
	if _, err := m.Chars.EncodePrompt("é"); err == nil || !strings.Contains(err.Error(), `no character "é"`) {
		t.Errorf("a character that the data lacks: %v", err)
	}
	if _, err := m.Chars.AppendDecode(nil, 9); err == nil {
		t.Error("a token beyond the vocabulary was decoded")
	}
	again, err := m.Write()
	if err != nil {
		t.Fatal(err)
	}
	n, err := ParseMeta(again)
	if err != nil || n.VocabSize != m.VocabSize || !slices.Equal(n.Chars.text, m.Chars.text) {
		t.Errorf("written and read again: %+v, %v", n, err)
	}
}

// FuzzParseMeta: no bytes make it panic, and what it accepts can be decoded.
func FuzzParseMeta(f *testing.F) {
	raw, err := os.ReadFile("../pickle/testdata/meta.pkl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseMeta(raw)
		if err != nil || m.Chars == nil {
			return
		}
		if _, err := m.Chars.AppendDecode(nil, uint16(m.VocabSize-1)); err != nil {
			t.Error(err)
		}
	})
}

// FuzzPayload: any file is refused or gives whole tokens.
func FuzzPayload(f *testing.F) {
	f.Add(shardBytes(shardMagic, 1, 100, 100))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if data, err := payload(raw); err == nil && (len(data)%2 != 0 || len(data) > len(raw)) {
			t.Errorf("%d bytes of %d", len(data), len(raw))
		}
	})
}

func BenchmarkTrain(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, "train.bin", nil, make([]uint16, 1<<22))
	write(b, dir, "val.bin", nil, make([]uint16, 1<<12))
	p := sampler(b, open(b, dir, 1024), Random, 1)
	x, y := make([]int32, 12*1024), make([]int32, 12*1024)
	b.SetBytes(2 * int64(len(x)))
	n := uint64(0)
	for b.Loop() {
		if err := p.Train(n, x, y); err != nil {
			b.Fatal(err)
		}
		n += 12
	}
}
