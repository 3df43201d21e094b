// Package units owns byte counts and durations: how they are parsed and how they are printed.
//
// Memory is printed in binary units with two decimals and one rounding rule; JSON carries plain bytes.
// It never decides what a number means (allocated, reserved, process, total): its callers say that.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Bytes is a count of bytes.
type Bytes int64

const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// binaryUnits are tried from the smallest up; the first in which the rounded number stays under 1024 is used.
var binaryUnits = []struct {
	name string
	size Bytes
}{{"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}}

// String prints b in the largest binary unit that keeps it at 1 or above, with two decimals: "6.14 GiB".
//
// The number is rounded before the unit is chosen, so 1048575 bytes print as "1.00 MiB", never "1024.00 KiB".
func (b Bytes) String() string {
	if b < 0 {
		if b == math.MinInt64 {
			return "-8388608.00 TiB"
		}
		return "-" + (-b).String()
	}
	if b < KiB {
		return fmt.Sprintf("%d B", int64(b))
	}
	for i, u := range binaryUnits {
		s := strconv.FormatFloat(float64(b)/float64(u.size), 'f', 2, 64)
		if i == len(binaryUnits)-1 || len(s) < len("1024.00") || s < "1024.00" && len(s) == len("1024.00") {
			return s + " " + u.name
		}
	}
	panic("unreachable")
}

// GiB prints b in GiB with two decimals whatever its size: the form of tables that compare memory.
func (b Bytes) GiB() string {
	return strconv.FormatFloat(float64(b)/float64(GiB), 'f', 2, 64) + " GiB"
}

// suffixes maps a lower-case unit to its size. Binary and decimal units are told apart as written;
// the bare letters k, m, g, t are binary, as PyTorch, Docker and nvidia-smi's users mean them.
var suffixes = map[string]float64{
	"b": 1, "byte": 1, "bytes": 1,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "eib": 1 << 60, "pib": 1 << 50,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// ParseBytes reads a size with its unit: "11.69GiB", "12GB", "12g", "12288 MiB".
//
// A number without a unit is refused, because people mean different units by it.
func ParseBytes(s string) (Bytes, error) {
	text := strings.TrimSpace(s)
	cut := strings.LastIndexFunc(text, func(r rune) bool { return !unicode.IsLetter(r) }) + 1
	digits, unit := strings.TrimSpace(text[:cut]), strings.ToLower(text[cut:])
	n, err := parseDecimal(digits)
	if err != nil {
		return 0, fmt.Errorf("size %q: want a number and a unit, such as 11.69GiB or 12GB", s)
	}
	if unit == "" {
		return 0, fmt.Errorf("size %q has no unit: write %sGiB or %sMiB", s, digits, digits)
	}
	size, ok := suffixes[unit]
	if !ok {
		return 0, fmt.Errorf("size %q: unknown unit %q: use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB", s, text[cut:])
	}
	bytes := math.Round(n * size)
	if bytes >= math.MaxInt64 {
		return 0, fmt.Errorf("size %q is larger than any memory: the largest is 8388607TiB", s)
	}
	return Bytes(bytes), nil
}

// parseDecimal reads digits with at most one point: no sign, no exponent, no names such as NaN or Inf.
func parseDecimal(s string) (float64, error) {
	if s == "" || strings.Trim(s, "0123456789.") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, 64)
}
