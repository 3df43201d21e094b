package gpu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Prober takes snapshots of this machine. Probe is the real one.
type Prober interface {
	Snapshot(context.Context) (Snapshot, error)
}

// Probe asks a child process for snapshots, so that a driver that crashes or hangs takes the child and not snug.
//
// The child runs Serve: it answers each line on its stdin with one line of JSON. It is started on the first question,
// ended by Close, and started anew after it failed. Safe for use from several goroutines, one question at a time.
type Probe struct {
	Command []string      // the child: snug's own path and its hidden command
	Timeout time.Duration // for one answer; NVML's first takes seconds where the driver is not loaded yet

	mu    sync.Mutex
	child *probeChild
}

type probeChild struct {
	cmd    *exec.Cmd
	ask    io.WriteCloser
	answer *bufio.Reader
	errors *strings.Builder
}

// reply is a line of the protocol.
type reply struct {
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Error    string    `json:"error,omitempty"`
	NoDevice bool      `json:"no_device,omitempty"`
	Tried    []string  `json:"tried,omitempty"`
}

// Snapshot asks once. A machine without a GPU is a *NoDeviceError.
func (p *Probe) Snapshot(ctx context.Context) (Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		child, err := startProbe(p.Command)
		if err != nil {
			return Snapshot{}, fmt.Errorf("start the GPU probe: %w", err)
		}
		p.child = child
	}
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	child := p.child
	stop := context.AfterFunc(ctx, func() { child.cmd.Process.Kill() })
	r, err := child.question()
	if stop() && err == nil {
		return r.result()
	}
	p.child = nil
	exit := child.end()
	if ctx.Err() != nil {
		return Snapshot{}, fmt.Errorf("ask the GPU driver: no answer in %v: the driver hangs, see nvidia-smi and dmesg", p.Timeout)
	}
	return Snapshot{}, fmt.Errorf("ask the GPU driver: the probe died (%v): %s", exit, lastLine(child.errors.String(), err))
}

// Close ends the child.
func (p *Probe) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil {
		p.child.ask.Close()
		p.child.end()
		p.child = nil
	}
}

func startProbe(command []string) (*probeChild, error) {
	if len(command) == 0 {
		return nil, errors.New("no command")
	}
	c := &probeChild{cmd: exec.Command(command[0], command[1:]...), errors: &strings.Builder{}}
	c.cmd.Stderr = &limited{w: c.errors, left: 8 << 10}
	var err error
	if c.ask, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.answer = bufio.NewReader(out)
	return c, c.cmd.Start()
}

func (c *probeChild) question() (reply, error) {
	var r reply
	if _, err := io.WriteString(c.ask, "\n"); err != nil {
		return r, err
	}
	line, err := c.answer.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(line, &r)
}

// end reaps the child, which has failed or been told to stop, and says how it ended.
func (c *probeChild) end() error {
	c.cmd.Process.Kill()
	if err := c.cmd.Wait(); err != nil {
		return err
	}
	return errors.New("exit status 0")
}

func (r reply) result() (Snapshot, error) {
	switch {
	case r.NoDevice:
		return Snapshot{}, &NoDeviceError{Reason: r.Error, Tried: r.Tried}
	case r.Error != "":
		return Snapshot{}, fmt.Errorf("ask the GPU driver: %s", r.Error)
	case r.Snapshot == nil:
		return Snapshot{}, errors.New("ask the GPU driver: the probe sent an empty answer")
	}
	return *r.Snapshot, nil
}

// limited keeps the first bytes of a child's stderr and swallows the rest.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.w.Write(p[:n])
	return len(p), nil
}

func lastLine(s string, err error) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return err.Error()
}

// Serve is the child: it opens NVML and answers each line of in with a snapshot, until in ends.
func Serve(in io.Reader, out io.Writer, open func() (NVML, error), facts func(pid int) Facts) error {
	lib, err := open()
	if err == nil {
		defer lib.Close()
	}
	lines := bufio.NewScanner(in)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		if err := encoder.Encode(answer(lib, err, facts)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func answer(lib NVML, opened error, facts func(pid int) Facts) reply {
	var none *NoDeviceError
	if errors.As(opened, &none) {
		return reply{Error: none.Reason, NoDevice: true, Tried: none.Tried}
	}
	if opened != nil {
		return reply{Error: opened.Error()}
	}
	s, err := Take(lib, time.Now(), facts)
	if err != nil {
		return reply{Error: err.Error()}
	}
	if len(s.Devices) == 0 {
		return reply{Error: fmt.Sprintf("the driver %s lists no device", s.Driver), NoDevice: true}
	}
	return reply{Snapshot: &s}
}
