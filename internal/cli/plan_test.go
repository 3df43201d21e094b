package cli

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/term"
)

// A plan keeps to the width of its terminal, but for the lines that are there to be copied whole.
func TestPlanFitsItsTerminal(t *testing.T) {
	for _, batch := range []int{4, 64} {
		o := planOptions{config: config.Default()}
		o.config.BatchSize, o.config.VocabSize = batch, 50257
		target, err := targetFor(t.Context(), "rtx 3060", &o.config)
		if err != nil {
			t.Fatal(err)
		}
		p, err := torchPlan(&term.IO{Env: func(string) string { return "" }}, o, target)
		if err != nil {
			t.Fatal(err)
		}
		for _, width := range []int{40, 50, 60, 80, 120} {
			out, text := terminal(width)
			if err := p.report(out); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text.String()) {
				if line = strings.TrimRight(line, "\n"); term.Width(line) > width && !strings.HasPrefix(line, "    ") {
					t.Errorf("batch %d on %d columns: %d in %q", batch, width, term.Width(line), line)
				}
			}
		}
	}
}
