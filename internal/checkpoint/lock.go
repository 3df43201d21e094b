package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/snugml/snug/internal/durable"
)

// Lock makes dir this run's own until unlock is called or the process ends, however it ends.
// A second run in the same out_dir would overwrite the first one's checkpoints: it gets an error instead.
// unlock leaves no trace of the lock: neither its file, nor a folder that Lock made and nobody wrote to.
func Lock(dir string) (unlock func(), err error) {
	_, err = os.Stat(dir)
	made := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("lock out_dir: %w: set an out_dir that can be written", err)
	}
	release, err := durable.Lock(filepath.Join(dir, ".lock"))
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("another run is writing to %s: wait for it, or set another out_dir", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock out_dir: %w: set an out_dir that can be written", err)
	}
	return func() {
		release()
		if made {
			os.Remove(dir) // which fails where it holds anything
		}
	}, nil
}
