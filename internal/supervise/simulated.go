package supervise

import (
	"cmp"
	"slices"

	"github.com/snugml/snug/internal/config"
	"github.com/snugml/snug/internal/fit"
	"github.com/snugml/snug/internal/torch"
)

// Simulated is the Planner that simulates PyTorch: every setting is tried on the trace before it is tried on the card.
type Simulated struct {
	Target    fit.Target // its limit is replaced by the conditions'
	AllocConf torch.AllocConf
}

func (s Simulated) try(cfg config.Config, c Conditions) (*fit.Outcome, fit.Target, error) {
	target := s.Target
	target.Limit = c.Limit
	o, err := fit.Try(fit.Setup{Config: cfg, AllocConf: s.AllocConf, Options: torch.Options{
		DDP: c.World > 1, WorldSize: c.World, Resume: c.Resume}}, target)
	return o, target, err
}

// Predict simulates the settings. What fits only by giving cached memory back again and again counts as not fitting.
func (s Simulated) Predict(cfg config.Config, c Conditions) (Prediction, bool, error) {
	o, _, err := s.try(cfg, c)
	if err != nil {
		return Prediction{}, false, err
	}
	return prediction(o), o.Fits && !o.Tight, nil
}

// Choices are fit's suggestions that a command line can carry and that leave training the same, the fastest first and
// the extra-safe ones last.
func (s Simulated) Choices(cfg config.Config, c Conditions) ([]Choice, error) {
	o, target, err := s.try(cfg, c)
	if err != nil {
		return nil, err
	}
	suggestions, err := fit.Suggest(o, target)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(suggestions, func(a, b fit.Suggestion) int { return cmp.Compare(rank(a), rank(b)) })
	var list []Choice
	for _, sg := range suggestions {
		if !sg.SameTraining || sg.Patch != "" || !sg.Outcome.Fits || sg.Outcome.Tight {
			continue
		}
		choice := Choice{Changes: map[string]string{}, Env: sg.Env, Prediction: prediction(sg.Outcome)}
		for key, v := range sg.Changes {
			choice.Changes[key] = config.Python(v)
		}
		list = append(list, choice)
	}
	return list, nil
}

// rank puts the extra-safe variants last.
func rank(sg fit.Suggestion) int {
	if sg.Safe {
		return 1
	}
	return 0
}

func prediction(o *fit.Outcome) Prediction {
	return Prediction{Phase: o.Peak.Phase, Allocated: o.Peak.Allocated, Reserved: o.Peak.Reserved, Process: o.Peak.Process}
}
