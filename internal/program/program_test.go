package program

import (
	"strings"
	"testing"

	"github.com/snugml/snug/internal/trace"
	"github.com/snugml/snug/internal/units"
)

// chain is a program of two sections: x -> a -> b -> out, and out zeroed.
func chain() (p *Program, x, a, b, out ID) {
	p = &Program{}
	x = p.Add(Persistent, trace.Input, trace.Float32, "x", 10)
	out = p.Add(Persistent, trace.Activation, trace.Float32, "out", 10)
	a = p.Add(Temporary, trace.Activation, trace.Float32, "a", 100)
	b = p.Add(Temporary, trace.Activation, trace.BFloat16, "b", 100)
	op := func(dst, src ID) Op {
		return Op{Code: Cast, Args: []Arg{p.Whole(dst), p.Whole(src)}, Scratch: Absent}
	}
	p.Sections = []Section{
		{Name: "run", Phase: "step", Ops: []Op{op(a, x), op(b, a), op(out, b)}},
		{Name: "clear", Phase: "step", Ops: []Op{{Code: Zero, Args: []Arg{p.Whole(out)}, Scratch: Absent}}},
	}
	return p, x, a, b, out
}

func TestSpecsAreWhole(t *testing.T) {
	for c := range Codes {
		s := c.Spec()
		if s.Name == "" || len(s.Params) == 0 || s.Name != c.String() {
			t.Errorf("code %d has signature %+v", c, s)
		}
		written := false
		for i, p := range s.Params {
			written = written || p.Access != Read
			if p.Many != (i >= s.repeated()) {
				t.Errorf("%s: %s repeats: %v, the first that does is number %d", c, p.Name, p.Many, s.repeated())
			}
		}
		if !written {
			t.Errorf("%s writes nothing", c)
		}
	}
}

func TestLifetimesFollowTheOps(t *testing.T) {
	p, x, a, b, out := chain()
	p.AddScratch(func(op *Op) units.Bytes {
		if op == &p.Sections[0].Ops[1] {
			return 1000
		}
		return 0
	})
	lives := p.Lifetimes()
	scratch := p.Sections[0].Ops[1].Scratch.ID
	for id, want := range map[ID]Life{x: {-1, 0, 0}, out: {-1, 0, 0}, a: {0, 0, 1}, b: {0, 1, 2}, scratch: {0, 1, 1}} {
		if got := lives[id]; got != want {
			t.Errorf("%s lives %+v, want %+v", p.Tensors[id].Name, got, want)
		}
	}
	l := p.Place()
	// x and out take 256 bytes each; a (512), b (256) and the scratch (1024) are alive together in op 1.
	if want := units.Bytes(256 + 256 + 512 + 256 + 1024); l.Size != want {
		t.Errorf("%d bytes, want %d", l.Size, want)
	}
	if want := units.Bytes(40 + 40 + 400 + 200 + 1000); l.Live != want || p.Live() != want {
		t.Errorf("%d and %d live bytes, want %d", l.Live, p.Live(), want)
	}
}

// What is given to a section is read without being written in it, lives from its first op to its last, and is no other section's.
func TestGivenLivesThroughItsSection(t *testing.T) {
	p, _, _, _, _ := chain()
	given := p.Add(Given, trace.Input, trace.Float32, "given", 100)
	p.Sections[0].Ops[1].Args[1] = p.Whole(given) // b = given, in the middle
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if got, want := p.Lifetimes()[given], (Life{0, 0, 2}); got != want {
		t.Errorf("lives %+v, want %+v", got, want)
	}
	with := p.Place()
	p.Tensors[given].Class = Persistent
	if without := p.Place(); with.Size != without.Size || with.Live != without.Live { // one section is the peak
		t.Errorf("%d bytes, %d live, want %d and %d as with a persistent tensor", with.Size, with.Live, without.Size, without.Live)
	}
}

func TestCheckFindsBrokenPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(p *Program)
		want   string
	}{
		"sound":        {func(*Program) {}, ""},
		"arity":        {func(p *Program) { op := &p.Sections[0].Ops[0]; op.Args = op.Args[:1] }, "1 arguments, the signature has 2"},
		"absent":       {func(p *Program) { p.Sections[0].Ops[1].Args[1] = Absent }, "src is absent"},
		"out of range": {func(p *Program) { p.Sections[0].Ops[1].Args[1].Offset = 1 }, "[1:101] of a, which has 100 elements"},
		"never written": {func(p *Program) { s := &p.Sections[0]; s.Ops = s.Ops[1:] },
			"src reads a before anything wrote it"},
		"added to before written": {func(p *Program) { p.Sections[0].Ops[0].Attrs.Accumulate = true }, "dst reads a before"},
	} {
		p, _, _, _, _ := chain()
		c.damage(p)
		err := p.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestReadsFollowsAccessAndFlags(t *testing.T) {
	for _, c := range []struct {
		name  string
		code  Code
		attrs Attrs
		arg   int
		want  bool
	}{
		{"written", MatmulBackwardInput, Attrs{}, 0, false},
		{"accumulated", MatmulBackwardInput, Attrs{Accumulate: true}, 0, true},
		{"read", MatmulBackwardInput, Attrs{}, 1, true},
		{"added to", MatmulBackwardWeight, Attrs{}, 0, true},
		{"overwritten", MatmulBackwardWeight, Attrs{Overwrite: true}, 0, false},
		{"bias overwritten, input accumulated", LayernormBackward, Attrs{Overwrite: true, Accumulate: true}, 2, false},
		{"positions overwritten", EncoderBackward, Attrs{Overwrite: true}, 1, false},
		{"tokens after the head", EncoderBackward, Attrs{Overwrite: true}, 0, true},
		{"updated", AdamW, Attrs{}, 2, true},
		{"the third group's gradient", AdamW, Attrs{}, 15, true},
	} {
		if op := (Op{Code: c.code, Attrs: c.attrs}); op.Reads(c.arg) != c.want {
			t.Errorf("%s: %s reads argument %d: %v, want %v", c.name, c.code, c.arg, !c.want, c.want)
		}
	}
}

func TestGroupsOfArgumentsRepeat(t *testing.T) {
	for n, want := range map[int]bool{1: false, 5: false, 6: true, 7: false, 10: false, 11: true, 16: true} {
		if got := AdamW.Spec().takes(n); got != want {
			t.Errorf("AdamW with %d arguments: %v, want %v", n, got, want)
		}
	}
	for n, want := range map[int]bool{1: false, 2: true, 3: true, 40: true} {
		if got := GlobalNorm.Spec().takes(n); got != want {
			t.Errorf("GlobalNorm with %d arguments: %v, want %v", n, got, want)
		}
	}
	op := Op{Code: AdamW}
	for i, want := range []string{"norm", "param", "master", "m", "v", "grad", "param", "master", "m", "v", "grad", "param"} {
		if got := op.Param(i).Name; got != want {
			t.Errorf("argument %d is %s, want %s", i, got, want)
		}
	}
}
