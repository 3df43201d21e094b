package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/torch"
	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/train"
	"github.com/snugml/snug/internal/units"
)

// doctorOptions is what `snug doctor` was asked.
type doctorOptions struct {
	log      string   // a file, "-" for stdin, "" for the embedded example
	files    []string // config files
	settings *settings
	gpu      string
	lang     i18n.Lang
	markdown bool
	json     bool
	apply    bool
	fix      int // row to apply, from 1; 0 is the best
	patch    string
}

func newDoctor(io *term.IO) *cobra.Command {
	var o doctorOptions
	var lang string
	cmd := &cobra.Command{
		Use:   "doctor [LOG | -] [CONFIG.py…] [--key=value…]",
		Short: "Explain a run that ran out of memory, and what mends it",
		Long: "doctor reads what a failed training printed and says which tensor did not fit, in which phase and why, and what to\n" +
			"change: each change simulated on the card as it was. What the log does not tell of the settings comes from config\n" +
			"files and flags. Without a log it explains an example. It changes nothing unless --apply or --fix asks for it.",
		Example: "  snug doctor train.log\n  python train.py 2>&1 | tee train.log; snug doctor train.log config/train_gpt2.py\n" +
			"  snug doctor train.log config/train_gpt2.py --apply\n  snug doctor --patch=train.py train.log",
	}
	o.settings = addSettings(cmd, config.Doctor)
	cmd.Flags().StringVar(&o.gpu, "gpu", "", "the card it ran on, such as \"rtx 3060\", where the log does not tell")
	cmd.Flags().StringVar(&lang, "lang", "", "language of the report: en, de, zh, ja or hi; unset is LC_ALL's or LANG's")
	offer(cmd, "lang", "en", "de", "zh", "ja", "hi")
	cmd.Flags().BoolVar(&o.markdown, "markdown", false, "print the report as Markdown")
	cmd.Flags().BoolVar(&o.apply, "apply", false, "write the best fix into the config file, or print its command line")
	cmd.Flags().IntVar(&o.fix, "fix", 0, "apply row `N` of the fixes instead of the best")
	cmd.Flags().StringVar(&o.patch, "patch", "", "print a diff of train.py's own lines that cost memory; `FILE` is train.py")
	cmd.Flags().Lookup("patch").NoOptDefVal = "train.py"
	cmd.ValidArgsFunction = nil
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if o.lang, err = i18n.Choose(lang, io.Env); err != nil {
			return usageError(err)
		}
		if o.fix < 0 {
			return usageError(fmt.Errorf("--fix=%d: rows count from 1", o.fix))
		}
		o.json = wantJSON(cmd)
		if err := o.arguments(args); err != nil {
			return err
		}
		return runDoctor(cmd.Context(), io, o)
	}
	return cmd
}

// arguments tells the log from config files.
func (o *doctorOptions) arguments(args []string) error {
	for i, a := range args {
		switch {
		case o.patch != "" && filepath.Base(a) == "train.py": // --patch train.py
			o.patch = a
		case strings.HasSuffix(a, ".py"):
			o.files = append(o.files, a)
		case i == 0:
			o.log = a
		default:
			return usageError(fmt.Errorf("%q is a second log: give one log, then config files that end in .py", a))
		}
	}
	return nil
}

func runDoctor(ctx context.Context, io *term.IO, o doctorOptions) error {
	debug.SetGCPercent(400) // a short life: a fifth of it went into collecting some 20 MB
	log, err := o.read(io)
	if err != nil {
		return err
	}
	d, err := o.diagnose(log)
	if err != nil {
		return err
	}
	if d == nil {
		return o.nothing(io, log)
	}
	planSnug(d)
	switch {
	case o.patch != "":
		return o.printPatch(io, d)
	case o.apply || o.fix > 0:
		return o.applyFix(io, d)
	case o.json:
		return writeJSON(io.Out, doctorJSON(d, o.lang))
	}
	return o.report(io.Out, d, o.holders(ctx, d))
}

// read reads the log: a file, stdin, or the example.
func (o *doctorOptions) read(io *term.IO) (*oom.Log, error) {
	var src readerCloser = nopCloser{bytes.NewReader(oom.Example)}
	switch o.log {
	case "":
	case "-":
		src = nopCloser{io.In}
	default:
		f, err := os.Open(o.log)
		if err != nil {
			return nil, usageError(fmt.Errorf("read the log: %w", err))
		}
		src = f
	}
	defer src.Close()
	log, err := oom.Read(src)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	return log, nil
}

type readerCloser interface {
	io.Reader
	Close() error
}

type nopCloser struct{ io.Reader }

func (nopCloser) Close() error { return nil }

// diagnose gives the log the settings it does not tell, and the card.
func (o *doctorOptions) diagnose(log *oom.Log) (*oom.Diagnosis, error) {
	c := oom.Case{Log: log}
	if own := log.Run.Config(); own != nil || len(o.files) > 0 || len(o.settings.overrides) > 0 {
		cfg := config.DefaultFor(config.Doctor)
		for _, path := range o.files {
			if err := cfg.LoadFile(path); err != nil {
				return nil, usageError(err)
			}
		}
		log.Run.Apply(&cfg)
		for _, s := range o.settings.overrides {
			if err := cfg.SetLiteral(s.key, s.text); err != nil {
				return nil, usageError(err)
			}
		}
		if err := cfg.Check(); err != nil {
			return nil, usageError(err)
		}
		if err := resolveVocabulary(&cfg); err != nil {
			return nil, err
		}
		c.Config = &cfg
		c.Options = torch.Options{WorldSize: max(1, log.Run.Ranks), DDP: log.Run.Ranks > 1}
	}
	target, err := o.target(log)
	if err != nil {
		return nil, err
	}
	c.Target = target
	return oom.Diagnose(c), nil
}

// target is the card the run failed on: as named, as the log names it, or as its memory suggests.
func (o *doctorOptions) target(log *oom.Log) (fit.Target, error) {
	if o.gpu != "" {
		card, err := gpu.Match(o.gpu)
		if err != nil {
			return fit.Target{}, usageError(err)
		}
		return fit.OnCard(card), nil
	}
	var total units.Bytes
	if f := log.Failure(); f != nil && f.Facts.Total != nil {
		total = *f.Facts.Total
	}
	if card, ok := gpu.ForDevice(log.Run.GPUName, total); ok {
		return fit.OnCard(card), nil
	}
	if total > 0 {
		return fit.Within(total), nil
	}
	card, err := gpu.Match(standIn)
	return fit.Target{Card: card, Assumed: true}, err
}

// planSnug gives the row of snug train its figure: what snug's own engine takes for the run's settings inside what this
// process could have had. It plans the micro-batch that PyTorch would get, and the smallest where that does not fit:
// snug train itself looks for the fastest. The context and cuBLASLt's workspace are not in it.
func planSnug(d *oom.Diagnosis) {
	i := slices.IndexFunc(d.Fixes, func(f oom.Fix) bool { return f.Kind == "snug_train" })
	if i < 0 {
		return
	}
	f := &d.Fixes[i]
	outcome, _ := d.Simulated()
	c := *d.Config
	policy := train.DTypes(trace.DType(c.DType))
	micro := c.BatchSize
	if best := bestFix(d); best >= 0 {
		if b, ok := d.Fixes[best].Changes["batch_size"].(int); ok {
			micro = b
		}
	}
	for _, try := range []struct {
		micro     int
		recompute string
	}{{micro, "none"}, {1, "block"}} {
		c.MicroBatch, c.Recompute = try.micro, try.recompute
		_, layout, none := train.Choose(gpt.Model(c.Model()), &c, policy, train.GPUCosts(0), func(*program.Op) units.Bytes { return 0 }, d.Room)
		if none != nil {
			continue
		}
		f.Peak = &fit.Peak{Phase: "step", Allocated: layout.Size, Reserved: layout.Size, Process: layout.Size + outcome.Context}
		f.EffectiveBatch = c.EffectiveBatch()
		if d.Room > 0 {
			fits := true
			f.Fits = &fits
		}
		return
	}
	d.Fixes = slices.Delete(d.Fixes, i, i+1)
}

// holders are the processes on this machine's card, when the log may be of it and others held its memory.
func (o *doctorOptions) holders(ctx context.Context, d *oom.Diagnosis) []string {
	f := d.Failure.Facts
	if o.log == "" || f.Total == nil || f.GPU == nil || !hasKind(d, "free_card") {
		return nil
	}
	probe, err := newProbe()
	if err != nil {
		return nil
	}
	defer probe.Close()
	s, err := probe.Snapshot(ctx)
	if err != nil {
		return nil
	}
	var list []string
	for _, device := range s.Devices {
		if off := device.Total - *f.Total; device.Index != *f.GPU || max(off, -off) > *f.Total/50 {
			continue
		}
		for _, p := range device.Processes {
			memory := "?"
			if p.Memory != nil {
				memory = o.lang.GiB(*p.Memory)
			}
			list = append(list, fmt.Sprintf("%s (PID %d, %s)", orUnknown(p.Command), p.PID, memory))
		}
	}
	return list
}

// nothing says that the log holds no memory failure (exit 1).
func (o *doctorOptions) nothing(io *term.IO, log *oom.Log) error {
	if o.json {
		phase, detail := log.Ends().Coarse()
		out := map[string]any{"facts": nil, "phase": phase, "cause": nil, "lines": log.Lines}
		if detail != "" {
			out["phase_detail"] = detail
		}
		if err := writeJSON(io.Out, out); err != nil {
			return err
		}
		return &exitError{code: ExitFailed}
	}
	m := i18n.M("problem.none", "lines", log.Lines)
	if phase := log.Ends(); phase != oom.UnknownPhase {
		m = i18n.M("problem.cut", "lines", log.Lines, "phase", phase.Words())
	}
	return &exitError{ExitFailed, errors.New(o.lang.Text(m))}
}

// doctorJSON is the result as DESIGN has it, with the budget and what is still unknown beside.
func doctorJSON(d *oom.Diagnosis, l i18n.Lang) any {
	type cause struct {
		Cause    oom.Cause `json:"cause"`
		Evidence string    `json:"evidence"`
	}
	type fix struct {
		Kind           string            `json:"kind"`
		Changes        map[string]any    `json:"changes"`
		Env            map[string]string `json:"env,omitempty"`
		Patch          bool              `json:"patch,omitempty"`
		EffectiveBatch *int              `json:"effective_batch"`
		Peak           *fit.Peak         `json:"peak"`
		Fits           *bool             `json:"fits"`
		RelativeSpeed  *float64          `json:"relative_speed"`
		Why            string            `json:"why"`
	}
	var causes []cause
	for _, f := range d.Causes {
		causes = append(causes, cause{f.Cause, l.Value(f.Evidence)})
	}
	fixes := []fix{}
	for _, f := range d.Fixes {
		out := fix{Kind: f.Kind, Changes: f.Changes, Env: f.Env, Patch: f.Patch, Peak: f.Peak, Fits: f.Fits, Why: l.Text(f.Do) + ": " + l.Text(f.Effect)}
		if f.EffectiveBatch > 0 {
			out.EffectiveBatch = &f.EffectiveBatch
		}
		if f.Speed > 0 {
			out.RelativeSpeed = &f.Speed
		}
		fixes = append(fixes, out)
	}
	var settings map[string]any
	if d.Config != nil {
		settings = d.Config.Map(config.Doctor)
	}
	asks := []string{}
	for _, m := range d.Asks() {
		asks = append(asks, l.Text(m))
	}
	phase, detail := d.Phase.Coarse()
	return struct {
		Facts   oom.Facts      `json:"facts"`
		Phase   oom.Phase      `json:"phase"`
		Detail  oom.Phase      `json:"phase_detail,omitempty"`
		Likely  bool           `json:"phase_guessed"` // by the words of the log; nothing in it shows the phase
		Cause   oom.Cause      `json:"cause"`
		Tensor  oom.Tensor     `json:"tensor"`
		Config  map[string]any `json:"config"`
		Causes  []cause        `json:"causes"`
		Fixes   []fix          `json:"fixes"`
		Budget  oom.Budget     `json:"budget"`
		Unknown []string       `json:"unknown"`
		Line    int64          `json:"line"` // where in the log the message stands
	}{d.Failure.Facts, phase, detail, d.Guessed(), d.Cause(), d.Tensor, settings, causes, fixes, d.Budget, asks, d.Failure.Line}
}
