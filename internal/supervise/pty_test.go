//go:build unix

package supervise

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// terminalStage puts a person's terminal between: what they see is read from the stage's out, keys go to the returned file.
func terminalStage(t *testing.T, script string) (st *stage, keys *os.File) {
	t.Helper()
	st = newStage(t, script, 1, "--batch_size=64")
	person, terminal, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { person.Close(); terminal.Close() })
	if err := pty.Setsize(terminal, &pty.Winsize{Rows: 33, Cols: 101}); err != nil {
		t.Fatal(err)
	}
	go io.Copy(&st.out, person)
	st.Streams = Streams{In: NewKeys(terminal), Out: terminal, Err: terminal, Terminal: terminal}
	return st, person
}

func TestPTYHasTheTerminalsSize(t *testing.T) {
	st, _ := terminalStage(t, "looks at its terminal")
	sum := st.run(t)
	waitFor(t, "the size", func() bool { return strings.Contains(st.out.String(), "terminal of 101 x 33") })
	if sum.Exit != 0 || strings.Contains(st.out.String(), "\r\r\n") {
		t.Errorf("exit %d, %q", sum.Exit, &st.out)
	}
}

func TestKeysReachTheTrainer(t *testing.T) {
	st, keys := terminalStage(t, "reads")
	go func() {
		waitFor(t, "the trainer", func() bool { return strings.Contains(st.out.String(), "batch") })
		io.WriteString(keys, "continue\r")
	}()
	st.run(t)
	waitFor(t, "the answer", func() bool { return strings.Contains(st.out.String(), `read "continue\n"`) })
}

// Ctrl-C is a key: the trainer's own terminal makes a signal of it, and the run is not restarted.
func TestCtrlC(t *testing.T) {
	for script, exit := range map[string]int{"waits": 7, "interrupted in failure": 1} {
		st, keys := terminalStage(t, script)
		go func() {
			waitFor(t, "the trainer", func() bool { return strings.Contains(st.out.String(), "ready") })
			keys.Write([]byte{0x03})
		}()
		sum := st.run(t)
		if len(sum.Attempts) != 1 || sum.Exit != exit || sum.Attempts[0].Outcome != Interrupted {
			t.Errorf("%s: %+v", script, sum)
		}
	}
}

// A restart gives the next trainer the terminal: its keys are not swallowed by the reader of the one before.
func TestKeysAfterARestart(t *testing.T) {
	st, keys := terminalStage(t, "reads when it fits")
	st.Env = append(st.Env, "SUPERVISE_FITS=20")
	go func() {
		waitFor(t, "the second trainer", func() bool { return strings.Contains(st.out.String(), "asks") })
		io.WriteString(keys, "yes\r")
	}()
	sum := st.run(t)
	waitFor(t, "the answer", func() bool { return strings.Contains(st.out.String(), `read "yes\n"`) })
	if len(sum.Attempts) != 2 {
		t.Errorf("%d attempts", len(sum.Attempts))
	}
}
