package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/supervise"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/torch"
)

type runOptions struct {
	args                 []string
	vram, gpu            string
	retries              int
	noPreflight, noPTY   bool
	ask, dryRun, json    bool
	log, metrics         string
	batchFlag, accumFlag string
	interval             time.Duration
}

// logLimit is the most that a run's log takes on disk.
const logLimit = 1 << 30

func newRun(io *term.IO) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [--flag…] -- python train.py [CONFIG.py…] [--key=value…]",
		Short: "Run a PyTorch trainer that goes on when memory runs out",
		Long: "run plans the command before it starts it, and takes settings that fit where it would not. When the trainer runs out of memory all the\n" +
			"same, it is restarted with smaller batches and the same effective batch, from its newest checkpoint. Output, keys, signals and the exit\n" +
			"code pass through as if snug were not there. nanoGPT (python or torchrun) is simulated; Hugging Face's Trainer and litgpt are known by\n" +
			"their flags, other scripts by --batch-flag and --accum-flag: there memory is learned from the tries.",
		Example: "  snug run -- python train.py config/train_gpt2.py --batch_size=64\n" +
			"  snug run --dry-run --vram=11.69GiB -- python train.py --batch_size=64\n" +
			"  snug run --batch-flag=--bs --accum-flag=--accumulate -- python mine.py --bs=32",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("run needs a command: snug run -- python train.py …"))
			}
			o.args, o.json = args, wantJSON(cmd)
			return runRun(cmd.Context(), io, o)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false) // the trainer's flags are the trainer's
	f.StringVar(&o.vram, "vram", "", "the memory the run may take, such as 11.69GiB; unset is what the GPU has free")
	f.StringVar(&o.gpu, "gpu", "", "the card to plan for where this machine has none, such as \"rtx 3060\"")
	f.IntVar(&o.retries, "retries", 4, "restarts at most")
	f.BoolVar(&o.noPreflight, "no-preflight", false, "start as given, without planning first")
	f.BoolVar(&o.ask, "ask", false, "ask before settings are changed for the start")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be run, and exit")
	f.BoolVar(&o.noPTY, "no-pty", false, "give the trainer pipes even at a terminal")
	f.StringVar(&o.log, "log", "", "keep the output in this `file`; unset is a new one in the user's cache")
	f.StringVar(&o.metrics, "metrics-addr", "", "serve Prometheus metrics at `host:port`")
	f.StringVar(&o.batchFlag, "batch-flag", "", "the script's `flag` for the batch of one step")
	f.StringVar(&o.accumFlag, "accum-flag", "", "the script's `flag` for gradient accumulation")
	f.DurationVar(&o.interval, "interval", time.Second, "`time` between two looks at the GPU")
	return cmd
}

func runRun(ctx context.Context, io *term.IO, o runOptions) error {
	if o.retries < 0 {
		return usageError(fmt.Errorf("--retries=%d: 0 is none", o.retries))
	}
	if o.interval < 100*time.Millisecond {
		return usageError(fmt.Errorf("--interval %v is too short: the least is 100ms", o.interval))
	}
	command, err := supervise.Parse(o.args, o.batchFlag, o.accumFlag)
	if err != nil {
		return usageError(err)
	}
	if command.Trainer != nil {
		if _, err := command.Batch(); err != nil {
			return usageError(err)
		}
	}
	s := &supervise.Supervisor{
		Command: command, Preflight: !o.noPreflight, Retries: o.retries, Env: os.Environ(),
		Say:      func(line string) { io.Err.Line(io.Err.Paint(term.Cyan, "snug:") + " " + line) },
		Interval: o.interval, Grace: 10 * time.Second, Silence: 2 * time.Minute,
	}
	for _, n := range command.Notes {
		s.Say("not planned: " + n)
	}
	probe, err := newProbe()
	if err != nil {
		return err
	}
	defer probe.Close()
	target, err := o.target(ctx, io, s, probe)
	if err != nil {
		return err
	}
	lang, err := i18n.Choose("", io.Env)
	if err != nil {
		return usageError(err)
	}
	s.Explain = explainer(io, lang, command, target)
	first, given, err := s.Plan()
	var none *supervise.DoesNotFitError
	if errors.As(err, &none) {
		return &exitError{ExitDoesNotFit, err}
	}
	if err != nil {
		return err
	}
	if o.dryRun {
		_, err := fmt.Fprintln(io.Out, shellLine(first.Env, command.With(first.Changes)))
		return err
	}
	if o.ask && len(first.Changes)+len(first.Env) > 0 {
		switch agreed, err := askToStart(io); {
		case err != nil:
			return err
		case !agreed:
			return &exitError{ExitFailed, errors.New("not started: the settings that fit were declined (--no-preflight starts as given)")}
		}
	}
	return superviseRun(ctx, io, o, s, first, given)
}

// target finds the device and, for nanoGPT, how to plan for it. A machine without a GPU leaves the run unwatched.
func (o runOptions) target(ctx context.Context, io *term.IO, s *supervise.Supervisor, probe *gpu.Probe) (fit.Target, error) {
	asked := config.Default()
	if o.vram != "" {
		if err := asked.SetLiteral("vram", o.vram); err != nil {
			return fit.Target{}, usageError(err)
		}
	}
	cfg := s.Command.Config
	onGPU := cfg == nil || strings.HasPrefix(cfg.Device, "cuda")
	snapshot, err := probe.Snapshot(ctx)
	live, here := runDevice(snapshot, io.Env("CUDA_VISIBLE_DEVICES"), s.Command)
	if err == nil && onGPU {
		s.Prober, s.Device = probe, live.UUID
	}
	var target fit.Target
	switch {
	case here && o.gpu == "":
		target = fit.Within(live.Total)
		if card, ok := gpu.ForDevice(live.Name, live.Total); ok {
			target = fit.OnCard(card)
		}
		target.Limit = live.Free
		if asked.Vram > 0 {
			target.Limit = min(asked.Vram, live.Total)
		}
	default:
		if target, err = targetFor(ctx, o.gpu, &asked); err != nil {
			return target, err
		}
	}
	s.Limit = target.Limit
	if cfg == nil || !onGPU {
		return target, nil
	}
	if !cfg.IsSet("dtype") && !target.Card.BF16() {
		cfg.DType = "float16" // as train.py chooses
	}
	if err := resolveVocabulary(cfg); err != nil {
		s.Say("not planned: " + err.Error())
		return target, nil
	}
	conf, err := allocConf(io, "")
	if err != nil {
		return target, err
	}
	s.Planner = supervise.Simulated{Target: target, AllocConf: conf}
	return target, nil
}

// runDevice is the device that the run will be on: among those that CUDA_VISIBLE_DEVICES leaves, the one that nanoGPT's
// device names; under torchrun the one with the least free memory of those that its ranks take.
func runDevice(s gpu.Snapshot, only string, c *supervise.Command) (gpu.Device, bool) {
	devices := s.Usable()
	if only != "" {
		var kept []gpu.Device
		for _, want := range strings.Split(only, ",") {
			for _, d := range devices {
				if d.Label() == strings.TrimSpace(want) || d.UUID != "" && strings.HasPrefix(d.UUID, strings.TrimSpace(want)) {
					kept = append(kept, d)
				}
			}
		}
		devices = kept
	}
	first, count := 0, max(1, c.World/max(1, c.Nodes))
	if c.Config != nil {
		if _, err := fmt.Sscanf(c.Config.Device, "cuda:%d", &first); err != nil {
			first = 0 // plain "cuda" is the first
		}
	}
	if first >= len(devices) {
		return gpu.Device{}, false
	}
	least := devices[first]
	for _, d := range devices[first:min(len(devices), first+count)] {
		if d.Free < least.Free {
			least = d
		}
	}
	return least, true
}

// explainer is the doctor, in three lines.
func explainer(io *term.IO, lang i18n.Lang, command *supervise.Command, target fit.Target) func(*oom.Log) []string {
	return func(log *oom.Log) []string {
		c := oom.Case{Log: log, Target: target, Options: torch.Options{WorldSize: command.World, DDP: command.World > 1}}
		if command.Config != nil {
			cfg := *command.Config
			log.Run.Apply(&cfg)
			c.Config = &cfg
		}
		d := oom.Diagnose(c)
		if d == nil {
			return []string{"the trainer died with the GPU's memory full"}
		}
		w := writer{l: lang, d: d, out: io.Err}
		lines := []string{w.headline(), w.tensor()}
		if causes := w.causes().list; len(causes) > 0 {
			lines = append(lines, causes[0])
		}
		return lines
	}
}

// askToStart asks on stderr and reads the answer from stdin; no answer is no.
func askToStart(io *term.IO) (bool, error) {
	fmt.Fprint(io.Err, "Start with these settings? [Y/n] ")
	line, err := bufio.NewReader(io.In).ReadString('\n')
	if err != nil && line == "" {
		return false, nil
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "" || answer == "y" || answer == "yes", nil
}

// superviseRun runs the trainer to its end and passes its ending on.
func superviseRun(ctx context.Context, io *term.IO, o runOptions, s *supervise.Supervisor, first supervise.Setting, given *supervise.Prediction) error {
	log, err := openLog(o.log)
	if err != nil {
		return err
	}
	s.Log = log
	s.Streams = streams(io, o.noPTY)
	metrics := &supervise.Metrics{}
	if o.metrics != "" {
		stop, err := serveMetrics(o.metrics, metrics, s.Say)
		if err != nil {
			return err
		}
		defer stop()
	}
	dir := runs.Dir(io.Env)
	defer func() { _ = runs.Withdraw(dir, os.Getpid()) }() // a file left behind is swept by the next reader
	s.Publish = func(r runs.Run) {
		metrics.Set(r)
		_ = runs.Publish(dir, r) // a full disk must not end the run
	}
	if s.Prober != nil {
		s.Prober = told{s.Prober, metrics}
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, supervise.Forwarded()...)
	defer signal.Stop(signals)
	s.Signals = signals
	defer supervise.KeepOnBrokenPipe()()
	sum, err := s.Run(ctx, first, given)
	if closed := log.Close(); closed != nil {
		s.Say(closed.Error())
	}
	if err != nil {
		return err
	}
	if o.json {
		line, err := json.Marshal(sum)
		if err != nil {
			return err
		}
		fmt.Fprintf(io.Err, "%s\n", line)
	} else {
		for _, line := range append(sum.Lines(), "log: "+log.Path) {
			s.Say(line)
		}
	}
	if sum.Signal != 0 {
		_ = runs.Withdraw(dir, os.Getpid())
		supervise.Raise(sum.Signal)
	}
	if sum.Exit != 0 {
		return &exitError{code: sum.Exit}
	}
	return nil
}

// told shows every snapshot to the metrics too.
type told struct {
	gpu.Prober
	metrics *supervise.Metrics
}

func (t told) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	s, err := t.Prober.Snapshot(ctx)
	if err == nil {
		t.metrics.SetDevices(s.Devices)
	}
	return s, err
}

// streams are snug's own, with a pty between where a person watches.
func streams(io *term.IO, noPTY bool) supervise.Streams {
	s := supervise.Streams{In: io.In, Out: io.Out.Writer, Err: io.Err.Writer}
	if screen, ok := io.Out.Writer.(*os.File); ok && io.Out.TTY && !noPTY {
		s.Terminal = screen
		if keyboard, ok := io.In.(*os.File); ok && term.IsTerminal(keyboard) {
			s.In = supervise.NewKeys(keyboard)
		}
	}
	return s
}

// openLog starts the log where the user says; left to snug, in the cache, or where that cannot be written among the
// temporary files: a run that needs no log is not refused for one.
func openLog(given string) (*supervise.Log, error) {
	if given != "" {
		return supervise.NewLog(given, logLimit)
	}
	name := fmt.Sprintf("%s-%d.log", time.Now().Format("20060102-150405"), os.Getpid())
	log, err := supervise.NewLog(filepath.Join(runs.Cache(), "logs", name), logLimit)
	if err == nil {
		return log, nil
	}
	log, second := supervise.NewLog(filepath.Join(os.TempDir(), "snug-"+name), logLimit)
	if second != nil {
		return nil, fmt.Errorf("%w: name a log with --log", err)
	}
	return log, nil
}

func serveMetrics(addr string, m *supervise.Metrics, say func(string)) (stop func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, usageError(fmt.Errorf("--metrics-addr=%s: %w", addr, err))
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }() // it ends with ErrServerClosed
	say(fmt.Sprintf("metrics at http://%s/metrics", l.Addr()))
	return func() { _ = server.Close() }, nil
}

// shellLine is a command line that can be pasted into a shell.
func shellLine(env, args []string) string {
	var words []string
	for _, w := range append(append([]string{}, env...), args...) {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}
