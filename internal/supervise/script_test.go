//go:build unix

package supervise

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// As a trainer this binary plays nanoGPT: SUPERVISE_SCRIPT names what it does, its arguments are train.py's.
func TestMain(m *testing.M) {
	if script := os.Getenv("SUPERVISE_SCRIPT"); script != "" {
		time.AfterFunc(5*time.Minute, func() { os.Exit(98) }) // no trainer outlives a test that was killed
		newPlayer().play(script)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// player is the trainer. It fits when its batch is at most SUPERVISE_FITS.
type player struct {
	batch, accum, fits int
	resume             bool
	out                string
}

func newPlayer() player {
	p := player{batch: 12, accum: 40, fits: 1 << 20, out: "out"}
	for _, a := range os.Args[1:] {
		key, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		n, _ := strconv.Atoi(value)
		switch key {
		case "batch_size", "per_device_train_batch_size":
			p.batch = n
		case "gradient_accumulation_steps":
			p.accum = n
		case "init_from":
			p.resume = value == "resume"
		case "out_dir":
			p.out = value
		}
	}
	if v, err := strconv.Atoi(os.Getenv("SUPERVISE_FITS")); err == nil {
		p.fits = v
	}
	return p
}

// eachSequence is what the played trainer takes, in GiB, for a sequence of its batch.
const eachSequence = 175.0 / 1024

// message is outOfMemory with the numbers of this trainer: it may have what p.fits sequences and a half take.
func (p player) message() string {
	allowed, need := eachSequence*(float64(p.fits)+0.5), eachSequence*float64(p.batch)
	allocated := 0.6 * allowed
	return strings.NewReplacer(
		"11.47 GiB", fmt.Sprintf("%.2f GiB", allowed), "6.80 GiB", fmt.Sprintf("%.2f GiB", allocated),
		"6.14 GiB", fmt.Sprintf("%.2f GiB", need-allocated), "7.86 GiB", fmt.Sprintf("%.2f GiB", allocated+1.06),
	).Replace(outOfMemory)
}

const traceback = "Traceback (most recent call last):\n  File \"train.py\", line 264, in <module>\n    losses = estimate_loss()\n"

func (p player) fail() {
	fmt.Fprint(os.Stderr, traceback, p.message())
	os.Exit(1)
}

func (p player) check() {
	if p.batch > p.fits {
		p.fail()
	}
}

func iters(from, to int) {
	for i := from; i < to; i++ {
		fmt.Printf("iter %d: loss %.4f, time 312.04ms, mfu 41.20%%\n", i, 10/float64(i+1))
	}
}

// play is a table in the form of a switch: one line a story.
func (p player) play(script string) {
	if script == "worker" {
		signal.Ignore(syscall.SIGTERM)
		select {}
	}
	if err := os.WriteFile(trainerPID, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		panic(err)
	}
	fmt.Printf("batch %d x %d resume %v args %q\n", p.batch, p.accum, p.resume, os.Args[1:])
	switch script {
	case "start":
		p.check()
		iters(0, 3)
	case "eval":
		fmt.Println("number of parameters: 123.59M")
		p.check()
		fmt.Println("step 0: train loss 10.9, val loss 10.9")
		iters(0, 3)
	case "middle": // fails at iteration 5, after a checkpoint at 3, until it resumes
		if p.resume {
			iters(3, 8)
			return
		}
		iters(0, 3)
		p.save()
		iters(3, 5)
		p.check()
		iters(5, 8)
	case "at resume": // and then once more while it loads the checkpoint
		if p.resume {
			fmt.Println("Resuming training from out")
			p.fits /= 2 // the checkpoint is on the GPU too
		} else {
			p.save()
		}
		p.check()
		iters(3, 8)
	case "fails without numbers": // once the supervisor has seen it on the card
		if p.batch > p.fits {
			untilLooked()
			fmt.Fprint(os.Stderr, traceback+"RuntimeError: CUDA error: out of memory\n")
			os.Exit(1)
		}
	case "split": // the message in two writes, the second after the first was read
		if p.batch > p.fits {
			text := p.message()
			fmt.Fprint(os.Stderr, traceback, text[:len(text)/3])
			untilLooked()
			fmt.Fprint(os.Stderr, text[len(text)/3:])
			os.Exit(1)
		}
	case "flushes late": // as Python does where stdout is a pipe: the traceback comes first
		if p.batch > p.fits {
			fmt.Fprint(os.Stderr, traceback, p.message())
			untilLooked()
			iters(0, 3)
			os.Exit(1)
		}
	case "python error":
		fmt.Fprint(os.Stderr, traceback+"ValueError: bad batch\n")
		os.Exit(1)
	case "nan":
		fmt.Println("iter 3: loss nan, time 312.04ms, mfu 41.20%")
		os.Exit(1)
	case "exit 3":
		os.Exit(3)
	case "dies wordlessly":
		os.Exit(1)
	case "dies once seen": // on the card, wordlessly
		untilLooked()
		os.Exit(7)
	case "killed":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "terminated":
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
		select {}
	case "deaf": // out of memory, then neither ends nor listens
		if p.batch > p.fits {
			signal.Ignore(syscall.SIGTERM)
			fmt.Fprint(os.Stderr, traceback, p.message())
			select {}
		}
	case "leaves a worker": // one that holds its output and its memory
		if p.batch > p.fits {
			worker := exec.Command(os.Args[0], "worker")
			worker.Env = append(os.Environ(), "SUPERVISE_SCRIPT=worker")
			worker.Stdout = os.Stdout
			if worker.Start() == nil {
				os.WriteFile("worker.pid", []byte(strconv.Itoa(worker.Process.Pid)), 0o644)
			}
			p.fail()
		}
	case "waits": // for a signal, which it answers in its own way
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
		fmt.Println("ready")
		for s := range got {
			fmt.Println("got", s)
			if s != syscall.SIGUSR1 {
				os.Exit(7)
			}
		}
	case "waits deaf": // to SIGTERM alone, as if snug were not there
		signal.Ignore(syscall.SIGTERM)
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGUSR1)
		fmt.Println("ready")
		<-got
		os.Exit(0)
	case "interrupted in failure": // Ctrl-C while it prints its failure
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGINT)
		fmt.Println("ready")
		<-got
		p.fail()
	case "reads":
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Printf("read %q %v\n", line, err)
	case "reads when it fits":
		p.check()
		fmt.Println("asks")
		p.play("reads")
	case "looks at its terminal":
		size, err := pty.GetsizeFull(os.Stderr)
		if err != nil {
			fmt.Println("no terminal:", err)
			return
		}
		fmt.Printf("terminal of %d x %d\n", size.Cols, size.Rows)
	case "fills the pipe": // and ends
		fmt.Println(strings.Repeat("x", 3_000))
		os.WriteFile("trainer.done", []byte("done"), 0o644)
	case "chatters": // SUPERVISE_MB of output, then out of memory
		mb, _ := strconv.Atoi(os.Getenv("SUPERVISE_MB"))
		chunk := []byte(strings.Repeat("iter 1: loss 3.2104, time 312.04ms, mfu 41.20% and some more words to fill the line up\n", 12_000))
		w := os.Stdout
		for written := 0; written < mb<<20; written += len(chunk) {
			w.Write(chunk)
		}
		p.check()
	default:
		fmt.Println("no such script:", script)
		os.Exit(99)
	}
}

const (
	trainerPID = "trainer.pid" // the file in which the trainer says who it is
	looked     = "looked"      // the file by which a test lets the trainer go on
)

func untilLooked() {
	for _, err := os.Stat(looked); err != nil; _, err = os.Stat(looked) {
		time.Sleep(time.Millisecond)
	}
}

func (p player) save() {
	path := filepath.Join(p.out, "ckpt.pt")
	os.MkdirAll(p.out, 0o755)
	f, err := os.Create(path)
	if err != nil {
		panic(err)
	}
	f.Write(emptyZip)
	f.Close()
	fmt.Println("saving checkpoint to", p.out)
}

// emptyZip is a zip archive without entries.
var emptyZip = append([]byte("PK\x05\x06"), make([]byte, 18)...)
