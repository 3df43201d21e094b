package config

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// literal reads text as Python's ast.literal_eval reads a number, a boolean or a quoted string;
// anything else is the text itself, as nanoGPT's configurator takes it.
func literal(text string) any {
	switch text {
	case "True":
		return true
	case "False":
		return false
	}
	t := strings.TrimSpace(text)
	digits := strings.ReplaceAll(t, "_", "")
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil && digits != "" {
		return int(n)
	}
	if looksNumeric(digits) {
		if f, err := strconv.ParseFloat(digits, 64); err == nil {
			return f
		}
	}
	if n := len(t); n >= 2 && (t[0] == '\'' || t[0] == '"') && t[n-1] == t[0] && !strings.ContainsRune(t[1:n-1], rune(t[0])) {
		return unescape(t[1 : n-1])
	}
	return text
}

// unescape replaces the escapes that Python and a person at a shell both use.
func unescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t", `\'`, "'", `\"`, `"`).Replace(s)
}

// looksNumeric keeps words such as "inf" and "nan", which ParseFloat takes and Python does not, strings.
func looksNumeric(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return s != "" && (s[0] >= '0' && s[0] <= '9' || s[0] == '.' && len(s) > 1) && !strings.ContainsAny(s, "xXpP")
}

// Python writes v as a Python literal: True, 0.1, 'out', 12. Sizes are quoted strings.
func Python(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "True"
		}
		return "False"
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".einI") {
			s += ".0"
		}
		return s
	case string:
		return pythonString(v)
	case units.Bytes:
		return pythonString(strconv.FormatInt(int64(v), 10) + "B")
	}
	return fmt.Sprint(v)
}

func pythonString(s string) string {
	q := strconv.Quote(s) // Go's escapes are Python's
	return "'" + strings.ReplaceAll(strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`), "'", `\'`) + "'"
}

func pythonType(v any) string {
	switch v.(type) {
	case int, *big.Int:
		return "int"
	case float64:
		return "float"
	case bool:
		return "bool"
	case string:
		return "str"
	}
	return fmt.Sprintf("%T", v)
}
