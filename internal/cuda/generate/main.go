// Command generate compiles internal/cuda's kernels with NVRTC and writes the archives that the package embeds:
// PTX for compute_80, machine code for sm_86 and sm_90a, each with the hash of its sources and every kernel's resources.
//
// It runs in internal/cuda (go generate ./internal/cuda), needs NVRTC and no GPU.
package main

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"sort"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/snugml/snug/internal/cuda"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// resourceArch is the card whose limits every kernel keeps: an RTX 3060.
const resourceArch = "sm_86"

// output is what one unit compiles to.
type output struct {
	hash, resources string
	code            map[string][]byte // by target
}

func run() error {
	compiler, err := cuda.NewCompiler()
	if err != nil {
		return err
	}
	units, old := cuda.Units(), committed()
	outputs := make([]output, len(units))
	var group errgroup.Group
	group.SetLimit(runtime.NumCPU())
	for i, u := range units {
		if o, ok := old[u.Name]; ok && o.hash == u.Hash() {
			outputs[i] = o
			continue
		}
		group.Go(func() (err error) {
			outputs[i], err = compile(compiler, u)
			fmt.Fprintln(os.Stderr, u.Name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var hashes, resources strings.Builder
	fmt.Fprintf(&resources, "# on %s: unit, kernel, registers a thread, static shared bytes, stack bytes a thread\n", resourceArch)
	for i, u := range units {
		fmt.Fprintf(&hashes, "%s %s\n", u.Name, outputs[i].hash)
		resources.WriteString(outputs[i].resources)
	}
	for _, target := range cuda.Archives {
		files := map[string][]byte{cuda.HashFile: []byte(hashes.String()), cuda.ResourceFile: []byte(resources.String())}
		for i, u := range units {
			files[u.Name] = outputs[i].code[target]
		}
		if err := writeZip("kernels/"+target+".zip", files); err != nil {
			return err
		}
	}
	return nil
}

// compile compiles u for every target, of which resourceArch shows what it needs.
func compile(compiler *cuda.Compiler, u cuda.Unit) (output, error) {
	headers := cuda.Sources()
	o := output{hash: u.Hash(), code: map[string][]byte{}}
	for _, target := range cuda.Archives {
		code, err := compiler.Compile(u.Source, headers[u.Source], target, headers, u.Defines...)
		if err != nil {
			return o, fmt.Errorf("%s for %s: %w", u.Name, target, err)
		}
		if strings.HasPrefix(target, "compute_") {
			code = lowerVersion(code)
		}
		o.code[target] = code
	}
	lines, err := kernelResources(u.Name, o.code[resourceArch])
	o.resources = strings.Join(lines, "")
	return o, err
}

// committed reads the outputs that are there already, by unit; units that did not change are not compiled again.
func committed() map[string]output {
	old := map[string]output{}
	for _, target := range cuda.Archives {
		files, err := cuda.Archive(target)
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(files[cuda.HashFile])) {
			unit, hash, _ := strings.Cut(strings.TrimSpace(line), " ")
			o := old[unit]
			if o.code == nil {
				o = output{hash: hash, code: map[string][]byte{}}
				for r := range strings.Lines(string(files[cuda.ResourceFile])) {
					if strings.HasPrefix(r, unit+"\t") {
						o.resources += r
					}
				}
			}
			o.code[target] = files[unit]
			old[unit] = o
		}
	}
	return old
}

var version = regexp.MustCompile(`(?m)^\.version \d+\.\d+$`)

// lowerVersion names the oldest PTX version that has every instruction used here, so that drivers older than this
// compiler (from CUDA 11.8 on) take the file. The assembler rejects a file that needs more.
func lowerVersion(ptx []byte) []byte { return version.ReplaceAll(ptx, []byte(".version 7.8")) }

// Attributes in a cubin's .nv.info section: a format byte, an attribute byte, a 16-bit length, then symbol and value.
const (
	attrFormat    = 0x04
	attrFrameSize = 0x11
	attrRegisters = 0x2f
)

// kernelResources reads each kernel's registers, shared memory and stack frame from its machine code.
func kernelResources(unit string, cubin []byte) ([]string, error) {
	cubin = bytes.Clone(cubin)
	binary.LittleEndian.PutUint32(cubin[20:], 1) // e_version: NVIDIA keeps another number there
	f, err := elf.NewFile(bytes.NewReader(cubin))
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	info := f.Section(".nv.info")
	if info == nil {
		return nil, errors.New("no .nv.info section")
	}
	data, err := info.Data()
	if err != nil {
		return nil, err
	}
	registers, frame := map[string]uint32{}, map[string]uint32{}
	for len(data) >= 4 {
		format, attr, n := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
		data = data[4:]
		if format != attrFormat {
			continue
		}
		if attr == attrFrameSize || attr == attrRegisters {
			name := symbols[binary.LittleEndian.Uint32(data)-1].Name // Symbols leaves out the null symbol
			value := binary.LittleEndian.Uint32(data[4:])
			if attr == attrFrameSize {
				frame[name] = value
			} else {
				registers[name] = value
			}
		}
		data = data[n:]
	}
	var lines []string
	for _, s := range f.Sections {
		kernel, ok := strings.CutPrefix(s.Name, ".text.")
		if !ok {
			continue
		}
		shared := uint64(0)
		if o := f.Section(".nv.shared." + kernel); o != nil {
			shared = o.Size
		}
		lines = append(lines, fmt.Sprintf("%s\t%s\t%d\t%d\t%d\n", unit, kernel, registers[kernel], shared, frame[kernel]))
	}
	return lines, nil
}

// writeZip writes files in the order of their names, without times, so that the same contents give the same bytes.
func writeZip(path string, files map[string][]byte) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	for _, name := range names {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Deflate})
		if err != nil {
			return err
		}
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, buf.Bytes(), 0o644)
}
