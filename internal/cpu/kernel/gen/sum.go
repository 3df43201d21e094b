package main

import (
	"crypto/sha256"
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
)

//go:embed *.go go.mod go.sum
var sources embed.FS

// writeSum leaves, beside the assembly, the SHA-256 of everything it was made of and of what was made, in the form of
// sha256sum: a test of package kernel finds either changed without the other.
func writeSum() {
	var lines strings.Builder
	add := func(name string, content []byte) { fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), name) }
	err := fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := sources.ReadFile(path)
		add("gen/"+path, content)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"out", "stubs"} {
		path := flag.Lookup(name).Value.String()
		content, err := os.ReadFile(path)
		if err != nil {
			log.Fatal(err)
		}
		add(filepath.Base(path), content)
	}
	out := flag.Lookup("out").Value.String()
	if err := os.WriteFile(strings.TrimSuffix(out, ".s")+".sum", []byte(lines.String()), 0o644); err != nil {
		log.Fatal(err)
	}
}
