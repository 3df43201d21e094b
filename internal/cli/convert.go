package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/term"
)

// convertOptions is what `snug convert` was asked.
type convertOptions struct {
	from, to, out string
	force, json   bool
}

// format is a kind of checkpoint that convert writes.
type format struct {
	out   func(dir string) string // where it goes, beside what it is made of
	file  func(out string) string // what must not be there yet
	write func(out string, s *checkpoint.State) error
}

func inside(name string) func(string) string {
	return func(dir string) string { return filepath.Join(dir, name) }
}

func same(path string) string { return path }

var formats = map[string]format{
	"ckpt.pt":     {inside(checkpoint.TorchName), same, checkpoint.WriteTorch},
	"huggingface": {inside("huggingface"), inside("model.safetensors"), checkpoint.WriteHF},
	"snug":        {same, inside(checkpoint.Name), checkpoint.Save},
}

func newConvert(io *term.IO) *cobra.Command {
	o := convertOptions{}
	cmd := &cobra.Command{
		Use:   "convert CHECKPOINT --to=FORMAT [--out=PATH]",
		Short: "Write a checkpoint in nanoGPT's, Hugging Face's or snug's format",
		Long: "convert reads a checkpoint (an out_dir, ckpt.safetensors, nanoGPT's ckpt.pt, or Hugging Face's GPT-2 as a folder or\n" +
			"model.safetensors) and writes it as\n\n" +
			"  ckpt.pt      for nanoGPT's sample.py and train.py --init_from=resume, AdamW's state included\n" +
			"  huggingface  a folder for GPT2LMHeadModel.from_pretrained\n" +
			"  snug         for snug train --init_from=resume",
		Example: "  snug convert out-shakespeare-char --to=ckpt.pt\n" +
			"  snug convert out/ckpt.pt --to=huggingface --out=my-gpt2",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(fmt.Errorf("convert takes one checkpoint, %d were given: snug convert out --to=ckpt.pt", len(args)))
			}
			o.from, o.json = args[0], wantJSON(cmd)
			return runConvert(io, o)
		},
	}
	cmd.Flags().StringVar(&o.to, "to", "", strings.Join(slices.Sorted(maps.Keys(formats)), ", "))
	offer(cmd, "to", slices.Sorted(maps.Keys(formats))...)
	cmd.Flags().StringVar(&o.out, "out", "", "where to; beside the checkpoint where it is not given")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace what is there")
	// The only error is a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(slices.Sorted(maps.Keys(formats)), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runConvert(io *term.IO, o convertOptions) error {
	f, ok := formats[o.to]
	if o.to == "" {
		return usageError(fmt.Errorf("convert needs --to: one of %s", strings.Join(slices.Sorted(maps.Keys(formats)), ", ")))
	}
	if !ok {
		return usageError(fmt.Errorf("--to=%s: use one of %s", o.to, strings.Join(slices.Sorted(maps.Keys(formats)), ", ")))
	}
	s, err := checkpoint.Open(o.from, checkpoint.Everything)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, warning := range s.Warnings {
		io.Err.Line(warning)
	}
	out := o.out
	if out == "" {
		out = f.out(filepath.Dir(s.Path))
	}
	if _, err := os.Lstat(f.file(out)); err == nil && !o.force {
		return fmt.Errorf("%s is there already: --out=PATH writes elsewhere, --force replaces it", f.file(out))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := f.write(out, s); err != nil {
		return err
	}
	optimizer := s.Optimizer != nil && o.to != "huggingface"
	if o.json {
		return writeJSON(io.Out, map[string]any{"from": s.Path, "to": o.to, "out": out, "iter_num": s.IterNum, "optimizer": optimizer})
	}
	what := "weights"
	if optimizer {
		what = "weights and AdamW's state"
	}
	_, err = fmt.Fprintf(io.Out, "%s: %s of %s, iteration %d\n", out, what, s.Path, s.IterNum)
	return err
}
