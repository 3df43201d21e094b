package checkpoint

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/units"
)

// Names of snug's checkpoints in out_dir.
const (
	Name        = "ckpt.safetensors"
	PrevName    = "ckpt.prev.safetensors"
	DamagedName = "ckpt.damaged.safetensors"
)

// Save writes s as dir's newest checkpoint and keeps the one before it.
//
// At every moment, also after a kill or a power cut, dir holds the last checkpoint that Save finished. An error leaves
// what was there as it was.
func Save(dir string, s *State) error {
	if err := s.Check(); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	path := filepath.Join(dir, Name)
	return writeAside(path, s.write, func() error { return keepPrevious(path, filepath.Join(dir, PrevName)) })
}

// writeAside writes path through a neighbour that is synced before it takes the name. ready runs just before that.
func writeAside(path string, write func(io.Writer) error, ready func() error) error {
	tmp := path + ".tmp"
	size, err := writeSynced(tmp, write)
	if err == nil && ready != nil {
		err = ready()
	}
	if err == nil {
		err = durable.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		hint := ""
		for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
			if errors.Is(err, full) {
				hint = fmt.Sprintf(" after %s: free some space or write elsewhere", units.Bytes(size))
			}
		}
		return fmt.Errorf("save %s: %w%s; what was saved before is untouched", path, cause(err), hint)
	}
	return nil
}

// cause drops the path of a *PathError, which would name the neighbour.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// writeSynced creates path, and returns how many bytes it took.
func writeSynced(path string, write func(io.Writer) error) (int64, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return 0, err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	err = write(b)
	if err == nil {
		err = b.Flush()
	}
	size, _ := f.Seek(0, io.SeekCurrent)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return size, err
}

// keepPrevious makes prev the file at path, which keeps its own name where the file system has links: there is then no
// moment without path. Elsewhere the rename leaves such a moment, and Load falls back to prev.
func keepPrevious(path, prev string) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	link := prev + ".tmp"
	os.Remove(link)
	if err := os.Link(path, link); err != nil {
		return os.Rename(path, prev)
	}
	return os.Rename(link, prev)
}
