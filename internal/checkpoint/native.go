package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/safetensors"
)

// ErrDamaged is wrapped by the errors of a file whose bytes are not those that were saved.
var ErrDamaged = errors.New("the file is damaged")

const (
	formatKey   = "snug_checkpoint" // metadata key that marks the file as ours
	formatValue = "1"
	sumModel    = "checksum.model"
	sumAll      = "checksum"
	avgPrefix   = "exp_avg."
	avgSqPrefix = "exp_avg_sq."
)

// sum is the running SHA-256 as a tensor's Data: what was hashed up to the moment it is written.
type sum struct{ hash.Hash }

func (s sum) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(s.Sum(nil))
	return int64(n), err
}

func sumTensor(name string, h hash.Hash) Tensor {
	return Tensor{Name: name, DType: safetensors.U8, Shape: []int64{sha256.Size}, Data: sum{h}}
}

// write streams s in snug's format.
func (s *State) write(w io.Writer) error {
	h := sha256.New()
	tensors := append([]Tensor(nil), s.Params...)
	if s.Optimizer != nil {
		tensors = append(tensors, sumTensor(sumModel, h))
		tensors = append(tensors, prefixed(avgPrefix, s.Optimizer.ExpAvg)...)
		tensors = append(tensors, prefixed(avgSqPrefix, s.Optimizer.ExpAvgSq)...)
	}
	tensors = append(tensors, sumTensor(sumAll, h))
	meta, err := s.metadata()
	if err != nil {
		return err
	}
	return safetensors.Write(io.MultiWriter(w, h), tensors, meta)
}

func prefixed(prefix string, tensors []Tensor) []Tensor {
	out := make([]Tensor, len(tensors))
	for i, t := range tensors {
		t.Name = prefix + t.Name
		out[i] = t
	}
	return out
}

// metadata is the part of s that is not tensors. Floats keep every bit: they are printed in the shortest exact form.
func (s *State) metadata() (map[string]string, error) {
	args, err := json.Marshal(argsOf(s.Model))
	if err != nil {
		return nil, fmt.Errorf("model_args: %w", err)
	}
	config, err := marshalConfig(s.Config)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	extra, err := json.Marshal(s.Extra)
	if err != nil {
		return nil, fmt.Errorf("extra: %w", err)
	}
	meta := map[string]string{
		formatKey: formatValue, "iter_num": strconv.Itoa(s.IterNum), "model_args": string(args), "config": string(config), "extra": string(extra),
		"best_val_loss": strconv.FormatFloat(s.BestValLoss, 'g', -1, 64),
	}
	if s.Optimizer != nil {
		meta["optimizer_step"] = strconv.FormatInt(s.Optimizer.Step, 10)
	}
	return meta, nil
}

// marshalConfig writes floats with a point or an exponent, so that 1.0 comes back as a float and 1 as an int.
func marshalConfig(config map[string]any) ([]byte, error) {
	out := make(map[string]any, len(config))
	for k, v := range config {
		if f, ok := v.(float64); ok {
			text := strconv.FormatFloat(f, 'g', -1, 64)
			if !strings.ContainsAny(text, ".e") {
				text += ".0"
			}
			v = json.RawMessage(text)
		}
		out[k] = v
	}
	return json.Marshal(out)
}

// unmarshalConfig keeps bool, int64, float64 and string; nulls are dropped, anything else is refused.
func unmarshalConfig(text string) (map[string]any, error) {
	if text == "" {
		return nil, nil
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		return nil, err
	}
	for k, v := range out {
		switch v := v.(type) {
		case json.Number:
			if n, err := v.Int64(); err == nil {
				out[k] = n
			} else if f, err := v.Float64(); err == nil {
				out[k] = f
			} else {
				return nil, fmt.Errorf("%s is %s", k, v)
			}
		case bool, string:
		case nil:
			delete(out, k)
		default:
			return nil, fmt.Errorf("%s is neither bool, number nor string", k)
		}
	}
	return out, nil
}

// readNative verifies and opens a file that Save made. With modelOnly the optimizer's part is neither verified nor returned.
func readNative(r io.ReaderAt, size int64, modelOnly bool) (*State, error) {
	f, err := safetensors.Read(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if got := f.Metadata[formatKey]; got != formatValue {
		return nil, fmt.Errorf("%w, or not a checkpoint of this snug: its format is %q, not %q", ErrDamaged, got, formatValue)
	}
	_, has := f.Lookup(sumModel)
	if err := verify(r, f, has && modelOnly); err != nil {
		return nil, err
	}
	s, err := parseMetadata(f.Metadata)
	if err != nil {
		return nil, err
	}
	for _, t := range f.Tensors {
		avg, isAvg := strings.CutPrefix(t.Name, avgPrefix)
		avgSq, isSq := strings.CutPrefix(t.Name, avgSqPrefix)
		switch {
		case t.Name == sumModel || t.Name == sumAll:
		case (isAvg || isSq) && s.Optimizer == nil:
			return nil, fmt.Errorf("tensor %s without optimizer_step", t.Name)
		case isAvg:
			t.Name = avg
			s.Optimizer.ExpAvg = append(s.Optimizer.ExpAvg, t)
		case isSq:
			t.Name = avgSq
			s.Optimizer.ExpAvgSq = append(s.Optimizer.ExpAvgSq, t)
		default:
			s.Params = append(s.Params, t)
		}
	}
	if modelOnly {
		s.Optimizer = nil
	}
	return s, s.Check()
}

// verify hashes the file up to its checksum, and compares.
func verify(r io.ReaderAt, f *safetensors.File, modelOnly bool) error {
	name := sumAll
	if modelOnly {
		name = sumModel
	}
	t, ok := f.Lookup(name)
	if !ok || t.DType != safetensors.U8 || !t.SameShape(sha256.Size) {
		return fmt.Errorf("%w: it has no %s", ErrDamaged, name)
	}
	if name == sumAll && f.Tensors[len(f.Tensors)-1].Name != sumAll {
		return fmt.Errorf("%w: %s is not its last tensor", ErrDamaged, name)
	}
	at, _ := f.Offset(name)
	h := sha256.New()
	if _, err := (safetensors.Section{R: r, From: 0, N: at}).WriteTo(h); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	want, err := t.Bytes()
	if err != nil {
		return err
	}
	if got := h.Sum(nil); !bytes.Equal(got, want) {
		return fmt.Errorf("%w: SHA-256 of its first %d bytes is %x…, saved as %x…", ErrDamaged, at, got[:4], want[:4])
	}
	return nil
}

func parseMetadata(meta map[string]string) (*State, error) {
	s := &State{}
	var err error
	if s.IterNum, err = strconv.Atoi(meta["iter_num"]); err != nil || s.IterNum < 0 {
		return nil, fmt.Errorf("iter_num is %q, not a count", meta["iter_num"])
	}
	if s.BestValLoss, err = strconv.ParseFloat(meta["best_val_loss"], 64); err != nil {
		return nil, fmt.Errorf("best_val_loss is %q, not a number", meta["best_val_loss"])
	}
	var args modelArgs
	if err := json.Unmarshal([]byte(meta["model_args"]), &args); err != nil {
		return nil, fmt.Errorf("model_args: %w", err)
	}
	s.Model = args.model()
	if s.Config, err = unmarshalConfig(meta["config"]); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := json.Unmarshal([]byte(meta["extra"]), &s.Extra); err != nil {
		return nil, fmt.Errorf("extra: %w", err)
	}
	if text, ok := meta["optimizer_step"]; ok {
		s.Optimizer = &Optimizer{}
		if s.Optimizer.Step, err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("optimizer_step is %q, not a count", text)
		}
	}
	return s, nil
}

// openFile opens a regular file and gives its size.
func openFile(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}
