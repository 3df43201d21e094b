package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// op is one opcode: its name in Python's pickletools, and what it does. A name without a function is refused.
type op struct {
	name string
	run  func(*reader) error
}

// ops is the whole of the format, by opcode. It is filled once and never changed.
var ops = [256]op{
	// The frame of a pickle.
	0x80: {"PROTO", func(r *reader) error {
		v, err := r.uint(1)
		if err == nil && v > 5 {
			err = fmt.Errorf("protocol %d, at most 5 is read", v)
		}
		return err
	}},
	0x95: {"FRAME", func(r *reader) error {
		size, err := r.uint(8)
		if left := len(r.data) - r.pos; err == nil && size > uint64(left) {
			err = fmt.Errorf("wants %d bytes, %d are left", size, left)
		}
		return err
	}},
	'.': {"STOP", func(*reader) error { return errStop }},

	// Constants and numbers.
	'N':  {"NONE", constant(nil)},
	0x88: {"NEWTRUE", constant(true)},
	0x89: {"NEWFALSE", constant(false)},
	'I': {"INT", onLine(func(r *reader, s string) error {
		if s == "00" || s == "01" {
			r.push(s == "01")
			return nil
		}
		return r.decimal(s)
	})},
	'L': {"LONG", onLine(func(r *reader, s string) error {
		if n := len(s); n > 0 && s[n-1] == 'L' {
			s = s[:n-1]
		}
		return r.decimal(s)
	})},
	'F': {"FLOAT", onLine((*reader).float)},
	'J': {"BININT", onUint(4, func(r *reader, n uint64) error { r.push(int64(int32(n))); return nil })},
	'K': {"BININT1", onUint(1, func(r *reader, n uint64) error { r.push(int64(n)); return nil })},
	'M': {"BININT2", onUint(2, func(r *reader, n uint64) error { r.push(int64(n)); return nil })},
	'G': {"BINFLOAT", func(r *reader) error {
		b, err := r.take(8)
		if err == nil {
			r.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
		}
		return err
	}},
	0x8a: {"LONG1", onSized(1, func(r *reader, b []byte) error { r.long(b); return nil })},
	0x8b: {"LONG4", onSized(4, func(r *reader, b []byte) error { r.long(b); return nil })},

	// Strings and bytes.
	'V':  {"UNICODE", onLine((*reader).rawUnicode)},
	'X':  {"BINUNICODE", onSized(4, (*reader).text)},
	0x8c: {"SHORT_BINUNICODE", onSized(1, (*reader).text)},
	0x8d: {"BINUNICODE8", onSized(8, (*reader).text)},
	'S':  {"STRING", onLine((*reader).quoted)},
	'T':  {"BINSTRING", onSized(4, (*reader).ascii)},
	'U':  {"SHORT_BINSTRING", onSized(1, (*reader).ascii)},
	'B':  {"BINBYTES", onSized(4, pushBytes)},
	'C':  {"SHORT_BINBYTES", onSized(1, pushBytes)},
	0x8e: {"BINBYTES8", onSized(8, pushBytes)},
	0x96: {"BYTEARRAY8", onSized(8, pushBytes)},

	// The stack.
	'(': {"MARK", func(r *reader) error { r.marks = append(r.marks, len(r.stack)); return nil }},
	'0': {"POP", func(r *reader) error {
		if len(r.marks) > 0 && r.floor() == len(r.stack) {
			r.marks = r.marks[:len(r.marks)-1]
			return nil
		}
		_, err := r.pop()
		return err
	}},
	'1': {"POP_MARK", func(r *reader) error { _, err := r.popMark(); return err }},
	'2': {"DUP", func(r *reader) error {
		v, err := r.peek()
		if err == nil {
			r.push(v)
		}
		return err
	}},

	// Containers.
	']': {"EMPTY_LIST", func(r *reader) error { r.push(&List{}); return nil }},
	'l': {"LIST", onMark(func(r *reader, items []any) error { r.push(&List{items}); return nil })},
	'a': {"APPEND", func(r *reader) error {
		items, err := r.popN(1)
		if err != nil {
			return err
		}
		return r.appendItems(items)
	}},
	'e':  {"APPENDS", onMark((*reader).appendItems)},
	')':  {"EMPTY_TUPLE", func(r *reader) error { r.push(Tuple{}); return nil }},
	't':  {"TUPLE", onMark(func(r *reader, items []any) error { r.push(Tuple(items)); return nil })},
	0x85: {"TUPLE1", tupleOf(1)},
	0x86: {"TUPLE2", tupleOf(2)},
	0x87: {"TUPLE3", tupleOf(3)},
	'}':  {"EMPTY_DICT", func(r *reader) error { r.push(NewDict()); return nil }},
	'd': {"DICT", onMark(func(r *reader, items []any) error {
		r.push(NewDict())
		return r.setItems(items)
	})},
	's': {"SETITEM", func(r *reader) error {
		items, err := r.popN(2)
		if err != nil {
			return err
		}
		return r.setItems(items)
	}},
	'u': {"SETITEMS", onMark((*reader).setItems)},

	// The memo.
	'p':  {"PUT", onMemoLine((*reader).remember)},
	'q':  {"BINPUT", onUint(1, (*reader).remember)},
	'r':  {"LONG_BINPUT", onUint(4, (*reader).remember)},
	0x94: {"MEMOIZE", func(r *reader) error { return r.remember(uint64(len(r.memo))) }},
	'g':  {"GET", onMemoLine((*reader).recall)},
	'h':  {"BINGET", onUint(1, (*reader).recall)},
	'j':  {"LONG_BINGET", onUint(4, (*reader).recall)},

	// What the caller allows.
	'c': {"GLOBAL", func(r *reader) error {
		module, err := r.line()
		if err != nil {
			return err
		}
		name, err := r.line()
		if err != nil {
			return err
		}
		return r.global(module, name)
	}},
	0x93: {"STACK_GLOBAL", func(r *reader) error {
		pair, err := r.popN(2)
		if err != nil {
			return err
		}
		module, ok1 := pair[0].(string)
		name, ok2 := pair[1].(string)
		if !ok1 || !ok2 {
			return errors.New("a global's module and name must be str")
		}
		return r.global(module, name)
	}},
	'R':  {"REDUCE", (*reader).call},
	0x81: {"NEWOBJ", (*reader).call},
	'b':  {"BUILD", (*reader).build},
	'P':  {"PERSID", onLine(func(r *reader, s string) error { return r.persistent(s) })},
	'Q': {"BINPERSID", func(r *reader) error {
		id, err := r.pop()
		if err != nil {
			return err
		}
		return r.persistent(id)
	}},

	// Known and refused.
	'i':  {name: "INST"},
	'o':  {name: "OBJ"},
	0x82: {name: "EXT1"},
	0x83: {name: "EXT2"},
	0x84: {name: "EXT4"},
	0x8f: {name: "EMPTY_SET"},
	0x90: {name: "ADDITEMS"},
	0x91: {name: "FROZENSET"},
	0x92: {name: "NEWOBJ_EX"},
	0x97: {name: "NEXT_BUFFER"},
	0x98: {name: "READONLY_BUFFER"},
}

func constant(v any) func(*reader) error {
	return func(r *reader) error { r.push(v); return nil }
}

func pushBytes(r *reader, b []byte) error {
	r.push(Bytes(b))
	return nil
}

func tupleOf(n int) func(*reader) error {
	return func(r *reader) error {
		items, err := r.popN(n)
		if err == nil {
			r.push(Tuple(items))
		}
		return err
	}
}

func onLine(f func(*reader, string) error) func(*reader) error {
	return func(r *reader) error {
		s, err := r.line()
		if err != nil {
			return err
		}
		return f(r, s)
	}
}

func onUint(size uint64, f func(*reader, uint64) error) func(*reader) error {
	return func(r *reader) error {
		n, err := r.uint(size)
		if err != nil {
			return err
		}
		return f(r, n)
	}
}

func onSized(size uint64, f func(*reader, []byte) error) func(*reader) error {
	return func(r *reader) error {
		b, err := r.sized(size)
		if err != nil {
			return err
		}
		return f(r, b)
	}
}

func onMark(f func(*reader, []any) error) func(*reader) error {
	return func(r *reader) error {
		items, err := r.popMark()
		if err != nil {
			return err
		}
		return f(r, items)
	}
}

// onMemoLine reads protocol 0's memo keys, which are decimal.
func onMemoLine(f func(*reader, uint64) error) func(*reader) error {
	return onLine(func(r *reader, s string) error {
		key, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%.40q is no memo key", s)
		}
		return f(r, key)
	})
}
