package gpu_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/gpu/gputest"
)

// As a probe's child this binary serves a fake machine, or misbehaves as a driver may.
func TestMain(m *testing.M) {
	switch what := os.Getenv("GPU_TEST_CHILD"); what {
	case "":
		os.Exit(m.Run())
	case "crash":
		fmt.Fprintln(os.Stderr, "SIGSEGV: segmentation violation")
		os.Exit(139)
	case "hang":
		select {}
	case "garbage":
		fmt.Println("not json")
	case "nodriver":
		serve(func() (gpu.NVML, error) { return gpu.Open("/nonexistent/libnvidia-ml.so.1") }, nil)
	default:
		machine := gputest.Machines()[what]
		serve(func() (gpu.NVML, error) { return machine, nil }, machine.Facts)
	}
}

func serve(open func() (gpu.NVML, error), facts func(int) gpu.Facts) {
	if err := gpu.Serve(os.Stdin, os.Stdout, open, facts); err != nil {
		os.Exit(1)
	}
}

func probe(t *testing.T, what string) *gpu.Probe {
	t.Setenv("GPU_TEST_CHILD", what)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // a child built with the race detector would rest a second before it exits
	p := &gpu.Probe{Command: []string{os.Args[0]}, Timeout: time.Minute}
	t.Cleanup(p.Close)
	return p
}

func TestProbeAnswersAgainAndAgain(t *testing.T) {
	for name, m := range gputest.Machines() {
		t.Run(name, func(t *testing.T) {
			p := probe(t, name)
			for range 3 {
				got, err := p.Snapshot(context.Background())
				var none *gpu.NoDeviceError
				if name == "empty" {
					if !errors.As(err, &none) || !strings.Contains(err.Error(), "lists no device") {
						t.Fatalf("error %v, want no device", err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				want := take(t, m)
				want.Time = got.Time
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("through the pipe:\n%s", diff)
				}
			}
		})
	}
}

func TestProbeSurvivesTheDriver(t *testing.T) {
	for what, want := range map[string]string{
		"crash":    "the probe died (exit status 139): SIGSEGV",
		"garbage":  "the probe died",
		"nodriver": "find a GPU: no NVIDIA driver found; tried /nonexistent/libnvidia-ml.so.1",
	} {
		t.Run(what, func(t *testing.T) {
			p := probe(t, what)
			for range 2 { // and again, with a new child
				if _, err := p.Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("error %v, want %q on one line", err, want)
				}
			}
		})
	}
	t.Run("hang", func(t *testing.T) {
		p := probe(t, "hang")
		p.Timeout = 50 * time.Millisecond
		if _, err := p.Snapshot(context.Background()); err == nil || !strings.Contains(err.Error(), "no answer in 50ms") {
			t.Fatalf("error %v, want a time-out", err)
		}
	})
}

func TestSnapshotJSON(t *testing.T) {
	text, err := json.Marshal(take(t, gputest.WSL()))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"capability":"8.9"`, `"memory":null`, `"total":8365539328`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
}

// What a child writes is read as data: no line of it may panic the parent.
func FuzzReply(f *testing.F) {
	f.Add(`{"snapshot":{"devices":[{"capability":"8.6","processes":[{"memory":null}]}]}}`)
	f.Add(`{"error":"x","no_device":true}`)
	f.Fuzz(func(t *testing.T, line string) {
		var s gpu.Snapshot
		if json.Unmarshal([]byte(line), &s) == nil {
			s.Usable()
			for _, d := range s.Devices {
				d.Held()
				_ = d.Label()
			}
		}
	})
}
