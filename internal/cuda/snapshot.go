package cuda

import (
	"errors"
	"fmt"

	"github.com/snugml/snug/internal/program"
)

// snapshot is the way of a snapshot's tensors to the host, and the one that is under way.
//
// Its order is the host's own, so that nothing rests on how streams run beside each other: the copies are queued, on a
// stream of theirs, when the thread of the copies has seen the event behind the work before; and whoever asked for the
// snapshot queues what changes the tensors when wait has returned, which is after the last copy was seen to be done.
type snapshot struct {
	stage staging
	mark  uintptr       // recorded behind the work that the snapshot shows
	done  chan struct{} // closed behind its last copy; nil before the first snapshot
}

func (s *snapshot) open(d *Device) (err error) {
	if s.mark, err = d.drv.newEvent(); err != nil {
		return err
	}
	return s.stage.open(d.drv, d.copied)
}

func (s *snapshot) close(d *driver) (err error) {
	if s.stage.drv != nil {
		err = s.stage.close()
	}
	if s.mark != 0 {
		err = errors.Join(err, d.do(cuEventDestroy, s.mark))
	}
	*s = snapshot{}
	return err
}

// finish waits for the snapshot that is under way, if any.
func (s *snapshot) finish() {
	if s.done != nil {
		<-s.done
	}
}

// Snapshot copies tensors to the host beside what is queued after it.
func (e *Executor) Snapshot(ids []program.ID, dst [][]float32) (wait func() error, err error) {
	done, result := make(chan struct{}), error(nil)
	if err := e.on(func() error { return e.shot.begin(e.Device, done) }); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	go func() {
		defer close(done)
		result = e.copies.on(func() error { return e.copyOut(ids, dst) })
	}()
	return func() error {
		<-done
		return result
	}, nil
}

// begin marks the place in the queue, for a snapshot that closes done at its end.
func (s *snapshot) begin(d *Device, done chan struct{}) error {
	if s.done != nil {
		select {
		case <-s.done:
		default:
			return errors.New("one is under way")
		}
	}
	if err := d.drv.record(s.mark, d.stream); err != nil {
		return err
	}
	s.done = done
	return nil
}

// copyOut is the work of a snapshot, on the thread of the copies.
func (e *Executor) copyOut(ids []program.ID, dst [][]float32) error {
	if err := e.drv.do(cuEventSynchronize, e.shot.mark); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	for i, id := range ids {
		t := &e.layout.Tensors[id]
		if err := e.shot.stage.read(e.place(id), len(dst[i]), func(src []byte, to int) { decode(dst[i][to:], src, t.DType) }); err != nil {
			return fmt.Errorf("snapshot of %s: %w", t.Name, err)
		}
	}
	return nil
}
