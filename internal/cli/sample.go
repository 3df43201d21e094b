package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/bpe"
	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/data"
	"github.com/snugml/snug/internal/example"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/sample"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
)

// sampleOptions is what `snug sample` was asked.
type sampleOptions struct {
	config config.Config
	json   bool
}

func newSample(io *term.IO) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sample [CONFIG.py…] [--key=value…]",
		Short: "Write text with a trained model",
		Long: "sample draws text from a checkpoint, as nanoGPT's sample.py does: snug's own, nanoGPT's ckpt.pt or Hugging Face's GPT-2.\n" +
			"It runs on the GPU in dtype where there is one, else, or with --device=cpu, on the CPU in float32. temperature=0.0 takes the\n" +
			"likeliest token each time.",
		Example: "  snug sample --out_dir=out-shakespeare-char\n" +
			"  snug sample --out_dir=out --start=\"What is the answer?\" --num_samples=3 --max_new_tokens=100\n" +
			"  snug sample --init_from=gpt2/model.safetensors --start=FILE:prompt.txt",
	}
	s := addSettings(cmd, config.Sample)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := sampleOptions{json: wantJSON(cmd)}
		var err error
		if o.config, err = s.load(args); err != nil {
			return err
		}
		return runSample(cmd.Context(), io, o)
	}
	return cmd
}

func runSample(ctx context.Context, io *term.IO, o sampleOptions) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := untilStopped(ctx)
	defer stop()
	c := &o.config
	w, err := openSampler(c, func() (gpu.Device, bool) { return deviceHere(ctx) }, func(note string) { io.Err.Line(note) })
	if err != nil {
		return err
	}
	defer w.close()
	for _, warning := range w.state.Warnings {
		io.Err.Line(warning)
	}
	io.Err.Line(w.state.Path + ", " + w.describe())
	if o.json {
		return w.printJSON(ctx, io.Out)
	}
	err = w.stream(ctx, io.Out)
	if errors.Is(err, context.Canceled) {
		return &exitError{code: ExitFailed}
	}
	return err
}

// sampler is a model that is ready to write after its prompt.
type sampler struct {
	config *config.Config
	state  *checkpoint.State // its file is closed
	tok    sample.Tokenizer
	prompt []uint16
	exec   program.Executor
	gen    *sample.Generator
}

func (w *sampler) close() {
	if w.exec != nil {
		w.exec.Close()
		w.exec = nil
	}
}

// openSampler reads the checkpoint, finds its tokenizer and runs the prompt, on the first device that can; here finds a GPU, and note
// is told why it cannot.
func openSampler(c *config.Config, here func() (gpu.Device, bool), note func(string)) (*sampler, error) {
	s, err := openWeights(c)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	w := &sampler{config: c, state: s}
	vocabulary, err := w.findTokenizer()
	if err != nil {
		return nil, err
	}
	start, err := startText(c.Start)
	if err != nil {
		return nil, err
	}
	if w.prompt, err = w.tok.EncodePrompt(start); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	devices, err := sampleDevices(c, here)
	if err != nil {
		return nil, err
	}
	o := sample.Options{MaxNewTokens: c.MaxNewTokens, Temperature: c.Temperature, TopK: c.TopK, Seed: uint64(c.Seed), Vocabulary: vocabulary}
	for i, open := range devices {
		if err = w.load(s, open, o); err == nil {
			return w, nil
		}
		w.close()
		if i+1 < len(devices) {
			note(fmt.Sprintf("sampling on the CPU: %v", err))
		}
	}
	return nil, err
}

// load opens a device and runs the prompt there.
func (w *sampler) load(s *checkpoint.State, open func() (sample.Device, error), o sample.Options) error {
	d, err := open()
	if err != nil {
		return err
	}
	w.exec = d.Exec
	m, err := sample.NewModel(s, d, len(w.prompt), len(w.prompt)+o.MaxNewTokens)
	if err == nil {
		w.gen, err = sample.NewGenerator(m, w.prompt, o)
	}
	return err
}

// sampleDevices are the devices to try, in order: the one that the settings name; left unset, the GPU that is here where snug's
// kernels run on it, then the CPU, which serves where a run has taken the GPU's memory.
func sampleDevices(c *config.Config, here func() (gpu.Device, bool)) ([]func() (sample.Device, error), error) {
	onCPU := func() (sample.Device, error) {
		return sample.Device{Exec: cpu.New(cpu.Options{Threads: c.Threads}), DType: trace.Float32}, nil
	}
	onGPU := func(number string, o cuda.Options) func() (sample.Device, error) {
		return func() (sample.Device, error) {
			d, _, err := openCUDA(c, number, o)
			return sample.Device{Exec: d.Exec, DType: d.DTypes.Activation}, err
		}
	}
	kind, number, _ := strings.Cut(c.Device, ":")
	switch {
	case !c.IsSet("device"):
		list := []func() (sample.Device, error){onCPU}
		if d, ok := here(); ok && d.BF16() {
			o := cuda.Options{}
			if strings.HasPrefix(d.UUID, "GPU-") {
				o.UUID = d.UUID
			}
			list = slices.Insert(list, 0, onGPU("", o))
		}
		return list, nil
	case kind == "cpu":
		return []func() (sample.Device, error){onCPU}, nil
	case kind == "cuda":
		return []func() (sample.Device, error){onGPU(number, cuda.Options{})}, nil
	}
	return nil, usageError(fmt.Errorf("device %q: use cuda, cuda:1 or cpu", c.Device))
}

// openWeights opens what init_from names. Without an out_dir, the example's stands in where the default one is empty.
func openWeights(c *config.Config) (*checkpoint.State, error) {
	if c.InitFrom != "resume" {
		if _, preset := config.Presets[c.InitFrom]; preset {
			return nil, fmt.Errorf("init_from=%s: snug downloads nothing: fetch model.safetensors of %s from Hugging Face, then set init_from to its path", c.InitFrom, c.InitFrom)
		}
		return checkpoint.Open(c.InitFrom, checkpoint.ModelOnly)
	}
	dirs := []string{c.OutDir, filepath.Join(c.OutDir, train.LastDir)}
	if !c.IsSet("out_dir") {
		dirs = append(dirs, example.OutDir)
	}
	var first error
	for _, dir := range dirs {
		s, err := checkpoint.Load(dir, checkpoint.ModelOnly)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// findTokenizer takes the characters that the checkpoint carries, else those of the dataset's meta.pkl, as nanoGPT does,
// else GPT-2's tokens. A dataset that the user names comes before the checkpoint. It returns how many tokens have a text.
func (w *sampler) findTokenizer() (int, error) {
	size, chars := w.state.Model.VocabSize, new(data.Chars)
	if raw, ok := w.state.Extra[checkpoint.CharsKey]; ok && !w.config.IsSet("dataset") && !w.config.IsSet("data_dir") {
		if err := json.Unmarshal(raw, chars); err != nil || chars.Len() != size {
			return 0, fmt.Errorf("%s: %d characters, the model's vocabulary is %d", w.state.Path, chars.Len(), size)
		}
		w.tok = chars
		return size, nil
	}
	path := filepath.Join(w.setting("data_dir", w.config.DataDir), w.setting("dataset", w.config.Dataset), "meta.pkl")
	meta, err := data.ReadMeta(path)
	switch {
	case err == nil && meta.Chars != nil:
		if meta.VocabSize != size {
			return 0, fmt.Errorf("%s has a vocabulary of %d, the model's is %d: set dataset and data_dir to the data it was trained on", path, meta.VocabSize, size)
		}
		w.tok = meta.Chars
		return size, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return 0, err
	case size < bpe.VocabSize:
		return 0, fmt.Errorf("the model's vocabulary of %d is not GPT-2's, and there is no %s: set dataset and data_dir to the data it was trained on", size, path)
	}
	w.tok = bpe.GPT2()
	return bpe.VocabSize, nil
}

// setting is the user's value of a key where one was given, else the run's own, else the default.
func (w *sampler) setting(key, value string) string {
	if text, ok := w.state.Config[key].(string); ok && !w.config.IsSet(key) {
		return text
	}
	return value
}

// startText is the prompt itself, or the text of the file that FILE: names.
func startText(start string) (string, error) {
	path, ok := strings.CutPrefix(start, "FILE:")
	if !ok {
		return start, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("start: %w", err)
	}
	return string(raw), nil
}

// describe is the model in a line.
func (w *sampler) describe() string {
	m := w.state.Model
	text := fmt.Sprintf("%.2fM parameters, block %d", float64(m.Params(true))/1e6, m.BlockSize)
	if w.state.IterNum > 0 {
		text += fmt.Sprintf(", iteration %d, val loss %.4f", w.state.IterNum, w.state.BestValLoss)
	}
	return text
}

// stream writes the samples as they are drawn: each its prompt and its text, then nanoGPT's line of dashes.
func (w *sampler) stream(ctx context.Context, out *term.Stream) error {
	for n := range w.config.NumSamples {
		text := &sample.Text{W: out, Tok: w.tok, Terminal: out.TTY}
		if err := text.Write(w.prompt...); err != nil {
			return err
		}
		err := w.gen.Sample(ctx, n, func(id uint16) error { return text.Write(id) })
		if err := text.End(); err != nil {
			return err
		}
		if _, err := fmt.Fprint(out, "\n---------------\n"); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sampleResult is the samples as JSON shows them.
type sampleResult struct {
	Checkpoint string       `json:"checkpoint"`
	IterNum    int          `json:"iter_num"`
	Start      string       `json:"start"`
	Samples    []sampleText `json:"samples"`
	TokensPerS float64      `json:"tokens_per_s"`
}

type sampleText struct {
	Text   string   `json:"text"` // without the prompt
	Tokens []uint16 `json:"tokens"`
}

func (w *sampler) printJSON(ctx context.Context, out *term.Stream) error {
	start, tokens := time.Now(), 0
	prompt, err := w.tok.AppendDecode(nil, w.prompt...)
	if err != nil {
		return err
	}
	r := sampleResult{Checkpoint: w.state.Path, IterNum: w.state.IterNum, Start: string(prompt)}
	for n := range w.config.NumSamples {
		one := sampleText{Tokens: []uint16{}}
		var b strings.Builder
		text := &sample.Text{W: &b, Tok: w.tok}
		if err := w.gen.Sample(ctx, n, func(id uint16) error {
			one.Tokens = append(one.Tokens, id)
			return text.Write(id)
		}); err != nil {
			return err
		}
		if err := text.End(); err != nil {
			return err
		}
		one.Text = b.String()
		r.Samples = append(r.Samples, one)
		tokens += len(one.Tokens)
	}
	r.TokensPerS = float64(tokens) / time.Since(start).Seconds()
	return writeJSON(out, r)
}
