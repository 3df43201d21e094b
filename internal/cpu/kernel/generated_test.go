package kernel

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The assembly is what the generator beside it makes: neither was changed without the other. `go generate` writes both
// the assembly and the sums.
func TestAssemblyIsFresh(t *testing.T) {
	sources, err := filepath.Glob("gen/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no generator: %v", err)
	}
	for _, isa := range []string{"avx2", "avx512"} {
		sums, err := os.ReadFile(isa + "_amd64.sum")
		if err != nil {
			t.Fatal(err)
		}
		var named []string
		for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
			want, name, _ := strings.Cut(lines.Text(), "  ")
			named = append(named, name)
			content, err := os.ReadFile(filepath.FromSlash(name))
			if err != nil {
				t.Error(err)
			}
			content = bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n")) // as Windows may check it out
			if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != want {
				t.Errorf("%s has changed since %s was generated: run go generate ./internal/cpu/kernel", name, isa+"_amd64.s")
			}
		}
		for _, name := range append(sources, "gen/go.mod", "gen/go.sum", isa+"_amd64.s", isa+"_amd64.go") {
			if !slices.Contains(named, filepath.ToSlash(name)) {
				t.Errorf("%s_amd64.sum does not name %s", isa, name)
			}
		}
	}
}
