package cuda

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// algorithms remembers which of cuBLASLt's algorithms was the fastest for a product, in a file for each card, driver and
// version of the library: an algorithm is bytes that the same version takes back. Losing the file costs a second at start.
type algorithms struct {
	path  string            // empty: nothing is remembered
	known map[string][]byte // by product
	dirty bool
}

// openAlgorithms reads what is remembered in folder for this device. A file that cannot be read is as good as none.
func (d *Device) openAlgorithms(folder string) *algorithms {
	a := &algorithms{known: map[string][]byte{}}
	if folder == "" {
		return a
	}
	name := fmt.Sprintf("cublaslt-%d-%s-%d.json", d.blas.version, strings.ReplaceAll(d.Name, " ", "-"), d.Driver)
	a.path = filepath.Join(folder, filepath.Base(name))
	if data, err := os.ReadFile(a.path); err == nil && json.Unmarshal(data, &a.known) != nil || a.known == nil {
		a.known = map[string][]byte{}
	}
	return a
}

// own stands in the place of an algorithm: snug's own kernel is the fastest.
var own = []byte{}

// isOwn says that snug's own kernel was found to be the fastest for p.
func (a *algorithms) isOwn(p product) bool {
	algo, ok := a.known[p.String()]
	return ok && len(algo) == len(own)
}

// find returns the algorithm of p, nil where none is known.
func (a *algorithms) find(p product) []byte {
	if algo := a.known[p.String()]; len(algo) == heuristicBytes {
		return heap(algo)
	}
	return nil
}

// add remembers p's algorithm, until save in memory only.
func (a *algorithms) add(p product, algo []byte) {
	a.known[p.String()], a.dirty = algo, true
}

// save writes the file, aside and renamed, so that two runs at once leave one of theirs whole.
func (a *algorithms) save() error {
	if !a.dirty || a.path == "" {
		return nil
	}
	a.dirty = false
	data, err := json.Marshal(a.known)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(a.path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(a.path), ".algorithms.*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), a.path)
}

// String is p as a key: everything that an algorithm depends on.
func (p product) String() string {
	return fmt.Sprintf("%d x %d x %d, trans %v %v, %s to %s, bias %v, accumulate %v, align %d", p.m, p.n, p.k, p.transA, p.transB, p.in, p.out,
		p.bias, p.accumulate, p.align)
}
