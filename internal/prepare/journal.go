package prepare

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/snugml/snug/internal/durable"
	"github.com/snugml/snug/internal/units"
)

// workDir is the folder below the output in which a run keeps what is not complete.
const workDir = ".prepare"

// job is what makes two runs the same run: the output is a function of it.
type job struct {
	Version     int      `json:"version"` // of chunks and journal
	Tokenizer   string   `json:"tokenizer"`
	Field       string   `json:"field"`
	ValFraction float64  `json:"val_fraction"`
	Seed        uint64   `json:"seed"`
	ByPosition  bool     `json:"by_position"` // val is the end of the text, not documents drawn
	Sources     []source `json:"sources"`
}

const journalVersion = 1

// state is the journal: how far a run has come. The token files hold at least what it says.
type state struct {
	Job       job      `json:"job"`
	Counted   bool     `json:"counted"`
	Chars     int64    `json:"chars"`   // characters in all inputs, where they were counted
	Charset   string   `json:"charset"` // the different ones
	Position  position `json:"position"`
	Bytes     [2]int64 `json:"bytes"` // of train and val tokens
	Invalid   int64    `json:"invalid"`
	Documents int64    `json:"documents"`
	Complete  bool     `json:"complete"`
}

// journal is an open work folder.
type journal struct {
	out    string // the data set's folder
	made   bool   // out was not there before
	dir    string // the work folder
	unlock func()
	state  state
	files  [2]*os.File
	bufs   [2]*bufio.Writer
}

var splitNames = [2]string{"train", "val"}

func (j *journal) part(split int) string {
	return filepath.Join(j.dir, splitNames[split]+".part")
}

func (j *journal) final(split int) string { return filepath.Join(j.out, splitNames[split]+".bin") }

// openJournal makes the work folder and takes it for this process.
func openJournal(out string) (*journal, error) {
	_, err := os.Stat(out)
	j := &journal{out: out, made: errors.Is(err, fs.ErrNotExist), dir: filepath.Join(out, workDir)}
	if err := os.MkdirAll(j.dir, 0o755); err != nil {
		return nil, fmt.Errorf("write to %s: %w", out, reason(err))
	}
	unlock, err := durable.Lock(filepath.Join(j.dir, "lock"))
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("another snug prepare is writing to %s: wait for it, or use another --out", out)
	}
	if err != nil {
		return nil, fmt.Errorf("write to %s: %w", out, reason(err))
	}
	j.unlock = unlock
	return j, nil
}

// begin goes on where an interrupted run of the same job stopped, or else starts anew.
func (j *journal) begin(want job, overwrite bool, note func(string)) (resumed bool, err error) {
	raw, err := os.ReadFile(j.statePath())
	var old state
	if err == nil && json.Unmarshal(raw, &old) == nil && reflect.DeepEqual(old.Job, want) && j.holds(old) {
		j.state = old
		if n := (old.Bytes[train] + old.Bytes[val]) / 2; n > 0 {
			note(fmt.Sprintf("going on after %s tokens", units.Count(n)))
		}
		return true, j.openParts()
	}
	if err == nil {
		note("the inputs or options are not those of the run that was interrupted: starting anew")
	}
	if !overwrite {
		for _, name := range []string{"train.bin", "val.bin", "meta.pkl"} {
			if _, err := os.Stat(filepath.Join(j.out, name)); !errors.Is(err, fs.ErrNotExist) {
				return false, fmt.Errorf("%s is there already: --overwrite replaces the data set, --out=DIR writes another", filepath.Join(j.out, name))
			}
		}
	}
	j.state = state{Job: want}
	if err := j.openParts(); err != nil {
		return false, err
	}
	return false, j.save()
}

// holds says whether the token files are as long as a state says. After the state is complete they may be in place.
func (j *journal) holds(s state) bool {
	for split := range j.files {
		info, err := os.Stat(j.part(split))
		if errors.Is(err, fs.ErrNotExist) && s.Complete {
			info, err = os.Stat(j.final(split))
		}
		if err != nil || info.Size() < s.Bytes[split] {
			return false
		}
	}
	return true
}

// openParts opens the token files and cuts them to what the state says.
func (j *journal) openParts() error {
	if j.state.Complete {
		return nil
	}
	for split := range j.files {
		f, err := os.OpenFile(j.part(split), os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			err = f.Truncate(j.state.Bytes[split])
		}
		if err == nil {
			_, err = f.Seek(j.state.Bytes[split], 0)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", j.part(split), reason(err))
		}
		j.files[split], j.bufs[split] = f, bufio.NewWriterSize(f, 1<<20)
	}
	return nil
}

// write appends tokens to a split.
func (j *journal) write(split int, tokens []byte) error {
	if _, err := j.bufs[split].Write(tokens); err != nil {
		return j.writeError(split, err)
	}
	j.state.Bytes[split] += int64(len(tokens))
	return nil
}

func (j *journal) writeError(split int, err error) error {
	return fmt.Errorf("write %s: %w: nothing is lost, make room and run the same command again", j.part(split), reason(err))
}

// checkpoint makes everything written so far survive a kill.
func (j *journal) checkpoint() error {
	for split, f := range j.files {
		err := j.bufs[split].Flush()
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return j.writeError(split, err)
		}
	}
	return j.save()
}

func (j *journal) statePath() string { return filepath.Join(j.dir, "state.json") }

func (j *journal) save() error {
	raw, err := json.Marshal(j.state)
	if err == nil {
		err = durable.WriteFile(j.statePath(), raw)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w: nothing is lost, make room and run the same command again", j.statePath(), reason(err))
	}
	return nil
}

// install moves a complete data set into place, and then removes the journal. It can be done again after a kill.
func (j *journal) install(meta []byte) error {
	for split, f := range j.files {
		if f != nil {
			if err := f.Close(); err != nil {
				return j.writeError(split, err)
			}
			j.files[split] = nil
		}
	}
	metaPath := filepath.Join(j.out, "meta.pkl")
	if meta != nil {
		if err := durable.WriteFile(metaPath, meta); err != nil {
			return fmt.Errorf("write %s: %w", metaPath, reason(err))
		}
	} else if err := os.Remove(metaPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s, which belongs to the data set before: %w", metaPath, reason(err))
	}
	for split := range j.files {
		if _, err := os.Stat(j.part(split)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := durable.Rename(j.part(split), j.final(split)); err != nil {
			return fmt.Errorf("write %s: %w", j.final(split), reason(err))
		}
	}
	if err := os.Remove(j.statePath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", j.statePath(), reason(err))
	}
	return nil
}

// close ends the process's hold on the work folder. One without a state, not begun or complete, is removed.
func (j *journal) close() {
	for _, f := range j.files {
		if f != nil {
			f.Close() // what was not synced is not counted on
		}
	}
	defer j.unlock()
	if _, err := os.Stat(j.statePath()); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := os.RemoveAll(j.dir); err != nil { // Windows keeps a file that is open
		j.unlock()
		os.RemoveAll(j.dir)
	}
	if j.made {
		os.Remove(j.out) // only an empty folder goes
	}
}
