package pickle

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func dict(pairs ...any) *Dict {
	d := NewDict()
	for i := 0; i < len(pairs); i += 2 {
		if err := d.Set(pairs[i], pairs[i+1]); err != nil {
			panic(err)
		}
	}
	return d
}

func list(items ...any) *List { return &List{items} }

func bigInt(s string) *big.Int {
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		panic(s)
	}
	return n
}

// pythonValue is the value of testdata/make.py.
func pythonValue(protocol int) *Dict {
	i := func(n int64) any { return n }
	d := dict(
		"none", nil, "true", true, "false", false,
		"ints", list(i(0), i(255), i(256), i(65535), i(65536), i(-1), i(math.MinInt32), i(1<<31),
			i(math.MaxInt64), i(math.MinInt64), bigInt("9223372036854775808"), bigInt("-1180591620717411303424")),
		"floats", list(0.0, -0.5, 1e300, math.Inf(1)),
		"str", "héllo \n \\ 日本 🙂", "long", strings.Repeat("x", 300), "bytes", Bytes("\x00\xff\n"), "empty", Bytes(""))
	if protocol == 5 {
		d.Set("bytearray", Bytes("ab"))
	}
	for _, pair := range [][2]any{
		{"tuples", list(Tuple{}, Tuple{i(1)}, Tuple{i(1), i(2)}, Tuple{i(1), i(2), i(3)}, Tuple{i(1), i(2), i(3), i(4)})},
		{"nested", dict("list", list(list(), dict(), list(list())), i(7), "seven", Bytes("k"), "bytes key")},
		{"ordered", dict("b", i(1), "a", i(2))},
		{"shared", list(list("twice"), list("twice"))},
	} {
		d.Set(pair[0], pair[1])
	}
	return d
}

// equal reports whether a and b hold the same values in the same order. Both must be free of cycles.
func equal(a, b any) bool {
	switch x := a.(type) {
	case *big.Int:
		y, ok := b.(*big.Int)
		return ok && x.Cmp(y) == 0
	case *List:
		y, ok := b.(*List)
		return ok && slices.EqualFunc(x.Items, y.Items, equal)
	case Tuple:
		y, ok := b.(Tuple)
		return ok && slices.EqualFunc(x, y, equal)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || !slices.Equal(x.keys, y.keys) || !equal(x.State, y.State) {
			return false
		}
		for k, v := range x.values {
			if !equal(v, y.values[k]) {
				return false
			}
		}
		return true
	case nil, bool, int64, float64, string, Bytes:
		return a == b
	}
	return false
}

func TestReadsEveryProtocolOfPython(t *testing.T) {
	for protocol := range 6 {
		data, err := os.ReadFile(fmt.Sprintf("testdata/protocol%d.pkl", protocol))
		if err != nil {
			t.Fatal(err)
		}
		got, n, err := Read(data, Options{})
		if err != nil {
			t.Errorf("protocol %d: %v", protocol, err)
			continue
		}
		if n != len(data) {
			t.Errorf("protocol %d: took %d bytes of %d", protocol, n, len(data))
		}
		want := pythonValue(protocol)
		for k, v := range want.All() {
			if g, ok := got.(*Dict).Get(k); !ok || !equal(g, v) {
				t.Errorf("protocol %d: %v = %v, want %v", protocol, k, g, v)
			}
		}
		if !equal(got, want) {
			t.Errorf("protocol %d: keys or their order differ", protocol)
		}
	}
}

func TestSharedValuesStayShared(t *testing.T) {
	data, err := os.ReadFile("testdata/protocol4.pkl")
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := Read(data, Options{})
	if err != nil {
		t.Fatal(err)
	}
	shared, _ := v.(*Dict).Get("shared")
	items := shared.(*List).Items
	if items[0].(*List) != items[1].(*List) {
		t.Error("a list that Python pickled twice by reference came back as two lists")
	}
}

func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"code by GLOBAL":       {"cos\nsystem\n(S'echo'\ntR.", `refuses "os.system"`},
		"code by STACK_GLOBAL": {"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R.", `refuses "os.system"`},
		"a global never used":  {"cbuiltins\neval\n0N.", `refuses "builtins.eval"`},
		"INST":                 {"(S'echo'\nios\nsystem\n.", "refuses opcode INST"},
		"OBJ":                  {"(No.", "refuses opcode OBJ"},
		"an extension":         {"\x82\x01.", "refuses opcode EXT1"},
		"a set":                {"\x80\x04\x8f.", "refuses opcode EMPTY_SET"},
		"a persistent id":      {"Pid\n.", "persistent ids are not read"},
		"state for a list":     {"]Nb.", "a list takes no state"},
		"a call of a string":   {"\x80\x02X\x01\x00\x00\x00a)R.", "calls a str"},
		"encode to utf-8":      {"c_codecs\nencode\n(Va\nVutf8\ntR.", "only as encode(str, 'latin1')"},
		"bytes with a size":    {"c__builtin__\nbytes\nI1000000000\n\x85R.", "only as bytes()"},
		"protocol 6":           {"\x80\x06N.", "protocol 6"},
		"empty":                {"", "cut short"},
		"no STOP":              {"N", "cut short"},
		"a long string":        {"X\xff\xff\xff\xffab.", "wants 4294967295 bytes, 3 are left"},
		"a longer string":      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "wants 18446744073709551615 bytes, 1 are left"},
		"text":                 {"hello", "memo 101 was never stored"},
		"a safetensors file":   {"\x10\x00\x00\x00", "0x10 at 0 is no opcode"},
		"a lone surrogate":     {"X\x03\x00\x00\x00\xed\xa0\x80.", "not UTF-8"},
		"a list as key":        {"}]Ns.", "dict key of type list"},
		"odd items":            {"}(Nu.", "1 values are no pairs"},
		"an empty stack":       {"0.", "stack is empty"},
		"below a mark":         {"N(a.", "stack is empty"},
		"no mark":              {"t.", "no mark"},
		"two values":           {"NN.", "leaves 1 values"},
		"a mark left":          {"N(.", "not a pickle"},
		"5000 digits":          {"L" + strings.Repeat("9", 5000) + "L\n.", "at most 4300"},
		"hexadecimal float":    {"F0x1p3\n.", "no float"},
		"one argument, many calls": {"X\x00\x10\x00\x00" + strings.Repeat("a", 4096) + "p0\n0" +
			strings.Repeat("c_codecs\nencode\n(g0\nVlatin1\ntR0", 500) + "N.", "made to exhaust memory"},
	} {
		_, _, err := Read([]byte(c.in), Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error of several lines: %v", name, err)
		}
	}
}

func TestHooks(t *testing.T) {
	type tensor struct{ storage any }
	o := Options{
		Globals: map[string]any{
			"torch._utils._rebuild_tensor_v2": Func(func(args Tuple) (any, error) { return &tensor{args[0]}, nil }),
			"torch.FloatStorage":              "float32",
		},
		Persistent: func(id any) (any, error) { return id.(Tuple)[1], nil },
	}
	state := dict("w", Call{
		Fn:   Global{"torch._utils", "_rebuild_tensor_v2"},
		Args: Tuple{Persistent{Tuple{"storage", Global{"torch", "FloatStorage"}}}, 0},
	})
	state.State = dict("_metadata", dict())
	data, err := Write(state)
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := Read(data, o)
	if err != nil {
		t.Fatal(err)
	}
	w, _ := v.(*Dict).Get("w")
	if got := w.(*tensor).storage; got != "float32" {
		t.Errorf("storage = %v, want float32", got)
	}
	if !equal(v.(*Dict).State, dict("_metadata", dict())) {
		t.Errorf("state = %v, want _metadata", v.(*Dict).State)
	}
}

func TestWriteThenRead(t *testing.T) {
	want := pythonValue(5)
	want.Set("edges", list(int64(math.MaxInt32)+1, int64(math.MinInt32)-1, bigInt("-9223372036854775809"), bigInt("-340282366920938463463374607431768211456")))
	data, err := Write(want)
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := Read(data, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !equal(got, want) {
		t.Errorf("read back %v, want %v", got, want)
	}
}

func TestWriteRefuses(t *testing.T) {
	loop := &List{}
	loop.Items = []any{loop}
	for name, v := range map[string]any{
		"a list in itself": loop,
		"a Go struct":      struct{}{},
		"invalid UTF-8":    "\xff",
		"a huge int":       new(big.Int).Lsh(big.NewInt(1), 4000),
		"a newline global": Global{"os\nsystem", "x"},
	} {
		if _, err := Write(v); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}

// FuzzRead: no input panics, and what is read can be written and read again.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.pkl")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("cos\nsystem\n(S'echo'\ntR."))
	f.Add([]byte("(lp0\ng0\na."))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, n, err := Read(data, Options{})
		if err != nil {
			return
		}
		if n > len(data) {
			t.Fatalf("took %d bytes of %d", n, len(data))
		}
		if budget := 10_000; !small(v, &budget) {
			return // values shared over and over grow without bound when written out
		}
		again, err := Write(v)
		if err != nil {
			return // a cycle, a callable or an int too long to write
		}
		w, _, err := Read(again, Options{})
		if err != nil {
			t.Fatalf("what was written does not read: %v", err)
		}
		third, err := Write(w)
		if err != nil || string(third) != string(again) {
			t.Fatalf("not stable: %q, then %q (%v)", again, third, err)
		}
	})
}

// small reports whether v, with shared values counted each time, has at most budget values.
func small(v any, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	var items []any
	switch x := v.(type) {
	case Tuple:
		items = x
	case *List:
		items = x.Items
	case *Dict:
		items = append(items, x.State)
		for _, v := range x.All() {
			items = append(items, v)
		}
	}
	for _, item := range items {
		if !small(item, budget) {
			return false
		}
	}
	return true
}
