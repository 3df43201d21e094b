package pickle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Options say what else than plain data a pickle may name.
type Options struct {
	// Globals maps "module.name" to what stands for it: a Func where the pickle may call it, any value else.
	Globals map[string]any
	// Persistent resolves a persistent id (PyTorch's storages). Nil refuses them.
	Persistent func(id any) (any, error)
}

// Read parses the one pickle that data begins with, and returns its value and the number of bytes it took.
func Read(data []byte, o Options) (value any, n int, err error) {
	r := &reader{data: data, options: o, memo: map[uint64]any{}}
	for {
		at := r.pos
		b, err := r.take(1)
		if err != nil {
			return nil, at, fmt.Errorf("pickle: no STOP in %d bytes: the file is cut short", len(data))
		}
		op := ops[b[0]]
		if op.run == nil {
			if op.name == "" {
				return nil, at, fmt.Errorf("pickle: byte 0x%02x at %d is no opcode: not a pickle", b[0], at)
			}
			return nil, at, fmt.Errorf("pickle: refuses opcode %s at byte %d: only plain data is read", op.name, at)
		}
		if err := op.run(r); err == errStop {
			value, err := r.pop()
			if err != nil || len(r.stack) != 0 || len(r.marks) != 0 {
				return nil, at, fmt.Errorf("pickle: STOP at byte %d leaves %d values: not a pickle", at, len(r.stack))
			}
			return value, r.pos, nil
		} else if err != nil {
			return nil, at, fmt.Errorf("pickle: %s at byte %d: %w", op.name, at, err)
		}
	}
}

// reader is the pickle machine: a stack with marks, and a memo of values seen before.
type reader struct {
	data    []byte
	pos     int
	stack   []any
	marks   []int
	memo    map[uint64]any
	options Options
	argued  int // total size of the arguments of calls so far
}

// maxArgued bounds the arguments of all calls, in multiples of the input's length. A memo lets a pickle pass one long
// argument to thousands of calls; honest pickles pass each byte about once.
const maxArgued = 16

var (
	errStop  = errors.New("stop")
	errEmpty = errors.New("the stack is empty")
	errShort = errors.New("the input ends here")
)

func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.data)-r.pos) {
		return nil, errShort
	}
	b := r.data[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b, nil
}

// line takes the bytes up to the next newline, as protocol 0 writes its arguments.
func (r *reader) line() (string, error) {
	i := bytes.IndexByte(r.data[r.pos:], '\n')
	if i < 0 {
		return "", errShort
	}
	s := string(r.data[r.pos : r.pos+i])
	r.pos += i + 1
	return s, nil
}

// uint takes a little-endian unsigned integer of n bytes, n <= 8.
func (r *reader) uint(n uint64) (uint64, error) {
	b, err := r.take(n)
	if err != nil {
		return 0, err
	}
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}

// sized takes a length of n bytes and then that many bytes.
func (r *reader) sized(n uint64) ([]byte, error) {
	size, err := r.uint(n)
	if err != nil {
		return nil, err
	}
	if left := len(r.data) - r.pos; size > uint64(left) {
		return nil, fmt.Errorf("wants %d bytes, %d are left", size, left)
	}
	return r.take(size)
}

func (r *reader) push(v any) { r.stack = append(r.stack, v) }

// floor is the lowest position that pops may reach: the last mark.
func (r *reader) floor() int {
	if len(r.marks) == 0 {
		return 0
	}
	return r.marks[len(r.marks)-1]
}

func (r *reader) pop() (any, error) {
	top := len(r.stack) - 1
	if top < r.floor() {
		return nil, errEmpty
	}
	v := r.stack[top]
	r.stack = r.stack[:top]
	return v, nil
}

func (r *reader) peek() (any, error) {
	if len(r.stack) <= r.floor() {
		return nil, errEmpty
	}
	return r.stack[len(r.stack)-1], nil
}

// popMark takes everything above the last mark, and the mark.
func (r *reader) popMark() ([]any, error) {
	if len(r.marks) == 0 {
		return nil, errors.New("no mark")
	}
	from := r.floor()
	r.marks = r.marks[:len(r.marks)-1]
	items := append([]any(nil), r.stack[from:]...)
	r.stack = r.stack[:from]
	return items, nil
}

// popN takes the top n values in the order in which they were pushed.
func (r *reader) popN(n int) ([]any, error) {
	if len(r.stack)-r.floor() < n {
		return nil, errEmpty
	}
	items := append([]any(nil), r.stack[len(r.stack)-n:]...)
	r.stack = r.stack[:len(r.stack)-n]
	return items, nil
}

// global pushes what stands for module.name, or refuses it.
func (r *reader) global(module, name string) error {
	key := module + "." + name
	v, ok := r.options.Globals[key]
	if !ok {
		v, ok = dataGlobals[key]
	}
	if !ok {
		return fmt.Errorf("refuses %q: a pickle is read as data, its code is never run", key)
	}
	r.push(v)
	return nil
}

// call applies an allowed callable to a tuple of arguments.
func (r *reader) call() error {
	pair, err := r.popN(2)
	if err != nil {
		return err
	}
	f, ok := pair[0].(Func)
	if !ok {
		return fmt.Errorf("calls a %s, want an allowed callable", typeName(pair[0]))
	}
	args, ok := pair[1].(Tuple)
	if !ok {
		return fmt.Errorf("arguments are a %s, want a tuple", typeName(pair[1]))
	}
	for _, a := range args {
		switch a := a.(type) {
		case string:
			r.argued += len(a)
		case Bytes:
			r.argued += len(a)
		case *List:
			r.argued += len(a.Items)
		case Tuple:
			r.argued += len(a)
		}
	}
	if r.argued > maxArgued*len(r.data) {
		return fmt.Errorf("arguments of %d items in a pickle of %d bytes: it is made to exhaust memory", r.argued, len(r.data))
	}
	v, err := f(args)
	if err != nil {
		return err
	}
	r.push(v)
	return nil
}

// build hands the state on top of the stack to the value below it.
func (r *reader) build() error {
	state, err := r.pop()
	if err != nil {
		return err
	}
	v, err := r.peek()
	if err != nil {
		return err
	}
	s, ok := v.(Stater)
	if !ok {
		return fmt.Errorf("a %s takes no state", typeName(v))
	}
	return s.SetState(state)
}

func (r *reader) persistent(id any) error {
	if r.options.Persistent == nil {
		return errors.New("persistent ids are not read here: only plain data")
	}
	v, err := r.options.Persistent(id)
	if err != nil {
		return err
	}
	r.push(v)
	return nil
}

// setItems stores key, value, key, value… in the dict on top of the stack.
func (r *reader) setItems(items []any) error {
	v, err := r.peek()
	if err != nil {
		return err
	}
	d, ok := v.(*Dict)
	if !ok {
		return fmt.Errorf("sets items of a %s, want a dict", typeName(v))
	}
	if len(items)%2 != 0 {
		return fmt.Errorf("%d values are no pairs", len(items))
	}
	for i := 0; i < len(items); i += 2 {
		if err := d.Set(items[i], items[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) appendItems(items []any) error {
	v, err := r.peek()
	if err != nil {
		return err
	}
	l, ok := v.(*List)
	if !ok {
		return fmt.Errorf("appends to a %s, want a list", typeName(v))
	}
	l.Items = append(l.Items, items...)
	return nil
}

func (r *reader) remember(key uint64) error {
	v, err := r.peek()
	if err != nil {
		return err
	}
	r.memo[key] = v
	return nil
}

func (r *reader) recall(key uint64) error {
	v, ok := r.memo[key]
	if !ok {
		return fmt.Errorf("memo %d was never stored", key)
	}
	r.push(v)
	return nil
}

// text accepts UTF-8 alone: Python's lone surrogates have no Go string.
func (r *reader) text(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("a str that is not UTF-8")
	}
	r.push(string(b))
	return nil
}

// ascii accepts Python 2's str as Python 3 does by default: when every byte is ASCII.
func (r *reader) ascii(b []byte) error {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return fmt.Errorf("a Python 2 str with byte 0x%02x, which is not ASCII", c)
		}
	}
	r.push(string(b))
	return nil
}

// maxDigits is Python's own limit on the digits of an int in text: conversion time grows with their square.
const maxDigits = 4300

func (r *reader) decimal(s string) error {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		r.push(n)
		return nil
	}
	if len(s) > maxDigits {
		return fmt.Errorf("an int of %d digits, at most %d are read", len(s), maxDigits)
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return fmt.Errorf("%.40q is no int", s)
	}
	r.push(n)
	return nil
}

// long pushes a little-endian two's complement integer of any length.
func (r *reader) long(b []byte) {
	be := make([]byte, len(b))
	for i, c := range b {
		be[len(b)-1-i] = c
	}
	n := new(big.Int).SetBytes(be)
	if len(be) > 0 && be[0] >= 0x80 {
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(8*len(be))))
	}
	if n.IsInt64() {
		r.push(n.Int64())
		return
	}
	r.push(n)
}

func (r *reader) float(s string) error {
	if strings.ContainsAny(s, "xXpP_") {
		return fmt.Errorf("%.40q is no float", s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return fmt.Errorf("%.40q is no float", s)
	}
	r.push(f)
	return nil
}

// rawUnicode decodes protocol 0's str: latin-1, with \u and \U escapes of 4 and 8 hexadecimal digits.
func (r *reader) rawUnicode(s string) error {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		digits := 0
		if s[i] == '\\' && i+1 < len(s) {
			digits = map[byte]int{'u': 4, 'U': 8}[s[i+1]]
		}
		if digits == 0 {
			b.WriteRune(rune(s[i]))
			continue
		}
		if i+2+digits > len(s) {
			return errors.New("a cut \\u escape")
		}
		code, err := strconv.ParseUint(s[i+2:i+2+digits], 16, 32)
		if err != nil || code > utf8.MaxRune || !utf8.ValidRune(rune(code)) {
			return fmt.Errorf("escape %q is no character", s[i:i+2+digits])
		}
		b.WriteRune(rune(code))
		i += 1 + digits
	}
	r.push(b.String())
	return nil
}

// quoted decodes protocol 0's Python 2 str, written as its repr.
func (r *reader) quoted(s string) error {
	s = strings.TrimSpace(s)
	if len(s) < 2 || s[0] != s[len(s)-1] || s[0] != '\'' && s[0] != '"' {
		return errors.New("a str without its quotes")
	}
	quote, rest := s[0], s[1:len(s)-1]
	var b []byte
	for rest != "" {
		if rest[0] == '\\' && len(rest) > 1 && (rest[1] == '\'' || rest[1] == '"') {
			b, rest = append(b, rest[1]), rest[2:]
			continue
		}
		c, _, tail, err := strconv.UnquoteChar(rest, quote)
		if err != nil || c >= utf8.RuneSelf {
			return errors.New("a Python 2 str that is not ASCII")
		}
		b, rest = append(b, byte(c)), tail
	}
	return r.ascii(b)
}
