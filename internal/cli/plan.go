package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/torch"
)

// planOptions is what `snug plan` was asked.
type planOptions struct {
	config    config.Config
	files     []string // as given, for the command line in the report
	given     []override
	gpu       string
	allocConf string
	worldSize int
	write     string
	engine    string
	json      bool
}

func newPlan(io *term.IO) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [CONFIG.py…] [--key=value…]",
		Short: "Say what training will take, and which settings fit",
		Long: "plan says what a configuration takes before it runs: phase by phase and tensor by tensor, under PyTorch\n" +
			"or (--engine=native) in snug's own trainer, and which settings fit the card. It needs neither a GPU nor Python.",
		Example: "  snug plan config/train_gpt2.py --gpu=\"rtx 3060\"\n" +
			"  snug plan --batch_size=64 --vram=11.69GiB --write=config/fits.py",
	}
	s := addSettings(cmd, config.Plan)
	cmd.Flags().StringVar(&o.engine, "engine", "torch", "whose memory: torch (nanoGPT's train.py) or native (snug train)")
	offer(cmd, "engine", "torch", "native")
	cmd.Flags().StringVar(&o.gpu, "gpu", "", "the card to plan for, such as \"rtx 3060\"; unset is the one in this machine")
	cmd.Flags().StringVar(&o.allocConf, "alloc-conf", "", "PyTorch's allocator settings; unset is PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF")
	cmd.Flags().IntVar(&o.worldSize, "world-size", 1, "processes of a DDP run")
	cmd.Flags().StringVar(&o.write, "write", "", "write the best settings as a config `FILE.py`")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.config, err = s.load(args); err != nil {
			return err
		}
		o.files, o.given, o.json = args, s.overrides, wantJSON(cmd)
		return runPlan(cmd.Context(), io, o)
	}
	return cmd
}

func runPlan(ctx context.Context, io *term.IO, o planOptions) error {
	if o.worldSize < 1 {
		return usageError(fmt.Errorf("--world-size must be at least 1, not %d", o.worldSize))
	}
	if err := resolveVocabulary(&o.config); err != nil {
		return err
	}
	target, err := targetFor(ctx, o.gpu, &o.config)
	if err != nil {
		return err
	}
	var p *planReport
	switch {
	case o.engine == "native":
		p, err = nativePlan(ctx, o, target)
	case o.engine != "torch":
		err = usageError(fmt.Errorf("--engine=%s: use torch or native", o.engine))
	case o.config.IsSet("device") && o.config.Device == "cpu":
		err = usageError(errors.New("--device=cpu: PyTorch's plan is a GPU's; add --engine=native for snug's own"))
	default:
		p, err = torchPlan(io, o, target)
	}
	if err != nil {
		return err
	}
	if o.write != "" {
		if err := p.writeConfig(o); err != nil {
			return err
		}
	}
	if o.json {
		err = writeJSON(io.Out, p)
	} else {
		err = p.report(io.Out)
	}
	if err == nil && p.Fits != nil && !*p.Fits {
		return &exitError{code: ExitDoesNotFit}
	}
	return err
}

// torchPlan is what train.py takes under PyTorch, and what would fit.
func torchPlan(io *term.IO, o planOptions, t fit.Target) (*planReport, error) {
	conf, err := allocConf(io, o.allocConf)
	if err != nil {
		return nil, err
	}
	setup := fit.Setup{Config: o.config, AllocConf: conf, Options: torch.Options{
		WorldSize: o.worldSize, Resume: o.config.InitFrom == "resume"}}
	outcome, err := fit.Try(setup, t)
	if err != nil {
		return nil, usageError(err)
	}
	p := newPlanReport(o, t, outcome)
	if p.Notes, err = paddingNote(setup, t, outcome); err != nil {
		return nil, err
	}
	suggestions, err := fit.Suggest(outcome, t)
	if err != nil {
		return nil, err
	}
	p.suggest(suggestions)
	return p, nil
}

// paddingNote says what the run takes if Inductor's timing decides otherwise than the plan supposes, where that matters.
func paddingNote(s fit.Setup, t fit.Target, padded *fit.Outcome) ([]string, error) {
	if torch.PaddingKnown(s.Config, torch.Options{Device: t.Device()}) {
		return nil, nil
	}
	s.Options.Unpadded = true
	o, err := fit.Try(s, t)
	if err != nil {
		return nil, err
	}
	if less := padded.Peak.Process - o.Peak.Process; less < padded.Peak.Process/100 {
		return nil, nil
	}
	return []string{fmt.Sprintf("With a vocabulary of %d, torch.compile times on the card whether to pad lm_head's gradient: %s if it does, as planned here, %s if not.",
		s.Config.Model().VocabSize, padded.Peak.Process.GiB(), o.Peak.Process.GiB())}, nil
}

// allocConf is the allocator's settings: the flag, else the environment's, under its new name first.
func allocConf(io *term.IO, flag string) (torch.AllocConf, error) {
	from := "--alloc-conf"
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		if flag == "" {
			from, flag = name, io.Env(name)
		}
	}
	conf, err := torch.ParseAllocConf(flag)
	if err != nil {
		return conf, usageError(fmt.Errorf("%s: %w", from, err))
	}
	return conf, nil
}

// writeConfig writes the best settings that fit as a config file: the files given, then the command line's settings,
// then what has to change.
func (p *planReport) writeConfig(o planOptions) error {
	text := p.snippet()
	if text == "" && p.Fits != nil && !*p.Fits {
		return &exitError{ExitDoesNotFit, errors.New("nothing fits, so no config was written: use a larger --vram or a smaller model")}
	}
	header := "# written by snug plan: " + p.headline() + "\n"
	for _, f := range o.files {
		src, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		header += "\n# from " + filepath.Base(f) + "\n" + strings.TrimRight(string(src), "\n") + "\n"
	}
	given := ""
	for _, g := range o.given {
		if row, ok := config.Lookup(g.key); ok && row.Group != "snug" { // train.py knows none of snug's own
			given += g.key + " = " + config.Python(row.Value(&o.config)) + "\n"
		}
	}
	if given != "" {
		header += "\n# from the command line\n" + given
	}
	return writeAside(o.write, []byte(header+"\n"+text))
}

// writeAside writes a file whole or not at all.
func writeAside(path string, data []byte) error {
	if err := durable.WriteFile(path, data); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
