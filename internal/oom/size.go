package oom

import (
	"math"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// Size is a printed size: its value, and the interval of bytes that print the same way.
type Size struct {
	Bytes     units.Bytes
	Low, High units.Bytes // both included
}

// Holds reports whether n bytes would have been printed as s was.
func (s Size) Holds(n units.Bytes) bool { return s.Low <= n && n <= s.High }

// sizePattern matches a size as the frameworks print it: "6.14 GiB", "0 bytes", "2.20GiB", "890.06M", "458. GiB".
const sizePattern = `\d[\d,]*(?:\.\d*)?\s*(?:(?i:bytes|byte|[KMGTPE]i?B|B)|[KMGT])\b`

// binary are the units' sizes. PyTorch, TensorFlow and XLA divide by 1024 whatever they call the unit:
// PyTorch's MPS allocator and old TensorFlow print MB and M for MiB.
var binary = map[string]float64{
	"b": 1, "byte": 1, "bytes": 1,
	"k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
	"g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30, "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
	"pb": 1 << 50, "pib": 1 << 50, "eb": 1 << 60, "eib": 1 << 60,
}

// absurd is more memory than any machine has: a message that prints it carries a wrapped or garbage number.
const absurd = 1 << 50

var sizeExpr = lazy(`^` + sizePattern + `$`)

// parseSize reads a printed size. It refuses what cannot be a memory size, so that garbage stays absent.
func parseSize(s string) (Size, bool) {
	s = strings.TrimSpace(s)
	if !sizeExpr().MatchString(s) {
		return Size{}, false
	}
	cut := strings.LastIndexAny(s, "0123456789") + 1
	digits := strings.ReplaceAll(s[:cut], ",", "")
	n, err := strconv.ParseFloat(digits, 64)
	unit := binary[strings.ToLower(strings.TrimSpace(strings.TrimPrefix(s[cut:], ".")))]
	if err != nil || n*unit > absurd {
		return Size{}, false
	}
	half := 0.5 * unit // the last printed digit is rounded
	if _, decimals, ok := strings.Cut(digits, "."); ok {
		half *= math.Pow(10, -float64(len(decimals)))
	}
	if unit == 1 {
		half = 0
	}
	b := units.Bytes(math.Round(n * unit))
	return Size{b, min(b, units.Bytes(math.Ceil(max(0, n*unit-half)))), max(b, units.Bytes(math.Floor(n*unit+half)))}, true
}
