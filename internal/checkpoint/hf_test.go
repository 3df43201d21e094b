package checkpoint

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/safetensors"
)

// hfFile writes tensors as a safetensors file.
func hfFile(t *testing.T, path string, tensors []Tensor) {
	t.Helper()
	var b bytes.Buffer
	if err := safetensors.Write(&b, tensors, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
}

// asHF is s as OpenAI's weights are published: no prefix, Conv1D weights (in, out), masks beside the parameters.
func asHF(t *testing.T, s *State) (out []Tensor) {
	t.Helper()
	for _, x := range s.Params {
		x.Name = strings.TrimPrefix(x.Name, "transformer.")
		if isConv1D("." + x.Name) {
			v, err := x.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			rows, cols := int(x.Shape[0]), int(x.Shape[1])
			w := make([]float32, len(v))
			for r := range rows {
				for c := range cols {
					w[c*rows+r] = v[r*cols+c]
				}
			}
			x = safetensors.F32Tensor(x.Name, w, x.Shape[1], x.Shape[0])
		}
		out = append(out, x)
	}
	return append(out, safetensors.F32Tensor("h.0.attn.bias", make([]float32, 9), 1, 1, 3, 3))
}

func weights(t *testing.T, s *State) map[string]any {
	return values(t, &State{Model: s.Model, Params: s.Params})
}

func TestReadsHuggingFacesGPT2(t *testing.T) {
	s := newState(tiny(true), 0)
	s.Model.Dropout = 0
	tensors := asHF(t, s)
	with := func(prefix string, tensors []Tensor) []Tensor { return prefixed(prefix, tensors) }
	wte := tensors[0]
	wte.Name = tiedName
	for name, set := range map[string][]Tensor{
		"as published":              tensors,
		"with transformer.":         with("transformer.", tensors),
		"with transformer. lm_head": append(with("transformer.", tensors), wte),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			hfFile(t, filepath.Join(dir, hfName), set)
			if err := os.WriteFile(filepath.Join(dir, hfConfigName), []byte(`{"n_head": 2, "n_layer": 2}`), 0o666); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{dir, filepath.Join(dir, hfName)} {
				got := load(t, path, Everything)
				if diff := cmp.Diff(weights(t, s), weights(t, got)); diff != "" {
					t.Error(diff)
				}
				if got.Optimizer != nil || got.IterNum != 0 || got.BestValLoss != 1e9 {
					t.Errorf("optimizer %v, iteration %d, best %v", got.Optimizer, got.IterNum, got.BestValLoss)
				}
			}
		})
	}
}

func TestReadsShards(t *testing.T) {
	s := newState(tiny(true), 0)
	s.Model.Dropout = 0
	tensors, dir := asHF(t, s), t.TempDir()
	index := map[string]map[string]string{"weight_map": {}}
	for i, part := range [][]Tensor{tensors[:9], tensors[9:]} {
		name := []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}[i]
		hfFile(t, filepath.Join(dir, name), part)
		for _, x := range part {
			index["weight_map"][x.Name] = name
		}
	}
	raw, _ := json.Marshal(index)
	for name, text := range map[string]string{hfIndexName: string(raw), hfConfigName: `{"n_head":2}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(weights(t, s), weights(t, load(t, dir, Everything))); diff != "" {
		t.Error(diff)
	}
	outside := strings.ReplaceAll(string(raw), "model-00001", "../model-00001")
	if err := os.WriteFile(filepath.Join(dir, hfIndexName), []byte(outside), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Everything); err == nil || !strings.Contains(err.Error(), "not in the index's folder") {
		t.Errorf("a shard outside the folder: %v", err)
	}
}

// A model without bias comes back with zero ones: the same function.
func TestWhatWriteHFWritesReadsBack(t *testing.T) {
	for name, bias := range map[string]bool{"bias": true, "no bias": false} {
		t.Run(name, func(t *testing.T) {
			s, dir := newState(tiny(bias), 3), t.TempDir()
			if err := WriteHF(dir, s); err != nil {
				t.Fatal(err)
			}
			got := load(t, dir, Everything)
			want := weights(t, s)
			m := s.Model
			m.Bias, m.Dropout = true, 0
			want["model"] = m
			for _, spec := range m.Specs() {
				if _, ok := want[spec.Name]; !ok {
					want[spec.Name] = make([]float32, spec.Len())
				}
			}
			if diff := cmp.Diff(want, weights(t, got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSafetensorsThatAreNoGPT(t *testing.T) {
	good := asHF(t, newState(tiny(true), 0))
	changed := func(i int, change func(*Tensor)) []Tensor {
		out := append([]Tensor(nil), good...)
		change(&out[i])
		return out
	}
	other := safetensors.F32Tensor(tiedName, make([]float32, 20), 5, 4)
	for name, c := range map[string]struct {
		tensors []Tensor
		want    string
	}{
		"another model": {[]Tensor{safetensors.F32Tensor("model.embed_tokens.weight", make([]float32, 4), 2, 2)}, "no wte.weight"},
		"one missing":   {good[1:], "no wte.weight"},
		"a bias gone":   {append(append([]Tensor(nil), good[:5]...), good[6:]...), "missing"},
		"wrong shape":   {changed(4, func(x *Tensor) { *x = safetensors.F32Tensor(x.Name, make([]float32, 4), 2, 2) }), "shape"},
		"one dimension": {changed(4, func(x *Tensor) { *x = safetensors.F32Tensor(x.Name, make([]float32, 4), 4) }), "two dimensions"},
		"unknown":       {append(append([]Tensor(nil), good...), safetensors.F32Tensor("h.0.rotary", nil, 0)), "rotary"},
		"untied":        {append(append([]Tensor(nil), good...), other), "differs"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, hfName)
			hfFile(t, path, c.tensors)
			if err := os.WriteFile(filepath.Join(dir, hfConfigName), []byte(`{"n_head":2}`), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := Open(path, Everything)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %v, want one line with %q", err, c.want)
			}
		})
	}
}
