package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Log keeps the trainer's output in a file. Past its limit the file is set aside as FILE.old, which replaces the one set
// aside before: at most twice half the limit is on disk, and the newest half of it always is.
type Log struct {
	Path string

	mu    sync.Mutex
	file  *os.File
	size  int64
	limit int64
	err   error // the first failure to write: the run goes on without its log
}

// NewLog starts a log. limit is the most that it may take on disk, in bytes.
func NewLog(path string, limit int64) (*Log, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("start the log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start the log: %w", err)
	}
	return &Log{Path: path, file: f, limit: limit}, nil
}

// Write appends p. A full disk ends the log and not the run: Write never fails, Err says what happened.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return len(p), nil
	}
	if l.size > 0 && l.size+int64(len(p)) > l.limit/2 {
		l.err = l.rotate()
	}
	if l.err == nil {
		n, err := l.file.Write(p)
		l.size += int64(n)
		l.err = err
	}
	return len(p), nil
}

func (l *Log) rotate() error {
	if err := l.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(l.Path, l.Path+".old"); err != nil {
		return err
	}
	f, err := os.Create(l.Path)
	if err != nil {
		return err
	}
	l.file, l.size = f, 0
	return nil
}

// Close ends the log and returns the first error that it met.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.file.Close(); err != nil && l.err == nil {
		l.err = err
	}
	if l.err != nil {
		return fmt.Errorf("keep the log %s: %w", l.Path, l.err)
	}
	return nil
}
