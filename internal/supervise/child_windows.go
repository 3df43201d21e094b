package supervise

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"time"
)

// Windows has no pty here, no process groups to signal, and Ctrl-C reaches the trainer through the shared console.
const ptySupported = false

// Forwarded are the signals that snug takes for the trainer's.
func Forwarded() []os.Signal { return []os.Signal{os.Interrupt} }

// KeepOnBrokenPipe does nothing: a broken pipe is an error here.
func KeepOnBrokenPipe() (restore func()) { return func() {} }

// Raise does nothing: there are no signals to end by.
func Raise(int) {}

func isResize(os.Signal) bool { return false }

func ends(os.Signal) bool { return true }

func ownGroup(*exec.Cmd) {}

func startPTY(*exec.Cmd, Streams, io.Writer) (*child, error) {
	return nil, errors.New("start with a pty: not on Windows")
}

// signal does nothing: the console has told the trainer already.
func (c *child) signal(os.Signal) {}

func (c *child) sweep(time.Duration, []process) {
	_ = c.cmd.Process.Kill() // it fails where the trainer has ended by itself
}

// readNow is not asked here: a pipe without deadlines is closed instead.
func readNow(f *os.File, p []byte) (int, error) { return f.Read(p) }

func ending(cmd *exec.Cmd, err error) exit {
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		return exit{Code: 1, Err: err}
	}
	return exit{Code: cmd.ProcessState.ExitCode()}
}

type process struct{ pid int }

func descendants(int) []process { return nil }

// Keys is a terminal's input; without a pty the trainer reads the console itself.
type Keys struct{}

// NewKeys takes nothing over.
func NewKeys(*os.File) *Keys { return &Keys{} }

func (k *Keys) Read([]byte) (int, error) { return 0, io.EOF }

func (k *Keys) interrupted() bool { return false }
