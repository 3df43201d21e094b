package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/i18n"
	"github.com/snugml/snug/internal/term"
)

// Every report of the corpus is whole in all five languages and both forms: no message is missing, no value stays open,
// and no line of a terminal is wider than it.
func TestDoctorReports(t *testing.T) {
	logs, err := filepath.Glob("../oom/testdata/corpus/*.log")
	if err != nil || len(logs) < 60 {
		t.Fatalf("%d logs, %v", len(logs), err)
	}
	open := regexp.MustCompile(`⟨|\{\w+\}|%!`)
	for _, path := range logs {
		o := doctorOptions{log: path, settings: &settings{command: config.Doctor}}
		log, err := o.read(nil)
		if err != nil {
			t.Fatal(err)
		}
		d, err := o.diagnose(log)
		if err != nil || d == nil {
			t.Fatalf("%s: %v, %v", path, d, err)
		}
		for _, o.lang = range i18n.Langs {
			for _, o.markdown = range []bool{false, true} {
				var out bytes.Buffer
				stream := &term.Stream{Writer: &out, Width: 80, TTY: true, UTF8: true}
				if err := o.report(stream, d, []string{"python (PID 7, 1.00 GiB)"}); err != nil {
					t.Fatalf("%s in %s: %v", path, o.lang, err)
				}
				if m := open.FindString(out.String()); m != "" {
					t.Errorf("%s in %s holds %q:\n%s", path, o.lang, m, out.String())
				}
				for _, line := range strings.Split(out.String(), "\n") {
					if w := term.Width(line); w > 80 && !o.markdown && !strings.Contains(line, "python ") {
						t.Errorf("%s in %s: %d columns: %q", filepath.Base(path), o.lang, w, line)
					}
				}
			}
		}
	}
}

func TestEditConfig(t *testing.T) {
	changes := map[string]any{"batch_size": 8, "compile": false}
	for name, c := range map[string]struct{ in, want string }{
		"comments and order stay": {"# top\nbatch_size = 64 # big\nblock_size = 1024\ncompile=True\n", "# top\nbatch_size = 8 # big\nblock_size = 1024\ncompile=False\n"},
		"missing keys are added":  {"block_size = 1024", "block_size = 1024\nbatch_size = 8\ncompile = False\n"},
		"only the last counts":    {"batch_size = 1\nbatch_size = 2\ncompile = True\n", "batch_size = 1\nbatch_size = 8\ncompile = False\n"},
		"other names stay":        {"my_batch_size = 3\n# batch_size = 5\nbatch_size = 4 * 3\ncompile = True\n", "my_batch_size = 3\n# batch_size = 5\nbatch_size = 8\ncompile = False\n"},
		"crlf":                    {"batch_size = 64\r\ncompile = True # c\r\n", "batch_size = 8\r\ncompile = False # c\r\n"},
		"empty":                   {"", "batch_size = 8\ncompile = False\n"},
	} {
		if got := string(editConfig([]byte(c.in), changes)); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}

// A config file that loads still loads after an edit, with the new value.
func FuzzEditConfig(f *testing.F) {
	f.Add("batch_size = 64 # big\nblock_size = 1024\n")
	f.Add("batch_size = 4 * 3\r\n")
	f.Add("batch_size = 12;block_size = 3\n")
	f.Fuzz(func(t *testing.T, src string) {
		before := config.Default()
		if strings.Count(src, "batch_size") > 1 || before.Load("x.py", []byte(src)) != nil {
			return
		}
		edited := editConfig([]byte(src), map[string]any{"n_layer": 7})
		after := config.Default()
		if err := after.Load("x.py", edited); err == nil && after.NLayer != 7 && !strings.Contains(src, "n_layer") {
			t.Fatalf("%q became %q: n_layer %d", src, edited, after.NLayer)
		}
	})
}

func TestUnified(t *testing.T) {
	src := "a\nb\nscaler = torch.cuda.amp.GradScaler(enabled=True)\nd\ne\nf\ng\nh\ni\n        scaler.scale(loss).backward()\nk\n"
	lines := strings.SplitAfter(src, "\n")
	want := "--- t.py\n+++ t.py\n@@ -1,6 +1,6 @@\n a\n b\n-scaler = torch.cuda.amp.GradScaler(enabled=True)\n+scaler = torch.amp.GradScaler('cuda', enabled=True)\n d\n e\n f\n" +
		"@@ -7,5 +7,6 @@\n g\n h\n i\n         scaler.scale(loss).backward()\n+        del logits # else they live through the next forward\n k\n"
	if got := unified("t.py", lines, edits(lines, src)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := unified("t.py", lines, nil); got != "" {
		t.Errorf("no edits print %q", got)
	}
}

// --apply keeps what was there beside the file.
func TestBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.py")
	for i, want := range []string{"c.py.bak", "c.py.bak1"} {
		name, err := backupOf(path, []byte{byte(i)})
		if err != nil || filepath.Base(name) != want {
			t.Fatalf("backup %d is %s, %v, want %s", i, name, err, want)
		}
		if got, _ := os.ReadFile(name); !bytes.Equal(got, []byte{byte(i)}) {
			t.Errorf("%s holds %v", name, got)
		}
	}
}
