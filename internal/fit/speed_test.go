package fit

import (
	"math"
	"testing"
)

// nanoGPT's measured speeds on an H200 (driver 580.159.04, torch 2.11.0+cu130, November 2026, one run alone on the card).
// The model is an estimate: within a tenth of each.
func TestSpeedAgainstMeasuredRuns(t *testing.T) {
	target := OnCard(card(t, "h200"))
	for _, c := range []struct {
		batch, accumulation int
		compile             bool
		tokensPerSecond     float64
	}{
		{4, 16, false, 228_000},
		{4, 128, true, 346_000},
		{8, 64, true, 463_000},
		{12, 40, true, 486_000},
		{64, 8, true, 535_000},
	} {
		o := try(t, setup(t, map[string]any{"batch_size": c.batch, "gradient_accumulation_steps": c.accumulation, "compile": c.compile}), target)
		got := o.TokensPerSecond()
		ratio := got / c.tokensPerSecond
		t.Logf("b=%d x %d compile=%v: %.0f tok/s estimated, %.0f measured: %.2f", c.batch, c.accumulation, c.compile, got, c.tokensPerSecond, ratio)
		if !(math.Abs(ratio-1) <= 0.1) {
			t.Errorf("b=%d x %d compile=%v: the estimate is %.2f of the measured speed", c.batch, c.accumulation, c.compile, ratio)
		}
	}
}
