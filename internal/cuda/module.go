package cuda

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/snugml/snug/internal/trace"
)

//go:embed kernels
var kernelFiles embed.FS

// Unit is one compilation: a source, and what it is compiled for.
type Unit struct {
	Name    string // "attention64.bf16"
	Source  string // "attention.cu"
	Defines []string
}

// Archives are the committed outputs of `go generate`, by target.
var Archives = []string{genericArchive, smallArchive, hopperArchive}

const (
	genericArchive = "compute_80" // PTX, which the driver compiles for any card from Ampere on, at its first start for seconds
	smallArchive   = "sm_86"      // machine code of the same kernels, for the cards that most people have: GeForce 30 and 40
	hopperArchive  = "sm_90a"     // machine code with Hopper's own instructions
)

// archiveOf is the archive for a card.
func archiveOf(major, minor int, generic bool) string {
	switch {
	case generic:
		return genericArchive
	case major == 9 && minor == 0:
		return hopperArchive
	case major == 8 && minor >= 6: // machine code runs on later cards of the same generation
		return smallArchive
	}
	return genericArchive
}

// suffixes and defines of the element types.
var elements = map[trace.DType]struct{ suffix, define string }{
	trace.BFloat16: {"bf16", "SNUG_BF16"}, trace.Float16: {"f16", "SNUG_F16"}, trace.Float32: {"f32", "SNUG_F32"},
}

// headSizes are the padded head sizes of attention's tensor-core instances.
var headSizes = []int{32, 64, 96, 128}

// Units lists everything to compile.
func Units() []Unit {
	var units []Unit
	add := func(name, source string, dtype trace.DType, defines ...string) {
		e := elements[dtype]
		units = append(units, Unit{name + "." + e.suffix, source, append([]string{"-D" + e.define}, defines...)})
	}
	for _, dtype := range []trace.DType{trace.BFloat16, trace.Float16, trace.Float32} {
		for _, name := range []string{"encoder", "layernorm", "elementwise", "loss", "adamw", "attention_any", "generate"} {
			add(name, name+".cu", dtype)
		}
		if dtype == trace.Float32 {
			add("matmul_f32", "matmul_f32.cu", dtype)
			continue
		}
		add("matmul", "matmul.cu", dtype)
		for _, hs := range headSizes {
			add(fmt.Sprintf("attention%d", hs), "attention.cu", dtype, fmt.Sprintf("-DSNUG_HS=%d", hs))
		}
	}
	return units
}

// Sources reads the kernel sources and headers, by file name.
func Sources() map[string]string {
	files := map[string]string{}
	names, _ := fs.Glob(kernelFiles, "kernels/*.cu*")
	for _, name := range names {
		text, err := kernelFiles.ReadFile(name)
		if err != nil {
			panic(err) // the file was listed a line above
		}
		files[path.Base(name)] = string(text)
	}
	return files
}

var includes = regexp.MustCompile(`(?m)^#include "(.+)"$`)

// Hash names u's sources, with what they include, and how they are compiled: an output made from anything else is stale.
func (u Unit) Hash() string {
	h := sha256.New()
	sources := Sources()
	seen := map[string]bool{}
	var add func(name string)
	add = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		fmt.Fprintf(h, "%s %d\n%s", name, len(sources[name]), sources[name])
		for _, include := range includes.FindAllStringSubmatch(sources[name], -1) {
			add(include[1])
		}
	}
	add(u.Source)
	fmt.Fprintln(h, u.Name, strings.Join(u.Defines, " "))
	return hex.EncodeToString(h.Sum(nil))
}

// Kernels names all kernels as they are: what was timed with others is stale.
func Kernels() string {
	h, sources := sha256.New(), Sources()
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		fmt.Fprintf(h, "%s %d\n%s", name, len(sources[name]), sources[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:8]
}

// HashFile and ResourceFile are members of every archive: each unit's hash, and each kernel's resources.
const (
	HashFile     = "SOURCES.sha256"
	ResourceFile = "RESOURCES.tsv"
)

// Archive reads the committed outputs for a target.
func Archive(target string) (map[string][]byte, error) {
	raw, err := kernelFiles.ReadFile("kernels/" + target + ".zip")
	if err != nil {
		return nil, fmt.Errorf("read kernels: %w: run go generate", err)
	}
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return nil, fmt.Errorf("read kernels/%s.zip: %w", target, err)
	}
	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			return nil, fmt.Errorf("read kernels/%s.zip: %w", target, err)
		}
		files[f.Name], err = io.ReadAll(r)
		r.Close()
		if err != nil {
			return nil, fmt.Errorf("read kernels/%s.zip, %s: %w", target, f.Name, err)
		}
	}
	return files, nil
}
