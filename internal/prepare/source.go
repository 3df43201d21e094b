package prepare

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Format is what a file holds, after decompression.
type Format string

const (
	Auto    Format = "auto"    // by the file's name
	Text    Format = "text"    // the file is one document
	JSONL   Format = "jsonl"   // each line is a JSON object, one of whose fields is a document
	Parquet Format = "parquet" // each row is a document
)

// formats are the names by which a folder's files are taken, and what they hold.
var formats = map[string]Format{".txt": Text, ".jsonl": JSONL, ".ndjson": JSONL, ".parquet": Parquet}

// source is one input file. Its fields are part of what makes a run the same run.
type source struct {
	Path    string `json:"path"`
	Format  Format `json:"format"`
	Size    int64  `json:"size"`
	ModTime int64  `json:"mtime"`
}

// expand lists the files behind the arguments: folders are walked in order of name.
func expand(args []string, format Format) ([]source, error) {
	var out []source
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", arg, reason(err))
		}
		if !info.IsDir() {
			out = append(out, newSource(arg, info, format))
			continue
		}
		before := len(out)
		err = filepath.WalkDir(arg, func(path string, entry fs.DirEntry, err error) error {
			hidden := path != arg && strings.HasPrefix(entry.Name(), ".")
			switch {
			case err != nil:
				return err
			case entry.IsDir() && hidden:
				return fs.SkipDir
			case hidden || byName(path) == "":
				return nil
			}
			info, err := os.Stat(path)
			if err == nil && info.Mode().IsRegular() {
				out = append(out, newSource(path, info, format))
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", arg, err)
		}
		if len(out) == before {
			return nil, fmt.Errorf("read %s: no .txt, .jsonl or .parquet file below it: name the files themselves", arg)
		}
	}
	return out, nil
}

// byName is the format that a path's ending says, "" if it says none.
func byName(path string) Format {
	name := strings.ToLower(filepath.Base(path))
	if packed(name) {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	return formats[filepath.Ext(name)]
}

// packed says whether a path's ending names a compression.
func packed(path string) bool {
	end := strings.ToLower(filepath.Ext(path))
	return end == ".gz" || end == ".zst"
}

func newSource(path string, info fs.FileInfo, format Format) source {
	if format == Auto {
		if format = byName(path); format == "" {
			format = Text
		}
	}
	return source{Path: path, Format: format, Size: info.Size(), ModTime: info.ModTime().UnixNano()}
}

// changed reports a source that is not the file it was when the run began.
func changed(sources []source) error {
	for _, s := range sources {
		info, err := os.Stat(s.Path)
		if err != nil {
			return fmt.Errorf("read %s: %w", s.Path, reason(err))
		}
		if info.Size() != s.Size || info.ModTime().UnixNano() != s.ModTime {
			return fmt.Errorf("read %s: it changed while it was read: run the command again when it is complete", s.Path)
		}
	}
	return nil
}

// reason is err without the operation and path that the message around it has already.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// stream is a file's bytes after decompression, from an offset on.
type stream struct {
	io.Reader
	close []func() error
}

func (s *stream) Close() error {
	var errs []error
	for _, f := range slices.Backward(s.close) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// open opens a file at an offset in its decompressed bytes; read counts the bytes taken from disk.
func (src source) open(offset int64, read *atomic.Int64) (*stream, error) {
	f, err := os.Open(src.Path)
	if err != nil {
		return nil, err
	}
	s := &stream{close: []func() error{f.Close}}
	var magic [4]byte
	n, err := f.ReadAt(magic[:], 0)
	if err != nil && err != io.EOF {
		return nil, errors.Join(err, s.Close())
	}
	raw := bufio.NewReaderSize(&counting{f, read}, 1<<18)
	switch {
	case bytes.HasPrefix(magic[:n], gzipMagic):
		z, err := gzip.NewReader(raw)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Reader, s.close = z, append(s.close, z.Close)
	case bytes.HasPrefix(magic[:n], zstdMagic):
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.Reader, s.close = z, append(s.close, func() error { z.Close(); return nil })
	case n > 0 && packed(src.Path):
		return nil, errors.Join(errors.New("its name says that it is compressed, and it is not: name it without .gz or .zst, or fetch it again"), s.Close())
	default:
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		read.Add(offset)
		s.Reader = raw
		return s, nil
	}
	if _, err := io.CopyN(io.Discard, s.Reader, offset); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// counting counts what is read through it.
type counting struct {
	io.Reader
	n *atomic.Int64
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}
