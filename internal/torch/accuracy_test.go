package torch

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

var update = flag.Bool("update", false, "write the measured table into docs/accuracy.md")

// measuredRuns are the lines of torch-memory.jsonl and of more-memory.jsonl, what scripts/record has measured since.
func measuredRuns(t testing.TB) []runSummary {
	t.Helper()
	var runs []runSummary
	for _, file := range []string{"testdata/torch-memory.jsonl", "testdata/more-memory.jsonl"} {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r runSummary
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			runs = append(runs, r)
		}
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return runs
}

// figure gathers the errors of one row of the accuracy table.
type figure struct {
	name        string
	mean, worst float64 // the bounds
	errors      []float64
	worstRun    string
}

func (f *figure) add(run string, e float64) {
	f.errors = append(f.errors, e)
	if math.Abs(e) >= math.Abs(f.most()) {
		f.worstRun = run
	}
}

func (f *figure) average() float64 {
	var sum float64
	for _, e := range f.errors {
		sum += math.Abs(e)
	}
	return sum / float64(len(f.errors))
}

func (f *figure) most() float64 {
	var worst float64
	for _, e := range f.errors {
		if math.Abs(e) > math.Abs(worst) {
			worst = e
		}
	}
	return worst
}

// Predictions stay within the bounds over every measured run, and docs/accuracy.md shows their errors as they are.
func TestAccuracy(t *testing.T) {
	figures := []*figure{
		{name: "peak allocated, eval", mean: 0.01, worst: 0.03},
		{name: "peak allocated, first_step", mean: 0.01, worst: 0.03},
		{name: "peak allocated, step", mean: 0.01, worst: 0.03},
		{name: "peak reserved, whole run", mean: 0.03, worst: 0.08},
		{name: "process memory", mean: 0.03, worst: 0.08},
	}
	var rows strings.Builder
	under := 0
	for _, run := range measuredRuns(t) {
		p := predict(t, &run)
		fmt.Fprintf(&rows, "| %s |", run.Name)
		for i, f := range figures {
			if p.want[i] == 0 {
				rows.WriteString(" |")
				continue
			}
			e := float64(p.got[i])/float64(p.want[i]) - 1
			f.add(run.Name, e)
			fmt.Fprintf(&rows, " %s |", percent(e))
		}
		rows.WriteString("\n")
		if p.want[4] > p.got[4]+int64(p.margin) {
			under++
			t.Errorf("%s takes %v, more than the predicted %v and its margin %v", run.Name, units.Bytes(p.want[4]), units.Bytes(p.got[4]), p.margin)
		}
	}
	var table strings.Builder
	table.WriteString("| figure | runs | mean error | bound | worst error | bound | worst in |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, f := range figures {
		fmt.Fprintf(&table, "| %s | %d | %s %% | %.0f %% | %s %% | %.0f %% | %s |\n",
			f.name, len(f.errors), percent(f.average()), 100*f.mean, percent(f.most()), 100*f.worst, f.worstRun)
		if !(f.average() <= f.mean) || !(math.Abs(f.most()) <= f.worst) {
			t.Errorf("%s: mean %.2f %%, worst %.2f %% in %s", f.name, 100*f.average(), 100*f.most(), f.worstRun)
		}
	}
	fmt.Fprintf(&table, "\nUnder-estimates of process memory beyond the printed margin: %d.\n\n", under)
	table.WriteString("Errors of each run in per cent, predicted against measured:\n\n| run | eval | first_step | step | reserved | process |\n| --- | --- | --- | --- | --- | --- |\n")
	table.WriteString(rows.String())
	t.Log("\n" + table.String())
	checkDocs(t, table.String())
}

// percent prints a share with two decimals, and no minus before a zero.
func percent(e float64) string {
	text := fmt.Sprintf("%.2f", 100*e)
	if text == "-0.00" {
		return "0.00"
	}
	return text
}

// prediction is a run's figures: peak allocated in eval, first_step and step, peak reserved, process; 0 is not measured.
type prediction struct {
	got, want [5]int64
	margin    units.Bytes
}

func predict(t testing.TB, run *runSummary) prediction {
	t.Helper()
	cfg, opt, conf, _ := run.settings(t)
	tr, err := Build(cfg, opt)
	if err != nil {
		t.Fatalf("%s: %v", run.Name, err)
	}
	r := Simulate(tr, conf, 0)
	var p prediction
	for i, phase := range []*phaseSummary{run.Eval, run.FirstStep, run.Step} {
		if phase != nil {
			p.want[i] = phase.PeakAllocated
			p.got[i] = int64(r.Phases[i+1].PeakAllocated)
			p.want[3] = max(p.want[3], phase.PeakReserved)
		}
	}
	process := ProcessMemory(r.Reserved(), cfg, opt)
	p.got[3], p.got[4], p.margin = int64(r.Reserved()), int64(process.Total()), process.Margin
	if !run.Ampere { // such a run's context is still the H200's
		p.want[4] = run.ProcessMiB << 20
	}
	return p
}

// checkDocs holds the table in docs/accuracy.md against this one.
func checkDocs(t *testing.T, table string) {
	t.Helper()
	const file, begin, end = "../../docs/accuracy.md", "<!-- table -->\n", "<!-- end of table -->"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(text), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := before + begin + table + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not as measured: go test ./internal/torch -run TestAccuracy -update", file)
	}
}
