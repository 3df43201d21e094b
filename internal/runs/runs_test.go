package runs

import (
	"os"
	"os/exec"
	"path/filepath"
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
	env := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }
	if d, err := Dir(env(map[string]string{"SNUG_RUNS": "/a", "XDG_RUNTIME_DIR": "/b"})); d != "/a" || err != nil {
		t.Errorf("%s, %v", d, err)
	}
	if d, err := Dir(env(map[string]string{"XDG_RUNTIME_DIR": "/b"})); d != filepath.Join("/b", "snug") || err != nil {
		t.Errorf("%s, %v", d, err)
	}
}
