// Package term owns what snug knows of a terminal: whether a stream is one, its width and colours,
// and how tables, bars and progress are drawn on it.
//
// Results go to Out, progress to Err. It never decides what is said, only how it looks.
package term

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
)

// IO is what a command reads and writes. Tests pass their own.
type IO struct {
	In  io.Reader
	Out *Stream // results
	Err *Stream // progress and errors
	Env func(string) string
}

// Stream is a writer and how it may be drawn on.
type Stream struct {
	io.Writer
	TTY   bool // a person watches: align, draw, redraw
	Color bool
	Width int // columns
	UTF8  bool
}

// System is the process's own streams and environment.
func System() *IO {
	return &IO{In: os.Stdin, Out: open(os.Stdout, os.Getenv), Err: open(os.Stderr, os.Getenv), Env: os.Getenv}
}

// IsTerminal says whether f is one, whatever TERM says.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

const defaultWidth = 80

// open finds out what f is. NO_COLOR (no-color.org) and TERM=dumb are respected; COLUMNS wins over the terminal's answer.
func open(f *os.File, env func(string) string) *Stream {
	s := &Stream{Writer: f, Width: defaultWidth, UTF8: utf8Locale(env)}
	s.TTY = term.IsTerminal(int(f.Fd())) && env("TERM") != "dumb"
	s.Color = s.TTY && env("NO_COLOR") == ""
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 0 {
		s.Width = w
	}
	if w, err := strconv.Atoi(env("COLUMNS")); err == nil && w > 0 {
		s.Width = w
	}
	s.Width = max(20, s.Width)
	return s
}

// utf8Locale says whether the locale can show block characters; an unset locale can, nearly everywhere.
func utf8Locale(env func(string) string) bool {
	for _, key := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := env(key); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// Style is a way to show text.
type Style string

const (
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Cyan   Style = "36"
)

// Paint shows text in a style, "" for none, where the stream has colours.
func (s *Stream) Paint(style Style, text string) string {
	if !s.Color || text == "" || style == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Line prints text as a line; on a terminal that is narrower it is broken at spaces, the rest indented.
func (s *Stream) Line(text string) {
	if s.TTY && Width(text) > s.Width {
		text = strings.Join(Wrapped(text, s.Width-2), "\n  ")
	}
	fmt.Fprintln(s, text)
}
