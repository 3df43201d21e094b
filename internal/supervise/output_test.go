//go:build unix

package supervise

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// Once the trainer has ended, what it wrote is read however late, and what holds the pipe open is not waited for longer
// than agreed.
func TestOutputAfterTheEnd(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close() // the process that was left
	const text = "the last words of the trainer"
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	o := &output{file: r, left: time.Nanosecond} // past before anything is read
	o.end()
	var got []byte
	piece := make([]byte, 5)
	for {
		n, err := o.Read(piece)
		got = append(got, piece[:n]...)
		if err != nil {
			break
		}
	}
	if string(got) != text {
		t.Errorf("read %q, want %q", got, text)
	}
}

// A Read that waits when the trainer ends is woken, and waits for what is agreed and no more.
func TestOutputIsWoken(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	o := &output{file: r, left: time.Millisecond}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, o)
	}()
	o.end()
	<-done
}

// slow is a pager that stands still until the trainer is gone.
type slow struct {
	buffer
	until func() bool
}

func (s *slow) Write(p []byte) (int, error) {
	for !s.until() {
		time.Sleep(time.Millisecond)
	}
	return s.buffer.Write(p)
}

func TestAPagerThatStandsStillLosesNothing(t *testing.T) {
	st := newStage(t, "fills the pipe", 64)
	pager := &slow{until: func() bool {
		text, err := os.ReadFile("trainer.done")
		return err == nil && len(text) > 0
	}}
	st.Streams.Out = pager
	st.run(t)
	if got := pager.String(); !strings.HasSuffix(got, strings.Repeat("x", 3_000)+"\n") {
		t.Errorf("%d bytes passed, the end is missing", len(got))
	}
}
