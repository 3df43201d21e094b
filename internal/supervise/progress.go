package supervise

import (
	"bytes"
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Progress is what a trainer prints of itself, as far as it was read.
type Progress struct {
	Iteration *int64
	Loss      *float64
	Step      *time.Duration // the last step that says
	Usual     *time.Duration // the median of the steps before it
}

// progressReader is fed whole lines and keeps the newest figures. Safe for a reader beside the writer.
type progressReader struct {
	mu      sync.Mutex
	now     Progress
	steps   []time.Duration // the newest, at most keptSteps
	spoke   time.Time       // when anything was printed last
	stepped time.Time       // when a line of progress was printed last
	failed  time.Time       // when a line last spoke of memory running out; zero: none did
	trace   bool            // a Python traceback was seen
	clock   func() time.Time
}

const keptSteps = 101

func newProgressReader(clock func() time.Time) *progressReader {
	return &progressReader{spoke: clock(), clock: clock}
}

// progressForms are the lines trainers print; the groups are named for the figures.
var progressForms = []*regexp.Regexp{
	// nanoGPT: iter 250: loss 3.2104, time 312.04ms, mfu 41.20%
	regexp.MustCompile(`^iter (?P<iter>\d+): loss (?P<loss>[-\w.+]+), time (?P<ms>[\d.]+)ms`),
	// litgpt: Epoch 1 | iter 250 step 31 | loss train: 3.210, … iter time: 312.04 ms
	regexp.MustCompile(`\| iter (?P<iter>\d+) step \d+ \| loss train: (?P<loss>[-\w.+]+)(?:.*iter time: (?P<ms>[\d.]+) ms)?`),
	// Hugging Face: {'loss': 3.2104, 'grad_norm': …, 'epoch': 0.02}
	regexp.MustCompile(`\{'loss': '?(?P<loss>[-\w.+]+)'?,`),
	// tqdm, as Hugging Face draws it:  5%|▌  | 250/5000 [01:20<25:20,  3.12it/s]
	regexp.MustCompile(`\| (?P<iter>\d+)/\d+ \[`),
}

var memoryWords = [][]byte{[]byte("out of memory"), []byte("OutOfMemoryError"), []byte("CUDNN_STATUS_ALLOC_FAILED"), []byte("CUBLAS_STATUS_ALLOC_FAILED")}

// newestLines is how many lines of one write are matched: a trainer prints one at a time, and of a flood only the end matters.
const newestLines = 8

// Write takes whole lines.
func (r *progressReader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spoke = r.clock()
	for _, w := range memoryWords {
		if bytes.Contains(p, w) {
			r.failed = r.spoke
		}
	}
	r.trace = r.trace || bytes.Contains(p, []byte("Traceback (most recent call last)"))
	text := bytes.TrimRight(p, "\r\n")
	from := len(text)
	for range newestLines {
		if from = bytes.LastIndexAny(text[:from], "\r\n"); from < 0 {
			break
		}
	}
	for line := range bytes.FieldsFuncSeq(text[from+1:], func(c rune) bool { return c == '\r' || c == '\n' }) {
		r.line(line[:min(len(line), 4096)])
	}
	return len(p), nil
}

func (r *progressReader) line(line []byte) {
	if !bytes.Contains(line, []byte("loss")) && !bytes.Contains(line, []byte("| ")) {
		return
	}
	for _, form := range progressForms {
		if m := form.FindSubmatch(line); m != nil {
			r.take(form, m)
			return
		}
	}
}

func (r *progressReader) take(form *regexp.Regexp, m [][]byte) {
	r.stepped = r.spoke
	for i, name := range form.SubexpNames() {
		text := string(m[i])
		switch name {
		case "iter":
			if v, err := strconv.ParseInt(text, 10, 64); err == nil {
				r.now.Iteration = &v
			}
		case "loss":
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				r.now.Loss = &v
			}
		case "ms":
			if v, err := strconv.ParseFloat(text, 64); err == nil && v >= 0 && v < 1e9 {
				r.step(time.Duration(v * float64(time.Millisecond)))
			}
		}
	}
}

// step keeps a step's time; the usual one is the median of those before. The first holds the compiler's time: it is left out.
func (r *progressReader) step(d time.Duration) {
	r.now.Step = &d
	if len(r.steps) > 1 {
		sorted := slices.Sorted(slices.Values(r.steps[1:]))
		usual := sorted[len(sorted)/2]
		r.now.Usual = &usual
	}
	if len(r.steps) == keptSteps {
		r.steps = slices.Delete(r.steps, 1, 2)
	}
	r.steps = append(r.steps, d)
}

// Now is the newest progress. A loss that is no number is told as it is: NaN stays NaN.
func (r *progressReader) Now() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// settle is how long after a failure lines of progress still belong to the time before it: Python flushes its buffered
// stdout when it ends, after the traceback went out on stderr.
const settle = 10 * time.Second

// wentOn says that training went on after memory ran out: the script mended it by itself.
func (r *progressReader) wentOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed.IsZero() && r.stepped.Sub(r.failed) > settle
}

// silentSince says how long nothing was printed, where memory ran out and training did not go on.
func (r *progressReader) silentSince(now time.Time) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed.IsZero() || r.stepped.Sub(r.failed) > settle {
		return 0, false
	}
	return now.Sub(r.spoke), true
}

func (r *progressReader) traceback() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trace
}

// finite is v for JSON and metrics, nil where it is no number.
func finite(v *float64) *float64 {
	if v == nil || math.IsNaN(*v) || math.IsInf(*v, 0) {
		return nil
	}
	return v
}
