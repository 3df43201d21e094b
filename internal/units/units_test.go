package units

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestBytesString(t *testing.T) {
	for _, c := range []struct {
		in   Bytes
		want string
	}{
		{0, "0 B"}, {1023, "1023 B"}, {1024, "1.00 KiB"}, {1024*1024 - 1, "1.00 MiB"},
		{1048570, "1023.99 KiB"}, {MiB*1024 - 1, "1.00 GiB"}, {6593445888, "6.14 GiB"},
		{12551993098, "11.69 GiB"}, {-GiB, "-1.00 GiB"}, {math.MaxInt64, "8388608.00 TiB"}, {math.MinInt64, "-8388608.00 TiB"},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("Bytes(%d) = %q, want %q", int64(c.in), got, c.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]Bytes{
		"11.69GiB": 12552041923, "12GB": 12e9, "12g": 12 * GiB, "11.69 GiB": 12552041923, "12288 MiB": 12 * GiB,
		"6.14 GiB": 6592774799, " 512 MB ": 512e6, "0B": 0, "1.5KiB": 1536, "20 bytes": 20,
	} {
		got, err := ParseBytes(in)
		if err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", in, int64(got), err, int64(want))
		}
	}
}

func TestParseBytesRefuses(t *testing.T) {
	for in, part := range map[string]string{
		"12": "12GiB or 12MiB", "": "want a number", "-1GiB": "want a number", "1e99GiB": "want a number",
		"NaN": "want a number", "inf GiB": "want a number", "12 parsecs": "unknown unit", "99999999TiB": "larger than any memory",
		"1.2.3GiB": "want a number", "GiB": "want a number", "٣GiB": "want a number",
	} {
		_, err := ParseBytes(in)
		if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ParseBytes(%q) error = %v, want one line with %q", in, err, part)
		}
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[time.Duration]string{
		0: "0 ms", 999400 * time.Microsecond: "999 ms", 999900 * time.Microsecond: "1.0 s", 59990 * time.Millisecond: "1m 00s",
		185 * time.Second: "3m 05s", 3599900 * time.Millisecond: "1h 00m", 26 * time.Hour: "1d 02h", -time.Second: "-1.0 s",
	} {
		if got := Duration(in); got != want {
			t.Errorf("Duration(%d) = %q, want %q", in, got, want)
		}
	}
}

// Whatever is printed parses back to within the rounding of two decimals, and never prints 1024 of a unit.
func FuzzBytes(f *testing.F) {
	for _, s := range []string{"11.69GiB", "12GB", "12g", "1023.999 KiB", "-1GiB", "1e99GiB", "NaN", "12", "٣GiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error has several lines: %q", err)
			}
			return
		}
		if b < 0 {
			t.Fatalf("ParseBytes(%q) = %d", s, int64(b))
		}
		printed := b.String()
		if strings.HasPrefix(printed, "1024.00 ") {
			t.Fatalf("%d prints as %q", int64(b), printed)
		}
		back, err := ParseBytes(printed)
		if err != nil && b < 8388607*TiB {
			t.Fatalf("%q printed as %q does not parse: %v", s, printed, err)
		}
		if err == nil && math.Abs(float64(back-b)) > 0.0051*float64(max(b, KiB)) {
			t.Fatalf("%q = %d printed as %q = %d", s, int64(b), printed, int64(back))
		}
	})
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 39641600: "39,641,600", -1234: "-1,234", -123: "-123"} {
		if got := Count(n); got != want {
			t.Errorf("%d prints as %s, want %s", n, got, want)
		}
	}
}
