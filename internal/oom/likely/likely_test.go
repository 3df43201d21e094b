package likely

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	for text, want := range map[string]string{
		"EvalLoop.run_validation()":    "eval loop run validat",
		"CUDA Error, x86 évaluer":      "cuda error valuer",
		"训练 step":                      "step 练 训",
		"losses, loss, testing, tests": "loss losse test",
		"":                             "",
	} {
		var g Gist
		g.Write([]byte(text))
		if got := strings.Join(slices.Sorted(maps.Keys(g.Words())), " "); got != want {
			t.Errorf("words of %q are %q, want %q", text, got, want)
		}
	}
}

// A text's ends are the same however it comes, and all that is kept of a long one.
func TestEnds(t *testing.T) {
	text := []byte("first " + strings.Repeat("middle ", 3*keep) + " last")
	var whole Gist
	whole.Write(text)
	for _, size := range []int{1, 7, keep - 1, keep, keep + 1, 2*keep + 3} {
		var g Gist
		for piece := range slices.Chunk(text, size) {
			g.Write(piece)
		}
		if !bytes.Equal(g.head, whole.head) || !bytes.Equal(g.tail, whole.tail) {
			t.Errorf("in pieces of %d other ends are kept", size)
		}
	}
	if words := whole.Words(); !words["first"] || !words["last"] || len(whole.tail) != keep {
		t.Errorf("ends are %d and %d bytes, words %v", len(whole.head), len(whole.tail), words)
	}
}

func TestGuess(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"validation: evaluating the dev set after the epoch, evaluate() in trainer.evaluation_loop":            "eval",
		"loss.backward() in autograd, torch/autograd/__init__.py, scaler.scale(loss).backward()":               "backward",
		"the optimizer's step: adam.py, exp_avg_sq.sqrt(), optimizer.step() torch/optim/optimizer.py":          "optimizer",
		"generate() in gradio, inference demo: pipe(prompt), predict and sample an image, chat with the webui": "sample",
	} {
		var g Gist
		g.Write([]byte(text))
		if got, _ := g.Guess(); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a b\n- 0 0\nword 1 -2")
	f.Add("a b\nword 1")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(text)
		if err == nil && len(table.Phases) > 0 {
			table.Guess(map[string]bool{"word": true})
		}
	})
}
