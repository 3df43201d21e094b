package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/snugml/snug/internal/safetensors"
)

// Want says what Open is to read.
type Want int

const (
	// Everything reads what is needed to resume.
	Everything Want = iota
	// ModelOnly leaves the optimizer's state out, and unverified: enough to sample or to start anew from the weights.
	ModelOnly
)

// Load opens the newest whole checkpoint in dir: snug's own, the one before it where the newest is damaged (with a
// warning that says so), or nanoGPT's ckpt.pt where there is none of ours.
//
// With Everything, a damaged newest one is set aside as DamagedName: the next Save would else put it in the place of the
// whole one, and a kill in that moment would leave none.
func Load(dir string, want Want) (*State, error) {
	newest, prev, torch := filepath.Join(dir, Name), filepath.Join(dir, PrevName), filepath.Join(dir, TorchName)
	s, first := open(newest, want, openNative)
	if first == nil {
		return s, nil
	}
	missing := errors.Is(first, fs.ErrNotExist)
	if !missing && !errors.Is(first, ErrDamaged) {
		return nil, first
	}
	s, err := open(prev, want, openNative)
	if err == nil {
		warning := fmt.Sprintf("%v: going on from %s, iteration %d", first, prev, s.IterNum)
		if !missing && want == Everything && os.Rename(newest, filepath.Join(dir, DamagedName)) == nil {
			warning += "; the damaged one is " + DamagedName + " now"
		}
		s.Warnings = append(s.Warnings, warning)
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w; and %w", first, err)
	}
	if !missing {
		return nil, fmt.Errorf("%w, and there is no earlier one in %s", first, dir)
	}
	s, err = Open(torch, want)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &missingError{dir}
	}
	return s, err
}

// missingError says that a folder holds no checkpoint. It is fs.ErrNotExist to errors.Is.
type missingError struct{ dir string }

func (e *missingError) Error() string {
	return fmt.Sprintf("load checkpoint: %s has neither %s nor %s: train first, or set out_dir", e.dir, Name, TorchName)
}

func (e *missingError) Is(target error) bool { return target == fs.ErrNotExist }

// Open opens one checkpoint of any kind: snug's, a ckpt.pt, a Hugging Face GPT-2 safetensors file, index or folder.
// A folder is Hugging Face's when it holds model.safetensors, else an out_dir for Load.
func Open(path string, want Want) (*State, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		for _, name := range []string{hfIndexName, hfName} {
			if _, err := os.Stat(filepath.Join(path, name)); err == nil {
				return Open(filepath.Join(path, name), want)
			}
		}
		return Load(path, want)
	}
	return open(path, want, openKind)
}

type opener func(f io.ReaderAt, size int64, path string, want Want) (*State, error)

func open(path string, want Want, kind opener) (*State, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, fmt.Errorf("load checkpoint: %w", err)
	}
	s, err := kind(f, size, path, want)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	s.Path = path
	more := s.close
	s.close = func() error {
		if more != nil {
			more()
		}
		return f.Close()
	}
	return s, nil
}

func openNative(f io.ReaderAt, size int64, _ string, want Want) (*State, error) {
	return readNative(f, size, want == ModelOnly)
}

// openKind tells the kinds apart by their first bytes, not by their names.
func openKind(f io.ReaderAt, size int64, path string, want Want) (*State, error) {
	var head [8]byte
	n, err := f.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch start := string(head[:n]); {
	case strings.HasPrefix(start, "PK\x03\x04"):
		return readTorch(f, size, want)
	case strings.HasPrefix(start, "\x80"):
		return nil, errors.New("it is in PyTorch's format from before 1.6: write it again with torch.save(torch.load(path), path)")
	case strings.HasSuffix(path, ".index.json"):
		return readHFIndex(path)
	}
	s, err := safetensors.Read(f, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if _, ours := s.Metadata[formatKey]; ours {
		return openNative(f, size, path, want)
	}
	return readHF(s.Tensors, filepath.Dir(path))
}
