package prepare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"unicode/utf8"

	"github.com/snugml/snug/internal/units"
)

// position is a place between two chunks, from which reading can go on. It depends on the inputs alone.
type position struct {
	Source   int   `json:"source"`   // number of the file
	Offset   int64 `json:"offset"`   // decompressed bytes, or rows, of it taken
	Line     int64 `json:"line"`     // lines of it taken
	Document int64 `json:"document"` // documents begun, over all files
	Chars    int64 `json:"chars"`    // characters taken, over all files; kept only where the split needs them
}

// chunk is a piece of the input that is encoded by itself, and what it was encoded to.
//
// Where chunks begin and end depends on the inputs alone: not on threads, nor on where a run was interrupted.
type chunk struct {
	source source
	data   []byte
	rows   []int    // where each row of data ends, for Parquet
	from   position // where it begins
	after  position // where the next one begins
	ends   bool     // a text document ends with it
	val    bool     // it belongs to val: only where the split is by position
	done   chan error

	tokens  [2][]byte // of train and val, two bytes each
	invalid int64     // bytes that are not UTF-8
	chars   int64
}

const (
	chunkSize = 1 << 20
	// maxRun is the longest run of letters that is encoded whole, in chunks. A longer one is cut, as tiktoken would not.
	maxRun = 4
	// maxLine is the longest line of JSON that is read, in chunks.
	maxLine = 256
)

// reader cuts the inputs into chunks and hands them on in order.
type reader struct {
	sources []source
	field   string
	chunk   int              // bytes of a chunk, more or less
	cut     func([]byte) int // where a text may be cut
	splitAt int64            // characters of text that are train; -1 where the split is not by position
	read    *atomic.Int64    // bytes of files
	pos     position
	emit    func(*chunk) error
	fresh   func() *chunk
}

// run reads from pos to the end.
func (r *reader) run(ctx context.Context) error {
	for r.pos.Source < len(r.sources) {
		i := r.pos.Source
		src := r.sources[i]
		how := map[Format]func(source) error{Text: r.text, JSONL: r.lines, Parquet: r.parquet}[src.Format]
		before := int64(0)
		for _, s := range r.sources[:i] {
			before += s.Size
		}
		r.read.Store(before)
		if err := how(src); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("read %s: %w", src.Path, reason(err))
		}
		r.pos = position{Source: i + 1, Document: r.pos.Document, Chars: r.pos.Chars}
	}
	return nil
}

// send hands on data[:n] of the present file as a chunk that ends at after.
func (r *reader) send(data []byte, after position, fill func(*chunk)) error {
	c := r.fresh()
	c.source, c.from, c.after = r.sources[r.pos.Source], r.pos, after
	c.data = append(c.data[:0], data...)
	c.rows, c.ends, c.val = c.rows[:0], false, false
	if fill != nil {
		fill(c)
	}
	r.pos = after
	return r.emit(c)
}

// window is the bytes read and not yet handed on.
type window struct {
	in  io.Reader
	buf []byte
	eof bool
}

// grow reads until there are size bytes or the input ends.
func (w *window) grow(size int) error {
	for len(w.buf) < size && !w.eof {
		if cap(w.buf) < size {
			w.buf = append(make([]byte, 0, size), w.buf...)
		}
		n, err := w.in.Read(w.buf[len(w.buf):size])
		w.buf = w.buf[:len(w.buf)+n]
		if err == io.EOF {
			w.eof = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

func (w *window) drop(n int) { w.buf = w.buf[:copy(w.buf, w.buf[n:])] }

// text reads a file that is one document.
func (r *reader) text(src source) error {
	in, err := src.open(r.pos.Offset, r.read)
	if err != nil {
		return err
	}
	defer in.Close()
	w := &window{in: in}
	for {
		n, err := r.nextText(w)
		if err != nil {
			return err
		}
		if r.pos.Offset == 0 && utf16(w.buf) {
			return errors.New("it is UTF-16: convert it with iconv -f utf-16 -t utf-8")
		}
		inVal := r.splitAt >= 0 && r.pos.Chars >= r.splitAt
		after := r.pos
		if r.splitAt >= 0 {
			n, after.Chars = r.upToSplit(w.buf[:n])
		}
		last := w.eof && n == len(w.buf)
		after.Offset += int64(n)
		if last { // the document ends once: whoever goes on from here begins the next file
			after = position{Source: r.pos.Source + 1, Document: r.pos.Document + 1, Chars: after.Chars}
		}
		if err := r.send(w.buf[:n], after, func(c *chunk) { c.ends, c.val = last, inVal }); err != nil {
			return err
		}
		w.drop(n)
		if last {
			return nil
		}
	}
}

// nextText reads on and returns how many bytes of the window the next chunk takes.
func (r *reader) nextText(w *window) (int, error) {
	for size := r.chunk; ; size *= 2 {
		if err := w.grow(size + 1); err != nil { // one more tells whether the input ends here
			return 0, err
		}
		if w.eof && len(w.buf) <= size {
			return len(w.buf), nil
		}
		if n := r.cut(w.buf[:size]); n > 0 {
			return n, nil
		}
		if size >= maxRun*r.chunk {
			return cutAnywhere(w.buf[:size]), nil
		}
	}
}

// upToSplit shortens text so that it does not go past the split, and returns the characters taken with it.
func (r *reader) upToSplit(text []byte) (n int, chars int64) {
	total := countChars(text)
	if left := r.splitAt - r.pos.Chars; left > 0 && total > left {
		return afterChars(text, left), r.splitAt
	}
	return len(text), r.pos.Chars + total
}

// countChars counts characters as Python's text files have them: \r\n is one, and so is each byte that is not UTF-8.
func countChars(text []byte) int64 {
	return int64(utf8.RuneCount(text) - bytes.Count(text, []byte("\r\n")))
}

// afterChars is the place in text after n characters.
func afterChars(text []byte, n int64) int {
	at := 0
	for ; n > 0; n-- {
		_, size := utf8.DecodeRune(text[at:])
		if bytes.HasPrefix(text[at:], []byte("\r\n")) {
			size = 2
		}
		at += size
	}
	return at
}

// cutAnywhere is the last place that parts neither a character nor \r\n. Counting characters needs no more.
func cutAnywhere(text []byte) int {
	for n := len(text) - 1; n > 0; n-- {
		if utf8.RuneStart(text[n]) && !(text[n-1] == '\r' && text[n] == '\n') {
			return n
		}
	}
	return len(text)
}

func utf16(text []byte) bool {
	return bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff})
}

// newlines turns \r\n and \r into \n in place, as Python reads text files.
func newlines(text []byte) []byte {
	at := bytes.IndexByte(text, '\r')
	if at < 0 {
		return text
	}
	out := text[:at]
	for i := at; i < len(text); i++ {
		b := text[i]
		if b == '\r' {
			b = '\n'
			if i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
		}
		out = append(out, b)
	}
	return out
}

// lines reads a file of which each line that is not blank is a document.
func (r *reader) lines(src source) error {
	in, err := src.open(r.pos.Offset, r.read)
	if err != nil {
		return err
	}
	defer in.Close()
	w := &window{in: in}
	for {
		n := 0
		for size := r.chunk; n == 0; size *= 2 {
			if err := w.grow(size + 1); err != nil {
				return err
			}
			if w.eof && len(w.buf) <= size {
				n = len(w.buf)
				break
			}
			if size > maxLine*r.chunk {
				return fmt.Errorf("line %d is longer than %s", r.pos.Line+1, units.Bytes(maxLine*r.chunk))
			}
			n = bytes.LastIndexByte(w.buf[:size], '\n') + 1
		}
		if n == 0 {
			return nil
		}
		after := r.pos
		after.Offset += int64(n)
		for line := range bytes.Lines(w.buf[:n]) {
			after.Line++
			if len(bytes.TrimSpace(line)) > 0 {
				after.Document++
			}
		}
		if err := r.send(w.buf[:n], after, nil); err != nil {
			return err
		}
		w.drop(n)
	}
}
