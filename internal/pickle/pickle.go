// Package pickle reads and writes Python's pickles as data.
//
// It owns the byte format, protocols 0 to 5: numbers, strings, bytes, lists, tuples, dicts and OrderedDicts, plus
// whatever the caller allows by name. It never runs anything a pickle asks for: a global that is neither here nor in
// the caller's table is refused by name, and memory stays in proportion to the input.
//
// # Values
//
//	Python            Go
//	None              nil
//	bool              bool
//	int               int64, or *big.Int beyond 64 bits
//	float             float64
//	str               string
//	bytes, bytearray  Bytes
//	list              *List
//	tuple             Tuple
//	dict, OrderedDict *Dict
//
// A pickle may hold a list or dict inside itself, so code that walks a value it did not write must bound its depth.
package pickle

import (
	"fmt"
	"iter"
	"math/big"
)

// Bytes is a Python bytes object. It is a string so that it can be a dict's key.
type Bytes string

// Tuple is a Python tuple.
type Tuple []any

// List is a Python list, shared by reference as in Python.
type List struct{ Items []any }

// Dict is a Python dict in insertion order. State holds the attributes that a BUILD opcode gave it, nil for most.
type Dict struct {
	State any

	keys   []any
	values map[any]any
}

// NewDict returns an empty dict.
func NewDict() *Dict { return &Dict{values: map[any]any{}} }

// Set stores value under key, which must be a string, int64 or Bytes.
func (d *Dict) Set(key, value any) error {
	switch key.(type) {
	case string, int64, Bytes:
	default:
		return fmt.Errorf("dict key of type %s: want str, int or bytes", typeName(key))
	}
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
	return nil
}

// Get returns the value under key and whether there is one.
func (d *Dict) Get(key any) (any, bool) {
	switch key.(type) {
	case string, int64, Bytes:
		v, ok := d.values[key]
		return v, ok
	}
	return nil, false
}

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// All walks the dict in insertion order.
func (d *Dict) All() iter.Seq2[any, any] {
	return func(yield func(any, any) bool) {
		for _, k := range d.keys {
			if !yield(k, d.values[k]) {
				return
			}
		}
	}
}

// Func stands for an allowed Python callable: it turns the arguments of a call into a value.
type Func func(args Tuple) (any, error)

// Stater is a value that accepts the state of Python's BUILD opcode (what __setstate__ would get).
type Stater interface{ SetState(state any) error }

// SetState keeps the attributes of a dict subclass, such as the _metadata of a PyTorch state dict.
func (d *Dict) SetState(state any) error {
	d.State = state
	return nil
}

// dataGlobals are the callables that Python itself uses to pickle plain data, allowed always.
var dataGlobals = map[string]any{
	"collections.OrderedDict": Func(orderedDict),
	"_codecs.encode":          Func(latin1Bytes),
	"__builtin__.bytes":       Func(emptyBytes),
	"builtins.bytes":          Func(emptyBytes),
}

// orderedDict is OrderedDict() or OrderedDict([(key, value), …]).
func orderedDict(args Tuple) (any, error) {
	d := NewDict()
	if len(args) == 0 {
		return d, nil
	}
	list, ok := args[0].(*List)
	if !ok || len(args) != 1 {
		return nil, fmt.Errorf("OrderedDict wants a list of pairs, got %d arguments, first %s", len(args), typeName(args[0]))
	}
	for _, item := range list.Items {
		var pair []any
		switch p := item.(type) {
		case Tuple:
			pair = p
		case *List:
			pair = p.Items
		}
		if len(pair) != 2 {
			return nil, fmt.Errorf("OrderedDict wants pairs, got %s", typeName(item))
		}
		if err := d.Set(pair[0], pair[1]); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// latin1Bytes is how protocols 0 to 2 carry bytes: each character of the string is one byte.
func latin1Bytes(args Tuple) (any, error) {
	if len(args) != 2 || args[1] != any("latin1") {
		return nil, fmt.Errorf("_codecs.encode is read only as encode(str, 'latin1'), got %d arguments", len(args))
	}
	text, ok := args[0].(string)
	if !ok {
		return nil, fmt.Errorf("_codecs.encode wants str, got %s", typeName(args[0]))
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 255 {
			return nil, fmt.Errorf("_codecs.encode: character %U is not latin-1", r)
		}
		b = append(b, byte(r))
	}
	return Bytes(b), nil
}

func emptyBytes(args Tuple) (any, error) {
	if len(args) != 0 {
		return nil, fmt.Errorf("bytes is read only as bytes(), got %d arguments", len(args))
	}
	return Bytes(""), nil
}

// typeName is Python's name for v's type.
func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case Bytes:
		return "bytes"
	case *List:
		return "list"
	case Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case Func:
		return "callable"
	}
	return fmt.Sprintf("%T", v)
}
