package gpu_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/snugml/snug/internal/gpu"
)

// The loader keeps the reason of a failure for the thread that asked: many goroutines at once, which move between
// threads, all hear theirs.
func TestEveryOpenSaysWhy(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				if _, err := gpu.Open(text); err == nil || !strings.Contains(err.Error(), "text.so (") || strings.Contains(err.Error(), "()") {
					t.Errorf("error %v, want the loader's reason", err)
					return
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
}
