package train

import (
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// Saving is a checkpoint on its way to its file.
type Saving struct {
	Path string
	Iter int
	// Copied returns when the tensors may change again; an error is the file's too.
	Copied func() error

	written chan error // one, when the file is there or will not be
}

// newSaving begins a checkpoint: write makes the file, on another goroutine when copied has returned.
func newSaving(path string, iter int, copied, write func() error) *Saving {
	s := &Saving{Path: path, Iter: iter, Copied: copied, written: make(chan error, 1)}
	go func() {
		err := copied()
		if err == nil {
			err = write()
		}
		s.written <- err
	}()
	return s
}

// doneSaving is a checkpoint whose file is there.
func doneSaving(path string, iter int) *Saving {
	s := &Saving{Path: path, Iter: iter, Copied: func() error { return nil }, written: make(chan error, 1)}
	s.written <- nil
	return s
}

// done says whether wait would return at once.
func (s *Saving) done() bool { return len(s.written) > 0 }

// wait returns when the file is there, or says why it is not. It may be called once.
func (s *Saving) wait() error {
	_ = s.Copied() // its error is in written
	return <-s.written
}

// mirror is host memory for a snapshot of what a checkpoint holds: 12 bytes a parameter, taken while the run starts, or at the
// first save that finds them free, and kept.
type mirror struct {
	ids    []program.ID
	floats map[program.ID][]float32 // nil where the host had too little room
	ready  chan struct{}            // closed when it was looked for first; nil where no snapshots are made
}

// snapshot begins a copy of the parameters and moments into host memory. copied is nil where the executor makes none, or the
// host has too little memory free: the file is then written from the executor's tensors, while the run waits.
func (r *Run) snapshot() (copied func() error, err error) {
	x, ok := r.Exec.(program.Snapshotter)
	if !ok || !r.mirrored() {
		return nil, nil
	}
	dst := make([][]float32, len(r.mirror.ids))
	for i, id := range r.mirror.ids {
		dst[i] = r.mirror.floats[id]
	}
	return x.Snapshot(r.mirror.ids, dst)
}

// prepareMirror takes the mirror beside the run's first iterations: the system gives memory page by page as it is touched,
// which takes longer than the copy of a snapshot, and the run's next update would wait for it.
func (r *Run) prepareMirror() {
	if _, ok := r.Exec.(program.Snapshotter); !ok {
		return
	}
	r.mirror.ready = make(chan struct{})
	go func() {
		defer close(r.mirror.ready)
		r.takeMirror()
	}()
}

// mirrored says whether there is a mirror, after another look for memory where there was too little.
func (r *Run) mirrored() bool {
	<-r.mirror.ready
	return r.mirror.floats != nil || r.takeMirror()
}

// takeMirror takes the mirror where the host has room for it.
func (r *Run) takeMirror() bool {
	var ids []program.ID
	var bytes units.Bytes
	for _, p := range r.Step.Params {
		ids = append(ids, p.Value(), p.M, p.V)
		bytes += units.Bytes(3 * 4 * p.Len())
	}
	if r.free() < 2*bytes+hostMargin { // the copy, and the file's pages on their way to the disk
		return false
	}
	r.mirror.ids, r.mirror.floats = ids, make(map[program.ID][]float32, len(ids))
	const page = 4096 / 4
	for _, id := range ids {
		floats := make([]float32, r.Step.Tensors[id].Len())
		for i := 0; i < len(floats); i += page {
			floats[i] = 0
		}
		r.mirror.floats[id] = floats
	}
	return true
}
