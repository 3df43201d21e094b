package example

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
)

func TestOwnTextIsVariedAndTheSameEverywhere(t *testing.T) {
	a, b := ownText(50_000), ownText(50_000)
	if a != b {
		t.Error("two texts differ")
	}
	if strings.ContainsAny(a, "{}") {
		t.Error("a frame was not filled")
	}
	seen := map[string]bool{}
	lines := strings.Split(a, "\n")
	for _, l := range lines {
		if len(l) > 72 {
			t.Errorf("line of %d columns: %s", len(l), l)
		}
		seen[l] = true
	}
	if len(seen) < len(lines)*6/10 {
		t.Errorf("only %d of %d lines are different", len(seen), len(lines))
	}
}

func TestFindTakesTheInstalledText(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, filepath.FromSlash(opticks))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("light ", 20_000)), 0o666); err != nil {
		t.Fatal(err)
	}
	text := Find(func(key string) string { return map[string]string{"GOROOT": root}[key] })
	if !strings.HasPrefix(string(text.Bytes), "light light") || !strings.Contains(text.Name, "Opticks") {
		t.Errorf("found %s, %.20s", text.Name, text.Bytes)
	}
}

func TestSettingsAreSettings(t *testing.T) {
	c := config.Default()
	if err := Settings(&c); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
}
