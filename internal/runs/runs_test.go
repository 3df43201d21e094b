package runs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPublishListWithdraw(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	loss := 3.25
	r := Run{PID: os.Getpid(), Processes: []int{7}, Command: "python train.py", Started: time.Unix(100, 0).UTC(), Updated: time.Unix(200, 0).UTC(), Attempt: 2, Loss: &loss}
	for range 2 {
		if err := Publish(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]Run{r}, List(dir)); diff != "" {
		t.Error(diff)
	}
	if err := Withdraw(dir, r.PID); err != nil {
		t.Fatal(err)
	}
	if err := Withdraw(dir, r.PID); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if got := List(dir); got != nil {
		t.Errorf("withdrawn, yet listed: %v", got)
	}
}

// What is not a live run's whole file is not listed, and what a dead one left is swept away.
func TestListPassesOverWhatIsNoRun(t *testing.T) {
	dir := t.TempDir()
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Publish(dir, Run{PID: dead.Process.Pid}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"1.json": "{half", filepath.Base(file("", os.Getpid())): `{"pid":1}`, "x.json": "{}", "-4.json": "{}", "notes.txt": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := List(dir); got != nil {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(file(dir, dead.Process.Pid)); !os.IsNotExist(err) {
		t.Errorf("a dead run's file is still there: %v", err)
	}
	if got := List(filepath.Join(dir, "none")); got != nil {
		t.Errorf("a folder that is not there: %v", got)
	}
}

func TestDir(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	t.Setenv("XDG_CACHE_HOME", "")
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"named":      {map[string]string{"SNUG_RUNS": "/a", "XDG_RUNTIME_DIR": "/b"}, "/a"},
		"a session":  {map[string]string{"XDG_RUNTIME_DIR": "/b"}, filepath.Join("/b", "snug")},
		"no session": {nil, filepath.Join(Cache(), "runs")},
	} {
		if got := Dir(func(key string) string { return c.env[key] }); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if runtime.GOOS != "linux" {
		return
	}
	if got, want := Cache(), "/home/someone/.cache/snug"; got != want {
		t.Errorf("the cache is %s, want %s", got, want)
	}
	t.Setenv("HOME", "")
	t.Setenv("TMPDIR", "/elsewhere")
	if got, want := Cache(), fmt.Sprintf("/elsewhere/snug-%d", os.Getuid()); got != want {
		t.Errorf("without HOME the cache is %s, want %s", got, want)
	}
}
