package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/watch"
)

type watchOptions struct {
	once     bool
	json     bool
	interval time.Duration
}

func newWatch(io *term.IO) *cobra.Command {
	var o watchOptions
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Watch the GPUs' memory, their processes and runs, live",
		Long: "watch shows each GPU's memory with its history, load and power, the processes that hold memory, and for each snug run the predicted\n" +
			"memory against the measured. It flags a card that is full, memory that creeps, memory reserved for nothing, and steps that slow down.",
		Example: "  snug watch\n  snug watch --once\n  snug watch --json --interval=5s >> memory.jsonl",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.json = wantJSON(cmd)
			if o.interval < 100*time.Millisecond {
				return usageError(fmt.Errorf("--interval %v is too short: the least is 100ms", o.interval))
			}
			probe, err := newProbe()
			if err != nil {
				return err
			}
			defer probe.Close()
			dir := runs.Dir(io.Env)
			return runWatch(cmd.Context(), io, o, watch.Source{Prober: probe, Runs: func() []runs.Run { return runs.List(dir) }})
		},
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "print once and exit")
	cmd.Flags().DurationVar(&o.interval, "interval", time.Second, "`time` between two looks")
	return cmd
}

func runWatch(ctx context.Context, io *term.IO, o watchOptions, src watch.Source) error {
	var state watch.State
	if err := src.Read(ctx, &state); err != nil {
		return noDevice(err)
	}
	switch {
	case o.json:
		return streamWatch(ctx, io, o, src, &state)
	case o.once:
		for _, line := range state.Lines(io.Out, 0) {
			if _, err := fmt.Fprintln(io.Out, line); err != nil {
				return err
			}
		}
		return nil
	case !io.Out.TTY:
		return usageError(errors.New("watch draws on a terminal, and the output is none: use --once or --json"))
	}
	_, err := tea.NewProgram(watch.NewMonitor(ctx, src, o.interval, io.Out, state), tea.WithContext(ctx), tea.WithInput(io.In), tea.WithOutput(io.Out.Writer)).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// watchReport is one line of `watch --json`.
type watchReport struct {
	gpu.Snapshot
	Runs  []runs.Run   `json:"runs"`
	Flags []watch.Flag `json:"flags"`
	Error string       `json:"error,omitempty"`
}

// streamWatch prints a line of JSON an interval, until interrupted. A look that fails is a line too: a log has no gaps.
func streamWatch(ctx context.Context, io *term.IO, o watchOptions, src watch.Source, state *watch.State) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	encoder := json.NewEncoder(io.Out)
	encoder.SetEscapeHTML(false)
	clock := time.NewTicker(o.interval)
	defer clock.Stop()
	for {
		line := watchReport{Snapshot: state.Now, Runs: append([]runs.Run{}, state.Runs...), Flags: append([]watch.Flag{}, state.Flags()...)}
		if state.Err != nil {
			line.Error = state.Err.Error()
		}
		if err := encoder.Encode(line); err != nil || o.once {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		}
		if err := src.Read(ctx, state); err != nil && ctx.Err() != nil {
			return nil
		}
	}
}
