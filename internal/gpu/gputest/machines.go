package gputest

import (
	"fmt"
	"time"

	"github.com/snugml/snug/internal/gpu"
	"github.com/snugml/snug/internal/units"
)

// Noon is the moment the machines' processes are dated against.
var Noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// PIDs start above Linux's largest, 2^22, so that no process of the machine that runs the tests is taken for a fake one.
const firstPID = 4_200_000

// Machines are the whole machines, by name.
func Machines() map[string]*Machine {
	return map[string]*Machine{
		"one": One(), "eight": Eight(), "wsl": WSL(), "mig": MIG(), "lost": Lost(), "empty": {Driver: "580.65.06", CUDA: 13000},
	}
}

func card3060(uuid string) Card {
	return Card{
		Name: "NVIDIA GeForce RTX 3060", UUID: uuid, Capability: gpu.Capability{Major: 8, Minor: 6},
		Memory:  memory(12288, 319, 319),
		Percent: 0, Milliwatts: 15_000, LimitMW: 170_000, Celsius: 41,
	}
}

// memory is in MiB; used includes reserved, as NVML counts.
func memory(total, reserved, used units.Bytes) gpu.MemoryInfo {
	return gpu.MemoryInfo{Total: total * units.MiB, Reserved: reserved * units.MiB, Used: used * units.MiB, Free: (total - used) * units.MiB}
}

// One is a workstation with the notes' card: a training run, a forgotten notebook, and the desktop.
func One() *Machine {
	c := card3060("GPU-3060aaaa-0000-0000-0000-000000000001")
	c.Percent, c.Milliwatts, c.Celsius = 97, 158_300, 71
	c.Memory = memory(12288, 319, 10151)
	c.Compute = []gpu.ProcessInfo{Holding(firstPID+1, 7208*units.MiB), Holding(firstPID+2, 2214*units.MiB)}
	c.Graphics = []gpu.ProcessInfo{Holding(firstPID+3, 410*units.MiB)}
	return &Machine{
		Driver: "580.65.06", CUDA: 13000, Cards: []Card{c},
		People: map[int]gpu.Facts{
			firstPID + 1: {Command: "python train.py config/train_gpt2.py --batch_size=8", User: "ada", Started: Noon.Add(-134 * time.Minute)},
			firstPID + 2: {Command: "/opt/venv/bin/python -m ipykernel_launcher -f /run/user/1000/jupyter/kernel-1.json", User: "ada", Started: Noon.Add(-75 * time.Hour)},
			firstPID + 3: {Command: "/usr/lib/xorg/Xorg vt2 -displayfd 3", User: "root", Started: Noon.Add(-200 * time.Hour)},
		},
	}
}

// Eight is a server with eight H200, the first four of them training.
func Eight() *Machine {
	m := &Machine{Driver: "580.159.04", CUDA: 13000, People: map[int]gpu.Facts{}}
	for i := range 8 {
		c := Card{
			Name: "NVIDIA H200", UUID: fmt.Sprintf("GPU-20000000-0000-0000-0000-00000000000%d", i), Capability: gpu.Capability{Major: 9},
			Memory: memory(143771, 616, 616), Milliwatts: 76_000, LimitMW: 700_000, Celsius: 33,
		}
		if i < 4 {
			pid := firstPID + 10 + i
			c.Memory = memory(143771, 616, units.Bytes(616+41_000+100*i))
			c.Percent, c.Milliwatts, c.Celsius = 99, 640_000, 68
			c.Compute = []gpu.ProcessInfo{Holding(pid, units.Bytes(41_000+100*i)*units.MiB)}
			m.People[pid] = gpu.Facts{Command: fmt.Sprintf("/usr/bin/python3 -u train.py --rank=%d", i), User: "grace", Started: Noon.Add(-26 * time.Hour)}
		}
		m.Cards = append(m.Cards, c)
	}
	return m
}

// WSL is a laptop under Windows, where the driver lists processes without their memory and without power.
func WSL() *Machine {
	return &Machine{Driver: "581.15", CUDA: 13000, Cards: []Card{{
		Name: "NVIDIA GeForce RTX 4070 Laptop GPU", UUID: "GPU-40700000-0000-0000-0000-000000000001", Capability: gpu.Capability{Major: 8, Minor: 9},
		Memory: memory(8188, 210, 3100), Bare: true, Compute: []gpu.ProcessInfo{Silent(firstPID + 20)},
	}}, People: map[int]gpu.Facts{}}
}

// MIG is an A100 cut into two instances, one of them in use.
func MIG() *Machine {
	instance := func(name string, used units.Bytes) Card {
		return Card{Name: name, UUID: "MIG-" + name[len(name)-7:], Memory: memory(20096, 0, used), Bare: true, Capability: gpu.Capability{Major: 8}}
	}
	busy := instance("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 12_037)
	busy.Compute = []gpu.ProcessInfo{Holding(firstPID+30, 12_000*units.MiB)}
	return &Machine{Driver: "550.54.15", CUDA: 12040, Cards: []Card{{
		Name: "NVIDIA A100-SXM4-40GB", UUID: "GPU-a1000000-0000-0000-0000-000000000001", Capability: gpu.Capability{Major: 8},
		Memory: memory(40960, 508, 12_582), Milliwatts: 210_000, LimitMW: 400_000, Celsius: 52,
		MIG: []Card{busy, instance("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 37)},
	}}, People: map[int]gpu.Facts{firstPID + 30: {Command: "python finetune.py", User: "ada", Started: Noon.Add(-5 * time.Minute)}}}
}

// Lost is a machine with two cards, one of which fell off the bus.
func Lost() *Machine {
	m := One()
	gone := card3060("GPU-3060aaaa-0000-0000-0000-000000000002")
	gone.Lost = true
	m.Cards = append(m.Cards, gone)
	return m
}
