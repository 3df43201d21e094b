package kernel

import "golang.org/x/sys/cpu"

// native are the sets written for this processor, the fastest last.
func native() []*Set {
	var list []*Set
	x := &cpu.X86
	if x.HasAVX2 && x.HasFMA {
		list = append(list, avx2())
	}
	if x.HasAVX512F && x.HasAVX512DQ && x.HasAVX512BW && x.HasAVX512VL && x.HasBMI2 && x.HasFMA {
		list = append(list, avx512())
		if x.HasAVX512BF16 && x.HasAMXBF16 && x.HasAMXTile && allowAMX() {
			s := avx512()
			s.Name, s.F32, s.BF16 = "amx", amxSplit(), amxBF16()
			list = append(list, s)
		}
	}
	return list
}

// avx2 and avx512 are the generated kernels; the wrappers only choose between variants and spread structs.
func avx2() *Set {
	return &Set{
		Name:        "avx2",
		isa:         isaAVX2,
		GeluForward: geluForwardAVX2, GeluBackward: geluBackwardAVX2,
		Add: addAVX2, Scale: sclAVX2,
		Sum: sumAVX2, SumSquares: sumSquaresAVX2, Dot: dotAVX2, Max: maximumAVX2,
		ExpSum: func(out, x []float32, scale, shift float32) float32 {
			if out == nil {
				return sumExpAVX2(x, scale, shift)
			}
			return expSumAVX2(out, x, scale, shift)
		},
		Normalize: func(out, x, weight, bias []float32, mean, rstd float32) {
			if bias == nil {
				normalizeAVX2(out, x, weight, mean, rstd)
			} else {
				normalizeBiasAVX2(out, x, weight, bias, mean, rstd)
			}
		},
		NormalizeSums: normalizeSumsAVX2,
		NormalizeBackward: func(dx, dw, db, dy, x, weight []float32, n Norm) {
			f := normalizeBackwardAVX2
			if n.Accumulate {
				f = normalizeBackwardAddAVX2
			}
			f(dx, dw, db, dy, x, weight, n.Mean, n.Rstd, n.G, n.GX)
		},
		AttentionScores: attentionScoresAVX2,
		AdamW: func(param, m, v, grad []float32, h AdamW) {
			adamWAVX2(param, m, v, grad, h.Clip, h.Beta1, h.OneBeta1, h.Beta2, h.OneBeta2, h.Decay, h.Step, h.InvCorrection, h.Eps)
		},
		AdamWStream: func(param, m, v, grad []float32, h AdamW) {
			adamWStreamAVX2(param, m, v, grad, h.Clip, h.Beta1, h.OneBeta1, h.Beta2, h.OneBeta2, h.Decay, h.Step, h.InvCorrection, h.Eps)
		},
		ClearStream: clearStreamAVX2,
		F32: vectorGemm("avx2", 6, 16, func(b Block) {
			multiplyAVX2((*byte)(b.A), (*byte)(b.B), (*byte)(b.C), (*byte)(b.Init), b.LDC, b.LDInit, b.AStep, b.BStep, b.CStep, b.InitStep, b.K, b.Count)
		}),
	}
}

func avx512() *Set {
	return &Set{
		Name:        "avx512",
		isa:         isaAVX512,
		GeluForward: geluForwardAVX512, GeluBackward: geluBackwardAVX512,
		Add: addAVX512, Scale: sclAVX512,
		Sum: sumAVX512, SumSquares: sumSquaresAVX512, Dot: dotAVX512, Max: maximumAVX512,
		ExpSum: func(out, x []float32, scale, shift float32) float32 {
			if out == nil {
				return sumExpAVX512(x, scale, shift)
			}
			return expSumAVX512(out, x, scale, shift)
		},
		Normalize: func(out, x, weight, bias []float32, mean, rstd float32) {
			if bias == nil {
				normalizeAVX512(out, x, weight, mean, rstd)
			} else {
				normalizeBiasAVX512(out, x, weight, bias, mean, rstd)
			}
		},
		NormalizeSums: normalizeSumsAVX512,
		NormalizeBackward: func(dx, dw, db, dy, x, weight []float32, n Norm) {
			f := normalizeBackwardAVX512
			if n.Accumulate {
				f = normalizeBackwardAddAVX512
			}
			f(dx, dw, db, dy, x, weight, n.Mean, n.Rstd, n.G, n.GX)
		},
		AttentionScores: attentionScoresAVX512,
		AdamW: func(param, m, v, grad []float32, h AdamW) {
			adamWAVX512(param, m, v, grad, h.Clip, h.Beta1, h.OneBeta1, h.Beta2, h.OneBeta2, h.Decay, h.Step, h.InvCorrection, h.Eps)
		},
		AdamWStream: func(param, m, v, grad []float32, h AdamW) {
			adamWStreamAVX512(param, m, v, grad, h.Clip, h.Beta1, h.OneBeta1, h.Beta2, h.OneBeta2, h.Decay, h.Step, h.InvCorrection, h.Eps)
		},
		ClearStream: clearStreamAVX512,
		F32: vectorGemm("avx512", 12, 32, func(b Block) {
			multiplyAVX512((*byte)(b.A), (*byte)(b.B), (*byte)(b.C), (*byte)(b.Init), b.LDC, b.LDInit, b.AStep, b.BStep, b.CStep, b.InitStep, b.K, b.Count)
		}),
	}
}

func nativeScales(i isa, dst *[256]float32, c [4]uint32, key [2]uint32, limit uint32, kept float32) {
	if i == isaAVX512 {
		scalesAVX512(dst, c[0], c[1], c[2], c[3], key[0], key[1], limit, kept)
	} else {
		scalesAVX2(dst, c[0], c[1], c[2], c[3], key[0], key[1], limit, kept)
	}
}

// vectorGemm is a product of float32 panels: one element of A times a row of B, k by k.
func vectorGemm(name string, mr, nr int, multiply func(Block)) *Gemm {
	return &Gemm{Name: name, MR: mr, NR: nr, KR: 1, Bytes: 4, KC: 384, Group: 256 << 10, Multiply: multiply,
		PackA: func(dst []byte, src []float32, outer, inner, n, k int) { packF32(dst, src, outer, inner, n, k, mr) },
		PackB: func(dst []byte, src []float32, outer, inner, n, k int) { packF32(dst, src, outer, inner, n, k, nr) },
	}
}
