package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/data"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/gpu"
)

// standIn is the card whose architecture is assumed where none is named and none is here: the one most people own.
const standIn = "GeForce RTX 3060"

// targetFor is the device to plan for: the named card, a limit, both (a part of that card), or this machine's GPU.
// Without any of them there is no limit.
func targetFor(ctx context.Context, name string, c *config.Config) (fit.Target, error) {
	if c.IsSet("vram") && c.Vram == 0 {
		return fit.Target{}, usageError(errors.New("--vram=0 leaves no memory: name a size such as 11.69GiB"))
	}
	switch {
	case name != "":
		card, err := gpu.Match(name)
		if err != nil {
			return fit.Target{}, usageError(err)
		}
		t := fit.OnCard(card)
		if c.Vram > 0 {
			t.Limit = min(c.Vram, card.Memory)
		}
		return t, nil
	case c.Vram > 0:
		return fit.Within(c.Vram), nil
	}
	if d, ok := deviceHere(ctx); ok {
		t := fit.Within(d.Total)
		if card, ok := gpu.ForDevice(d.Name, d.Total); ok {
			t = fit.OnCard(card)
		}
		t.Limit = d.Free
		return t, nil
	}
	card, err := gpu.Match(standIn)
	return fit.Target{Card: card, Assumed: true}, err
}

// deviceHere is this machine's GPU with the most free memory.
func deviceHere(ctx context.Context) (gpu.Device, bool) {
	probe, err := newProbe()
	if err != nil {
		return gpu.Device{}, false
	}
	defer probe.Close()
	s, err := probe.Snapshot(ctx)
	if err != nil {
		return gpu.Device{}, false
	}
	var best gpu.Device
	for _, d := range s.Usable() {
		if d.Free > best.Free {
			best = d
		}
	}
	return best, best.Total > 0
}

// resolveVocabulary finds the vocabulary as train.py does: meta.pkl beside the data, where there is one.
func resolveVocabulary(c *config.Config) error {
	if _, preset := config.Presets[c.InitFrom]; preset || c.VocabSize != 0 {
		return nil
	}
	path := filepath.Join(c.DataDir, c.Dataset, "meta.pkl")
	meta, err := data.ReadMeta(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the vocabulary of %s: %w", c.Dataset, err)
	}
	return c.Set("vocab_size", meta.VocabSize)
}
