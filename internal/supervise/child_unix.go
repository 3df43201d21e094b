//go:build unix

package supervise

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

const ptySupported = true

// Forwarded are the signals that go on to the trainer. What snug was started to ignore (nohup, a job in the background of
// a script) it and the trainer ignore.
func Forwarded() []os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}
	return slices.DeleteFunc(all, signal.Ignored)
}

// KeepOnBrokenPipe makes a write to a closed stdout or stderr an error, where it would end this process: the trainer meets
// the broken pipe as it would without snug, and how it ended is still told. The trainer's own handling is not changed.
func KeepOnBrokenPipe() (restore func()) {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	return func() { signal.Stop(broken) }
}

// Raise ends this process by the signal that ended the trainer, so that a shell sees what it would have seen. It returns
// for signals that would leave a core file of snug's own: those are told by the exit code alone.
func Raise(number int) {
	s := syscall.Signal(number)
	if s != syscall.SIGINT && s != syscall.SIGTERM && s != syscall.SIGHUP {
		return
	}
	signal.Reset(s)
	if syscall.Kill(os.Getpid(), s) == nil {
		time.Sleep(time.Second) // until it arrives
	}
}

func isResize(s os.Signal) bool { return s == syscall.SIGWINCH }

// ends says whether a signal is meant to end the run.
func ends(s os.Signal) bool {
	return s != syscall.SIGUSR1 && s != syscall.SIGUSR2 && s != syscall.SIGWINCH
}

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// startPTY gives the trainer a terminal of its own, as large as the person's, in a session of its own. The person's
// terminal goes raw, so that Ctrl-C and all other keys reach the trainer's terminal, whose own discipline acts on them.
func startPTY(cmd *exec.Cmd, streams Streams, see io.Writer) (*child, error) {
	if in, ok := streams.In.(*os.File); ok {
		cmd.Stdin = in
	}
	size, err := pty.GetsizeFull(streams.Terminal)
	if err != nil {
		size = &pty.Winsize{Rows: 24, Cols: 80}
	}
	// The controlling terminal is taken from the child's descriptor 1: its 0 may be a file.
	master, err := pty.StartWithAttrs(cmd, size, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 1})
	if err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, ended: make(chan exit, 1), onExit: func() {}, resize: func() {
		if s, err := pty.GetsizeFull(streams.Terminal); err == nil {
			_ = pty.Setsize(master, s) // it fails once the pty is closed, when no size matters
		}
	}}
	if keys, ok := streams.In.(*Keys); ok {
		c.onExit = keys.into(master)
	}
	go c.wait([]*os.File{master}, []io.Writer{pair{streams.Out, see}})
	return c, nil
}

// Keys reads a person's terminal for one trainer after another: the reader in flight must not swallow the next one's keys.
type Keys struct {
	file *os.File

	mu      sync.Mutex
	to      io.Writer
	started bool
	stopped bool // Ctrl-C or Ctrl-\ was typed: the run is not restarted
}

// NewKeys takes over a terminal's input.
func NewKeys(file *os.File) *Keys { return &Keys{file: file} }

// Read is not for use: Keys passes what it reads to the trainer's pty.
func (k *Keys) Read([]byte) (int, error) { return 0, io.EOF }

// into sends keys to w, with the terminal raw, until the returned function is called.
func (k *Keys) into(w io.Writer) (restore func()) {
	state, err := term.MakeRaw(int(k.file.Fd()))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.to = w
	if !k.started {
		k.started = true
		go k.read()
	}
	return func() {
		k.mu.Lock()
		k.to = nil
		k.mu.Unlock()
		if err == nil {
			_ = term.Restore(int(k.file.Fd()), state) // the terminal is gone if it fails
		}
	}
}

func (k *Keys) read() {
	buffer := make([]byte, 1024)
	for {
		n, err := k.file.Read(buffer)
		k.mu.Lock()
		for _, b := range buffer[:n] {
			k.stopped = k.stopped || b == 0x03 || b == 0x1c
		}
		if k.to != nil {
			_, _ = k.to.Write(buffer[:n]) // a trainer that has ended takes no keys
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (k *Keys) interrupted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stopped
}

// signal sends s to the trainer's process group.
func (c *child) signal(s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-c.cmd.Process.Pid, n) // ESRCH: it has just ended
	}
}

// groupAlive says whether any process of the trainer's group still runs.
func (c *child) groupAlive() bool { return syscall.Kill(-c.cmd.Process.Pid, 0) == nil }

// sweep ends what a trainer left behind: its group and its descendants in other sessions (torchrun's workers), first
// asked, after grace forced. Memory on the card is only free once they are gone.
func (c *child) sweep(grace time.Duration, descendants []process) {
	c.signal(syscall.SIGTERM)
	for _, p := range descendants {
		p.signal(syscall.SIGTERM)
	}
	deadline := time.Now().Add(grace)
	for c.anyAlive(descendants) && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	c.signal(syscall.SIGKILL)
	for _, p := range descendants {
		p.signal(syscall.SIGKILL)
	}
}

func (c *child) anyAlive(descendants []process) bool {
	if c.groupAlive() {
		return true
	}
	for _, p := range descendants {
		if p.alive() {
			return true
		}
	}
	return false
}

// ending turns the wait's result into an exit.
func ending(cmd *exec.Cmd, err error) exit {
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		return exit{Code: 1, Err: err}
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exit{Code: 128 + int(ws.Signal()), Signal: ws.Signal().String(), Number: int(ws.Signal())}
	}
	return exit{Code: cmd.ProcessState.ExitCode()}
}

// readNow reads what is there, without waiting: os.ErrDeadlineExceeded where there is nothing.
func readNow(f *os.File, p []byte) (n int, err error) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for n, failed = syscall.Read(int(fd), p); failed == syscall.EINTR; n, failed = syscall.Read(int(fd), p) {
		}
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case failed == syscall.EAGAIN:
		return 0, os.ErrDeadlineExceeded
	case failed != nil:
		return 0, failed
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// process is one that was seen running, with its start, so that a reused PID is not taken for it.
type process struct {
	pid   int
	start string
}

func (p process) alive() bool { return startOf(p.pid) == p.start && p.start != "" }

func (p process) signal(s syscall.Signal) {
	if p.alive() {
		_ = syscall.Kill(p.pid, s) // ESRCH: it has just ended
	}
}
