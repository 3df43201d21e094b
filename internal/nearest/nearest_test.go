package nearest

import (
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	known := []string{"batch_size", "block_size", "n_layer", "n_head", "n_embd", "learning_rate", "min_lr", "dtype", "device"}
	for word, want := range map[string][]string{
		"batchsize":  {"batch_size", "block_size"},
		"batch-size": {"batch_size", "block_size"},
		"n_layers":   {"n_layer"},
		"learn":      {"learning_rate"},
		"dytpe":      {"dtype"},
		"zzz":        nil,
		"":           nil,
	} {
		if got := Names(word, known); !slices.Equal(got, want) {
			t.Errorf("Names(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Hint("n_layers", known); got != "did you mean n_layer?" {
		t.Errorf("Hint = %q", got)
	}
}
