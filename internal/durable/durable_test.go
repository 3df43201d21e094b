package durable

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for _, text := range []string{"one", "", "three"} {
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, want 1", len(entries))
	}
	if err := WriteFile(filepath.Join(path, "below a file"), nil); err == nil {
		t.Error("wrote below a file")
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second lock: %v, want ErrLocked", err)
	}
	unlock()
	again, err := Lock(path)
	if err != nil {
		t.Fatalf("after unlock: %v", err)
	}
	again()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file is left behind: %v", err)
	}
}

// A lock file that another process put in the place of ours is that process's: unlock leaves it alone.
func TestUnlockLeavesAnothersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if os.Remove(path) != nil {
		t.Skip("a locked file cannot be removed here")
	}
	other, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other()
	unlock()
	if _, err := Lock(path); !errors.Is(err, ErrLocked) {
		t.Errorf("the other lock is gone: %v", err)
	}
}

// Of many who want a lock that is taken, left and taken again, one at a time has it.
func TestLockIsExclusiveWhileFilesComeAndGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for done := 0; done < 50; {
				unlock, err := Lock(path)
				if errors.Is(err, ErrLocked) {
					runtime.Gosched()
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d hold the lock", n)
				}
				runtime.Gosched()
				holders.Add(-1)
				unlock()
				done++
			}
		})
	}
	wg.Wait()
}
