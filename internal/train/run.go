package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/data"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/units"
)

// Device is where a run happens: its executor, what it stores, what it pays, and what it may take.
type Device struct {
	Name   string // as the first line says it: "CPU, amx-bf16, 2 threads"
	Exec   program.Executor
	DTypes gpt.Policy // Weight, Activation and Gradient are read
	Costs  Costs
	Limit  units.Bytes // of the arena; 0 is none
	Notes  []string    // what the user should know of it

	Overhead units.Bytes                 // what the process takes on the device beside the arena
	LimitNow func() (units.Bytes, error) // what Limit would be by now; nil where others cannot take what was free
	Memory   func() (units.Bytes, bool)  // what the device charges the process; nil where nothing does

	calibrate func(m gpt.Model) Costs // nil where Costs need no measuring
}

// CostsOf are what the device pays for running m as c says: measured where that could change the plan.
func (d *Device) CostsOf(m gpt.Model, c *config.Config) Costs {
	if d.calibrate == nil || d.settled(m, c) {
		return d.Costs
	}
	return d.calibrate(m)
}

// Run is a run from its settings to its end. Prepare plans it, Start takes the memory, Loop.Run trains.
type Run struct {
	Loop
	Device Device
	Layout *program.Layout
	Set    *data.Set
	Notes  []string // what the user should know, one line each

	from    *checkpoint.State // what the run begins with; nil from scratch
	started bool              // the run has written its first checkpoint
	mirror  mirror
	free    func() units.Bytes // host memory that may be taken
	unlock  func()
	logs    *logs
}

// Prepare checks the settings, takes out_dir for this run, opens data and checkpoint, and plans the step.
// It takes none of the step's memory.
func Prepare(c config.Config, d Device) (r *Run, err error) {
	r = &Run{Device: d, free: FreeMemory, Loop: Loop{Config: c, Exec: d.Exec, Progress: Start()}}
	r.Notes = append(r.Notes, d.Notes...)
	for _, w := range withoutEffect {
		if c.IsSet(w.key) && w.asked(&c) {
			r.Notes = append(r.Notes, w.key+" has no effect: "+w.says)
		}
	}
	if c.DecayLr && c.LrDecayIters < c.WarmupIters {
		r.Notes = append(r.Notes, fmt.Sprintf("lr_decay_iters %d is less than warmup_iters %d: after the warm-up the learning rate falls to min_lr at once", c.LrDecayIters, c.WarmupIters))
	}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if r.unlock, err = checkpoint.Lock(c.OutDir); err != nil {
		return r, err
	}
	if err := r.openState(); err != nil {
		return r, err
	}
	r.Scale = scalerFor(d.DTypes.Activation, r.Scale)
	m := r.model()
	r.noteModel(m)
	if r.Set, err = data.Open(filepath.Join(c.DataDir, c.Dataset), m.BlockSize); err != nil {
		return r, err
	}
	if m.VocabSize == 0 {
		m.VocabSize = vocabSize(r.Set.Meta)
	}
	for _, split := range []*data.Tokens{r.Set.Train, r.Set.Val} {
		if err := split.Check(m.VocabSize); err != nil {
			return r, err
		}
	}
	if r.Data, err = data.NewSampler(r.Set, data.Order(c.DataOrder), uint64(c.Seed), m.VocabSize); err != nil {
		return r, err
	}
	r.Device.Costs, r.Device.calibrate = d.CostsOf(m, &c), nil
	r.Step, r.Layout, err = Choose(m, &c, d.DTypes, r.Device.Costs, d.Exec.Scratch, d.Limit)
	return r, err
}

// withoutEffect are settings that ask for something which snug does otherwise, and what it does.
var withoutEffect = []struct {
	key   string
	asked func(*config.Config) bool
	says  string
}{
	{"wandb_log", func(c *config.Config) bool { return c.WandbLog }, "snug sends nothing anywhere; metrics.jsonl in out_dir has every iteration, tensorboard_log=True writes event files"},
	{"compile", func(c *config.Config) bool { return c.Compile }, "snug's kernels are compiled already"},
	{"backend", func(c *config.Config) bool { return true }, "a run is one process on one device, so nothing is sent between processes"},
}

// model is the architecture of the run: the checkpoint's where there is one, cropped to block_size as nanoGPT does.
// VocabSize is 0 where the data decides.
func (r *Run) model() gpt.Model {
	c := &r.Config
	if r.from == nil {
		m := gpt.Model(c.Model())
		m.VocabSize = c.VocabSize
		return m
	}
	m := r.from.Model
	m.Dropout = c.Dropout
	if c.IsSet("block_size") {
		m.BlockSize = min(m.BlockSize, c.BlockSize)
	}
	return m
}

// noteModel says which sizes were asked for and yield to the checkpoint's, as nanoGPT forces them.
func (r *Run) noteModel(m gpt.Model) {
	c := &r.Config
	for _, f := range []struct {
		key      string
		own, has any
	}{
		{"n_layer", c.NLayer, m.NLayer},
		{"n_head", c.NHead, m.NHead},
		{"n_embd", c.NEmbd, m.NEmbd},
		{"block_size", c.BlockSize, m.BlockSize},
		{"vocab_size", c.VocabSize, m.VocabSize},
		{"bias", c.Bias, m.Bias},
	} {
		if r.from != nil && c.IsSet(f.key) && f.own != f.has {
			r.Notes = append(r.Notes, fmt.Sprintf("%s=%s has no effect: the checkpoint's is %s", f.key, config.Python(f.own), config.Python(f.has)))
		}
	}
}

func vocabSize(m *data.Meta) int {
	if m != nil {
		return m.VocabSize
	}
	return config.DefaultVocabSize
}

// Start takes the memory that Prepare planned, gives the parameters and AdamW's state their values, and begins the logs;
// report is told what happens. An evaluation alone (eval_only) writes nothing.
func (r *Run) Start(report Reporter) error {
	r.Report = report
	if err := r.load(); err != nil {
		return err
	}
	if taken := r.Exec.Taken(); taken != r.Layout.Size {
		return fmt.Errorf("start: planned %d bytes and took %d", r.Layout.Size, taken)
	}
	if err := r.Exec.Run(r.Step.Init, program.Step{}); err != nil {
		return err
	}
	if err := r.fill(); err != nil || r.Config.EvalOnly {
		return err
	}
	r.Save = r.save
	r.prepareMirror()
	return r.openLogs()
}

// replans is how often a run that finds less memory than it planned with plans again.
const replans = 2

// load takes the arena. Where others took the memory since it was planned, the run is planned again for what is left.
func (r *Run) load() error {
	for tries := 0; ; tries++ {
		err := r.Exec.Load(r.Layout)
		if !errors.Is(err, program.ErrNoMemory) || r.Device.LimitNow == nil || tries == replans {
			return err
		}
		if err := r.replan(); err != nil {
			return err
		}
	}
}

// replan chooses a step that fits what is free now, and notes both. Where the plan fits again it stands.
func (r *Run) replan() error {
	d := &r.Device
	now, err := d.LimitNow()
	if err != nil || now >= r.Layout.Size {
		return err
	}
	lost := fmt.Sprintf("others took memory of the device: the run could have %v when it was planned, it can have %v now", d.Limit, max(now, 0))
	d.Limit = max(now, 1)
	step, layout, err := Choose(r.Step.Model, &r.Config, d.DTypes, d.Costs, r.Exec.Scratch, d.Limit)
	if err != nil {
		return fmt.Errorf("%s: %w", lost, err)
	}
	r.Step, r.Layout = step, layout
	r.Notes = append(r.Notes, fmt.Sprintf("%s: planned again, it takes %v, %d sequences at once", lost, r.Layout.Size, r.Step.Policy.MicroBatch))
	return nil
}

func (r *Run) fill() error {
	if r.from == nil {
		return Initialise(r.Exec, r.Step, uint64(r.Config.Seed))
	}
	defer func() { r.from.Close(); r.from = nil }()
	if err := r.restore(); err != nil {
		return err
	}
	return setWeights(r.Exec, r.Step)
}

// viewer is an executor whose tensors can be read and written in place: host memory holds no second copy of any.
type viewer interface {
	View(id program.ID) []float32
}

// Initialise draws a step's parameters as nanoGPT does.
func Initialise(x program.Executor, s *gpt.Step, seed uint64) error {
	for i, p := range s.Params {
		if err := x.Fill(p.Value(), func(dst []float32, from int) { p.Initial(dst, from, i, seed) }); err != nil {
			return fmt.Errorf("draw %s: %w", p.Name, err)
		}
	}
	return setWeights(x, s)
}

// setWeights gives the weights that products read the parameters' values.
func setWeights(x program.Executor, s *gpt.Step) error {
	if s.Weights < 0 {
		return nil
	}
	return x.Run(s.Weights, program.Step{})
}

// Close gives back what the run holds. The executor is its owner's.
func (r *Run) Close() error {
	var err error
	if r.from != nil {
		err = r.from.Close()
	}
	if r.Set != nil {
		err = errors.Join(err, r.Set.Close())
	}
	if r.logs != nil {
		err = errors.Join(err, r.logs.close())
	}
	if r.unlock != nil {
		r.unlock()
	}
	r.from, r.Set, r.logs, r.unlock = nil, nil, nil, nil
	return err
}

// LastDir is the folder below out_dir for the state of an interrupted run whose out_dir keeps its best checkpoint
// (always_save_checkpoint=False).
const LastDir = "last"

// removeLast forgets the interrupted state of a run that was begun anew.
func removeLast(outDir string) error { return os.RemoveAll(filepath.Join(outDir, LastDir)) }
