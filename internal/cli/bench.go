package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/bench"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/cuda"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/train"
	"github.com/snugml/snug/internal/units"
)

// benchOptions is what `snug bench` was asked.
type benchOptions struct {
	config config.Config
	cuda   cuda.Options
	iters  int
	ops    bool
	graphs bool
	json   bool
}

func newBench(io *term.IO) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [CONFIG.py…] [--key=value…]",
		Short: "Time a training step on the GPU, kernel by kernel",
		Long: "bench runs a configuration's training step on random tokens and says how fast it is: tokens a second, and each kind of op\n" +
			"with its time, its arithmetic and the bytes it moves. It needs no data set and writes nothing.",
		Example: "  snug bench config/train_gpt2.py --vram=11.69GiB\n  snug bench --batch_size=64 --gradient_accumulation_steps=1 --ops",
	}
	s := addSettings(cmd, config.Bench)
	cmd.Flags().IntVar(&o.iters, "iters", 10, "iterations to time")
	cmd.Flags().BoolVar(&o.ops, "ops", true, "list the time of each kind of op")
	cmd.Flags().BoolVar(&o.cuda.OwnBlas, "own-matmul", false, "use snug's own matrix products, not cuBLASLt's")
	cmd.Flags().BoolVar(&o.cuda.Generic, "generic", false, "use the kernels that every card takes")
	cmd.Flags().BoolVar(&o.graphs, "graphs", true, "replay sections as CUDA graphs; without, launch every kernel by itself")
	addSync(cmd, &o.cuda)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		o.cuda.Plain = !o.graphs
		if o.config, err = s.load(args); err != nil {
			return err
		}
		if o.iters < 1 {
			return usageError(fmt.Errorf("--iters must be at least 1, not %d", o.iters))
		}
		o.json = wantJSON(cmd)
		return runBench(io, o)
	}
	return cmd
}

// benchReport is what bench prints.
type benchReport struct {
	Device     string      `json:"device"`
	Driver     int         `json:"cuda"`
	Blas       string      `json:"matmul"`
	Limit      units.Bytes `json:"limit"`
	Process    units.Bytes `json:"process"`
	Arena      units.Bytes `json:"arena"`
	MicroBatch int         `json:"micro_batch"`
	LossChunk  int         `json:"loss_chunk"`
	Recompute  string      `json:"recompute"`
	Gradient   string      `json:"gradient_dtype"`
	Batch      int         `json:"effective_batch"`
	TokensPS   float64     `json:"tokens_per_s"`
	IterMs     float64     `json:"iter_ms"`
	Start      []startPart `json:"start"`
	QueueMs    float64     `json:"queue_ms"`
	EvalMs     float64     `json:"eval_pass_ms"`
	EvalBatch  int         `json:"eval_batch"`
	Graphs     int         `json:"graphs"`
	TFlops     float64     `json:"tflops"`
	Loss       float64     `json:"loss"`
	Ops        []bench.Op  `json:"ops"`
	OpsTotal   float64     `json:"ops_ms"`
	Products   float64     `json:"products_ms"`
}

// startPart is a part of what passes from the command to the end of the first iteration.
type startPart struct {
	Name string  `json:"name"`
	Ms   float64 `json:"ms"`
}

// started names the parts of a start: opening the device, its costs, the plan, and what bench.Run timed.
func started(parts [3]time.Duration, r *bench.Result) (list []startPart) {
	names := []string{"device", "costs", "plan", "memory and algorithms", "weights", "first iteration"}
	for i, d := range append(parts[:], r.Load, r.Weights, r.First) {
		list = append(list, startPart{names[i], float64(d.Microseconds()) / 1e3})
	}
	return list
}

func runBench(io *term.IO, o benchOptions) error {
	c := &o.config
	kind, number, _ := strings.Cut(c.Device, ":")
	if kind != "cuda" {
		return usageError(fmt.Errorf("device %q: bench times a GPU: use cuda or cuda:1", c.Device))
	}
	var parts [3]time.Duration
	began := time.Now()
	lap := func(i int) { parts[i], began = time.Since(began), time.Now() }
	d, e, err := openCUDA(c, number, o.cuda)
	if err != nil {
		return err
	}
	defer e.Close()
	lap(0)
	m := gpt.Model(c.Model())
	costs := d.CostsOf(m, c)
	lap(1)
	step, layout, err := train.Choose(m, c, d.DTypes, costs, e.Scratch, d.Limit)
	if err != nil {
		return trainError(err)
	}
	lap(2)
	r, err := bench.Run(e, step, layout, o.iters, o.ops)
	if err != nil {
		return err
	}
	report := newBenchReport(e, c, step, layout, r)
	report.Start = started(parts, r)
	if o.json {
		return writeJSON(io.Out, report)
	}
	return report.print(io.Out)
}

func newBenchReport(e *cuda.Executor, c *config.Config, s *gpt.Step, l *program.Layout, r *bench.Result) *benchReport {
	return &benchReport{Device: e.Name, Driver: e.Driver, Blas: e.Blas, Limit: c.Vram, Process: r.Process, Arena: l.Size,
		MicroBatch: s.Policy.MicroBatch, LossChunk: s.Policy.LossChunk, Recompute: levels(s.Policy.Recompute), Gradient: string(s.Policy.Gradient), Batch: s.Shape.Batch,
		TokensPS: r.TokensPS(), IterMs: float64(r.Median().Microseconds()) / 1e3, QueueMs: float64(r.Queue.Microseconds()) / 1e3,
		EvalMs: float64(r.Eval.Microseconds()) / 1e3, EvalBatch: s.Policy.EvalBatch, Graphs: r.Graphs,
		TFlops: r.TokensPS() * s.Model.FlopsPerToken() / 1e12, Loss: r.Loss, Ops: r.Ops, OpsTotal: r.OpsTotal, Products: r.Products}
}

// levels names a recompute list by its runs: "5 x ln, 7 x gelu".
func levels(list []gpt.Recompute) string {
	text := ""
	for i := 0; i < len(list); {
		n := i
		for n < len(list) && list[n] == list[i] {
			n++
		}
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d x %v", n-i, list[i])
		i = n
	}
	return text
}

func (r *benchReport) print(out *term.Stream) error {
	fmt.Fprintf(out, "%s, CUDA %d.%d, %s\n", r.Device, r.Driver/1000, r.Driver%1000/10, r.Blas)
	fmt.Fprintf(out, "micro-batch %d of %d, loss chunk %d tokens, recompute %s, gradients %s\n", r.MicroBatch, r.Batch, r.LossChunk, r.Recompute, r.Gradient)
	fmt.Fprintf(out, "arena %v, process %v, limit %v\n", r.Arena, r.Process, r.Limit)
	fmt.Fprintf(out, "%.0f tokens/s, %.2f ms an iteration (queued in %.1f ms), %.0f TFLOP/s; loss %.4f\n",
		r.TokensPS, r.IterMs, r.QueueMs, r.TFlops, r.Loss)
	fmt.Fprintf(out, "%.2f ms a pass of an evaluation, %s; %d sections as graphs\n", r.EvalMs, sequences(r.EvalBatch), r.Graphs)
	text, all := "", 0.0
	for _, p := range r.Start {
		text, all = text+fmt.Sprintf(", %s %.2f s", p.Name, p.Ms/1e3), all+p.Ms
	}
	fmt.Fprintf(out, "start: %.2f s%s\n", all/1e3, text)
	if len(r.Ops) == 0 {
		return nil
	}
	t := &term.Table{Columns: []term.Column{{Title: "op"}, {Title: "count", Align: term.Right}, {Title: "ms", Align: term.Right},
		{Title: "share", Align: term.Right}, {Title: "TFLOP/s", Align: term.Right}, {Title: "GB/s", Align: term.Right}}}
	for _, op := range r.Ops {
		rate := ""
		if op.Flops > 0 {
			rate = fmt.Sprintf("%.0f", op.Flops/op.Ms/1e9)
		}
		t.Add(op.Name, strconv.Itoa(op.Count), fmt.Sprintf("%.3f", op.Ms), fmt.Sprintf("%.1f%%", 100*op.Ms/r.OpsTotal), rate, fmt.Sprintf("%.0f", op.Bytes/op.Ms/1e6))
	}
	t.Add("all", "", fmt.Sprintf("%.3f", r.OpsTotal))
	if err := out.Table(t); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "floor: matmuls and attention alone are %.1f ms, %.0f tokens/s; this run reaches %.0f%% of that\n",
		r.Products, r.TokensPS*r.IterMs/r.Products, 100*r.Products/r.IterMs)
	return err
}
