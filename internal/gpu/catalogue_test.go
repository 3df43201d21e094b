package gpu

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/snugml/snug/internal/units"
)

func TestCatalogueIsSane(t *testing.T) {
	cards := Cards()
	if len(cards) < 60 {
		t.Errorf("%d cards, want at least 60", len(cards))
	}
	seen := map[string]bool{}
	for _, c := range cards {
		for _, name := range append([]string{c.Name}, c.Aliases...) {
			words := wordsOf(name)
			slices.Sort(words)
			if key := strings.Join(words, " "); seen[key] {
				t.Errorf("%s: the name %q is taken", c.Name, name)
			} else {
				seen[key] = true
			}
		}
		k, ok := chips[c.Chip]
		if !ok {
			t.Errorf("%s: no chip %q", c.Name, c.Chip)
		}
		nominal := units.Bytes(c.NominalGB) * units.GiB
		if ratio := float64(c.Memory) / float64(nominal); !(ratio > 0.90 && ratio < 0.999) {
			t.Errorf("%s: CUDA's %v is %.3f of the nominal %v, want slightly below", c.Name, c.Memory, ratio, nominal)
		}
		hbm := c.GbpsPerPin < 8 && c.BusBits >= 3072
		gddr := c.GbpsPerPin >= 6 && c.GbpsPerPin <= 32 && c.BusBits <= 512
		if !hbm && !gddr {
			t.Errorf("%s: %d bits at %.2f Gbit/s is neither HBM nor GDDR nor LPDDR", c.Name, c.BusBits, c.GbpsPerPin)
		}
		if c.BusBits%32 != 0 {
			t.Errorf("%s: a bus of %d bits", c.Name, c.BusBits)
		}
		if c.BoostMHz < 1000 || c.BoostMHz > 2700 || c.MatrixMHz > c.BoostMHz {
			t.Errorf("%s: clocks %d, %d MHz", c.Name, c.BoostMHz, c.MatrixMHz)
		}
		if c.BF16() != (c.BF16Rate() > 0) || c.BF16() != (c.Capability().Major >= 8) {
			t.Errorf("%s: bf16 %v, rate %g, capability %v", c.Name, c.BF16(), c.BF16Rate(), c.Capability())
		}
		if !(c.FP16() >= c.TF32() && c.TF32() >= 0.49*c.FP32()) {
			t.Errorf("%s: fp16 %.1f, tf32 %.1f, fp32 %.1f TFLOP/s", c.Name, c.FP16()/1e12, c.TF32()/1e12, c.FP32()/1e12)
		}
		if c.Laptop != strings.Contains(c.Name, "Laptop") {
			t.Errorf("%s: laptop %v", c.Name, c.Laptop)
		}
		if strings.HasPrefix(c.Name, "GeForce") && c.FullRate {
			t.Errorf("%s: GeForce cards accumulate in fp32 at half rate", c.Name)
		}
		want := map[string]string{"GP": "Pascal", "GV": "Volta", "TU": "Turing", "GA": "Ampere", "AD": "Ada", "GH": "Hopper", "GB": "Blackwell"}
		if want[c.Chip[:2]] != k.generation {
			t.Errorf("%s: chip %s is not %s", c.Name, c.Chip, k.generation)
		}
	}
}

// The generation's digits order the GeForce cards: within one, a higher model never has fewer SMs, nor a lower rate.
func TestRatesRiseWithinAFamily(t *testing.T) {
	for _, family := range [][]string{
		{"gtx 1050", "gtx 1050 ti", "gtx 1060 3gb", "gtx 1060 6gb", "gtx 1070", "gtx 1070 ti", "gtx 1080", "gtx 1080 ti"},
		{"gtx 1650", "gtx 1650 super", "gtx 1660", "gtx 1660 ti"},
		{"rtx 2060", "rtx 2060 super", "rtx 2070", "rtx 2070 super", "rtx 2080", "rtx 2080 super", "rtx 2080 ti"},
		{"rtx 3050 6gb", "rtx 3050", "rtx 3060", "rtx 3060 ti", "rtx 3070", "rtx 3070 ti", "rtx 3080 10gb", "rtx 3080 12gb", "rtx 3080 ti", "rtx 3090", "rtx 3090 ti"},
		{"rtx 4060", "rtx 4060 ti 8gb", "rtx 4070", "rtx 4070 super", "rtx 4070 ti", "rtx 4070 ti super", "rtx 4080", "rtx 4080 super", "rtx 4090 d", "rtx 4090"},
		{"rtx 5050", "rtx 5060", "rtx 5060 ti 8gb", "rtx 5070", "rtx 5070 ti", "rtx 5080", "rtx 5090"},
		{"rtx 3050 laptop", "rtx 3050 ti laptop", "rtx 3060 laptop", "rtx 3070 laptop", "rtx 3070 ti laptop", "rtx 3080 laptop 16gb", "rtx 3080 ti laptop"},
		{"rtx 4050 laptop", "rtx 4060 laptop", "rtx 4070 laptop", "rtx 4080 laptop", "rtx 4090 laptop"},
		{"rtx 5060 laptop", "rtx 5070 laptop", "rtx 5070 ti laptop", "rtx 5080 laptop", "rtx 5090 laptop"},
		{"rtx a2000", "rtx a4000", "rtx a4500", "rtx a5000", "rtx a5500", "rtx a6000"},
		{"rtx 2000 ada", "rtx 4000 ada", "rtx 4500 ada", "rtx 5000 ada", "rtx 6000 ada"},
		{"rtx pro 4000", "rtx pro 4500", "rtx pro 5000", "rtx pro 6000 blackwell"},
		{"a30", "a100 40gb", "h100 pcie", "h100 sxm", "b200"},
	} {
		last := Card{}
		for _, name := range family {
			c, err := Match(name)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if c.SMs < last.SMs || c.FP16() < last.FP16() {
				t.Errorf("%s (%d SMs, %.1f TFLOP/s) is below %s (%d, %.1f)", c.Name, c.SMs, c.FP16()/1e12, last.Name, last.SMs, last.FP16()/1e12)
			}
			last = c
		}
	}
}

// Published figures, in GB/s and dense TFLOP/s, from NVIDIA's datasheets and white papers: what the table derives must meet them.
func TestPublishedFigures(t *testing.T) {
	for _, p := range []struct {
		name                        string
		bandwidth, fp32, fp16, tf32 float64
	}{
		{"GTX 1080 Ti", 484, 11.3, 11.3, 11.3},
		{"P100 SXM", 732, 10.6, 10.6, 10.6},
		{"V100 SXM 16GB", 900, 15.7, 125, 15.7},
		{"RTX 2080 Ti", 616, 13.4, 53.8, 13.4},
		{"T4", 320, 8.1, 65, 8.1},
		{"A100 SXM 80GB", 2039, 19.5, 312, 156},
		{"A100 PCIe 40GB", 1555, 19.5, 312, 156},
		{"A30", 933, 10.3, 165, 82},
		{"A10", 600, 31.2, 125, 62.5},
		{"A10G", 600, 35, 70, 35},
		{"RTX A6000", 768, 38.7, 154.8, 77.4},
		{"RTX 3060", 360, 12.7, 25.5, 12.7},
		{"RTX 3080 10GB", 760, 29.8, 59.5, 29.8},
		{"RTX 3090", 936, 35.6, 71, 35.6},
		{"RTX 4090", 1008, 82.6, 165.2, 82.6},
		{"RTX 6000 Ada", 960, 91.1, 364.2, 182.1},
		{"L4", 300, 30.3, 121, 60},
		{"L40", 864, 90.5, 181, 90.5},
		{"L40S", 864, 91.6, 362, 181},
		{"H100 PCIe", 2039, 51.2, 756, 378},
		{"H100 SXM", 3350, 66.9, 989.4, 494.7},
		{"H100 NVL", 3938, 60, 835.5, 417.5},
		{"H200", 4800, 66.9, 989.4, 494.7},
		{"B200", 8000, 75, 2250, 1125},
		{"RTX 5080", 960, 56.3, 112.6, 56.3},
		{"RTX 5090", 1792, 104.8, 209.5, 104.8},
		{"RTX PRO 6000 Blackwell", 1792, 125, 503.8, 251.9},
	} {
		c, err := Match(p.name)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, f := range []struct {
			what      string
			got, want float64
		}{{"bandwidth", c.Bandwidth() / 1e9, p.bandwidth}, {"fp32", c.FP32() / 1e12, p.fp32}, {"fp16", c.FP16() / 1e12, p.fp16}, {"tf32", c.TF32() / 1e12, p.tf32}} {
			if !(math.Abs(f.got-f.want) <= 0.02*f.want) {
				t.Errorf("%s: %s %.1f, published %.1f", c.Name, f.what, f.got, f.want)
			}
		}
	}
}
