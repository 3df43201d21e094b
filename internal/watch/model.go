package watch

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
)

// Source is where a monitor's figures come from.
type Source struct {
	Prober gpu.Prober
	Runs   func() []runs.Run
}

// Read takes the next snapshot into s.
func (src Source) Read(ctx context.Context, s *State) error {
	now, err := src.Prober.Snapshot(ctx)
	s.Add(now, src.Runs(), err)
	return err
}

// Monitor is the live view: a bubbletea program over a Source.
type Monitor struct {
	ctx      context.Context
	source   Source
	interval time.Duration
	out      term.Stream
	height   int
	state    State
	paused   bool
}

// NewMonitor draws on a terminal like out, a snapshot every interval. The state has the first snapshot.
func NewMonitor(ctx context.Context, src Source, interval time.Duration, out *term.Stream, first State) *Monitor {
	return &Monitor{ctx: ctx, source: src, interval: interval, out: *out, height: 24, state: first}
}

// reading is a snapshot on its way to Update.
type reading struct {
	now  gpu.Snapshot
	runs []runs.Run
	err  error
}

type tick struct{}

func (m *Monitor) read() tea.Msg {
	now, err := m.source.Prober.Snapshot(m.ctx)
	return reading{now, m.source.Runs(), err}
}

func (m *Monitor) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return tick{} })
}

// Init starts the clock.
func (m *Monitor) Init() tea.Cmd { return m.wait() }

// Update takes a key, a size, or a snapshot. The next tick waits for the snapshot, so a slow driver is not flooded.
func (m *Monitor) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.out.Width, m.height = max(20, msg.Width), msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "space", "p":
			m.paused = !m.paused
		}
	case tick:
		if m.paused {
			return m, m.wait()
		}
		return m, m.read
	case reading:
		m.state.Add(msg.now, msg.runs, msg.err)
		return m, m.wait()
	}
	return m, nil
}

// View draws the whole screen.
func (m *Monitor) View() tea.View {
	footer := "q quit  space pause  every " + m.interval.String()
	if m.paused {
		footer = m.out.Paint(term.Yellow, "paused") + "  space goes on  q quit"
	}
	lines := m.state.Lines(&m.out, max(3, m.height-1))
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	v := tea.NewView(strings.Join(append(lines, m.out.Paint(term.Dim, footer)), "\n"))
	v.AltScreen = true
	v.WindowTitle = "snug watch"
	return v
}
