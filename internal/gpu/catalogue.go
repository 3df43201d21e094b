package gpu

import (
	"math"
	"slices"

	"github.com/snugml/snug/internal/units"
)

// Cards returns the catalogue, oldest generation first. The slice is the caller's.
func Cards() []Card {
	cards := make([]Card, len(catalogue))
	for i, r := range catalogue {
		cards[i] = r.card()
	}
	return cards
}

// row is a line of the catalogue; memory is totalGlobalMem in GiB as PyTorch prints it, two decimals.
type row struct {
	name      string
	chip      string
	nominalGB int
	memoryGiB float64
	source    Source
	sms       int
	boostMHz  int
	busBits   int
	gbps      float64
	more      extra
}

// extra holds what few rows have: see Card for the fields.
type extra struct {
	full      bool
	laptop    bool
	matrixMHz int
	aliases   []string
}

func (r row) card() Card {
	return Card{
		Name: r.name, Chip: r.chip, Laptop: r.more.laptop, NominalGB: r.nominalGB,
		Memory: units.Bytes(math.Floor(r.memoryGiB * float64(units.GiB))), Source: r.source,
		SMs: r.sms, BoostMHz: r.boostMHz, MatrixMHz: r.more.matrixMHz, FullRate: r.more.full,
		BusBits: r.busBits, GbpsPerPin: r.gbps, Aliases: slices.Clone(r.more.aliases),
	}
}

// catalogue: clocks, SMs, bus and data rates are NVIDIA's specifications and architecture white papers. Memory is the
// smallest figure found for Linux in PyTorch's messages and device queries: drivers from 570 on keep 0.1 to 0.25 GiB more
// than older ones did (RTX 3090: 23.70, then 23.56), and a plan made for the smaller figure holds on both.
var catalogue = []row{
	// Pascal: no tensor cores.
	{"GeForce GTX 1050", "GP10x", 2, 1.94, Estimated, 5, 1455, 128, 7, extra{}},
	{"GeForce GTX 1050 Ti", "GP10x", 4, 3.94, Estimated, 6, 1392, 128, 7, extra{}},
	{"GeForce GTX 1060 3GB", "GP10x", 3, 2.94, Estimated, 9, 1708, 192, 8, extra{}},
	{"GeForce GTX 1060 6GB", "GP10x", 6, 5.92, Estimated, 10, 1708, 192, 8, extra{}},
	{"GeForce GTX 1070", "GP10x", 8, 7.92, Logged, 15, 1683, 256, 8, extra{}},
	{"GeForce GTX 1070 Ti", "GP10x", 8, 7.92, Logged, 19, 1683, 256, 8, extra{}},
	{"GeForce GTX 1080", "GP10x", 8, 7.92, Logged, 20, 1733, 256, 10, extra{}},
	{"GeForce GTX 1080 Ti", "GP10x", 11, 10.91, Logged, 28, 1582, 352, 11, extra{}},
	{"TITAN X", "GP10x", 12, 11.90, Estimated, 28, 1531, 384, 10, extra{aliases: []string{"titan x pascal"}}},
	{"TITAN Xp", "GP10x", 12, 11.91, Logged, 30, 1582, 384, 11.41, extra{}},
	{"Tesla P4", "GP10x", 8, 7.43, Estimated, 20, 1114, 256, 6, extra{full: true}},
	{"Tesla P40", "GP10x", 24, 22.38, Estimated, 30, 1531, 384, 7.2, extra{full: true}},
	{"Tesla P100 PCIe 16GB", "GP100", 16, 15.89, Estimated, 56, 1303, 4096, 1.43, extra{full: true}},
	{"Tesla P100 SXM 16GB", "GP100", 16, 15.89, Estimated, 56, 1480, 4096, 1.43, extra{full: true}},
	// Volta.
	{"Tesla V100 PCIe 16GB", "GV100", 16, 15.77, Logged, 80, 1380, 4096, 1.752, extra{full: true}},
	{"Tesla V100 SXM 16GB", "GV100", 16, 15.77, Logged, 80, 1530, 4096, 1.752, extra{full: true}},
	{"Tesla V100 PCIe 32GB", "GV100", 32, 31.73, Logged, 80, 1380, 4096, 1.752, extra{full: true}},
	{"Tesla V100 SXM 32GB", "GV100", 32, 31.73, Logged, 80, 1530, 4096, 1.752, extra{full: true}},
	{"TITAN V", "GV100", 12, 11.77, Estimated, 80, 1455, 3072, 1.7, extra{full: true}},
	// Turing: the GTX 16 cards have no tensor cores.
	{"GeForce GTX 1650", "TU11x", 4, 3.63, Estimated, 14, 1665, 128, 8, extra{}},
	{"GeForce GTX 1650 Super", "TU11x", 4, 3.63, Estimated, 20, 1725, 128, 12, extra{}},
	{"GeForce GTX 1660", "TU11x", 6, 5.64, Estimated, 22, 1785, 192, 8, extra{}},
	{"GeForce GTX 1660 Super", "TU11x", 6, 5.64, Estimated, 22, 1785, 192, 14, extra{}},
	{"GeForce GTX 1660 Ti", "TU11x", 6, 5.64, Estimated, 24, 1770, 192, 12, extra{}},
	{"GeForce RTX 2060", "TU10x", 6, 5.60, Logged, 30, 1680, 192, 14, extra{}},
	{"GeForce RTX 2060 12GB", "TU10x", 12, 11.60, Estimated, 34, 1650, 192, 14, extra{}},
	{"GeForce RTX 2060 Super", "TU10x", 8, 7.60, Logged, 34, 1650, 256, 14, extra{}},
	{"GeForce RTX 2070", "TU10x", 8, 7.60, Logged, 36, 1620, 256, 14, extra{}},
	{"GeForce RTX 2070 Super", "TU10x", 8, 7.60, Logged, 40, 1770, 256, 14, extra{}},
	{"GeForce RTX 2080", "TU10x", 8, 7.60, Logged, 46, 1710, 256, 14, extra{}},
	{"GeForce RTX 2080 Super", "TU10x", 8, 7.60, Logged, 48, 1815, 256, 15.5, extra{}},
	{"GeForce RTX 2080 Ti", "TU10x", 11, 10.56, Logged, 68, 1545, 352, 14, extra{}},
	{"TITAN RTX", "TU10x", 24, 23.46, Estimated, 72, 1770, 384, 14, extra{full: true}},
	{"Quadro RTX 6000", "TU10x", 24, 23.46, Estimated, 72, 1770, 384, 14, extra{full: true}},
	{"Quadro RTX 8000", "TU10x", 48, 47.27, Estimated, 72, 1770, 384, 14, extra{full: true}},
	{"Tesla T4", "TU10x", 16, 14.56, Logged, 40, 1590, 256, 10, extra{full: true}},
	// Ampere, data centre and workstation; A40, A10 and A2 have ECC on, which takes a sixteenth.
	{"A100 PCIe 40GB", "GA100", 40, 39.38, Estimated, 108, 1410, 5120, 2.43, extra{full: true}},
	{"A100 SXM 40GB", "GA100", 40, 39.38, Estimated, 108, 1410, 5120, 2.43, extra{full: true}},
	{"A100 PCIe 80GB", "GA100", 80, 79.14, Logged, 108, 1410, 5120, 3.024, extra{full: true, aliases: []string{"a800 pcie 80gb"}}},
	{"A100 SXM 80GB", "GA100", 80, 79.14, Logged, 108, 1410, 5120, 3.186, extra{full: true, aliases: []string{"a800 sxm 80gb"}}},
	{"A30", "GA100", 24, 23.50, Estimated, 56, 1440, 3072, 2.43, extra{full: true}},
	{"A40", "GA10x", 48, 44.34, Logged, 84, 1740, 384, 14.5, extra{full: true}},
	{"A10", "GA10x", 24, 22.05, Logged, 72, 1695, 384, 12.5, extra{full: true}},
	{"A10G", "GA10x", 24, 22.05, Logged, 80, 1710, 384, 12.5, extra{}},
	{"A2", "GA10x", 16, 14.54, Estimated, 10, 1770, 128, 12.5, extra{full: true}},
	{"RTX A2000 12GB", "GA10x", 12, 11.63, Estimated, 26, 1200, 192, 12, extra{full: true}},
	{"RTX A4000", "GA10x", 16, 15.60, Estimated, 48, 1560, 256, 14, extra{full: true}},
	{"RTX A4500", "GA10x", 20, 19.55, Estimated, 56, 1650, 320, 16, extra{full: true}},
	{"RTX A5000", "GA10x", 24, 23.56, Estimated, 64, 1695, 384, 16, extra{full: true}},
	{"RTX A5500", "GA10x", 24, 23.56, Estimated, 80, 1665, 384, 16, extra{full: true}},
	{"RTX A6000", "GA10x", 48, 47.40, Logged, 84, 1800, 384, 16, extra{full: true}},
	// Ampere, GeForce; the 3060 is the card of the notes that snug grew from: 11.69 GiB, 11.63 to 11.76 by driver.
	{"GeForce RTX 3050", "GA10x", 8, 7.66, Estimated, 20, 1777, 128, 14, extra{}},
	{"GeForce RTX 3050 6GB", "GA10x", 6, 5.64, Estimated, 18, 1470, 96, 14, extra{}},
	{"GeForce RTX 3060", "GA10x", 12, 11.69, Logged, 28, 1777, 192, 15, extra{}},
	{"GeForce RTX 3060 8GB", "GA10x", 8, 7.66, Estimated, 28, 1777, 128, 15, extra{}},
	{"GeForce RTX 3060 Ti", "GA10x", 8, 7.66, Logged, 38, 1665, 256, 14, extra{}},
	{"GeForce RTX 3070", "GA10x", 8, 7.66, Logged, 46, 1725, 256, 14, extra{}},
	{"GeForce RTX 3070 Ti", "GA10x", 8, 7.66, Logged, 48, 1770, 256, 19, extra{}},
	{"GeForce RTX 3080 10GB", "GA10x", 10, 9.64, Logged, 68, 1710, 320, 19, extra{}},
	{"GeForce RTX 3080 12GB", "GA10x", 12, 11.63, Estimated, 70, 1710, 384, 19, extra{}},
	{"GeForce RTX 3080 Ti", "GA10x", 12, 11.63, Estimated, 80, 1665, 384, 19, extra{}},
	{"GeForce RTX 3090", "GA10x", 24, 23.56, Logged, 82, 1695, 384, 19.5, extra{}},
	{"GeForce RTX 3090 Ti", "GA10x", 24, 23.56, Logged, 84, 1860, 384, 21, extra{}},
	{"GeForce RTX 3050 Laptop", "GA10x", 4, 3.68, Estimated, 16, 1740, 128, 12, extra{laptop: true}},
	{"GeForce RTX 3050 Ti Laptop", "GA10x", 4, 3.68, Estimated, 20, 1695, 128, 12, extra{laptop: true}},
	{"GeForce RTX 3060 Laptop", "GA10x", 6, 5.66, Estimated, 30, 1703, 192, 14, extra{laptop: true}},
	{"GeForce RTX 3070 Laptop", "GA10x", 8, 7.66, Estimated, 40, 1620, 256, 14, extra{laptop: true}},
	{"GeForce RTX 3070 Ti Laptop", "GA10x", 8, 7.66, Estimated, 46, 1485, 256, 14, extra{laptop: true}},
	{"GeForce RTX 3080 Laptop 8GB", "GA10x", 8, 7.66, Estimated, 48, 1710, 256, 14, extra{laptop: true}},
	{"GeForce RTX 3080 Laptop 16GB", "GA10x", 16, 15.60, Estimated, 48, 1710, 256, 14, extra{laptop: true}},
	{"GeForce RTX 3080 Ti Laptop", "GA10x", 16, 15.60, Estimated, 58, 1590, 256, 16, extra{laptop: true}},
	// Ada.
	{"GeForce RTX 4060", "AD10x", 8, 7.62, Logged, 24, 2460, 128, 17, extra{}},
	{"GeForce RTX 4060 Ti 8GB", "AD10x", 8, 7.62, Estimated, 34, 2535, 128, 18, extra{}},
	{"GeForce RTX 4060 Ti 16GB", "AD10x", 16, 15.57, Logged, 34, 2535, 128, 18, extra{}},
	{"GeForce RTX 4070", "AD10x", 12, 11.62, Logged, 46, 2475, 192, 21, extra{}},
	{"GeForce RTX 4070 Super", "AD10x", 12, 11.62, Logged, 56, 2475, 192, 21, extra{}},
	{"GeForce RTX 4070 Ti", "AD10x", 12, 11.62, Logged, 60, 2610, 192, 21, extra{}},
	{"GeForce RTX 4070 Ti Super", "AD10x", 16, 15.57, Logged, 66, 2610, 256, 21, extra{}},
	{"GeForce RTX 4080", "AD10x", 16, 15.57, Logged, 76, 2505, 256, 22.4, extra{}},
	{"GeForce RTX 4080 Super", "AD10x", 16, 15.57, Logged, 80, 2550, 256, 23, extra{}},
	{"GeForce RTX 4090", "AD10x", 24, 23.52, Logged, 128, 2520, 384, 21, extra{}},
	{"GeForce RTX 4090 D", "AD10x", 24, 23.52, Estimated, 114, 2520, 384, 21, extra{}},
	{"GeForce RTX 4050 Laptop", "AD10x", 6, 5.64, Estimated, 20, 2370, 96, 16, extra{laptop: true}},
	{"GeForce RTX 4060 Laptop", "AD10x", 8, 7.62, Estimated, 24, 2370, 128, 16, extra{laptop: true}},
	{"GeForce RTX 4070 Laptop", "AD10x", 8, 7.62, Estimated, 36, 2175, 128, 16, extra{laptop: true}},
	{"GeForce RTX 4080 Laptop", "AD10x", 12, 11.62, Estimated, 58, 2280, 192, 18, extra{laptop: true}},
	{"GeForce RTX 4090 Laptop", "AD10x", 16, 15.57, Estimated, 76, 2040, 256, 18, extra{laptop: true}},
	{"RTX 2000 Ada", "AD10x", 16, 15.57, Estimated, 22, 2130, 128, 14, extra{full: true}},
	{"RTX 4000 Ada", "AD10x", 20, 19.50, Estimated, 48, 2175, 160, 18, extra{full: true}},
	{"RTX 4500 Ada", "AD10x", 24, 23.48, Estimated, 60, 2580, 192, 18, extra{full: true}},
	{"RTX 5000 Ada", "AD10x", 32, 31.45, Estimated, 100, 2550, 256, 18, extra{full: true}},
	{"RTX 6000 Ada", "AD10x", 48, 47.27, Logged, 142, 2505, 384, 20, extra{full: true}},
	{"L4", "AD10x", 24, 22.03, Logged, 58, 2040, 192, 12.5, extra{full: true}},
	{"L40", "AD10x", 48, 44.39, Logged, 142, 2490, 384, 18, extra{}},
	{"L40S", "AD10x", 48, 44.39, Logged, 142, 2520, 384, 18, extra{full: true, matrixMHz: 2490}},
	// Hopper: fp32 and tensor rates are published at different clocks; the H200 was measured.
	{"H100 PCIe 80GB", "GH100", 80, 79.09, Logged, 114, 1755, 5120, 3.19, extra{full: true, matrixMHz: 1620}},
	{"H100 SXM 80GB", "GH100", 80, 79.09, Logged, 132, 1980, 5120, 5.24, extra{full: true, matrixMHz: 1830, aliases: []string{"h100 80gb hbm3", "h800"}}},
	{"H100 NVL", "GH100", 94, 93.10, Estimated, 132, 1785, 6144, 5.13, extra{full: true, matrixMHz: 1545}},
	{"GH200 96GB", "GH100", 96, 94.50, Logged, 132, 1980, 6144, 5.21, extra{full: true, matrixMHz: 1830, aliases: []string{"gh200 480gb"}}},
	{"H200", "GH100", 141, 139.80, Logged, 132, 1980, 6144, 6.25, extra{full: true, matrixMHz: 1830, aliases: []string{"h200 sxm"}}},
	{"H200 NVL", "GH100", 141, 139.80, Estimated, 132, 1785, 6144, 6.25, extra{full: true, matrixMHz: 1545}},
	// Blackwell.
	{"B200", "GB100", 180, 178.35, Logged, 148, 1965, 8192, 7.8, extra{full: true, matrixMHz: 1856}},
	{"GB200", "GB100", 186, 184.00, Estimated, 152, 2055, 8192, 7.8, extra{full: true, matrixMHz: 2008}},
	{"B300", "GB110", 270, 267.50, Estimated, 148, 1965, 8192, 7.8, extra{full: true, matrixMHz: 1856}},
	{"GeForce RTX 5050", "GB20x", 8, 7.53, Estimated, 20, 2572, 128, 20, extra{}},
	{"GeForce RTX 5060", "GB20x", 8, 7.53, Estimated, 30, 2497, 128, 28, extra{}},
	{"GeForce RTX 5060 Ti 8GB", "GB20x", 8, 7.53, Estimated, 36, 2572, 128, 28, extra{}},
	{"GeForce RTX 5060 Ti 16GB", "GB20x", 16, 15.47, Logged, 36, 2572, 128, 28, extra{}},
	{"GeForce RTX 5070", "GB20x", 12, 11.49, Logged, 48, 2512, 192, 28, extra{}},
	{"GeForce RTX 5070 Ti", "GB20x", 16, 15.47, Logged, 70, 2452, 256, 28, extra{}},
	{"GeForce RTX 5080", "GB20x", 16, 15.47, Logged, 84, 2617, 256, 30, extra{}},
	{"GeForce RTX 5090", "GB20x", 32, 31.36, Logged, 170, 2407, 512, 28, extra{}},
	{"GeForce RTX 5090 D", "GB20x", 32, 31.36, Estimated, 170, 2407, 512, 28, extra{}},
	{"GeForce RTX 5060 Laptop", "GB20x", 8, 7.53, Estimated, 26, 2497, 128, 24, extra{laptop: true}},
	{"GeForce RTX 5070 Laptop", "GB20x", 8, 7.53, Estimated, 36, 2347, 128, 24, extra{laptop: true}},
	{"GeForce RTX 5070 Ti Laptop", "GB20x", 12, 11.49, Estimated, 46, 2220, 192, 28, extra{laptop: true}},
	{"GeForce RTX 5080 Laptop", "GB20x", 16, 15.47, Estimated, 60, 2287, 256, 28, extra{laptop: true}},
	{"GeForce RTX 5090 Laptop", "GB20x", 24, 23.40, Estimated, 82, 2160, 256, 28, extra{laptop: true}},
	{"RTX PRO 4000 Blackwell", "GB20x", 24, 23.40, Estimated, 70, 2617, 192, 28, extra{full: true}},
	{"RTX PRO 4500 Blackwell", "GB20x", 32, 31.36, Estimated, 82, 2617, 256, 28, extra{full: true}},
	{"RTX PRO 5000 Blackwell", "GB20x", 48, 47.20, Estimated, 110, 2617, 384, 28, extra{full: true}},
	{"RTX PRO 6000 Blackwell", "GB20x", 96, 94.96, Logged, 188, 2617, 512, 28, extra{full: true, aliases: []string{"rtx pro 6000 blackwell workstation", "rtx pro 6000 blackwell server"}}},
	{"RTX PRO 6000 Blackwell Max-Q", "GB20x", 96, 94.96, Logged, 188, 2280, 512, 28, extra{full: true, aliases: []string{"rtx pro 6000 blackwell max-q workstation"}}},
	// Memory shared with the processor: what CUDA reports is also the system's.
	{"Jetson AGX Orin 64GB", "GA10B", 64, 61.37, Estimated, 16, 1300, 256, 6.4, extra{full: true}},
	{"Jetson Orin Nano 8GB", "GA10B", 8, 7.44, Estimated, 8, 1020, 128, 6.4, extra{full: true}},
	{"GB10", "GB10", 128, 119.60, Estimated, 48, 2525, 256, 8.533, extra{full: true, aliases: []string{"dgx spark"}}},
}
