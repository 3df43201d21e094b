// Layer normalisation over the last dimension: out = (inp - mean) * rstd * weight + bias, rstd = 1/sqrt(var + 1e-5).
#include "common.cuh"

// A warp holds its row in registers: lane l has the packs l, l+32, ... of W channels, P of them at most (C <= 32*W*P).
// Each kernel exists for P = 1..7 packs of 16 bytes (suffix _p1 to _p7) and, for rows that are no multiple of 16 bytes or
// longer, for single elements read again from cache at each use (suffix _1). Sums run over a lane's channels in order, then
// over lanes, so the fused and the plain kernel of one C agree to the bit.
template <int W, int P> struct Row {
    float x[P][W];
    __device__ __forceinline__ static int column(int i) { return (i * 32 + (threadIdx.x & 31)) * W; }
};

// normalise writes out, mean and rstd of one row.
template <int W, int P>
__device__ __forceinline__ void normalise(elem *out, float *mean, float *rstd, const Row<W, P> &r, const elem *weight,
                                          const elem *bias, long long n, int C) {
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < P; i++)
        if (r.column(i) < C)
#pragma unroll
            for (int k = 0; k < W; k++) s += r.x[i][k];
    float m = warp_sum(s) / C;
    s = 0.0f;
#pragma unroll
    for (int i = 0; i < P; i++)
        if (r.column(i) < C)
#pragma unroll
            for (int k = 0; k < W; k++) s += (r.x[i][k] - m) * (r.x[i][k] - m);
    float inv = rsqrtf(warp_sum(s) / C + 1e-5f);
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = r.column(i);
        if (c >= C) continue;
        float w[W], b[W] = {};
        unpack(w, load<W>(weight + c));
        if (bias) unpack(b, load<W>(bias + c));
#pragma unroll
        for (int k = 0; k < W; k++) w[k] = (r.x[i][k] - m) * inv * w[k] + b[k];
        Pack<elem, W> y;
        pack(y, w);
        store<W>(out + n * C + c, y);
    }
    if ((threadIdx.x & 31) == 0) {
        mean[n] = m;
        rstd[n] = inv;
    }
}

__device__ __forceinline__ long long row_of_warp() {
    return (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
}

// out, inp (N,C) elem; mean, rstd (N) f32; weight, bias (C) elem, bias may be null. One warp a row.
template <int W, int P>
__device__ __forceinline__ void forward(elem *out, float *mean, float *rstd, const elem *inp, const elem *weight,
                                        const elem *bias, int N, int C) {
    long long n = row_of_warp();
    if (n >= N) return;
    Row<W, P> r;
#pragma unroll
    for (int i = 0; i < P; i++)
        if (r.column(i) < C) unpack(r.x[i], load<W>(inp + n * C + r.column(i)));
    normalise<W, P>(out, mean, rstd, r, weight, bias, n, C);
}

// sum = a + dropout(b), rounded to elem; out = layernorm(sum). The normalisation reads the rounded sum, so that a
// recomputation from the stored sum gives the same bits. sum may be b.
template <int W, int P>
__device__ __forceinline__ void residual_forward(elem *sum, elem *out, float *mean, float *rstd, const elem *a, const elem *b,
                                                 const elem *weight, const elem *bias, int N, int T, int C, const Dropout &drop) {
    long long n = row_of_warp();
    if (n >= N) return;
    Dropper dropper(drop, (u32)(n / T));
    Row<W, P> r;
    Pack<elem, W> pa[P], pb[P];
#pragma unroll
    for (int i = 0; i < P; i++) {
        if (r.column(i) >= C) continue;
        pa[i] = load<W>(a + n * C + r.column(i));
        pb[i] = load<W>(b + n * C + r.column(i));
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = r.column(i);
        if (c >= C) continue;
        float u[W], v[W];
        unpack(u, pa[i]);
        unpack(v, pb[i]);
        dropper.apply(v, (u32)(n % T * C + c));
#pragma unroll
        for (int k = 0; k < W; k++) u[k] += v[k];
        Pack<elem, W> y;
        pack(y, u);
        unpack(r.x[i], y);
        store<W>(sum + n * C + c, y);
    }
    normalise<W, P>(out, mean, rstd, r, weight, bias, n, C);
}

// column_sums adds up what the block's warps have of dout*h and dout, and writes it to the block's row of partial (blocks,2,C):
// the upper half of the warps leaves its sums to the lower half until one is left. The number of warps fixes the order.
template <int W, int P>
__device__ __forceinline__ void column_sums(float *partial, char *shared, float (&sums)[2][P][W], int C) {
    const int QUADS = 2 * P * W / 4; // of a lane
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float4 *slots = reinterpret_cast<float4 *>(shared);
    float *own = &sums[0][0][0];
    for (int left = blockDim.x >> 5; left > 1; left = (left + 1) / 2) {
        int half = (left + 1) / 2;
        __syncthreads();
        if (warp >= half && warp < left)
#pragma unroll
            for (int i = 0; i < QUADS; i++)
                slots[((warp - half) * QUADS + i) * 32 + lane] = make_float4(own[4 * i], own[4 * i + 1], own[4 * i + 2], own[4 * i + 3]);
        __syncthreads();
        if (warp < left - half)
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                float4 x = slots[(warp * QUADS + i) * 32 + lane];
                own[4 * i] += x.x, own[4 * i + 1] += x.y, own[4 * i + 2] += x.z, own[4 * i + 3] += x.w;
            }
    }
    if (warp) return;
#pragma unroll
    for (int t = 0; t < 2; t++)
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            float *to = partial + ((long long)blockIdx.x * 2 + t) * C + c;
#pragma unroll
            for (int k = 0; k < W; k += 4)
                *reinterpret_cast<float4 *>(to + k) = make_float4(sums[t][i][k], sums[t][i][k + 1], sums[t][i][k + 2], sums[t][i][k + 3]);
        }
}

// With g = dout*weight and h = (inp-mean)*rstd: dinp = rstd * (g - avg(g) - h*avg(g*h)), = or += by `accumulate`.
// partial (blocks,2,C) f32 gets each block's column sums of dout*h and dout; layernorm_backward_weight adds them up.
// One warp a row, rows dealt to all warps of all blocks in turn; a lane keeps its columns' sums in registers. The next row is
// on its way to shared memory while this one is worked on: dout and inp from when this row's are in registers, and dinp, which
// is not needed until the end of a row, from when this row's were added. A lane copies what it reads itself, so nothing waits
// but its own copies. Dynamic shared memory: 3*P*512 bytes a warp.
template <int W, int P>
__device__ __forceinline__ void backward(elem *dinp, float *partial, const elem *dout, const elem *inp, const elem *weight,
                                         const float *mean, const float *rstd, int N, int C, int accumulate) {
    extern __shared__ __align__(16) char shared[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    // Pack i of dout, inp and dinp lies 512*i, 512*(P+i) and 512*(2P+i) bytes further.
    char *slots = shared + (warp * 3 * P * 32 + lane) * 16;
    const elem *held = reinterpret_cast<const elem *>(slots);
    u32 at = shared_address(slots);
    float m_next, r_next;
    auto fetch = [&](long long n) {
        if (n < N) {
            m_next = mean[n];
            r_next = rstd[n];
#pragma unroll
            for (int i = 0; i < P; i++) {
                int c = Row<W, P>::column(i);
                if (c >= C) continue;
                copy16(at + i * 512, dout + n * C + c);
                copy16(at + (P + i) * 512, inp + n * C + c);
            }
        }
        copy_commit();
    };
    auto fetch_old = [&](long long n) {
        if (accumulate && n < N)
#pragma unroll
            for (int i = 0; i < P; i++) {
                int c = Row<W, P>::column(i);
                if (c < C) copy16(at + (2 * P + i) * 512, dinp + n * C + c);
            }
        copy_commit();
    };
    float sums[2][P][W] = {}; // of dout*h, dout
    long long n = warp * gridDim.x + blockIdx.x, step = (long long)gridDim.x * (blockDim.x >> 5);
    fetch(n);
    fetch_old(n);
    for (; n < N; n += step) {
        copy_wait<1>();
        Pack<elem, W> pd[P], px[P];
#pragma unroll
        for (int i = 0; i < P; i++) {
            if (Row<W, P>::column(i) >= C) continue;
            pd[i] = load<W>(held + i * 32 * W);
            px[i] = load<W>(held + (P + i) * 32 * W);
        }
        float m = m_next, r = r_next, sg = 0.0f, sgh = 0.0f;
        fetch(n + step);
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            float w[W], d[W], x[W];
            unpack(w, load<W>(weight + c));
            unpack(d, pd[i]);
            unpack(x, px[i]);
#pragma unroll
            for (int k = 0; k < W; k++) {
                float h = (x[k] - m) * r, g = d[k] * w[k];
                sg += g;
                sgh += g * h;
                sums[0][i][k] += d[k] * h;
                sums[1][i][k] += d[k];
            }
        }
        sg = warp_sum(sg) / C;
        sgh = warp_sum(sgh) / C;
        copy_wait<1>();
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            float w[W], d[W], x[W], old[W] = {};
            unpack(w, load<W>(weight + c));
            unpack(d, pd[i]);
            unpack(x, px[i]);
            if (accumulate) unpack(old, load<W>(held + (2 * P + i) * 32 * W));
#pragma unroll
            for (int k = 0; k < W; k++) d[k] = old[k] + (d[k] * w[k] - sg - (x[k] - m) * r * sgh) * r;
            Pack<elem, W> y;
            pack(y, d);
            store<W>(dinp + n * C + c, y);
        }
        fetch_old(n + step);
    }
    column_sums<W, P>(partial, shared, sums, C);
}

// WARPS of a block of the backward kernel, as many as registers allow; ops.go's table says the same.
#define INSTANCE(SUFFIX, W, P, WARPS)                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) layernorm_forward##SUFFIX(                                       \
        elem *out, float *mean, float *rstd, const elem *inp, const elem *weight, const elem *bias, int N, int C) {    \
        forward<W, P>(out, mean, rstd, inp, weight, bias, N, C);                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4) residual_layernorm_forward##SUFFIX(                           \
        elem *sum, elem *out, float *mean, float *rstd, const elem *a, const elem *b, const elem *weight,              \
        const elem *bias, int N, int T, int C, Dropout drop) {                                                         \
        residual_forward<W, P>(sum, out, mean, rstd, a, b, weight, bias, N, T, C, drop);                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) layernorm_backward##SUFFIX(                            \
        elem *dinp, float *partial, const elem *dout, const elem *inp, const elem *weight, const float *mean,          \
        const float *rstd, int N, int C, int accumulate) {                                                             \
        backward<W, P>(dinp, partial, dout, inp, weight, mean, rstd, N, C, accumulate);                                \
    }
INSTANCE(_p1, VEC, 1, 16)
INSTANCE(_p2, VEC, 2, 16)
INSTANCE(_p3, VEC, 3, 16)
INSTANCE(_p4, VEC, 4, 12)
INSTANCE(_p5, VEC, 5, 12)
INSTANCE(_p6, VEC, 6, 8)
INSTANCE(_p7, VEC, 7, 8)

// The same by single elements, for any C.
__device__ __forceinline__ void normalise_any(elem *out, float *mean, float *rstd, const elem *x, const elem *weight,
                                              const elem *bias, long long n, int C) {
    int lane = threadIdx.x & 31;
    float s = 0.0f;
    for (int c = lane; c < C; c += 32) s += to_float(x[c]);
    float m = warp_sum(s) / C;
    s = 0.0f;
    for (int c = lane; c < C; c += 32) s += (to_float(x[c]) - m) * (to_float(x[c]) - m);
    float inv = rsqrtf(warp_sum(s) / C + 1e-5f);
    for (int c = lane; c < C; c += 32) {
        float v = (to_float(x[c]) - m) * inv * to_float(weight[c]);
        from_float(out[n * C + c], bias ? v + to_float(bias[c]) : v);
    }
    if (lane == 0) {
        mean[n] = m;
        rstd[n] = inv;
    }
}
extern "C" __global__ void layernorm_forward_1(elem *out, float *mean, float *rstd, const elem *inp, const elem *weight,
                                               const elem *bias, int N, int C) {
    long long n = row_of_warp();
    if (n < N) normalise_any(out, mean, rstd, inp + n * C, weight, bias, n, C);
}
extern "C" __global__ void residual_layernorm_forward_1(elem *sum, elem *out, float *mean, float *rstd, const elem *a,
                                                        const elem *b, const elem *weight, const elem *bias, int N,
                                                        int T, int C, Dropout drop) {
    long long n = row_of_warp();
    if (n >= N) return;
    Dropper dropper(drop, (u32)(n / T));
    for (int c = threadIdx.x & 31; c < C; c += 32) {
        float v[1] = {to_float(b[n * C + c])};
        dropper.apply(v, (u32)(n % T * C + c));
        from_float(sum[n * C + c], to_float(a[n * C + c]) + v[0]);
    }
    normalise_any(out, mean, rstd, sum + n * C, weight, bias, n, C);
}
extern "C" __global__ void layernorm_backward_1(elem *dinp, float *partial, const elem *dout, const elem *inp,
                                                const elem *weight, const float *mean, const float *rstd, int N, int C,
                                                int accumulate) {
    extern __shared__ float sums[];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    float *own = sums + warp * 2 * C;
    for (int c = lane; c < 2 * C; c += 32) own[c] = 0.0f;
    __syncwarp();
    for (long long n = row_of_warp(); n < N; n += (long long)gridDim.x * warps) {
        float m = mean[n], r = rstd[n], sg = 0.0f, sgh = 0.0f;
        for (int c = lane; c < C; c += 32) {
            float d = to_float(dout[n * C + c]), h = (to_float(inp[n * C + c]) - m) * r, g = d * to_float(weight[c]);
            sg += g;
            sgh += g * h;
            own[c] += d * h;
            // The lane that owns column c owns its bias' sum too.
            own[C + c] += d;
        }
        sg = warp_sum(sg) / C;
        sgh = warp_sum(sgh) / C;
        for (int c = lane; c < C; c += 32) {
            float h = (to_float(inp[n * C + c]) - m) * r;
            float v = (to_float(dout[n * C + c]) * to_float(weight[c]) - sg - h * sgh) * r;
            from_float(dinp[n * C + c], accumulate ? to_float(dinp[n * C + c]) + v : v);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C; i += blockDim.x) {
        float s = sums[i];
        for (int w = 1; w < warps; w++) s += sums[w * 2 * C + i];
        partial[(long long)blockIdx.x * 2 * C + i] = s;
    }
}

// dweight[c] += sum over blocks of partial[.,0,c]; dbias[c] += that of partial[.,1,c]; dbias may be null. With overwrite = for +=.
// A block does 32 columns: its 32 warps take every 32nd block's row, five at once, then the 32 are added in order.
extern "C" __global__ void layernorm_backward_weight(float *dweight, float *dbias, const float *partial, int blocks,
                                                     int C, int overwrite) {
    __shared__ float part[32][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * 32 + lane;
    float s = 0.0f;
    for (int b = warp; b < blocks; b += 5 * 32) {
        float x[5];
#pragma unroll
        for (int u = 0; u < 5; u++) x[u] = i < 2 * C && b + u * 32 < blocks ? partial[(long long)(b + u * 32) * 2 * C + i] : 0.0f;
#pragma unroll
        for (int u = 0; u < 5; u++) s += x[u];
    }
    part[warp][lane] = s;
    __syncthreads();
    if (warp != 0 || i >= 2 * C) return;
#pragma unroll
    for (int w = 1; w < 32; w++) s += part[w][lane];
    float *d = i < C ? dweight + i : dbias ? dbias + i - C : nullptr;
    if (d) *d = overwrite ? s : *d + s;
}
