package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/train"
)

// trainOptions is what `snug train` was asked.
type trainOptions struct {
	config  config.Config
	again   string // the command line without init_from, for the line that says how to go on
	example bool   // nothing was given: the example's settings and text
	prompt  string // what a sample at the end begins with; empty draws none
	json    bool
	cuda    cuda.Options
}

func newTrain(io *term.IO) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "train [CONFIG.py…] [--key=value…]",
		Short: "Train a GPT on the GPU or the CPU, inside the memory you have",
		Long: "train trains a GPT with nanoGPT's settings, config files and data. It says what the run will take, takes exactly that at the start,\n" +
			"and never asks for more. batch_size * gradient_accumulation_steps is the effective batch; how many sequences go through at once\n" +
			"is chosen to fit. Ctrl-C saves and says how to go on. With nothing given it trains a small character model for about a minute.",
		Example: "  snug train\n" +
			"  snug train config/train_shakespeare_char.py --device=cpu --compile=False\n" +
			"  snug train config/train_gpt2.py --vram=11.69GiB\n" +
			"  snug train config/train_gpt2.py --init_from=resume",
	}
	var o trainOptions
	s := addSettings(cmd, config.Train)
	addSync(cmd, &o.cuda)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o.json, o.example, o.again = wantJSON(cmd), len(args) == 0 && len(s.overrides) == 0, s.again(args)
		if o.config, err = s.load(args); err != nil {
			return err
		}
		return runTrain(cmd.Context(), io, o)
	}
	return cmd
}

// again is the command line to resume a run with these arguments.
func (s *settings) again(files []string) string {
	words := append([]string{"snug train"}, files...)
	for _, o := range s.overrides {
		if o.key != "init_from" {
			words = append(words, "--"+o.key+"="+quoted(o.text))
		}
	}
	return strings.Join(words, " ")
}

// quoted is text as a shell takes it in one word.
func quoted(text string) string {
	if text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%") == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

func runTrain(ctx context.Context, io *term.IO, o trainOptions) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := untilStopped(ctx)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once
	if o.example {
		if err := prepareExample(ctx, io, &o); err != nil {
			return err
		}
	}
	device, err := openDevice(ctx, &o.config, o.cuda)
	if err != nil {
		return err
	}
	defer device.Exec.Close()
	run, err := train.Prepare(o.config, device)
	if err != nil {
		return trainError(err)
	}
	defer run.Close()
	view := newTrainView(io, o, run)
	defer view.close()
	view.plan()
	if err := run.Start(view); err != nil {
		return trainError(err)
	}
	view.notes()
	view.publish(time.Now())
	err = run.Run(ctx)
	view.close()
	if errors.Is(err, train.ErrStopped) && run.Iter == view.first {
		fmt.Fprintln(io.Err, "stopped before its first iteration: there was nothing to save")
		return &exitError{code: ExitFailed}
	}
	if errors.Is(err, train.ErrStopped) {
		fmt.Fprintf(io.Err, "stopped at iteration %d: go on with\n  %s --init_from=resume\n", run.Iter, o.again)
		if _, err := view.draw(); err != nil {
			return err
		}
		return &exitError{code: ExitFailed}
	}
	if err != nil {
		return err
	}
	if err := view.end(); err != nil || o.prompt == "" || o.json {
		return err
	}
	return showSample(ctx, io, o)
}

// trainError gives an error its exit code.
func trainError(err error) error {
	var fit *train.FitError
	if errors.As(err, &fit) {
		return &exitError{ExitDoesNotFit, err}
	}
	return err
}
