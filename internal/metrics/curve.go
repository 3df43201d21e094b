package metrics

import (
	"bytes"
	"fmt"
	"path/filepath"

	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/plot"
)

// CurveName is the drawing of a run's loss in out_dir.
const CurveName = "loss.svg"

// Chart is the loss of every iteration and the estimates on the validation split.
func (s *Series) Chart(title string) *plot.Chart {
	train, val := plot.Series{Name: "train"}, plot.Series{Name: "val"}
	for _, m := range s.Iters {
		train.X, train.Y = append(train.X, float64(m.Iter)), append(train.Y, float64(m.Loss))
	}
	for _, m := range s.Evals {
		val.X, val.Y = append(val.X, float64(m.Iter)), append(val.Y, float64(m.ValLoss))
	}
	c := &plot.Chart{Title: title, XLabel: "iteration", YLabel: "loss"}
	for _, series := range []plot.Series{train, val} {
		if len(series.X) > 0 {
			c.Series = append(c.Series, series)
		}
	}
	return c
}

// Draw draws dir's metrics.jsonl as loss.svg and returns the chart for a terminal.
func Draw(dir, title string) (*plot.Chart, error) {
	s, err := Read(filepath.Join(dir, Name))
	if err != nil {
		return nil, err
	}
	c := s.Chart(title)
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, CurveName)
	if err := durable.WriteFile(path, b.Bytes()); err != nil {
		return nil, fmt.Errorf("draw %s: %w", path, err)
	}
	return c, nil
}
