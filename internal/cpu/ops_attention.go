package cpu

import "github.com/snugml/snug/internal/program"

func attentionForwardScratch(*Executor, *program.Op) int  { return 0 }
func attentionBackwardScratch(*Executor, *program.Op) int { return 0 }

func attentionForward(b *binding) []phase {
	out, lse, qkv := b.f(0), b.f(1), b.f(2)
	T, C, NH := b.Attrs.T, b.Attrs.C, b.Attrs.NH
	return []phase{{b.Attrs.B, func(s, _ int) {
		d := b.dropout()
		d.Sample += uint64(s)
		AttentionForward(out[s*T*C:][:T*C], lse[s*NH*T:][:NH*T], qkv[s*T*3*C:][:T*3*C], 1, T, C, NH, d)
	}}}
}

func attentionBackward(b *binding) []phase {
	dqkv, dout, qkv, out, lse := b.f(0), b.f(2), b.f(3), b.f(4), b.f(5)
	T, C, NH := b.Attrs.T, b.Attrs.C, b.Attrs.NH
	return []phase{{b.Attrs.B, func(s, _ int) {
		d := b.dropout()
		d.Sample += uint64(s)
		AttentionBackward(dqkv[s*T*3*C:][:T*3*C], dout[s*T*C:][:T*C], qkv[s*T*3*C:][:T*3*C], out[s*T*C:][:T*C], lse[s*NH*T:][:NH*T], 1, T, C, NH, d)
	}}}
}
