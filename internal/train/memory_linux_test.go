package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/snugml/snug/internal/units"
)

// A control group leaves its limit less what is used, pages of files that can be given up not counted.
func TestGroupAvailable(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		left  units.Bytes
		ok    bool
	}{
		"no group":   {nil, 0, false},
		"no limit":   {map[string]string{"memory.max": "max\n", "memory.current": "100\n"}, 0, false},
		"no figures": {map[string]string{"memory.max": "1000\n", "memory.current": "300\n"}, 700, true},
		"page cache": {map[string]string{"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "anon 200\nfile 700\ninactive_file 600\nactive_file 100\n"}, 700, true},
		"nonsense":   {map[string]string{"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": "inactive_file many\ninactive_file -5\ninactive_file 99999999\n"}, 1000, true},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if left, ok := groupAvailable(dir); left != c.left || ok != c.ok {
			t.Errorf("%s: %v left (%v), want %v (%v)", name, left, ok, c.left, c.ok)
		}
	}
}
