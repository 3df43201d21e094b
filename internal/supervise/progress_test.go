package supervise

import (
	"bytes"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/snugml/snug/internal/gpu/gputest"
	"github.com/snugml/snug/internal/runs"
	"github.com/snugml/snug/internal/units"
)

func TestMetrics(t *testing.T) {
	m := &Metrics{}
	loss, iter, limit := 3.25, int64(17), 12*units.GiB
	m.Set(runs.Run{Attempt: 2, Loss: &loss, Iteration: &iter, Limit: &limit})
	s, err := gputest.Lost().Snapshot(gputest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	m.SetDevices(s.Devices)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		"# TYPE snug_run_attempts_total counter\nsnug_run_attempts_total 2\n", "snug_run_restarts_total 1\n", "snug_run_iteration 17\n", "snug_run_loss 3.25\n",
		"snug_run_memory_limit_bytes 12884901888\n", `snug_gpu_memory_used_bytes{gpu="0",uuid="GPU-3060aaaa-0000-0000-0000-000000000001"} 10309599232` + "\n",
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("lacks %q:\n%s", want, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "step_seconds") || strings.Contains(w.Body.String(), `gpu="1"`) {
		t.Errorf("tells what is not known:\n%s", w.Body)
	}
	w = httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 404 {
		t.Errorf("/ answers %d", w.Code)
	}
}

func TestProgress(t *testing.T) {
	clock := time.Unix(0, 0)
	for name, c := range map[string]struct {
		text, want string
	}{
		"nanoGPT":      {"iter 250: loss 3.2104, time 312.04ms, mfu 41.20%\n", "250 3.2104 312.04ms"},
		"NaN":          {"iter 250: loss nan, time 312.00ms, mfu 41.20%\n", "250 NaN 312ms"},
		"Hugging Face": {" 5%|5   | 250/5000 [01:20<25:20,  3.12it/s]\r{'loss': 3.5, 'grad_norm': 1.0, 'epoch': 0.02}\n", "250 3.5 -"},
		"litgpt":       {"Epoch 1 | iter 250 step 31 | loss train: 3.210, val: n/a | iter time: 312.00 ms (step)\n", "250 3.21 312ms"},
		"nothing":      {"loss of signal | 3\n", "- - -"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newProgressReader(func() time.Time { return clock })
			fmt.Fprint(r, c.text)
			n := r.Now()
			got := []string{"-", "-", "-"}
			if n.Iteration != nil {
				got[0] = fmt.Sprint(*n.Iteration)
			}
			if n.Loss != nil {
				got[1] = fmt.Sprint(*n.Loss)
			}
			if n.Step != nil {
				got[2] = n.Step.String()
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s, want %s", s, c.want)
			}
		})
	}
	r := newProgressReader(func() time.Time { return clock })
	for i, ms := range []int{20000, 300, 310, 305, 900} {
		fmt.Fprintf(r, "iter %d: loss 3.2, time %d.00ms, mfu 1%%\n", i, ms)
	}
	if n := r.Now(); *n.Step != 900*time.Millisecond || *n.Usual != 305*time.Millisecond {
		t.Errorf("step %v, usual %v: the first holds the compiler's time", n.Step, n.Usual)
	}
}

// A script that mends a failure by itself and ends later for another reason has not run out of memory.
func TestWentOn(t *testing.T) {
	clock := time.Unix(100, 0)
	r := newProgressReader(func() time.Time { return clock })
	const iter = "iter 3: loss 3.2, time 300.00ms, mfu 1%\n"
	fmt.Fprint(r, iter, outOfMemory)
	fmt.Fprint(r, iter)
	if r.wentOn() {
		t.Error("a line of progress at once: that is Python's buffer, flushed at its end")
	}
	clock = clock.Add(time.Minute)
	if d, failed := r.silentSince(clock); !failed || d != time.Minute {
		t.Errorf("silent for %v, %v", d, failed)
	}
	fmt.Fprint(r, iter)
	if _, failed := r.silentSince(clock); failed || !r.wentOn() {
		t.Error("a line of progress after a minute: it went on")
	}
}

// Two streams never mix inside a line, and nothing is lost.
func TestLinesKeepStreamsApart(t *testing.T) {
	var out bytes.Buffer
	mu := &sync.Mutex{}
	a, b := &lines{mu: mu, to: &out}, &lines{mu: mu, to: &out}
	io.WriteString(a, "one ")
	io.WriteString(b, "two\nand ")
	io.WriteString(a, "line\nrest")
	io.WriteString(b, strings.Repeat("x", longLine))
	a.flush()
	b.flush()
	if want := "two\none line\nand " + strings.Repeat("x", longLine) + "rest"; out.String() != want {
		t.Errorf("%.80q", out.String())
	}
}

func FuzzProgress(f *testing.F) {
	f.Add([]byte("iter 250: loss 3.2104, time 312.04ms, mfu 41.20%\n"))
	f.Add([]byte("\r| 3/4 [\r\n{'loss': inf, x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := newProgressReader(time.Now)
		l := &lines{mu: &sync.Mutex{}, to: r}
		for len(text) > 0 {
			n := min(7, len(text))
			l.Write(text[:n])
			text = text[n:]
		}
		l.flush()
		if s := r.Now().Step; s != nil && *s < 0 {
			t.Errorf("a step of %v", *s)
		}
	})
}
