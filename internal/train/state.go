package train

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/gpt"
	"github.com/snugml/snug/internal/program"
	"github.com/snugml/snug/internal/safetensors"
	"github.com/snugml/snug/internal/units"
)

// progressKey is where a checkpoint keeps Progress beside nanoGPT's fields.
const progressKey = "progress"

// openState opens what init_from names: nothing, out_dir's checkpoint, or a file of weights.
func (r *Run) openState() (err error) {
	c := &r.Config
	switch {
	case c.InitFrom == "scratch":
		return nil
	case c.InitFrom == "resume":
		if r.from, err = newest(c.OutDir); err != nil {
			return err
		}
		r.started = true
		r.resumeProgress()
		if r.Iter > c.MaxIters && !c.EvalOnly {
			r.Notes = append(r.Notes, fmt.Sprintf("the run is done: %d iterations, max_iters is %d: raise max_iters to go on", r.Iter, c.MaxIters))
		}
	default:
		if _, preset := config.Presets[c.InitFrom]; preset {
			return fmt.Errorf("init_from=%s: snug downloads nothing: fetch model.safetensors of %s from Hugging Face, then set init_from to its path", c.InitFrom, c.InitFrom)
		}
		r.from, err = checkpoint.Open(c.InitFrom, checkpoint.ModelOnly)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("init_from=%s: no such file: use scratch, resume, or the path of model.safetensors or ckpt.pt", c.InitFrom)
		}
		if err != nil {
			return err
		}
	}
	r.Notes = append(r.Notes, r.from.Warnings...)
	return nil
}

// newest opens the state that went furthest: out_dir's, or the interrupted one beside it.
func newest(outDir string) (*checkpoint.State, error) {
	s, err := checkpoint.Load(outDir, checkpoint.Everything)
	last, lastErr := checkpoint.Load(filepath.Join(outDir, LastDir), checkpoint.Everything)
	switch {
	case lastErr != nil:
		if err == nil && !errors.Is(lastErr, fs.ErrNotExist) {
			s.Warnings = append(s.Warnings, lastErr.Error())
		}
		return s, err
	case err != nil:
		last.Warnings = append(last.Warnings, err.Error())
		return last, nil
	case last.IterNum > s.IterNum:
		s, last = last, s
	}
	return s, last.Close()
}

// resumeProgress takes the place in the run from the checkpoint; nanoGPT's has iter_num and best_val_loss alone.
func (r *Run) resumeProgress() {
	s := r.from
	r.Progress = Start()
	if raw, ok := s.Extra[progressKey]; ok && json.Unmarshal(raw, &r.Progress) == nil {
		return
	}
	r.Iter, r.BestValLoss = s.IterNum, s.BestValLoss
	r.Sample = uint64(s.IterNum) * uint64(r.Config.EffectiveBatch())
	if s.Optimizer != nil {
		r.Updates = int(s.Optimizer.Step)
	}
}

// restore gives parameters and moments their values from the checkpoint.
func (r *Run) restore() error {
	s := r.from
	type group struct {
		tensors []checkpoint.Tensor
		set     func(p gpt.Param, v []float32) error
	}
	set := func(id func(gpt.Param) program.ID) func(gpt.Param, []float32) error {
		return func(p gpt.Param, v []float32) error { return r.Exec.SetFloats(id(p), v) }
	}
	groups := []group{{s.Params, set(gpt.Param.Value)}}
	if r.Config.InitFrom == "resume" {
		if s.Optimizer == nil {
			return fmt.Errorf("resume from %s: it has no optimizer state: use init_from=%s to start anew from its weights", s.Path, s.Path)
		}
		groups = append(groups,
			group{s.Optimizer.ExpAvg, set(func(p gpt.Param) program.ID { return p.M })},
			group{s.Optimizer.ExpAvgSq, set(func(p gpt.Param) program.ID { return p.V })})
	}
	var buf []float32
	for _, g := range groups {
		if len(g.tensors) != len(r.Step.Params) {
			return fmt.Errorf("load %s: %d tensors, the model has %d", s.Path, len(g.tensors), len(r.Step.Params))
		}
		for i, p := range r.Step.Params {
			n, ok := safetensors.Elements(g.tensors[i].Shape)
			if !ok || int(n) < p.Len() {
				return fmt.Errorf("load %s: %s has shape %v, the model's is %v", s.Path, p.Name, g.tensors[i].Shape, p.Shape)
			}
			buf = slices.Grow(buf[:0], int(n))[:n]
			if err := g.tensors[i].Floats(buf); err != nil {
				return err
			}
			// Where block_size was lowered the file has more positions than the model: nanoGPT keeps the first ones.
			if err := g.set(p, buf[:p.Len()]); err != nil {
				return err
			}
		}
	}
	return nil
}

// save begins a checkpoint: in out_dir, or in LastDir where out_dir keeps the best one and this is not it.
func (r *Run) save(p Progress, best bool) (*Saving, error) {
	dir := r.Config.OutDir
	if !best && !r.Config.AlwaysSaveCheckpoint {
		dir = filepath.Join(dir, LastDir)
	}
	path := filepath.Join(dir, checkpoint.Name)
	copied, err := r.snapshot()
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	s, err := r.state(p, copied != nil)
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	write := func() error {
		if !r.started {
			if err := removeLast(r.Config.OutDir); err != nil {
				return fmt.Errorf("save checkpoint: %w", err)
			}
		}
		err := checkpoint.Save(dir, s)
		r.started = r.started || err == nil
		return err
	}
	if copied != nil {
		return newSaving(path, p.Iter, copied, write), nil
	}
	if err := write(); err != nil {
		return nil, err
	}
	return doneSaving(path, p.Iter), nil
}

// state is what a checkpoint of p holds, its tensors those of the mirror or of the executor.
func (r *Run) state(p Progress, mirrored bool) (*checkpoint.State, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	s := &checkpoint.State{
		IterNum: p.Iter, BestValLoss: p.BestValLoss, Model: r.Step.Model,
		Config:    plain(r.Config.Map(config.Train)),
		Optimizer: &checkpoint.Optimizer{Step: int64(p.Updates)},
		Extra:     map[string]json.RawMessage{progressKey: raw},
	}
	if meta := r.Set.Meta; meta != nil && meta.Chars != nil {
		if s.Extra[checkpoint.CharsKey], err = json.Marshal(meta.Chars); err != nil {
			return nil, err
		}
	}
	read := r.reader()
	if mirrored {
		read = func(id program.ID) ([]float32, error) { return r.mirror.floats[id], nil }
	}
	for _, param := range r.Step.Params {
		tensor := func(id program.ID) checkpoint.Tensor {
			shape := make([]int64, len(param.Shape))
			for i, d := range param.Shape {
				shape[i] = int64(d)
			}
			return checkpoint.Tensor{Name: param.Name, DType: safetensors.F32, Shape: shape, Data: &floats{id, read}}
		}
		s.Params = append(s.Params, tensor(param.Value()))
		s.Optimizer.ExpAvg = append(s.Optimizer.ExpAvg, tensor(param.M))
		s.Optimizer.ExpAvgSq = append(s.Optimizer.ExpAvgSq, tensor(param.V))
	}
	return s, nil
}

// reader reads the executor's tensors: in place, or through one buffer that all of them share.
func (r *Run) reader() func(id program.ID) ([]float32, error) {
	if x, ok := r.Exec.(viewer); ok {
		return func(id program.ID) ([]float32, error) { return x.View(id), nil }
	}
	var buf []float32
	return func(id program.ID) ([]float32, error) {
		n := r.Step.Tensors[id].Len()
		buf = slices.Grow(buf[:0], n)[:n]
		return buf, r.Exec.Floats(id, buf)
	}
}

// plain turns settings into the types that checkpoints keep.
func plain(m map[string]any) map[string]any {
	for k, v := range m {
		switch v := v.(type) {
		case int:
			m[k] = int64(v)
		case units.Bytes:
			m[k] = int64(v)
		}
	}
	return m
}

// floats writes a tensor as little-endian float32.
type floats struct {
	id   program.ID
	read func(program.ID) ([]float32, error) // until it is called again
}

func (f *floats) WriteTo(w io.Writer) (int64, error) {
	v, err := f.read(f.id)
	if err != nil {
		return 0, err
	}
	var bytes [1 << 14]byte
	var written int64
	for len(v) > 0 {
		n := min(len(v), len(bytes)/4)
		for i, x := range v[:n] {
			binary.LittleEndian.PutUint32(bytes[4*i:], math.Float32bits(x))
		}
		k, err := w.Write(bytes[:4*n])
		written += int64(k)
		if err != nil {
			return written, err
		}
		v = v[n:]
	}
	return written, nil
}
