package supervise

import (
	"fmt"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// Lines says in a few lines how the run went: attempts, what changed, predicted against measured, time lost.
func (s Summary) Lines() []string {
	last := s.Attempts[len(s.Attempts)-1]
	lines := []string{fmt.Sprintf("%s, %s%s", count(len(s.Attempts), "attempt"), howEnded(last), lost(s))}
	if changed := last.Setting.String(); changed != "" {
		text := "changed: " + changed
		if last.Batch != nil && last.Batch.Accum > 0 {
			text += fmt.Sprintf(" (effective batch %d, as given)", last.Batch.Effective())
		}
		lines = append(lines, text)
	}
	if m := memory(last); m != "" {
		lines = append(lines, m)
	}
	return lines
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// howEnded is how the last attempt ended.
func howEnded(a Attempt) string {
	took := units.Duration(a.Took)
	switch a.Outcome {
	case Done:
		return "done in " + took
	case OutOfMemory:
		return "out of memory after " + took
	case Interrupted:
		return "interrupted after " + took
	}
	return fmt.Sprintf("failed (exit %d) after %s, not for memory", a.Exit, took)
}

func lost(s Summary) string {
	if len(s.Attempts) == 1 {
		return ""
	}
	return fmt.Sprintf("; %s of work done again", units.Duration(s.Lost))
}

// memory compares the prediction with what was seen of the process.
func memory(a Attempt) string {
	var parts []string
	if a.Predicted != nil {
		parts = append(parts, "predicted "+a.Predicted.Process.GiB())
	}
	if a.Measured > 0 {
		parts = append(parts, "measured "+a.Measured.GiB())
	}
	if len(parts) == 2 {
		parts = append(parts, fmt.Sprintf("%+.1f %%", 100*(float64(a.Measured)/float64(a.Predicted.Process)-1)))
	}
	if len(parts) == 0 {
		return ""
	}
	return "process memory: " + strings.Join(parts, ", ")
}
