package supervise

import (
	"strconv"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/units"
)

// linear plans a trainer that takes 1 GiB and a bit for each sequence of its micro-batch.
type linear struct{ each units.Bytes }

func (l linear) predict(batch int) Prediction {
	process := units.GiB + units.Bytes(batch)*l.each
	return Prediction{Phase: "eval", Allocated: process - units.GiB, Reserved: process - units.GiB/2, Process: process}
}

func (l linear) Predict(cfg config.Config, c Conditions) (Prediction, bool, error) {
	p := l.predict(cfg.BatchSize)
	return p, c.Limit == 0 || p.Process <= c.Limit, nil
}

func (l linear) Choices(cfg config.Config, c Conditions) ([]Choice, error) {
	var list []Choice
	whole := cfg.EffectiveBatch()
	for b := cfg.BatchSize; b >= 1; b-- {
		if p := l.predict(b); whole%b == 0 && whole/b%c.World == 0 && p.Process <= c.Limit {
			list = append(list, Choice{Prediction: p, Changes: map[string]string{"batch_size": strconv.Itoa(b), "gradient_accumulation_steps": strconv.Itoa(whole / b)}})
		}
	}
	return list, nil
}

// eager offers to compile first, as fit does where that is faster.
type eager struct{ linear }

func (e eager) Choices(cfg config.Config, c Conditions) ([]Choice, error) {
	list, err := e.linear.Choices(cfg, c)
	compiled := list[0]
	compiled.Changes = map[string]string{"compile": "True", "batch_size": compiled.Changes["batch_size"], "gradient_accumulation_steps": compiled.Changes["gradient_accumulation_steps"]}
	return append([]Choice{compiled}, list...), err
}

func TestWhatTheUserAskedForIsKept(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	write(t, "eager.py", "compile = False\n")
	for line, want := range map[string]string{
		"python train.py --batch_size=64":                 "--batch_size=20 --compile=True --gradient_accumulation_steps=128",
		"python train.py --batch_size=64 --compile=False": "--batch_size=20 --gradient_accumulation_steps=128",
		"python train.py eager.py --batch_size=64":        "--batch_size=20 --gradient_accumulation_steps=128",
	} {
		cmd, err := Parse(strings.Fields(line), "", "")
		if err != nil {
			t.Fatal(err)
		}
		p := &planned{cmd: cmd, planner: eager{linear{units.GiB / 4}}, tried: map[string]bool{}}
		if s, _, _, err := p.first(6*units.GiB, true); err != nil || s.String() != want {
			t.Errorf("%s: %s, %v, want %s", line, s, err, want)
		}
	}
}

func TestTorchrunKeepsAccumulationDivisible(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "train.py", nanoTrain)
	cmd, err := Parse(strings.Fields("torchrun --standalone --nproc_per_node=8 train.py --batch_size=12 --gradient_accumulation_steps=40"), "", "")
	if err != nil {
		t.Fatal(err)
	}
	p := &planned{cmd: cmd, planner: linear{units.GiB}, tried: map[string]bool{}}
	s, _, _, err := p.first(8*units.GiB, true)
	if err != nil || s.Batch.Accum%8 != 0 || s.Batch.Effective() != 480 {
		t.Errorf("%v, %v: want the product 480 and accumulation a multiple of 8", s, err)
	}
	st := &Supervisor{Command: cmd, Retries: 4, state: state{strategy: p}}
	if why := st.cannotRetry(1); why != "" {
		t.Errorf("one machine: %s", why)
	}
	cmd.Nodes = 2
	if why := st.cannotRetry(1); !strings.Contains(why, "other machines") {
		t.Errorf("two machines: %q", why)
	}
}

func TestLearned(t *testing.T) {
	gib := units.GiB
	for name, c := range map[string]struct {
		trainer Trainer
		given   Batch
		failed  int
		seen    Seen
		want    string // "" is an error
	}{
		"halved":                   {trainers[0], Batch{16, 2}, 16, Seen{}, "--per_device_train_batch_size=8 --gradient_accumulation_steps=4"},
		"scaled after steps":       {trainers[0], Batch{16, 3}, 16, Seen{Limit: 11 * gib, Need: 12 * gib, Progress: true}, "--per_device_train_batch_size=12 --gradient_accumulation_steps=4"},
		"scaled more than by half": {trainers[0], Batch{16, 2}, 16, Seen{Limit: 4 * gib, Need: 12 * gib}, "--per_device_train_batch_size=4 --gradient_accumulation_steps=8"},
		"a prime":                  {trainers[0], Batch{7, 1}, 7, Seen{}, "--per_device_train_batch_size=1 --gradient_accumulation_steps=7"},
		"one already":              {trainers[0], Batch{1, 8}, 1, Seen{}, ""},
		"litgpt":                   {trainers[1], Batch{8, 0}, 8, Seen{}, "--train.micro_batch_size=4"},
		"no accumulation flag":     {Trainer{Name: "other", BatchFlag: "--bs"}, Batch{8, 0}, 8, Seen{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := &learned{cmd: &Command{Trainer: &c.trainer, World: 1}, given: c.given}
			got, err := l.next(Setting{Batch: &Batch{Micro: c.failed}}, c.seen)
			if (err != nil) != (c.want == "") || err == nil && got.String() != c.want {
				t.Errorf("%s, %v, want %q", got, err, c.want)
			}
		})
	}
}

// outOfMemory is PyTorch 2.11's message under a cap, as a real run printed it.
const outOfMemory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total capacity of 139.80 GiB of which 131.94 GiB is free. " +
	"Including non-PyTorch memory, this process has 7.86 GiB memory in use. 11.47 GiB allowed; Of the allocated memory 6.80 GiB is allocated by PyTorch, " +
	"and 393.24 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"

func TestSeen(t *testing.T) {
	read := func(text string) Seen {
		log, err := oom.Read(strings.NewReader(text))
		if err != nil || len(log.Failures) != 1 {
			t.Fatalf("%v, %+v", err, log)
		}
		return seen(&log.Failures[0].Facts)
	}
	capped := read(outOfMemory)
	if got := capped.Limit.GiB(); got != "12.15 GiB" {
		t.Errorf("limit %s, want the cap of 11.47 and 0.68 that are not PyTorch's", got)
	}
	if got := capped.Need.GiB(); got != "13.62 GiB" {
		t.Errorf("need %s, want 6.80 + 6.14 + 0.68", got)
	}
	shared := read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 11.69 GiB of which 1.00 GiB is free. " +
		"Process 77 has 4.00 GiB memory in use. Including non-PyTorch memory, this process has 6.69 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.\n")
	if got := shared.Limit.GiB(); got != "7.69 GiB" {
		t.Errorf("limit %s, want what the other process leaves", got)
	}
}
