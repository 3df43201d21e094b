package gpu

import (
	"fmt"
	"strings"
	"time"

	"github.com/snugml/snug/internal/units"
)

// Advice is one thing a person can do to get memory back. snug never does it.
type Advice struct {
	Device string      `json:"device"` // Device.Label
	PID    int         `json:"pid,omitempty"`
	Frees  units.Bytes `json:"frees,omitempty"` // at most; 0 where unknown
	Text   string      `json:"text"`
}

// worthwhile is the least memory that is worth a person's time.
const worthwhile = 64 * units.MiB

// holders says what to do about a process by a word of its command; the first that fits is taken.
var holders = []struct{ word, what, do string }{
	{"ipykernel", "a notebook's kernel", "shut it down in Jupyter (a restart frees it too)"},
	{"jupyter", "a notebook server", "shut its kernels down in Jupyter"},
	{"ollama", "a model server", "unload its model with `ollama stop`"},
	{"vllm", "a model server", "stop it, or lower its --gpu-memory-utilization"},
	{"Xorg", "the desktop", "log out and train from a text console, or give the desktop another card"},
	{"Xwayland", "the desktop", "log out and train from a text console, or give the desktop another card"},
	{"gnome-shell", "the desktop", "log out and train from a text console, or give the desktop another card"},
	{"kwin", "the desktop", "log out and train from a text console, or give the desktop another card"},
	{"chrome", "a browser", "close it, or turn its hardware acceleration off"},
	{"firefox", "a browser", "close it, or turn its hardware acceleration off"},
	{"nvidia-cuda-mps", "CUDA's multi-process service", "end its clients"},
}

// Advise says what would free memory on each device, the largest holder first.
func Advise(s Snapshot) []Advice {
	var list []Advice
	for _, d := range s.Devices {
		switch {
		case d.Fault != "":
			list = append(list, Advice{Device: d.Label(), Text: fault(d.Fault)})
			continue
		case d.MIG:
			continue // its instances are told
		}
		for _, p := range d.Processes {
			if p.Memory == nil || *p.Memory >= worthwhile {
				list = append(list, Advice{Device: d.Label(), PID: p.PID, Frees: held(p), Text: p.advice(s.Time)})
			}
		}
		sum, known := d.Held()
		if unseen := d.Used - sum; known && unseen >= 512*units.MiB {
			list = append(list, Advice{Device: d.Label(), Frees: unseen, Text: fmt.Sprintf(
				"%s is held by processes that cannot be seen from here (another container, or ended without letting go): look with nvidia-smi on the host", unseen.GiB())})
		}
	}
	return list
}

func (p Process) advice(now time.Time) string {
	what, do := "a program", fmt.Sprintf("if it is yours: kill %d", p.PID)
	for _, h := range holders {
		if strings.Contains(p.Command, h.word) {
			what, do = h.what, h.do
			break
		}
	}
	holds := "holds memory, how much the driver doesn't tell here (see the Task Manager)"
	if p.Memory != nil {
		holds = "holds " + p.Memory.GiB()
	}
	if age, ok := p.Age(now); ok {
		holds += " for " + units.Duration(age)
	}
	return fmt.Sprintf("pid %d (%s) %s: %s", p.PID, what, holds, do)
}

func fault(f string) string {
	if strings.Contains(f, "lost") {
		return f + ": the card fell off the bus; see dmesg for its Xid, then reboot"
	}
	return f + ": see nvidia-smi and dmesg"
}
