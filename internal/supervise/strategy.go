package supervise

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/oom"
	"github.com/snugml/snug/internal/units"
)

// Planner says what nanoGPT takes under PyTorch, and which settings fit.
type Planner interface {
	// Predict is what the settings take, and whether that fits.
	Predict(cfg config.Config, c Conditions) (Prediction, bool, error)
	// Choices are settings that fit and leave training the same, best first.
	Choices(cfg config.Config, c Conditions) ([]Choice, error)
}

// Conditions are what decides a prediction beside the settings.
type Conditions struct {
	Limit  units.Bytes // of process memory
	World  int         // processes under torchrun
	Resume bool        // from a checkpoint, which nanoGPT loads onto the GPU
}

// Prediction is memory before it is taken.
type Prediction struct {
	Phase     string      `json:"phase"`
	Allocated units.Bytes `json:"allocated"`
	Reserved  units.Bytes `json:"reserved"`
	Process   units.Bytes `json:"process"`
}

// Choice is a change that fits.
type Choice struct {
	Changes    map[string]string // nanoGPT's keys
	Env        map[string]string
	Prediction Prediction
}

// Setting is what one attempt runs with.
type Setting struct {
	Batch     *Batch      `json:"batch,omitempty"` // nil where snug doesn't know the script
	Changes   []Change    `json:"changes,omitempty"`
	Env       []string    `json:"env,omitempty"`
	Predicted *Prediction `json:"predicted,omitempty"`
}

func (s Setting) String() string {
	var words []string
	words = append(words, s.Env...)
	for _, c := range s.Changes {
		words = append(words, c.String())
	}
	return strings.Join(words, " ")
}

// key tells settings apart.
func (s Setting) key() string { return s.String() }

// Seen is what a failed attempt showed.
type Seen struct {
	Limit    units.Bytes // what the process could have had; 0 is unknown
	Need     units.Bytes // the least it would have needed to pass the point where it failed; 0 is unknown
	Progress bool        // training steps had been made
	Resume   bool        // the next attempt starts from a checkpoint
}

// seen reads a failure's facts. PyTorch's own cap ("… allowed") bounds its segments, the card bounds the process: the
// cap is raised by what of the process is not segments, so that both are limits of process memory.
func seen(f *oom.Facts) Seen {
	var s Seen
	if f == nil {
		return s
	}
	value := func(b *units.Bytes) units.Bytes {
		if b == nil {
			return 0
		}
		return *b
	}
	reserved := value(f.Reserved)
	if reserved == 0 && f.Allocated != nil {
		reserved = *f.Allocated + value(f.ReservedUnallocated)
	}
	overhead := units.Bytes(0)
	if f.Process != nil && reserved > 0 {
		overhead = max(0, *f.Process-reserved)
	}
	switch {
	case f.Limit != nil:
		s.Limit = *f.Limit + overhead
	case f.Process != nil && f.Free != nil:
		s.Limit = *f.Process + *f.Free
	case f.Free != nil && reserved > 0:
		s.Limit = reserved + *f.Free
	default:
		s.Limit = value(f.Total)
	}
	if f.Tried != nil {
		s.Need = value(f.Allocated) + *f.Tried + overhead
	}
	return s
}

// strategy chooses what the next attempt runs with.
type strategy interface {
	// first is asked before the start: what the settings as given take, and, where they don't fit and may be changed, others.
	first(limit units.Bytes, change bool) (s Setting, given Prediction, fits bool, err error)
	// next is asked after a failure; the error says why nothing is left.
	next(failed Setting, seen Seen) (Setting, error)
}

// planned is for nanoGPT: every setting is simulated before it runs.
type planned struct {
	cmd     *Command
	planner Planner
	limit   units.Bytes
	factor  float64 // by how much runs exceeded their prediction; 0 is not at all
	tried   map[string]bool
	lowest  units.Bytes // the smallest prediction that failed; 0: none
}

func (p *planned) first(limit units.Bytes, change bool) (Setting, Prediction, bool, error) {
	p.limit = limit
	c := Conditions{Limit: limit, World: p.cmd.World, Resume: p.cmd.Config.InitFrom == "resume"}
	given, fits, err := p.planner.Predict(*p.cmd.Config, c)
	if err != nil {
		return Setting{}, given, false, err
	}
	batch, err := p.cmd.Batch()
	if err != nil {
		return Setting{}, given, false, err
	}
	s := Setting{Batch: &batch, Predicted: &given}
	if fits || limit == 0 || !change {
		return s, given, fits, nil
	}
	s, err = p.choose(c)
	return s, given, false, err
}

// next lowers the limit to what was seen. Where the prediction said that it fits, the run itself has shown by how much
// the prediction is short: from now on predictions are taken to be short by that factor, and nothing is tried that is
// predicted to take as much as what failed, so the same failure cannot come twice.
func (p *planned) next(failed Setting, seen Seen) (Setting, error) {
	if seen.Limit > 0 && (p.limit == 0 || seen.Limit < p.limit) {
		p.limit = seen.Limit
	}
	if p.limit == 0 {
		return Setting{}, errors.New("the memory that the run may take is not known: give it with --vram")
	}
	if failed.Predicted != nil {
		predicted := failed.Predicted.Process
		if p.lowest == 0 || predicted < p.lowest {
			p.lowest = predicted
		}
		if predicted <= p.limit { // it said that this fits, yet more than the limit was needed
			p.factor = max(p.factor, float64(max(seen.Need, p.limit))/float64(predicted))
		}
	}
	limit := units.Bytes(float64(p.limit) / max(1, p.factor))
	return p.choose(Conditions{Limit: limit, World: p.cmd.World, Resume: seen.Resume || p.cmd.Config.InitFrom == "resume"})
}

// choose takes the best choice that keeps the effective batch, was not tried, and takes less than all that failed.
func (p *planned) choose(c Conditions) (Setting, error) {
	choices, err := p.planner.Choices(*p.cmd.Config, c)
	if err != nil {
		return Setting{}, err
	}
	given, err := p.cmd.Batch()
	if err != nil {
		return Setting{}, err
	}
	for _, ch := range choices {
		if p.overrides(ch) {
			continue
		}
		s := p.setting(given, ch)
		if s.Batch.Effective() != given.Effective() || s.Batch.Accum%p.cmd.World != 0 || p.tried[s.key()] {
			continue
		}
		if p.lowest > 0 && ch.Prediction.Process >= p.lowest {
			continue
		}
		p.tried[s.key()] = true
		return s, nil
	}
	return Setting{}, fmt.Errorf("no setting that keeps the effective batch of %d fits %s", given.Effective(), max(0, c.Limit).GiB())
}

// overrides says that a choice changes what the user asked for, the batch aside: somebody who turned the compiler off had a reason.
func (p *planned) overrides(ch Choice) bool {
	for key := range ch.Changes {
		if key != "batch_size" && key != "gradient_accumulation_steps" && p.cmd.asked[key] {
			return true
		}
	}
	return false
}

func (p *planned) setting(given Batch, ch Choice) Setting {
	s := Setting{Batch: &given, Predicted: &ch.Prediction}
	keys := slices.Sorted(func(yield func(string) bool) {
		for k := range ch.Changes {
			if !yield(k) {
				return
			}
		}
	})
	for _, k := range keys {
		v := ch.Changes[k]
		s.Changes = append(s.Changes, Change{"--" + k, v})
		if n, err := strconv.Atoi(v); err == nil {
			switch k {
			case "batch_size":
				s.Batch.Micro = n
			case "gradient_accumulation_steps":
				s.Batch.Accum = n
			}
		}
	}
	for k, v := range ch.Env {
		s.Env = append(s.Env, k+"="+v)
	}
	slices.Sort(s.Env)
	return s
}

// learned is for scripts that snug cannot simulate: what the tries show is all there is.
type learned struct {
	cmd   *Command
	given Batch
}

func (l *learned) first(units.Bytes, bool) (Setting, Prediction, bool, error) {
	return Setting{Batch: &l.given}, Prediction{}, true, nil
}

// next takes the largest smaller batch that divides the effective one. A failure after training steps tells the need
// well, so the batch is scaled by it; one before tells only its least, so the batch is halved at least.
func (l *learned) next(failed Setting, seen Seen) (Setting, error) {
	micro := failed.Batch.Micro
	most := micro - 1
	if seen.Need > 0 && seen.Limit > 0 && seen.Need > seen.Limit {
		most = min(most, int(float64(micro)*float64(seen.Limit)/float64(seen.Need)))
	}
	if !seen.Progress {
		most = min(most, micro/2)
	}
	whole := l.given.Effective()
	if whole == 0 {
		whole = l.given.Micro // the script keeps its global batch, which this batch divided
	}
	for b := most; b >= 1; b-- {
		if whole%b != 0 {
			continue
		}
		next := Batch{Micro: b}
		s := Setting{Batch: &next, Changes: []Change{{l.cmd.Trainer.BatchFlag, strconv.Itoa(b)}}}
		switch {
		case l.cmd.Trainer.AccumFlag != "":
			next.Accum = whole / b
			s.Changes = append(s.Changes, Change{l.cmd.Trainer.AccumFlag, strconv.Itoa(next.Accum)})
		case l.cmd.Trainer.Name == "other":
			return Setting{}, fmt.Errorf("a smaller %s would change the effective batch: name the flag for accumulation with --accum-flag", l.cmd.Trainer.BatchFlag)
		}
		return s, nil
	}
	return Setting{}, fmt.Errorf("%s is %d already: nothing smaller keeps the effective batch", l.cmd.Trainer.BatchFlag, micro)
}
