package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/snugml/snug/internal/durable"
)

// Lock makes dir this run's own until unlock is called or the process ends, however it ends.
// A second run in the same out_dir would overwrite the first one's checkpoints: it gets an error instead.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("lock out_dir: %w: set an out_dir that can be written", err)
	}
	unlock, err = durable.Lock(filepath.Join(dir, ".lock"))
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("another run is writing to %s: wait for it, or set another out_dir", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock out_dir: %w: set an out_dir that can be written", err)
	}
	return unlock, nil
}
