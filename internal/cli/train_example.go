package cli

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/example"
	"github.com/snugml/snug/internal/prepare"
	"github.com/snugml/snug/internal/term"
)

// prepareExample gives o the example's settings, and writes its text as a data set of characters and its settings as a
// config file, with which the run can be resumed and changed.
func prepareExample(ctx context.Context, io *term.IO, o *trainOptions) error {
	text := example.Find(io.Env)
	c := &o.config
	if err := example.Settings(c); err != nil {
		return err
	}
	io.Err.Line("nothing was given, so this is the example: a small GPT learns to write like " + text.Name)
	if _, err := prepare.Run(ctx, prepare.Options{Inputs: []string{"-"}, Stdin: bytes.NewReader(text.Bytes), Format: prepare.Text,
		Tokenizer: prepare.Char, Out: filepath.Join(c.DataDir, c.Dataset), Overwrite: true}); err != nil {
		return err
	}
	path := filepath.Join(c.OutDir, "config.py")
	o.again = "snug train " + path
	o.prompt = text.Start
	return writeAside(path, []byte(exampleFile(c, path)))
}

// exampleFile is the settings that the example gives, as a config file.
func exampleFile(c *config.Config, path string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The example that snug train runs when nothing is given. Change it, then: snug train %s\n", path)
	for i := range config.Table {
		if row := &config.Table[i]; c.IsSet(row.Key) {
			fmt.Fprintf(&b, "%s = %s\n", row.Key, config.Python(row.Value(c)))
		}
	}
	return b.String()
}

// showSample writes a text with the model that was just trained: on the CPU, where so small a one starts at once.
func showSample(ctx context.Context, io *term.IO, o trainOptions) error {
	c := config.DefaultFor(config.Sample)
	for key, v := range map[string]any{"device": "cpu", "out_dir": o.config.OutDir, "start": o.prompt, "num_samples": 1, "max_new_tokens": 400, "temperature": 0.6} {
		if err := c.Set(key, v); err != nil {
			return err
		}
	}
	w, err := openSampler(&c, nil, nil) // the device is named
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.stream(ctx, io.Out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(io.Out, "more of it: snug sample --out_dir=%s\n", o.config.OutDir)
	return err
}
