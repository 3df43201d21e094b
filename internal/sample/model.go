package sample

import (
	"fmt"
	"math"

	"github.com/snugml/snug/internal/checkpoint"
	"github.com/snugml/snug/internal/cpu"
	"github.com/snugml/snug/internal/cpu/kernel"
	"github.com/snugml/snug/internal/gpt"
)

// affine is a weight (OC,C) or (C) and its bias, nil in models without.
type affine struct{ weight, bias []float32 }

type layer struct{ ln1, attn, proj, ln2, fc, out affine }

// Model is the weights of a GPT in float32, ready to run forward.
type Model struct {
	gpt.Model
	wte, wpe []float32
	layers   []layer
	lnF      affine
	k        *kernel.Set
	linear   *cpu.Linear
}

// NewModel reads the parameters of s. 0 threads is one for each processor; nil kernels are the fastest there are.
func NewModel(s *checkpoint.State, threads int, k *kernel.Set) (*Model, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("sample: %w", err)
	}
	byName := make(map[string][]float32, len(s.Params))
	for _, t := range s.Params {
		values, err := t.Float32s()
		if err != nil {
			return nil, fmt.Errorf("sample: %w", err)
		}
		byName[t.Name] = values
	}
	get := func(name string) affine {
		return affine{byName["transformer."+name+".weight"], byName["transformer."+name+".bias"]}
	}
	linear := cpu.NewLinear(threads, k)
	m := &Model{Model: s.Model, k: linear.Kernels, linear: linear, wte: get("wte").weight, wpe: get("wpe").weight, lnF: get("ln_f")}
	for l := range s.Model.NLayer {
		h := fmt.Sprintf("h.%d.", l)
		m.layers = append(m.layers, layer{get(h + "ln_1"), get(h + "attn.c_attn"), get(h + "attn.c_proj"), get(h + "ln_2"), get(h + "mlp.c_fc"), get(h + "mlp.c_proj")})
	}
	return m, nil
}

// Close ends the threads.
func (m *Model) Close() { m.linear.Close() }

const (
	chunk = 256 // tokens of a prompt that go through at once
	few   = 4   // rows up to which a product is dots with the weight's rows as they lie, without packing them
)

// cache is a context: the keys and values of n positions, and the buffers of a forward pass.
type cache struct {
	m      *Model
	n      int
	keys   [][]float32 // of each layer, (T,C)
	values [][]float32 // of each layer, (C,T): a channel's values lie side by side, for Dot
	logits []float32   // (V), of the last position

	x, norm, qkv, att, hidden []float32 // (chunk, C), (chunk, C), (chunk, 3C), (chunk, C), (chunk, 4C)
	scores                    [][]float32
}

func (m *Model) newCache() *cache {
	C, T, rows := m.NEmbd, m.BlockSize, min(chunk, m.BlockSize)
	c := &cache{m: m, logits: make([]float32, m.VocabSize), x: make([]float32, rows*C), norm: make([]float32, rows*C),
		qkv: make([]float32, rows*3*C), att: make([]float32, rows*C), hidden: make([]float32, rows*4*C)}
	for range m.NLayer {
		c.keys, c.values = append(c.keys, make([]float32, T*C)), append(c.values, make([]float32, C*T))
	}
	for range m.linear.Threads() {
		c.scores = append(c.scores, make([]float32, T))
	}
	return c
}

// forward appends tokens to the context and leaves the logits of the last one. There must be room for them.
//
// Which rows come together changes the order of sums, never the sums: cached and fresh logits agree to rounding.
func (c *cache) forward(tokens []uint16) {
	C := c.m.NEmbd
	for len(tokens) > 0 {
		n := min(len(tokens), chunk)
		for r, id := range tokens[:n] {
			c.m.k.Add(c.x[r*C:][:C], c.m.wte[int(id)*C:][:C], c.m.wpe[(c.n+r)*C:][:C])
		}
		for l := range c.m.layers {
			c.block(l, n)
		}
		c.n += n
		tokens = tokens[n:]
		if len(tokens) == 0 {
			c.m.layernorm(c.norm[:C], c.x[(n-1)*C:][:C], c.m.lnF)
			c.m.matmul(c.logits, c.norm, affine{weight: c.m.wte}, 1, C, c.m.VocabSize)
		}
	}
}

// block is x += proj(attention(ln_1(x))), x += out(gelu(fc(ln_2(x)))) on n rows.
func (c *cache) block(l, n int) {
	m, C, w := c.m, c.m.NEmbd, &c.m.layers[l]
	m.layernorm(c.norm[:n*C], c.x, w.ln1)
	m.matmul(c.qkv, c.norm, w.attn, n, C, 3*C)
	c.store(l, n)
	c.attention(l, n)
	m.matmul(c.norm, c.att, w.proj, n, C, C)
	m.k.Add(c.x[:n*C], c.x[:n*C], c.norm[:n*C])
	m.layernorm(c.norm[:n*C], c.x, w.ln2)
	m.matmul(c.hidden, c.norm, w.fc, n, C, 4*C)
	m.k.GeluForward(c.hidden[:n*4*C], c.hidden[:n*4*C])
	m.matmul(c.norm, c.hidden, w.out, n, 4*C, C)
	m.k.Add(c.x[:n*C], c.x[:n*C], c.norm[:n*C])
}

// store moves the new keys and values into the cache.
func (c *cache) store(l, n int) {
	C, T := c.m.NEmbd, c.m.BlockSize
	for r := range n {
		row, at := c.qkv[r*3*C:][:3*C], c.n+r
		copy(c.keys[l][at*C:][:C], row[C:2*C])
		for i, v := range row[2*C:] {
			c.values[l][i*T+at] = v
		}
	}
}

// attention writes att (n,C): each head of each new row over the positions up to its own.
func (c *cache) attention(l, n int) {
	m, C, T, NH := c.m, c.m.NEmbd, c.m.BlockSize, c.m.NHead
	HS := C / NH
	scale := float32(1 / math.Sqrt(float64(HS)))
	m.linear.Do(n*NH, func(i, worker int) {
		r, h := i/NH, i%NH
		q := c.qkv[r*3*C+h*HS:][:HS]
		s := c.scores[worker][:c.n+r+1]
		for k := range s {
			s[k] = m.k.Dot(q, c.keys[l][k*C+h*HS:][:HS])
		}
		sum := m.k.ExpSum(s, s, scale, scale*m.k.Max(s))
		for j := range HS {
			c.att[r*C+h*HS+j] = m.k.Dot(s, c.values[l][(h*HS+j)*T:][:len(s)]) / sum
		}
	})
}

// layernorm is out = (x - mean)/sqrt(var + 1e-5) * weight + bias, a row of C at a time.
func (m *Model) layernorm(out, x []float32, w affine) {
	C := m.NEmbd
	for at := 0; at < len(out); at += C {
		row := x[at:][:C]
		mean := m.k.Sum(row) / float32(C)
		variance := m.k.SumSquares(row, mean) / float32(C)
		m.k.Normalize(out[at:][:C], row, w.weight, w.bias, mean, float32(1/math.Sqrt(float64(variance)+1e-5)))
	}
}

// matmul is out (N,OC) = x (N,C) weight^T + bias. One token is bound by reading the weight: packing it would take longer.
func (m *Model) matmul(out, x []float32, w affine, N, C, OC int) {
	if N > few {
		m.linear.Forward(out[:N*OC], x[:N*C], w.weight, w.bias, N, C, OC)
		return
	}
	const piece = 32 // rows of the weight
	m.linear.Do((OC+piece-1)/piece, func(i, _ int) {
		for o := i * piece; o < min(OC, (i+1)*piece); o++ {
			row, bias := w.weight[o*C:][:C], float32(0)
			if w.bias != nil {
				bias = w.bias[o]
			}
			for n := range N {
				out[n*OC+o] = m.k.Dot(x[n*C:][:C], row) + bias
			}
		}
	})
}
