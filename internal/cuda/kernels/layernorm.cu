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
        Pack<elem, W> w = load<W>(weight + c), b, y;
        if (bias) b = load<W>(bias + c);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float v = (r.x[i][k] - m) * inv * to_float(w.v[k]);
            from_float(y.v[k], bias ? v + to_float(b.v[k]) : v);
        }
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
    for (int i = 0; i < P; i++) {
        if (r.column(i) >= C) continue;
        Pack<elem, W> a = load<W>(inp + n * C + r.column(i));
#pragma unroll
        for (int k = 0; k < W; k++) r.x[i][k] = to_float(a.v[k]);
    }
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
        float v[W];
#pragma unroll
        for (int k = 0; k < W; k++) v[k] = to_float(pb[i].v[k]);
        dropper.apply(v, (u32)(n % T * C + c));
        Pack<elem, W> y;
#pragma unroll
        for (int k = 0; k < W; k++) {
            from_float(y.v[k], to_float(pa[i].v[k]) + v[k]);
            r.x[i][k] = to_float(y.v[k]);
        }
        store<W>(sum + n * C + c, y);
    }
    normalise<W, P>(out, mean, rstd, r, weight, bias, n, C);
}

// Inputs is what backward reads of one row.
template <int W, int P> struct Inputs {
    Pack<elem, W> d[P], x[P], old[P];
    float m, r;
    __device__ __forceinline__ void fetch(const elem *dinp, const elem *dout, const elem *inp, const float *mean,
                                          const float *rstd, long long n, int C, int accumulate) {
        m = mean[n];
        r = rstd[n];
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            d[i] = load<W>(dout + n * C + c);
            x[i] = load<W>(inp + n * C + c);
            if (accumulate) old[i] = load<W>(dinp + n * C + c);
        }
    }
};

// With g = dout*weight and h = (inp-mean)*rstd: dinp = rstd * (g - avg(g) - h*avg(g*h)), = or += by `accumulate`.
// partial (blocks,2,C) f32 gets each block's column sums of dout*h and dout; layernorm_backward_weight adds them up.
// One warp a row, rows dealt to all warps in turn; a lane keeps its columns' sums in registers, and the block's warps are
// added in order at the end. Short rows leave registers to load the next row while this one is worked on.
// Dynamic shared memory: 2*C floats a warp.
template <int W, int P>
__device__ __forceinline__ void backward(elem *dinp, float *partial, const elem *dout, const elem *inp, const elem *weight,
                                         const float *mean, const float *rstd, int N, int C, int accumulate) {
    extern __shared__ float sums[];
    int warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    float dw[P][W] = {}, db[P][W] = {};
    const bool AHEAD = P <= 2;
    Inputs<W, P> now, next;
    long long n = row_of_warp(), step = (long long)gridDim.x * warps;
    if (AHEAD && n < N) now.fetch(dinp, dout, inp, mean, rstd, n, C, accumulate);
    for (; n < N; n += step, now = AHEAD ? next : now) {
        if (!AHEAD) now.fetch(dinp, dout, inp, mean, rstd, n, C, accumulate);
        else if (n + step < N) next.fetch(dinp, dout, inp, mean, rstd, n + step, C, accumulate);
        float m = now.m, r = now.r, sg = 0.0f, sgh = 0.0f;
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            Pack<elem, W> w = load<W>(weight + c);
#pragma unroll
            for (int k = 0; k < W; k++) {
                float dv = to_float(now.d[i].v[k]), h = (to_float(now.x[i].v[k]) - m) * r, g = dv * to_float(w.v[k]);
                sg += g;
                sgh += g * h;
                dw[i][k] += dv * h;
                db[i][k] += dv;
            }
        }
        sg = warp_sum(sg) / C;
        sgh = warp_sum(sgh) / C;
#pragma unroll
        for (int i = 0; i < P; i++) {
            int c = Row<W, P>::column(i);
            if (c >= C) continue;
            Pack<elem, W> w = load<W>(weight + c), y;
#pragma unroll
            for (int k = 0; k < W; k++) {
                float h = (to_float(now.x[i].v[k]) - m) * r;
                float v = (to_float(now.d[i].v[k]) * to_float(w.v[k]) - sg - h * sgh) * r;
                from_float(y.v[k], accumulate ? to_float(now.old[i].v[k]) + v : v);
            }
            store<W>(dinp + n * C + c, y);
        }
    }
#pragma unroll
    for (int i = 0; i < P; i++) {
        int c = Row<W, P>::column(i);
        if (c >= C) continue;
#pragma unroll
        for (int k = 0; k < W; k++) {
            sums[warp * 2 * C + c + k] = dw[i][k];
            sums[warp * 2 * C + C + c + k] = db[i][k];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C; i += blockDim.x) {
        float s = sums[i];
        for (int w = 1; w < warps; w++) s += sums[w * 2 * C + i];
        partial[(long long)blockIdx.x * 2 * C + i] = s;
    }
}

#define INSTANCE(SUFFIX, W, P)                                                                                         \
    extern "C" __global__ void __launch_bounds__(128) layernorm_forward##SUFFIX(                                       \
        elem *out, float *mean, float *rstd, const elem *inp, const elem *weight, const elem *bias, int N, int C) {    \
        forward<W, P>(out, mean, rstd, inp, weight, bias, N, C);                                                       \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 4) residual_layernorm_forward##SUFFIX(                           \
        elem *sum, elem *out, float *mean, float *rstd, const elem *a, const elem *b, const elem *weight,              \
        const elem *bias, int N, int T, int C, Dropout drop) {                                                         \
        residual_forward<W, P>(sum, out, mean, rstd, a, b, weight, bias, N, T, C, drop);                               \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, P <= 3 ? 4 : 0) layernorm_backward##SUFFIX(                      \
        elem *dinp, float *partial, const elem *dout, const elem *inp, const elem *weight, const float *mean,          \
        const float *rstd, int N, int C, int accumulate) {                                                             \
        backward<W, P>(dinp, partial, dout, inp, weight, mean, rstd, N, C, accumulate);                                \
    }
INSTANCE(_p1, VEC, 1)
INSTANCE(_p2, VEC, 2)
INSTANCE(_p3, VEC, 3)
INSTANCE(_p4, VEC, 4)
INSTANCE(_p5, VEC, 5)
INSTANCE(_p6, VEC, 6)
INSTANCE(_p7, VEC, 7)

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
// A block does 32 columns: its 32 warps take every 32nd block's row, then the 32 are added in order.
extern "C" __global__ void layernorm_backward_weight(float *dweight, float *dbias, const float *partial, int blocks,
                                                     int C, int overwrite) {
    __shared__ float part[32][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * 32 + lane;
    float s = 0.0f;
    if (i < 2 * C)
#pragma unroll 4
        for (int b = warp; b < blocks; b += 32) s += partial[(long long)b * 2 * C + i];
    part[warp][lane] = s;
    __syncthreads();
    if (warp != 0 || i >= 2 * C) return;
#pragma unroll
    for (int w = 1; w < 32; w++) s += part[w][lane];
    float *d = i < C ? dweight + i : dbias ? dbias + i - C : nullptr;
    if (d) *d = overwrite ? s : *d + s;
}
