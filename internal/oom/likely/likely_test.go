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
		words := slices.Sorted(maps.Keys(g.Words()))
		words = slices.DeleteFunc(words, func(w string) bool { return strings.Contains(w, ":") })
		if got := strings.Join(words, " "); got != want {
			t.Errorf("words of %q are %q, want %q", text, got, want)
		}
	}
}

// A word counts once more by its place: the title, the last lines, and the calls, of which the two innermost count again.
func TestPlaces(t *testing.T) {
	text := "Alpha fails\n" + strings.Repeat("filler ", ending) + `
  File "/a/outer.py", line 1, in <module>
    begin(x)
  File "C:\b\medium.py", line 2, in second
    third(y)
  File "inner.py", line 3, in third
    y @ z2
RuntimeError: omega`
	var g Gist
	g.Write([]byte(text))
	words := g.Words()
	for _, w := range strings.Fields("alpha t:alpha e:omega f:second f:third p:outer p:medium p:inner c:begin c:third i:second i:third i:medium i:inner") {
		if !words[w] {
			t.Errorf("%s is missing", w)
		}
	}
	for _, w := range strings.Fields("t:omega e:alpha i:outer i:begin f:outer c:omega p:b") {
		if words[w] {
			t.Errorf("%s is no word of that place", w)
		}
	}
}

// What is shown weighs, and can be outweighed.
func TestShownWeighs(t *testing.T) {
	var g Gist
	g.Write([]byte("loss.backward() in autograd, torch/autograd/__init__.py, scaler.scale(loss).backward()"))
	_, alone := g.Guess("")
	if phase, chance := g.Guess("backward"); phase != "backward" || chance <= alone {
		t.Errorf("shown, it is %s with a chance of %g, alone %g", phase, chance, alone)
	}
	if _, chance := g.Guess("eval"); chance >= alone {
		t.Errorf("with another shown its chance is %g, alone %g", chance, alone)
	}
}

// A text's ends are the same however it comes, and all that is kept of a long one.
func TestEnds(t *testing.T) {
	text := []byte("first " + strings.Repeat("medium ", 3*keep) + " last")
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
		if got, _ := g.Guess(""); got != want {
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
			table.Guess(map[string]bool{"word": true}, "a")
		}
	})
}
