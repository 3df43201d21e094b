package supervise

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Streams are where the trainer's input comes from and its output goes, untouched.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Terminal *os.File // the terminal that Out is; the trainer then gets a pty of its size. nil: pipes
}

// exit is how a child ended.
type exit struct {
	Code   int    // 128 + n after signal n, as shells say it
	Signal string // "killed", "" for a plain exit
	Number int    // the signal's
	Err    error  // it could not be waited for
}

// child is a running trainer in its own process group.
type child struct {
	cmd    *exec.Cmd
	ended  chan exit // one value, once the leader has ended and its output was read
	onExit func()    // gives the terminal back
	resize func()    // tells the pty the terminal's size
}

// start runs args with every byte of output passed to streams and to see. Platform files say how: startPTY, startPipes.
func start(args, env []string, streams Streams, see func() io.Writer) (*child, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	if streams.Terminal != nil && ptySupported {
		return startPTY(cmd, streams, see())
	}
	return startPipes(cmd, streams, see)
}

// startPipes keeps stdout and stderr apart, as they were without snug.
func startPipes(cmd *exec.Cmd, streams Streams, see func() io.Writer) (*child, error) {
	ownGroup(cmd)
	if in, ok := streams.In.(*os.File); ok {
		cmd.Stdin = in // the very same file: no reader of ours takes bytes that the trainer doesn't
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		outW.Close()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = outW, errW
	err = cmd.Start()
	outW.Close()
	errW.Close()
	if err != nil {
		outR.Close()
		errR.Close()
		return nil, err
	}
	c := &child{cmd: cmd, ended: make(chan exit, 1), onExit: func() {}, resize: func() {}}
	go c.wait([]*os.File{outR, errR}, []io.Writer{pair{streams.Out, see()}, pair{streams.Err, see()}})
	return c, nil
}

// wait copies the outputs until they end, reaps the leader, and sends how it ended.
func (c *child) wait(from []*os.File, to []io.Writer) {
	var copies sync.WaitGroup
	outputs := make([]*output, len(from))
	for i, f := range from {
		outputs[i] = &output{file: f, left: drain}
		copies.Go(func() {
			// A pty ends with an error of its own once its last holder is gone: there is nothing to report.
			_, _ = io.CopyBuffer(to[i], outputs[i], make([]byte, 64<<10))
			f.Close() // where the user's side broke, the trainer's next write must fail too, not block
		})
	}
	err := c.cmd.Wait()
	for _, o := range outputs {
		o.end()
	}
	copies.Wait()
	c.onExit()
	c.ended <- ending(c.cmd, err)
}

// drain is how long more output is waited for after the leader ended, where a process it left holds the pipe open.
const drain = 2 * time.Second

// output is one of the trainer's. All that the trainer wrote is read, however long the user's side takes to accept it (a
// pager, a terminal held by Ctrl-S): only waiting for more is limited once the leader has ended.
type output struct {
	file *os.File

	mu    sync.Mutex
	ended bool
	left  time.Duration // of waiting, once ended
}

// end says that the leader has ended.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	if o.file.SetReadDeadline(time.Now()) != nil { // which wakes a Read that waits
		time.AfterFunc(o.left, func() { o.file.Close() })
	}
}

func (o *output) isEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}

func (o *output) Read(p []byte) (int, error) {
	if !o.isEnded() {
		if n, err := o.file.Read(p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	for {
		if n, err := readNow(o.file, p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || o.left <= 0 {
			return n, err
		}
		began := time.Now()
		_ = o.file.SetReadDeadline(began.Add(o.left)) // end has seen that it can
		n, err := o.file.Read(p)
		o.left -= time.Since(began)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

// pair writes to the user first and to snug's own readers after. The user's stream may be gone (a closed terminal,
// head): that is an error, so that the trainer meets a broken pipe as it would without snug.
type pair struct{ user, see io.Writer }

func (p pair) Write(b []byte) (int, error) {
	n, err := p.user.Write(b)
	p.see.Write(b[:n])
	return n, err
}

// lines turns one stream's bytes into whole lines for a shared reader, so that two streams never mix inside a line.
// A carriage return ends a line too: progress bars redraw with it. Lines over 64 KiB are passed on in pieces.
type lines struct {
	mu   *sync.Mutex
	to   io.Writer
	part []byte
}

const longLine = 64 << 10

func (l *lines) Write(p []byte) (int, error) {
	end := bytes.LastIndexAny(p, "\r\n")
	if end < 0 && len(l.part)+len(p) < longLine {
		l.part = append(l.part, p...)
		return len(p), nil
	}
	if end < 0 {
		end = len(p) - 1
	}
	l.mu.Lock()
	l.to.Write(l.part)
	l.to.Write(p[:end+1])
	l.mu.Unlock()
	l.part = append(l.part[:0], p[end+1:]...)
	return len(p), nil
}

// flush passes an unfinished last line on.
func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to.Write(l.part)
	l.part = nil
}
