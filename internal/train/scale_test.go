package train

import (
	"slices"
	"testing"

	"github.com/snugml/snug/internal/trace"
)

// float16 is trained under a loss scale, whatever the checkpoint was trained in; nothing else is.
func TestFloat16IsScaled(t *testing.T) {
	kept := Scaler{Scale: 1024, Since: 7, On: true}
	for name, c := range map[string]struct {
		dtype     trace.DType
		own, want Scaler
	}{
		"fresh":            {trace.Float16, Start().Scale, Scaler{Scale: 65536, On: true}},
		"resumed":          {trace.Float16, kept, kept},
		"bfloat16":         {trace.BFloat16, Start().Scale, Scaler{Scale: 1}},
		"from float16, on": {trace.Float32, kept, Scaler{Scale: 1}},
	} {
		if got := scalerFor(c.dtype, c.own); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	d := device(1)
	defer d.Exec.Close()
	d.DTypes = DTypes(trace.Float16)
	r, err := Prepare(tiny(t, nil), d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !r.Scale.On {
		t.Errorf("a float16 run has the scale %+v", r.Scale)
	}
}

// float16's loss scale, a power of two, changes no bit of a step that stays in range.
func TestLossScaleCancels(t *testing.T) {
	want, err := train(t, tiny(t, nil), &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := trainFrom(t, tiny(t, nil), &recorder{}, func(r *Run) { r.Scale = scalerFor(trace.Float16, Start().Scale) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("parameter %d has other bits with a scaled loss", i)
		}
	}
}

// GradScaler's rules: half on an overflow, double after 2,000 good iterations; off, nothing changes and nothing helps.
func TestScaler(t *testing.T) {
	s := scalerFor(trace.Float16, Start().Scale)
	if !s.Overflow() || s.Scale != 32768 {
		t.Errorf("after an overflow: %+v", s)
	}
	for range 2000 {
		s.Good()
	}
	if s.Scale != 65536 || s.Since != 0 {
		t.Errorf("after 2,000 good iterations: %+v", s)
	}
	off := Scaler{Scale: 1}
	off.Good()
	if off.Overflow() || off != (Scaler{Scale: 1}) {
		t.Errorf("off: %+v", off)
	}
}
