package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
)

// Lock makes dir this run's own until unlock is called or the process ends, however it ends.
// A second run in the same out_dir would overwrite the first one's checkpoints: it gets an error instead.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("lock out_dir: %w", err)
	}
	path := filepath.Join(dir, ".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("lock out_dir: %w", err)
	}
	if err := lockFile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("another run is writing to %s: wait for it, or set another out_dir", dir)
	}
	return func() { f.Close() }, nil
}
