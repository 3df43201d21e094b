package checkpoint

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/pickle"
	"github.com/snugml/snug/internal/safetensors"
)

const fixture = "testdata/ckpt.pt"

// A file that torch.save wrote reads as make_fixture.py says: names without torch.compile's prefix, lm_head dropped.
func TestReadsNanoGPTsCheckpoint(t *testing.T) {
	got := load(t, fixture, Everything)
	want := newState(tiny(true), 0)
	want.IterNum, want.BestValLoss, want.Optimizer.Step, want.Extra = 2000, float64(float32(1.4697)), 7, nil
	want.Config = map[string]any{"out_dir": "out", "dataset": "shakespeare_char", "batch_size": int64(12), "learning_rate": 6e-4, "weight_decay": 0.1,
		"beta1": 0.9, "beta2": 0.95, "decay_lr": true, "device": "cuda"}
	if diff := cmp.Diff(values(t, want), values(t, got)); diff != "" {
		t.Error(diff)
	}
	if len(got.Warnings) != 0 {
		t.Errorf("warnings %q", got.Warnings)
	}
	if only := load(t, fixture, ModelOnly); only.Optimizer != nil || len(only.Warnings) != 0 {
		t.Errorf("ModelOnly: optimizer %v, warnings %q", only.Optimizer, only.Warnings)
	}
}

func TestWhatWriteTorchWritesReadsBack(t *testing.T) {
	for name, s := range map[string]*State{"bias": newState(tiny(true), 9), "no bias": newState(tiny(false), 9)} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), TorchName)
			if err := WriteTorch(path, s); err != nil {
				t.Fatal(err)
			}
			s.Extra = nil // train.py has no place for it
			if diff := cmp.Diff(values(t, s), values(t, load(t, path, Everything))); diff != "" {
				t.Error(diff)
			}
			z, err := zip.OpenReader(path)
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			for _, f := range z.File {
				if at, err := f.DataOffset(); err != nil || at%64 != 0 {
					t.Errorf("%s starts at %d (%v), not on 64", f.Name, at, err)
				}
			}
		})
	}
}

func TestOutDirWithOnlyCkptPt(t *testing.T) {
	raw, err := os.ReadFile(fixture)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, TorchName), raw, 0o666); err != nil {
		t.Fatal(err)
	}
	if s := load(t, dir, Everything); s.IterNum != 2000 {
		t.Errorf("iteration %d", s.IterNum)
	}
}

// Damage to any byte of a tensor, and any cut, is refused: entries carry a CRC-32.
func TestDamagedTorchFilesAreRefused(t *testing.T) {
	good, err := os.ReadFile(fixture)
	if err != nil {
		t.Fatal(err)
	}
	want := values(t, load(t, fixture, Everything))
	path := filepath.Join(t.TempDir(), TorchName)
	for at := 0; at < len(good); at += 97 {
		bad := bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		s, err := Open(path, Everything)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("flip at %d: error of two lines: %v", at, err)
			}
			continue
		}
		// A flip in padding, a date or an entry that is not read changes nothing.
		if diff := cmp.Diff(want, values(t, s)); diff != "" {
			t.Fatalf("flip at %d loads as something else: %s", at, diff)
		}
		s.Close()
	}
	for at := 0; at < len(good); at += 1009 {
		if err := os.WriteFile(path, good[:at], 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, Everything); err == nil {
			t.Fatalf("a file cut to %d of %d bytes was read", at, len(good))
		}
	}
}

// archiveOf is a file of torch.save with this pickle and one storage of 64 zeros.
func archiveOf(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, raw := range map[string][]byte{"ckpt/data.pkl": data, "ckpt/data/0": make([]byte, 64), "ckpt/version": []byte("3\n")} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		w.Write(raw)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTorchFilesThatAreNoCheckpoints(t *testing.T) {
	global := func(module, name string) pickle.Global { return pickle.Global{Module: module, Name: name} }
	args := dict("n_layer", 1, "n_head", 1, "n_embd", 2, "block_size", 2, "bias", false, "vocab_size", 3, "dropout", 0.0)
	tensor := func(offset int, shape, stride pickle.Tuple) any {
		id := pickle.Persistent{ID: pickle.Tuple{"storage", global("torch", "FloatStorage"), "0", "cpu", 16}}
		return pickle.Call{Fn: global("torch._utils", "_rebuild_tensor_v2"), Args: pickle.Tuple{id, offset, shape, stride, false, nil}}
	}
	model := func(v any) *pickle.Dict { return dict("model_args", args, "model", dict("transformer.wte.weight", v)) }
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"code":              {dict("model", pickle.Call{Fn: global("os", "system"), Args: pickle.Tuple{"true"}}), `refuses "os.system"`},
		"a list":            {[]any{1, 2}, "no dict"},
		"no model_args":     {dict("model", dict()), "no model_args"},
		"no model":          {dict("model_args", args), "no model"},
		"layers as text":    {dict("model_args", dict("n_layer", "two"), "model", dict()), "not a count"},
		"tensors missing":   {model(tensor(0, pickle.Tuple{3, 2}, pickle.Tuple{2, 1})), "missing"},
		"past its storage":  {model(tensor(15, pickle.Tuple{3, 2}, pickle.Tuple{2, 1})), "storage of 16"},
		"negative offset":   {model(tensor(-1, pickle.Tuple{3, 2}, pickle.Tuple{2, 1})), "storage of 16"},
		"transposed":        {model(tensor(0, pickle.Tuple{3, 2}, pickle.Tuple{1, 3})), "contiguous"},
		"number for tensor": {model(3), "no tensor"},
		"huge":              {model(tensor(0, pickle.Tuple{1 << 40, 1 << 40}, pickle.Tuple{1 << 40, 1})), "storage of 16"},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := pickle.Write(c.value)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "x.pt")
			if err := os.WriteFile(path, archiveOf(t, raw), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err = Open(path, Everything)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error = %v, want one line with %q", err, c.want)
			}
		})
	}
}

func FuzzTorch(f *testing.F) {
	good, err := os.ReadFile(fixture)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(archiveOf(f, []byte("\x80\x02}.")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := readTorch(bytes.NewReader(raw), int64(len(raw)), Everything)
		if err == nil {
			values(t, s)
		}
	})
}

// The pickle inside is fuzzed apart, because a random change rarely gets past the zip's CRC.
func FuzzTorchPickle(f *testing.F) {
	z, err := zip.OpenReader(fixture)
	if err != nil {
		f.Fatal(err)
	}
	defer z.Close()
	for _, e := range z.File {
		if filepath.Base(e.Name) == "data.pkl" {
			raw, err := readEntry(e, maxPickle)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		raw := archiveOf(t, data)
		s, err := readTorch(bytes.NewReader(raw), int64(len(raw)), Everything)
		if err == nil {
			values(t, s)
		}
	})
}

func FuzzNative(f *testing.F) {
	for _, s := range []*State{newState(tiny(false), 3), newState(tiny(true), 3)} {
		var b bytes.Buffer
		if err := s.write(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, modelOnly := range []bool{false, true} {
			if s, err := readNative(bytes.NewReader(raw), int64(len(raw)), modelOnly); err == nil {
				values(t, s)
			}
		}
	})
}

// Whatever a file begins with: it is read as what it is, or refused.
func FuzzOpen(f *testing.F) {
	var b bytes.Buffer
	tensors := newState(tiny(true), 0).Params
	if err := safetensors.Write(&b, prefixed("", tensors), map[string]string{"format": "pt"}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("\x80\x02}."))
	f.Add([]byte("PK\x03\x04"))
	f.Add([]byte("{}"))
	dir := f.TempDir() // Hugging Face's config.json is looked for here
	if err := os.WriteFile(filepath.Join(dir, hfConfigName), []byte(`{"n_head":2}`), 0o666); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := openKind(bytes.NewReader(raw), int64(len(raw)), filepath.Join(dir, "model.safetensors"), Everything)
		if err == nil {
			values(t, s)
		}
	})
}

// The metadata is fuzzed apart, because a random change does not get past the checksum.
func FuzzMetadata(f *testing.F) {
	m, err := newState(tiny(true), 3).metadata()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m["iter_num"], m["best_val_loss"], m["model_args"], m["config"], m["extra"], m["optimizer_step"])
	f.Fuzz(func(t *testing.T, iter, best, args, config, extra, step string) {
		s, err := parseMetadata(map[string]string{"iter_num": iter, "best_val_loss": best, "model_args": args, "config": config, "extra": extra, "optimizer_step": step})
		if err != nil {
			return
		}
		if err := s.Check(); err == nil {
			t.Fatal("a state without tensors passed")
		}
		if _, err := s.metadata(); err != nil {
			t.Fatalf("what was read does not write: %v", err)
		}
	})
}
