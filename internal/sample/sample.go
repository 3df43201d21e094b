// Package sample owns generation: a trained GPT run forward with a cache of keys and values, and tokens drawn from its
// logits as nanoGPT's sample.py draws them.
//
// It reads weights from a checkpoint and text from a tokenizer that it is given; executors compute, as they do in training.
// It writes no file and trains nothing.
// A sample is a pure function of weights, prompt, settings, seed and the device's kernels: the same on any number of threads.
package sample

import (
	"context"
	"errors"
	"fmt"
)

// Options are sample.py's settings.
type Options struct {
	MaxNewTokens int
	Temperature  float64 // 0 takes the likeliest token each time
	TopK         int     // 0 draws from all
	Seed         uint64
	// Vocabulary is the number of tokens that have a text; a padded model's further ones are never drawn. 0 is all.
	Vocabulary int
}

// Generator draws samples from one model after one prompt.
type Generator struct {
	model  *Model
	prompt []uint16
	o      Options
	logits []float32 // after the prompt
	moved  bool      // the window has left the prompt behind, and its cache with it
	draw   drawer
}

// NewGenerator runs the prompt once; every sample then starts from it.
func NewGenerator(m *Model, prompt []uint16, o Options) (*Generator, error) {
	if len(prompt) == 0 {
		return nil, errors.New("sample: start is empty: give it at least one character")
	}
	for _, id := range prompt {
		if int(id) >= m.VocabSize {
			return nil, fmt.Errorf("sample: start has token %d, the model's vocabulary is %d: is this the dataset that it was trained on?", id, m.VocabSize)
		}
	}
	if !(o.Temperature >= 0) {
		return nil, fmt.Errorf("sample: temperature is %v, it must be 0 or more", o.Temperature)
	}
	g := &Generator{model: m, prompt: prompt, o: o, draw: newDrawer(m.VocabSize, o)}
	m.n = 0
	if err := m.forward(g.window(prompt)); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	g.logits = append(g.logits, m.logits...)
	return g, nil
}

// window is the end of ids that the model sees: nanoGPT crops the context to block_size.
func (g *Generator) window(ids []uint16) []uint16 {
	return ids[max(0, len(ids)-g.model.BlockSize):]
}

// Sample draws sample number n: MaxNewTokens tokens, given to each one by one. It ends early when ctx does.
//
// While the text fits block_size a new token costs one row. Beyond it every position moves with each token, so that
// the whole window is run again, as nanoGPT does.
func (g *Generator) Sample(ctx context.Context, n int, each func(id uint16) error) error {
	ids := append([]uint16(nil), g.prompt...)
	m, logits := g.model, g.logits
	m.n = len(g.window(g.prompt))
	if g.moved {
		m.n, g.moved = 0, false
		if err := m.forward(g.window(g.prompt)); err != nil {
			return err
		}
	}
	for i := range g.o.MaxNewTokens {
		if err := ctx.Err(); err != nil {
			return err
		}
		id, err := g.draw.next(logits, n, i)
		if err != nil {
			return err
		}
		if err := each(id); err != nil {
			return err
		}
		ids = append(ids, id)
		if i+1 == g.o.MaxNewTokens {
			break
		}
		fresh := ids[len(ids)-1:]
		if m.n == m.BlockSize {
			m.n, g.moved, fresh = 0, true, g.window(ids)
		}
		if err := m.forward(fresh); err != nil {
			return err
		}
		logits = m.logits
	}
	return nil
}
