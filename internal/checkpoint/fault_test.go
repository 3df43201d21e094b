//go:build unix

package checkpoint

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/snugml/snug/internal/gpt"
)

const childDir, childKill = "SNUG_TEST_SAVE_DIR", "SNUG_TEST_KILL_AT"

// killer kills its process when it is asked for its bytes.
type killer struct{}

func (killer) WriteTo(io.Writer) (int64, error) {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// TestMain is also the child of TestKillNineAtAnyMoment: it saves iteration after iteration, and says which one is done.
func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	at, _ := strconv.Atoi(os.Getenv(childKill))
	for iter := 1; ; iter++ {
		s := newState(killModel, iter)
		if at >= 0 && iter == 3 {
			s.Optimizer.ExpAvg[at].Data = killer{}
		}
		if err := Save(dir, s); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(iter)
	}
}

var killModel = gpt.Model{NLayer: 1, NHead: 1, NEmbd: 32, BlockSize: 8, VocabSize: 64, Bias: true}

// Killed in the middle of a save, at several tensors and at moments between its system calls, a run loses at most what came
// after the last finished save, and what loads is whole.
func TestKillNineAtAnyMoment(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	check := func(dir string, done int) {
		t.Helper()
		s, err := Load(dir, Everything)
		if err != nil {
			if done == 0 {
				return
			}
			t.Fatalf("killed after iteration %d: %v", done, err)
		}
		defer s.Close()
		if s.IterNum < done || s.IterNum > done+1 {
			t.Fatalf("killed after iteration %d, iteration %d loads", done, s.IterNum)
		}
		if !reflect.DeepEqual(values(t, newState(killModel, s.IterNum)), values(t, s)) {
			t.Fatalf("iteration %d loads as something else", s.IterNum)
		}
	}
	start := func(dir string, at int) (*exec.Cmd, *bufio.Scanner) {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childDir+"="+dir, childKill+"="+strconv.Itoa(at))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, bufio.NewScanner(out)
	}
	for at := 0; at < len(killModel.Specs()); at += 3 {
		dir := t.TempDir()
		cmd, lines := start(dir, at)
		done := 0
		for lines.Scan() {
			if done, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(lines.Text())
			}
		}
		cmd.Wait()
		if done != 2 {
			t.Fatalf("the child ended after iteration %d, it was to die in the third", done)
		}
		check(dir, done)
	}
	for round := range 15 {
		dir := t.TempDir()
		cmd, lines := start(dir, -1)
		for range 2 + round%3 {
			lines.Scan()
		}
		for range round * 20_000 { // another moment of the next save each time
			_ = cmd.Process.Pid
		}
		cmd.Process.Kill()
		done, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("the child said %q", lines.Text())
		}
		for lines.Scan() { // what it said before it died
			done, _ = strconv.Atoi(lines.Text())
		}
		cmd.Wait()
		check(dir, done)
	}
}

func TestFullDiskLeavesWhatWasThere(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	dir := t.TempDir()
	save(t, dir, newState(tiny(true), 1))
	if err := os.Symlink("/dev/full", filepath.Join(dir, Name+".tmp")); err != nil {
		t.Fatal(err)
	}
	err := Save(dir, newState(tiny(true), 2))
	if err == nil || !strings.Contains(err.Error(), "no space left") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %v", err)
	}
	if s := load(t, dir, Everything); s.IterNum != 1 || len(s.Warnings) != 0 {
		t.Errorf("iteration %d loads, warnings %q", s.IterNum, s.Warnings)
	}
	save(t, dir, newState(tiny(true), 3))
}

// A limit on the size of files fails a write in its middle, wherever that is.
func TestWriteThatFailsInTheMiddle(t *testing.T) {
	s := newState(tiny(true), 2)
	var size counting
	if err := s.write(&size); err != nil {
		t.Fatal(err)
	}
	for limit := 0; limit < int(size); limit += int(size) / 20 {
		dir := t.TempDir()
		save(t, dir, newState(tiny(true), 1))
		err := writeAside(filepath.Join(dir, Name), func(w io.Writer) error { return s.write(&failing{w, limit}) }, nil)
		if err == nil {
			t.Fatalf("a write that failed after %d bytes passed", limit)
		}
		if got := load(t, dir, Everything); got.IterNum != 1 || len(got.Warnings) != 0 {
			t.Fatalf("failed after %d bytes: iteration %d loads, warnings %q", limit, got.IterNum, got.Warnings)
		}
	}
}

type counting int

func (c *counting) Write(p []byte) (int, error) {
	*c += counting(len(p))
	return len(p), nil
}

type failing struct {
	w    io.Writer
	left int
}

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.left {
		n, _ := f.w.Write(p[:f.left])
		f.left = 0
		return n, syscall.EFBIG
	}
	f.left -= len(p)
	return f.w.Write(p)
}

func TestReadOnlyOutDir(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes to read-only folders")
	}
	dir := t.TempDir()
	save(t, dir, newState(tiny(true), 1))
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o755)
	if err := Save(dir, newState(tiny(true), 2)); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("error = %v", err)
	}
	if s := load(t, dir, Everything); s.IterNum != 1 {
		t.Errorf("iteration %d loads", s.IterNum)
	}
}

func TestOutDirThatIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Save(path, newState(tiny(true), 1)); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %v", err)
	}
}
