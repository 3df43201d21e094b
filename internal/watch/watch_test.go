package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/term"
	"github.com/snugml/snug/internal/units"
)

const trainer = 4_200_001 // gputest.One's training process

func terminal(width int) *term.Stream {
	return &term.Stream{Writer: &bytes.Buffer{}, TTY: true, Width: width, UTF8: true}
}

// grown is gputest.One over n seconds, its trainer's memory (in MiB) a function of the second.
func grown(t *testing.T, n int, memory func(second int) units.Bytes) *State {
	t.Helper()
	s := &State{}
	for i := range n {
		m := gputest.One()
		m.Cards[0].Compute[0] = gputest.Holding(trainer, memory(i)*units.MiB)
		m.Cards[0].Memory.Free = m.Cards[0].Memory.Total - m.Cards[0].Memory.Reserved - (memory(i)+2624)*units.MiB
		now, err := m.Snapshot(gputest.Noon.Add(time.Duration(i) * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		s.Add(now, nil, nil)
	}
	return s
}

func TestLeak(t *testing.T) {
	for name, c := range map[string]struct {
		seconds int
		memory  func(second int) units.Bytes
		want    bool
	}{
		"steady":                 {600, func(int) units.Bytes { return 7000 }, false},
		"creeps":                 {300, func(s int) units.Bytes { return 4000 + units.Bytes(s)*2 }, true},
		"creeps in a saw":        {300, func(s int) units.Bytes { return 4000 + units.Bytes(s)*3 + units.Bytes(s%7)*200 }, true},
		"saw":                    {300, func(s int) units.Bytes { return 4000 + units.Bytes(s%30)*20 }, false},
		"grows, then stands":     {300, func(s int) units.Bytes { return 4000 + 30*units.Bytes(min(s, 150)) }, false},
		"too short to say":       {60, func(s int) units.Bytes { return 4000 + units.Bytes(s)*20 }, false},
		"a little noise upwards": {300, func(s int) units.Bytes { return 4000 + units.Bytes(s)/20 }, false},
		"one step":               {300, func(s int) units.Bytes { return 4000 + 1000*units.Bytes(s/200) }, false},
		"hours":                  {8000, func(s int) units.Bytes { return 100 + units.Bytes(s) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := false
			for _, f := range grown(t, c.seconds, c.memory).Flags() {
				if f.Kind == "leak" {
					got = true
					if f.PID != trainer {
						t.Errorf("flag %+v, want pid %d", f, trainer)
					}
				}
			}
			if got != c.want {
				t.Errorf("leak flagged: %v, want %v", got, c.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestRunFlags(t *testing.T) {
	gib := units.GiB
	for name, c := range map[string]struct {
		run  runs.Run
		want string
	}{
		"as predicted":                      {runs.Run{Predicted: ptr(7 * gib)}, ""},
		"far above the plan":                {runs.Run{Predicted: ptr(5 * gib)}, "fragmentation"},
		"reserved above allocated":          {runs.Run{Allocated: ptr(4 * gib), Reserved: ptr(6 * gib)}, "fragmentation"},
		"reserved a little above allocated": {runs.Run{Allocated: ptr(4 * gib), Reserved: ptr(5 * gib)}, ""},
		"little memory, large ratio":        {runs.Run{Allocated: ptr(100 * units.MiB), Reserved: ptr(300 * units.MiB)}, ""},
		"a slow step":                       {runs.Run{StepSeconds: ptr(0.9), UsualStep: ptr(0.3)}, "slow"},
		"a usual step":                      {runs.Run{StepSeconds: ptr(0.35), UsualStep: ptr(0.3)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := grown(t, 1, func(int) units.Bytes { return 7208 })
			c.run.Processes = []int{trainer}
			s.Runs = []runs.Run{c.run}
			flags := s.Flags()
			if c.want == "" && len(flags) > 0 || c.want != "" && (len(flags) != 1 || flags[0].Kind != c.want) {
				t.Errorf("%+v, want %q", flags, c.want)
			}
		})
	}
}

func TestFullAndLostAreFlagged(t *testing.T) {
	s := grown(t, 1, func(int) units.Bytes { return 9300 })
	if f := s.Flags(); len(f) != 1 || f[0].Kind != "full" {
		t.Errorf("%+v", f)
	}
	now, err := gputest.Lost().Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	s.Add(now, nil, nil)
	if f := s.Flags(); len(f) != 1 || f[0].Kind != "fault" {
		t.Errorf("%+v", f)
	}
}

// full is a state with everything in it: history, a run, flags.
func full(t *testing.T) *State {
	s := grown(t, 240, func(i int) units.Bytes { return 5000 + units.Bytes(i)*10 })
	s.Runs = []runs.Run{{
		Processes: []int{trainer}, Command: "python train.py config/train_gpt2.py --batch_size=8 --gradient_accumulation_steps=64", Attempt: 2,
		Iteration: ptr(int64(1250)), Loss: ptr(3.2104), StepSeconds: ptr(0.912), UsualStep: ptr(0.31), Predicted: ptr(8 * units.GiB), Measured: ptr(7 * units.GiB),
	}}
	return s
}

func TestViews(t *testing.T) {
	machines := gputest.Machines()
	delete(machines, "empty")
	for _, size := range [][2]int{{80, 24}, {120, 40}} {
		states := map[string]*State{"run": full(t)}
		for name, m := range machines {
			now, err := m.Snapshot(gputest.Noon)
			if err != nil {
				t.Fatal(err)
			}
			states[name] = &State{}
			states[name].Add(now, nil, nil)
		}
		for name, s := range states {
			m := NewMonitor(context.Background(), Source{}, time.Second, terminal(80), *s)
			m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
			text := m.View().Content
			lines := strings.Split(text, "\n")
			if len(lines) != size[1] {
				t.Errorf("%s at %v: %d lines", name, size, len(lines))
			}
			for _, line := range lines {
				if w := term.Width(line); w > size[0] {
					t.Errorf("%s at %v: %d columns: %q", name, size, w, line)
				}
			}
			golden(t, fmt.Sprintf("%s-%dx%d", name, size[0], size[1]), text)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if os.Getenv("SNUG_UPDATE") != "" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || got+"\n" != string(want) {
		t.Errorf("%s (%v):\n%s\nwant:\n%s", path, err, got, want)
	}
}

// No size is too small: nothing is wider than the screen, nothing panics.
func TestSmallScreens(t *testing.T) {
	s := full(t)
	for width := 20; width < 90; width += 7 {
		for height := 1; height < 30; height++ {
			for _, line := range s.Lines(terminal(width), height) {
				if w := term.Width(line); w > width {
					t.Fatalf("%dx%d: %d columns: %q", width, height, w, line)
				}
			}
			if n := len(s.Lines(terminal(width), height)); n > height {
				t.Fatalf("%dx%d: %d lines", width, height, n)
			}
		}
	}
}

// broken fails as a driver does that hangs, then answers again.
type broken struct{ left int }

func (b *broken) Snapshot(context.Context) (gpu.Snapshot, error) {
	if b.left > 0 {
		b.left--
		return gpu.Snapshot{}, errors.New("ask the GPU driver: no answer in 20s")
	}
	return gputest.One().Snapshot(gputest.Noon)
}

func TestMonitorGoesOnAfterAFailure(t *testing.T) {
	first := grown(t, 2, func(int) units.Bytes { return 7208 })
	m := NewMonitor(context.Background(), Source{Prober: &broken{1}, Runs: func() []runs.Run { return nil }}, time.Second, terminal(80), *first)
	_, cmd := m.Update(tick{})
	m.Update(cmd())
	if text := m.View().Content; !strings.Contains(text, "no answer in 20s") || !strings.Contains(text, "GeForce RTX 3060") {
		t.Errorf("the failure, and what was known before:\n%s", text)
	}
	_, cmd = m.Update(tick{})
	m.Update(cmd())
	if text := m.View().Content; strings.Contains(text, "no answer") {
		t.Errorf("still failed:\n%s", text)
	}
}

func TestKeys(t *testing.T) {
	m := NewMonitor(context.Background(), Source{Prober: &broken{0}, Runs: func() []runs.Run { return nil }}, time.Second, terminal(80), State{})
	m.Update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	if !m.paused || !strings.Contains(m.View().Content, "paused") {
		t.Error("space doesn't pause")
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: tea.KeyEscape}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := m.Update(key)
		if cmd == nil {
			t.Errorf("%s doesn't quit", key)
			continue
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s doesn't quit", key)
		}
	}
}
