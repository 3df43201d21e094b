package torch

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/snugml/snug/internal/units"
)

// AllocConf is PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF since 2.9) as far as it decides how much memory is taken.
// The zero value is PyTorch's default.
type AllocConf struct {
	Expandable       bool        // expandable_segments
	MaxSplit         units.Bytes // max_split_size_mb; 0: no limit
	NonSplitRounding units.Bytes // max_non_split_rounding_mb; 0: 20 MiB
	GCThreshold      float64     // garbage_collection_threshold; 0: off. It acts only under a limit
	divisions        [16]int64   // roundup_power2_divisions of the intervals 1 MiB, 2 MiB … 32 GiB; 0: off
}

// confOptions maps each option to what reads its value. Options that move no device memory have none.
var confOptions = map[string]func(*AllocConf, string) error{
	"expandable_segments":               (*AllocConf).setExpandable,
	"max_split_size_mb":                 (*AllocConf).setMaxSplit,
	"max_non_split_rounding_mb":         (*AllocConf).setNonSplitRounding,
	"garbage_collection_threshold":      (*AllocConf).setGCThreshold,
	"roundup_power2_divisions":          (*AllocConf).setDivisions,
	"backend":                           (*AllocConf).setBackend,
	"release_lock_on_cudamalloc":        nil,
	"pinned_use_cuda_host_register":     nil,
	"pinned_num_register_threads":       nil,
	"pinned_use_background_threads":     nil,
	"pinned_reserve_segment_size_mb":    nil,
	"graph_capture_record_stream_reuse": nil,
}

// ParseAllocConf reads the value of PYTORCH_CUDA_ALLOC_CONF, with PyTorch's own rules of what is valid.
func ParseAllocConf(s string) (AllocConf, error) {
	var conf AllocConf
	for _, item := range splitTop(strings.ReplaceAll(s, " ", "")) {
		if item == "" {
			continue
		}
		option, value, ok := strings.Cut(item, ":")
		set, known := confOptions[option]
		switch {
		case !known:
			return AllocConf{}, fmt.Errorf("allocator setting %q: unknown option: use expandable_segments, max_split_size_mb or garbage_collection_threshold", clip(option))
		case !ok || value == "":
			return AllocConf{}, fmt.Errorf("allocator setting %q has no value: write %s:VALUE", option, option)
		case set == nil:
			continue
		}
		if err := set(&conf, value); err != nil {
			return AllocConf{}, fmt.Errorf("allocator setting %q: %w", clip(item), err)
		}
	}
	return conf, nil
}

// String is the setting in PyTorch's own form; the default prints as "".
func (c AllocConf) String() string {
	var items []string
	if c.Expandable {
		items = append(items, "expandable_segments:True")
	}
	if c.MaxSplit > 0 {
		items = append(items, fmt.Sprintf("max_split_size_mb:%d", c.MaxSplit/units.MiB))
	}
	if c.NonSplitRounding > 0 {
		items = append(items, fmt.Sprintf("max_non_split_rounding_mb:%d", c.NonSplitRounding/units.MiB))
	}
	if c.GCThreshold > 0 {
		items = append(items, "garbage_collection_threshold:"+strconv.FormatFloat(c.GCThreshold, 'g', -1, 64))
	}
	if c.divisions != [16]int64{} {
		var parts []string
		for i, d := range c.divisions {
			parts = append(parts, fmt.Sprintf("%d:%d", 1<<i, d))
		}
		items = append(items, "roundup_power2_divisions:["+strings.Join(parts, ",")+"]")
	}
	return strings.Join(items, ",")
}

// splitTop splits at the commas that are outside brackets.
func splitTop(s string) []string {
	var parts []string
	depth, from := 0, 0
	for i, r := range s {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, s[from:i])
				from = i + 1
			}
		}
	}
	return append(parts, s[from:])
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

func (c *AllocConf) setExpandable(v string) error {
	if v != "True" && v != "False" {
		return fmt.Errorf("want True or False")
	}
	c.Expandable = v == "True"
	return nil
}

func (c *AllocConf) setMaxSplit(v string) (err error) {
	c.MaxSplit, err = parseMiB(v)
	return err
}

func (c *AllocConf) setNonSplitRounding(v string) (err error) {
	c.NonSplitRounding, err = parseMiB(v)
	return err
}

// parseMiB reads a whole number of MiB that is at least the allocator's large buffer.
func parseMiB(v string) (units.Bytes, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("want a whole number of MiB")
	}
	if n < largeBuffer>>20 {
		return 0, fmt.Errorf("%d MiB is below PyTorch's smallest, %d", n, largeBuffer>>20)
	}
	return units.Bytes(min(n, math.MaxInt64>>20)) * units.MiB, nil
}

func (c *AllocConf) setGCThreshold(v string) error {
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f > 0 && f < 1) {
		return fmt.Errorf("want a number between 0 and 1")
	}
	c.GCThreshold = f
	return nil
}

func (c *AllocConf) setBackend(v string) error {
	if v != "native" {
		return fmt.Errorf("only PyTorch's native backend is simulated")
	}
	return nil
}

// setDivisions reads "4", or "[256:1,512:2,>:4]": divisions per interval in MiB.
func (c *AllocConf) setDivisions(v string) error {
	list, ok := strings.CutPrefix(v, "[")
	if !ok {
		d, err := parseDivision(v)
		if err != nil {
			return err
		}
		for i := range c.divisions {
			c.divisions[i] = d
		}
		return nil
	}
	list, ok = strings.CutSuffix(list, "]")
	if !ok {
		return fmt.Errorf("want a closing bracket")
	}
	last, first := 0, true
	for _, pair := range strings.Split(list, ",") {
		size, division, _ := strings.Cut(pair, ":")
		d, err := parseDivision(division)
		if err != nil {
			return err
		}
		if size == ">" {
			for i := last; i < len(c.divisions); i++ {
				c.divisions[i] = d
			}
			continue
		}
		mb, err := strconv.ParseUint(size, 10, 63)
		if err != nil || bits.OnesCount64(mb) != 1 {
			return fmt.Errorf("interval %q is not a power of two", clip(size))
		}
		at := min(bits.Len64(mb)-1, len(c.divisions)-1)
		for i := 0; first && i < at; i++ {
			c.divisions[i] = d
		}
		c.divisions[at], last, first = d, at, false
	}
	return nil
}

func parseDivision(v string) (int64, error) {
	d, err := strconv.ParseInt(v, 10, 63)
	if err != nil || d < 0 || d != 0 && bits.OnesCount64(uint64(d)) != 1 {
		return 0, fmt.Errorf("division %q is neither 0 nor a power of two", clip(v))
	}
	return d, nil
}

func (c *AllocConf) maxSplit() int64 {
	if c.MaxSplit == 0 {
		return noSplitMax
	}
	return int64(c.MaxSplit)
}

func (c *AllocConf) nonSplitRounding() int64 {
	if c.NonSplitRounding == 0 {
		return largeBuffer
	}
	return int64(c.NonSplitRounding)
}

// round is the size of the block a request takes at least.
func (c *AllocConf) round(bytes int64) int64 {
	if bytes < minBlock {
		return minBlock
	}
	interval := min(max(bits.Len64(uint64(bytes))-1-20, 0), len(c.divisions)-1)
	if d := c.divisions[interval]; d > 1 && bytes > minBlock*d {
		floor := int64(1) << (bits.Len64(uint64(bytes)) - 1)
		step := floor / d
		if step == 0 {
			return floor << 1
		}
		return (bytes + step - 1) / step * step
	}
	return (bytes + minBlock - 1) / minBlock * minBlock
}
