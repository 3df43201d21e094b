package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Global names a Python object to be looked up by whoever loads the pickle.
type Global struct{ Module, Name string }

// Call is the result of calling Fn with Args when the pickle is loaded.
type Call struct {
	Fn   Global
	Args Tuple
}

// Persistent is a persistent id, such as PyTorch's reference to a storage.
type Persistent struct{ ID any }

// maxDepth bounds the nesting that Write follows, so that a value that holds itself is an error.
const maxDepth = 1000

// Write returns v as a pickle of protocol 2, which every Python 3 and torch.load(weights_only=True) read.
//
// It takes the values of the package comment, int beside int64, []any for a list, and Global, Call and Persistent.
// A value that occurs twice is written twice.
func Write(v any) ([]byte, error) {
	w := &writer{out: []byte{0x80, 2}}
	if err := w.value(v, 0); err != nil {
		return nil, fmt.Errorf("pickle: write: %w", err)
	}
	return append(w.out, '.'), nil
}

type writer struct{ out []byte }

func (w *writer) value(v any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested deeper than %d: the value may hold itself", maxDepth)
	}
	switch x := v.(type) {
	case nil:
		w.byte('N')
	case bool:
		if x {
			w.byte(0x88)
		} else {
			w.byte(0x89)
		}
	case int:
		w.int(int64(x))
	case int64:
		w.int(x)
	case *big.Int:
		return w.big(x)
	case float64:
		w.byte('G')
		w.out = binary.BigEndian.AppendUint64(w.out, math.Float64bits(x))
	case string:
		return w.string(x)
	case Bytes:
		return w.bytes(x, depth)
	case []any:
		return w.list(x, depth)
	case *List:
		return w.list(x.Items, depth)
	case Tuple:
		return w.tuple(x, depth)
	case *Dict:
		return w.dict(x, depth)
	case Global:
		return w.global(x)
	case Call:
		return w.call(x, depth)
	case Persistent:
		if err := w.value(x.ID, depth+1); err != nil {
			return err
		}
		w.byte('Q')
	default:
		return fmt.Errorf("a %T has no pickle here", v)
	}
	return nil
}

func (w *writer) byte(b ...byte) { w.out = append(w.out, b...) }

// int writes n in the form that Python picks: the shortest of one, two, four bytes, or a long.
func (w *writer) int(n int64) {
	switch {
	case n >= 0 && n <= math.MaxUint8:
		w.byte('K', byte(n))
	case n >= 0 && n <= math.MaxUint16:
		w.byte('M', byte(n), byte(n>>8))
	case n >= math.MinInt32 && n <= math.MaxInt32:
		w.byte('J')
		w.out = binary.LittleEndian.AppendUint32(w.out, uint32(n))
	default:
		w.byte(0x8a, 8)
		w.out = binary.LittleEndian.AppendUint64(w.out, uint64(n))
	}
}

// big writes n as little-endian two's complement of the fewest whole bytes that keep its sign.
func (w *writer) big(n *big.Int) error {
	size := n.BitLen()/8 + 1
	if size > math.MaxUint8 {
		return fmt.Errorf("an int of %d bits, at most 2039 are written", n.BitLen())
	}
	be := new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size))).Bytes()
	w.byte(0x8a, byte(size))
	for i := range size {
		w.byte(be[len(be)-1-i])
	}
	return nil
}

func (w *writer) string(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("string %.40q is not UTF-8", s)
	}
	if len(s) > math.MaxUint32 {
		return fmt.Errorf("a string of %d bytes, at most %d are written", len(s), uint32(math.MaxUint32))
	}
	w.byte('X')
	w.out = binary.LittleEndian.AppendUint32(w.out, uint32(len(s)))
	w.out = append(w.out, s...)
	return nil
}

// bytes writes protocol 2's form of bytes: a str of the same code points, encoded as latin-1 on loading.
func (w *writer) bytes(b Bytes, depth int) error {
	var text strings.Builder
	for i := range len(b) {
		text.WriteRune(rune(b[i]))
	}
	return w.call(Call{Global{"_codecs", "encode"}, Tuple{text.String(), "latin1"}}, depth)
}

func (w *writer) list(items []any, depth int) error {
	w.byte(']')
	if len(items) == 0 {
		return nil
	}
	w.byte('(')
	for _, v := range items {
		if err := w.value(v, depth+1); err != nil {
			return err
		}
	}
	w.byte('e')
	return nil
}

func (w *writer) tuple(items Tuple, depth int) error {
	ends := [...]byte{')', 0x85, 0x86, 0x87}
	if len(items) >= len(ends) {
		w.byte('(')
	}
	for _, v := range items {
		if err := w.value(v, depth+1); err != nil {
			return err
		}
	}
	if len(items) < len(ends) {
		w.byte(ends[len(items)])
		return nil
	}
	w.byte('t')
	return nil
}

// dict writes a plain dict, or an OrderedDict with its attributes where the dict has State.
func (w *writer) dict(d *Dict, depth int) error {
	if d.State == nil {
		w.byte('}')
	} else if err := w.call(Call{Fn: Global{"collections", "OrderedDict"}}, depth); err != nil {
		return err
	}
	if d.Len() > 0 {
		w.byte('(')
		for k, v := range d.All() {
			if err := w.value(k, depth+1); err != nil {
				return err
			}
			if err := w.value(v, depth+1); err != nil {
				return err
			}
		}
		w.byte('u')
	}
	if d.State == nil {
		return nil
	}
	if err := w.value(d.State, depth+1); err != nil {
		return err
	}
	w.byte('b')
	return nil
}

func (w *writer) global(g Global) error {
	if g.Module == "" || g.Name == "" || strings.ContainsAny(g.Module+g.Name, "\n\r ") {
		return fmt.Errorf("global %q of %q is no Python name", g.Name, g.Module)
	}
	w.byte('c')
	w.out = append(w.out, g.Module+"\n"+g.Name+"\n"...)
	return nil
}

func (w *writer) call(c Call, depth int) error {
	if err := w.global(c.Fn); err != nil {
		return err
	}
	if err := w.tuple(c.Args, depth); err != nil {
		return err
	}
	w.byte('R')
	return nil
}
