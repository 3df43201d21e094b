package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/prepare"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/units"
)

func newPrepare(io *term.IO) *cobra.Command {
	o := prepare.Options{Stdin: io.In}
	format := string(prepare.Auto)
	cmd := &cobra.Command{
		Use:   "prepare FILE… --out=DIR",
		Short: "Make train.bin and val.bin from text",
		Long: "prepare turns text into the token files that snug train and nanoGPT read. It takes .txt, .jsonl and .parquet files, plain or\n" +
			"compressed (.gz, .zst), folders of them, and - for standard input. Stopped or killed, the same command goes on where it was.\n" +
			"The last part of one text is val; of several documents some are drawn for val, and each is followed by <|endoftext|>.",
		Example: "  snug prepare input.txt --out=data/shakespeare\n" +
			"  snug prepare input.txt --out=data/shakespeare_char --tokenizer=char\n" +
			"  snug prepare corpus/*.jsonl.zst --field=content --out=data/corpus --val_fraction=0.001\n" +
			"  zcat dump.gz | snug prepare - --out=data/dump",
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Out, "out", "", "folder to write the data set to")
	flags.StringVar(&o.Tokenizer, "tokenizer", prepare.GPT2, "gpt2 (tokens of tiktoken's gpt2) or char (characters, with meta.pkl)")
	flags.StringVar(&format, "format", format, "text, jsonl or parquet; auto goes by the files' names")
	offer(cmd, "tokenizer", prepare.GPT2, prepare.Char)
	offer(cmd, "format", "auto", "text", "jsonl", "parquet")
	flags.StringVar(&o.Field, "field", "text", "field of .jsonl, or column of .parquet, that holds the text")
	flags.Float64Var(&o.ValFraction, "val_fraction", 0, "share of val; unset is 0.1, or 0.0005 of documents of 1 GiB and more")
	flags.Uint64Var(&o.Seed, "seed", 1337, "seed of the draw of val's documents")
	flags.IntVar(&o.Threads, "threads", 0, "threads that encode; 0 is one a core")
	flags.BoolVar(&o.Overwrite, "overwrite", false, "replace the data set in --out")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.Inputs, o.Format = args, prepare.Format(format)
		if err := o.Check(); err != nil {
			return usageError(err)
		}
		if flags.Changed("val_fraction") && o.ValFraction == 0 {
			return usageError(errors.New("--val_fraction=0: training needs a val.bin: want above 0 and below 1"))
		}
		return runPrepare(cmd.Context(), io, o, wantJSON(cmd))
	}
	return cmd
}

func runPrepare(ctx context.Context, io *term.IO, o prepare.Options, json bool) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := untilStopped(ctx)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	var bar *term.Progress
	stage := ""
	o.Report = func(now string, done, total, tokens int64) {
		if now != stage {
			stage, bar = now, io.Err.Progress(now, total)
			bar.From(done)
		}
		note := ""
		switch {
		case tokens > 0:
			note = short(tokens) + " tokens"
		case total == 0:
			note = units.Bytes(done).String()
		}
		bar.Set(done, note)
	}
	o.Note = io.Err.Line
	res, err := prepare.Run(ctx, o)
	if bar != nil {
		bar.Clear()
	}
	if errors.Is(err, prepare.ErrStopped) {
		fmt.Fprintln(io.Err, "stopped: the same command goes on from here")
		return &exitError{code: ExitFailed}
	}
	if err != nil {
		return err
	}
	if res.Invalid > 0 {
		fmt.Fprintf(io.Err, "%s bytes are not UTF-8: they were kept as they are\n", units.Count(res.Invalid))
	}
	if json {
		return writeJSON(io.Out, res)
	}
	return showPrepared(io, res)
}

// showPrepared prints what was written and how to train on it.
func showPrepared(io *term.IO, res *prepare.Result) error {
	table := &term.Table{Columns: []term.Column{{Title: "file"}, {Title: "tokens", Align: term.Right}, {Title: "size", Align: term.Right}}}
	for i, n := range []int64{res.TrainTokens, res.ValTokens} {
		tokens := units.Count(n)
		if !io.Out.TTY {
			tokens = strconv.FormatInt(n, 10)
		}
		table.Add(res.Written[i], tokens, units.Bytes(2*n).String())
	}
	if err := io.Out.Table(table); err != nil {
		return err
	}
	what := "GPT-2's tokens"
	if res.Tokenizer == prepare.Char {
		what = fmt.Sprintf("%d characters, in meta.pkl", res.VocabSize)
	}
	how := fmt.Sprintf("val is the last %s of the text", percent(res.ValFraction))
	if res.SplitBy == "document" {
		how = fmt.Sprintf("val is %s of %s documents", percent(res.ValFraction), units.Count(res.Documents))
	}
	train := "snug train --dataset=" + quoted(filepath.Base(res.Out))
	if dir := filepath.Dir(filepath.Clean(res.Out)); dir != "data" {
		train += " --data_dir=" + quoted(dir)
	}
	_, err := fmt.Fprintf(io.Out, "vocabulary: %s\nsplit: %s\ntrain on it: %s\n", what, how, train)
	return err
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'g', 3, 64) + "%" }

// short prints n in three digits and a letter: "12.3M".
func short(n int64) string {
	x, letters := float64(n), ""
	for _, letter := range []string{"k", "M", "G"} {
		if x < 999.5 {
			break
		}
		x, letters = x/1000, letter
	}
	return strconv.FormatFloat(x, 'g', 3, 64) + letters
}
