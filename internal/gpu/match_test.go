package gpu

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

func TestMatch(t *testing.T) {
	for query, want := range map[string]string{
		"rtx 3060":                "GeForce RTX 3060",
		"RTX3060":                 "GeForce RTX 3060",
		"3060":                    "GeForce RTX 3060",
		"NVIDIA GeForce RTX 3060": "GeForce RTX 3060",
		"3060 12 GB":              "GeForce RTX 3060",
		"3060-8g":                 "GeForce RTX 3060 8GB",
		"3060ti":                  "GeForce RTX 3060 Ti",
		"rtx 3060 mobile":         "GeForce RTX 3060 Laptop",
		"NVIDIA GeForce RTX 3080 Laptop GPU 16GB": "GeForce RTX 3080 Laptop 16GB",
		"3080 12gb":                      "GeForce RTX 3080 12GB",
		"gtx1080ti":                      "GeForce GTX 1080 Ti",
		"4090d":                          "GeForce RTX 4090 D",
		"4070 ti super":                  "GeForce RTX 4070 Ti Super",
		"4050":                           "GeForce RTX 4050 Laptop",
		"t4":                             "Tesla T4",
		"NVIDIA A100-SXM4-80GB":          "A100 SXM 80GB",
		"NVIDIA A100 80GB PCIe":          "A100 PCIe 80GB",
		"a100 80gb":                      "A100 PCIe 80GB",
		"Tesla V100-SXM2-16GB":           "Tesla V100 SXM 16GB",
		"Tesla P100-PCIE-16GB":           "Tesla P100 PCIe 16GB",
		"NVIDIA H100 80GB HBM3":          "H100 SXM 80GB",
		"h200":                           "H200",
		"H200 NVL":                       "H200 NVL",
		"NVIDIA GH200 480GB":             "GH200 96GB",
		"a6000":                          "RTX A6000",
		"NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
		"quadro rtx 6000":                "Quadro RTX 6000",
		"NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
		"L40S":      "L40S",
		"dgx spark": "GB10",
		"titan xp":  "TITAN Xp",
		"orin nano": "Jetson Orin Nano 8GB",
	} {
		if c, err := Match(query); err != nil || c.Name != want {
			t.Errorf("Match(%q) = %q, %v, want %q", query, c.Name, err, want)
		}
	}
}

func TestMatchEveryNameIsItself(t *testing.T) {
	for _, c := range Cards() {
		for _, name := range append([]string{c.Name, "NVIDIA " + strings.ToUpper(c.Name)}, c.Aliases...) {
			if got, err := Match(name); err != nil || got.Name != c.Name {
				t.Errorf("Match(%q) = %q, %v, want %q", name, got.Name, err, c.Name)
			}
		}
	}
}

func TestMatchRefusesAmbiguity(t *testing.T) {
	for query, want := range map[string][]string{
		"3080":       {"GeForce RTX 3080 10GB", "GeForce RTX 3080 12GB", "GeForce RTX 3080 Laptop 8GB", "GeForce RTX 3080 Laptop 16GB"},
		"1060":       {"GeForce GTX 1060 3GB", "GeForce GTX 1060 6GB"},
		"4060 ti":    {"GeForce RTX 4060 Ti 8GB", "GeForce RTX 4060 Ti 16GB"},
		"a100":       {"A100 PCIe 40GB", "A100 SXM 40GB", "A100 PCIe 80GB", "A100 SXM 80GB"},
		"h100 80gb":  {"H100 PCIe 80GB", "H100 SXM 80GB"},
		"rtx 6000":   {"Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000 Blackwell"},
		"v100":       {"Tesla V100 PCIe 16GB", "Tesla V100 SXM 16GB", "Tesla V100 PCIe 32GB", "Tesla V100 SXM 32GB"},
		"jetson":     {"Jetson AGX Orin 64GB", "Jetson Orin Nano 8GB"},
		"3080 8gb x": nil,
	} {
		_, err := Match(query)
		var ambiguous *AmbiguousError
		if want == nil {
			if errors.As(err, &ambiguous) || err == nil {
				t.Errorf("Match(%q): %v, want unknown", query, err)
			}
			continue
		}
		if !errors.As(err, &ambiguous) {
			t.Errorf("Match(%q): %v, want ambiguous", query, err)
			continue
		}
		var got []string
		for _, c := range ambiguous.Candidates {
			got = append(got, c.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Match(%q) candidates %q, want %q", query, got, want)
		}
	}
}

func TestMatchUnknownNamesTheNearest(t *testing.T) {
	for query, want := range map[string]string{"rtx 3061": "RTX 3060", "rtx 4099": "RTX 4090", "a101 80gb": "A100", "l41s": "L40S", "rx 7900 xtx": ""} {
		_, err := Match(query)
		var unknown *UnknownError
		if !errors.As(err, &unknown) || !strings.Contains(err.Error(), want) {
			t.Errorf("Match(%q): %v, want unknown with %q among the nearest", query, err, want)
		}
	}
	for _, query := range []string{"", "  ", "nvidia", "geforce gpu"} {
		if c, err := Match(query); err == nil {
			t.Errorf("Match(%q) = %q, want an error", query, c.Name)
		}
	}
}

func TestForDevice(t *testing.T) {
	gib := func(g float64) units.Bytes { return units.Bytes(g * float64(units.GiB)) }
	for _, c := range []struct {
		name  string
		total units.Bytes
		want  string
	}{
		{"NVIDIA GeForce RTX 3080", gib(9.77), "GeForce RTX 3080 10GB"},
		{"NVIDIA GeForce RTX 3080", gib(12), "GeForce RTX 3080 12GB"},
		{"NVIDIA GeForce RTX 3060", gib(8), "GeForce RTX 3060 8GB"},
		{"NVIDIA GeForce RTX 3080 Laptop GPU", gib(16), "GeForce RTX 3080 Laptop 16GB"},
		{"NVIDIA H200", gib(140.4), "H200"},
		{"NVIDIA RTX A6000", gib(44.5), "RTX A6000"},
		{"NVIDIA A100-SXM4-40GB MIG 1g.5gb", gib(4.75), ""},
		{"AMD Radeon", gib(16), ""},
	} {
		got, ok := ForDevice(c.name, c.total)
		if got.Name != c.want || ok != (c.want != "") {
			t.Errorf("ForDevice(%q, %v) = %q, %v, want %q", c.name, c.total, got.Name, ok, c.want)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, c := range Cards() {
		f.Add(c.Name)
	}
	f.Add("rtx 3080")
	f.Fuzz(func(t *testing.T, query string) {
		c, err := Match(query)
		if (err == nil) == (c.Name == "") {
			t.Errorf("Match(%q) = %q, %v: want a card or an error", query, c.Name, err)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("Match(%q): an error of more than one line: %q", query, err)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	for b.Loop() {
		if _, err := Match("rtx 3060"); err != nil {
			b.Fatal(err)
		}
	}
}
