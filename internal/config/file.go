package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	starlarkmath "go.starlark.net/lib/math"
	"go.starlark.net/resolve"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
	"go.starlark.net/syntax"
)

const maxFileBytes = 1 << 20 // a config file is a page of text

const allowed = "a config file may use assignments, arithmetic, strings, if, for, and 'import time' or 'import math'"

// LoadFile reads one of nanoGPT's Python config files into c.
//
// The file is evaluated as Starlark over c's present values, so lr_decay_iters = max_iters works as it does in
// nanoGPT. It can reach no file and no network, and stops after a million steps or at 64 MiB of values. Names that start with _ are the
// file's own; every other name must be a key of Table. c is unchanged when the file is refused.
func (c *Config) LoadFile(path string) error {
	src, err := readConfig(path)
	if err != nil {
		return err
	}
	return c.Load(path, src)
}

// Load is LoadFile for a source that is in memory; name stands for it in errors.
func (c *Config) Load(name string, src []byte) error {
	short := filepath.ToSlash(name)
	text, modules, err := toStarlark(short, src)
	if err != nil {
		return err
	}
	file, err := dialect.Parse(short, text, 0)
	if err != nil {
		return parseError(short, err)
	}
	globals := world(c, modules)
	given := assigned(file)
	watchTimes(file)
	thread := &starlark.Thread{Name: short, Print: func(*starlark.Thread, string) {},
		Load: func(*starlark.Thread, string) (starlark.StringDict, error) { return nil, errors.New(allowed) }}
	bound(thread)
	if err := starlark.ExecREPLChunk(file, thread, globals); err != nil {
		return evalError(short, err)
	}
	next := *c
	for _, b := range given {
		if strings.HasPrefix(b.name, "_") {
			continue
		}
		if err := next.fromStarlark(b.name, globals[b.name]); err != nil {
			return fmt.Errorf("%s:%d: %w", short, b.line, err)
		}
	}
	*c = next
	return nil
}

// dialect is Starlark opened to what Python config files do at top level.
var dialect = &syntax.FileOptions{Set: true, While: true, TopLevelControl: true, GlobalReassign: true, Recursion: false}

func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	if len(src) > maxFileBytes {
		return nil, fmt.Errorf("config file %s is larger than 1 MiB: is it a config file?", path)
	}
	return src, nil
}

var (
	importLine  = regexp.MustCompile(`^\s*(import|from)\s+([\w.]+)(.*)$`)
	digitGroups = regexp.MustCompile(`\b\d+(_\d+)+\b`)
)

// toStarlark turns the Python that Starlark does not know into what it does, line by line so that positions stay:
// imports of allowed modules become blank lines, and 600_000 becomes 600000.
func toStarlark(name string, src []byte) (string, []string, error) {
	if !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0 {
		return "", nil, fmt.Errorf("%s is not text: %s", name, allowed)
	}
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	var modules []string
	lines := strings.Split(strings.ReplaceAll(string(src), "\r\n", "\n"), "\n")
	for i, line := range lines {
		if m := importLine.FindStringSubmatch(line); m != nil {
			rest, _, _ := strings.Cut(m[3], "#")
			if m[1] != "import" || strings.TrimSpace(rest) != "" || !slices.Contains(moduleNames, m[2]) {
				return "", nil, fmt.Errorf("%s:%d: cannot import %s: %s", name, i+1, m[2], allowed)
			}
			modules = append(modules, m[2])
			lines[i] = ""
			continue
		}
		if !strings.ContainsAny(line, `"'#`) {
			lines[i] = digitGroups.ReplaceAllStringFunc(line, func(s string) string { return strings.ReplaceAll(s, "_", "") })
		} else if code, comment, ok := strings.Cut(line, "#"); ok && !strings.ContainsAny(code, `"'`) {
			lines[i] = digitGroups.ReplaceAllStringFunc(code, func(s string) string { return strings.ReplaceAll(s, "_", "") }) + "#" + comment
		}
	}
	return strings.Join(lines, "\n"), modules, nil
}

var moduleNames = []string{"time", "math"}

// world is what a config file sees: c's values under their keys, str as Python prints it, and what it imported.
func world(c *Config, modules []string) starlark.StringDict {
	w := starlark.StringDict{
		"str": starlark.NewBuiltin("str", pythonStr), "range": starlark.NewBuiltin("range", boundedRange), times: starlark.NewBuiltin(times, boundedTimes),
	}
	for i := range Table {
		w[Table[i].Key] = toValue(Table[i].Value(c))
	}
	for _, m := range modules {
		switch m {
		case "time":
			now := starlark.NewBuiltin("time.time", func(*starlark.Thread, *starlark.Builtin, starlark.Tuple, []starlark.Tuple) (starlark.Value, error) {
				return starlark.Float(float64(time.Now().UnixMicro()) / 1e6), nil
			})
			w["time"] = starlarkstruct.FromStringDict(starlark.String("time"), starlark.StringDict{"time": now})
		case "math":
			w["math"] = starlarkmath.Module
		}
	}
	return w
}

// pythonStr is str(x): Starlark prints 1.5e9 where Python prints 1500000000.0.
func pythonStr(_ *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var x starlark.Value
	if err := starlark.UnpackPositionalArgs(b.Name(), args, kwargs, 1, &x); err != nil {
		return nil, err
	}
	switch x := x.(type) {
	case starlark.String:
		return x, nil
	case starlark.Float:
		if a := math.Abs(float64(x)); a == 0 || a >= 1e-4 && a < 1e16 {
			s := strconv.FormatFloat(float64(x), 'f', -1, 64)
			if !strings.Contains(s, ".") {
				s += ".0"
			}
			return starlark.String(s), nil
		}
		return starlark.String(Python(float64(x))), nil
	}
	return starlark.String(x.String()), nil
}

func toValue(v any) starlark.Value {
	switch v := v.(type) {
	case int:
		return starlark.MakeInt(v)
	case float64:
		return starlark.Float(v)
	case bool:
		return starlark.Bool(v)
	case string:
		return starlark.String(v)
	}
	return starlark.None
}

// fromStarlark sets key to v. A whole number for a float is taken, as Python's arithmetic takes it.
func (c *Config) fromStarlark(key string, v starlark.Value) error {
	s, ok := Lookup(key)
	if !ok {
		err := UnknownKey(key, ^Commands(0))
		return fmt.Errorf("%w (a name of the file's own starts with _)", err)
	}
	switch v := v.(type) {
	case starlark.Int:
		n, ok := v.Int64()
		if !ok {
			return fmt.Errorf("%s is %s, beyond 64 bits", key, v)
		}
		if s.Type() == "float" {
			return c.Set(key, float64(n))
		}
		return c.Set(key, int(n))
	case starlark.Float:
		return c.Set(key, float64(v))
	case starlark.Bool:
		return c.Set(key, bool(v))
	case starlark.String:
		return c.Set(key, string(v))
	case starlark.NoneType:
		if s.Type() == "size" { // the value that the file saw and did not change
			return nil
		}
	case nil:
		return nil // assigned only in a branch that did not run
	}
	return fmt.Errorf("%s must be %s, not %s", key, s.Type(), v.Type())
}

// binding is a name that a file assigns, at the line that does it last.
type binding struct {
	name string
	line int32
}

// assigned lists the names that file assigns at top level, also inside if and for, in order.
func assigned(file *syntax.File) []binding {
	var found []binding
	add := func(id *syntax.Ident) {
		found = slices.DeleteFunc(found, func(b binding) bool { return b.name == id.Name })
		found = append(found, binding{id.Name, id.NamePos.Line})
	}
	var target func(syntax.Expr)
	target = func(e syntax.Expr) {
		switch e := e.(type) {
		case *syntax.Ident:
			add(e)
		case *syntax.ParenExpr:
			target(e.X)
		case *syntax.TupleExpr:
			for _, x := range e.List {
				target(x)
			}
		case *syntax.ListExpr:
			for _, x := range e.List {
				target(x)
			}
		}
	}
	var walk func([]syntax.Stmt)
	walk = func(stmts []syntax.Stmt) {
		for _, s := range stmts {
			switch s := s.(type) {
			case *syntax.AssignStmt:
				target(s.LHS)
			case *syntax.DefStmt:
				add(s.Name)
			case *syntax.IfStmt:
				walk(s.True)
				walk(s.False)
			case *syntax.ForStmt:
				target(s.Vars)
				walk(s.Body)
			case *syntax.WhileStmt:
				walk(s.Body)
			}
		}
	}
	walk(file.Stmts)
	return found
}

func parseError(name string, err error) error {
	var list resolve.ErrorList
	if errors.As(err, &list) && len(list) > 0 {
		return fmt.Errorf("%s:%d: %s: %s", name, list[0].Pos.Line, oneLine(list[0].Msg), allowed)
	}
	var se syntax.Error
	if errors.As(err, &se) {
		return fmt.Errorf("%s:%d: %s: %s", name, se.Pos.Line, oneLine(se.Msg), allowed)
	}
	return fmt.Errorf("%s: %s: %s", name, oneLine(err.Error()), allowed)
}

func evalError(name string, err error) error {
	var ee *starlark.EvalError
	if errors.As(err, &ee) {
		line := int32(0)
		for _, frame := range ee.CallStack {
			if frame.Pos.Filename() == name {
				line = frame.Pos.Line
			}
		}
		msg := strings.TrimPrefix(oneLine(ee.Msg), "Starlark computation cancelled: ")
		return fmt.Errorf("%s:%d: %s", name, line, msg)
	}
	return parseError(name, err)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
