// Layer normalisation over the last dimension: out = (inp - mean) * rstd * weight + bias, rstd = 1/sqrt(var + 1e-5).
#include "common.cuh"

// normalise does one row x (C floats in shared memory), by one warp. Its sums run over lanes of W neighbouring channels,
// so the fused and the plain kernel agree to the bit.
template <int W>
__device__ void normalise(elem *out, float *mean, float *rstd, const float *x, const elem *weight, const elem *bias,
                          long long n, int C) {
    int lane = threadIdx.x & 31;
    float s = 0.0f;
    for (int c = lane * W; c < C; c += 32 * W)
#pragma unroll
        for (int k = 0; k < W; k++) s += x[c + k];
    float m = warp_sum(s) / C;
    s = 0.0f;
    for (int c = lane * W; c < C; c += 32 * W)
#pragma unroll
        for (int k = 0; k < W; k++) s += (x[c + k] - m) * (x[c + k] - m);
    float r = rsqrtf(warp_sum(s) / C + 1e-5f);
    for (int c = lane * W; c < C; c += 32 * W) {
        Pack<elem, W> w = load<W>(weight + c), b, y;
        if (bias) b = load<W>(bias + c);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float v = (x[c + k] - m) * r * to_float(w.v[k]);
            from_float(y.v[k], bias ? v + to_float(b.v[k]) : v);
        }
        store<W>(out + n * C + c, y);
    }
    if (lane == 0) {
        mean[n] = m;
        rstd[n] = r;
    }
}

// row is the warp's row and its C floats of dynamic shared memory.
__device__ __forceinline__ long long row(float *&x, int C) {
    extern __shared__ float rows[];
    int warp = threadIdx.x >> 5;
    x = rows + warp * C;
    return (long long)blockIdx.x * (blockDim.x >> 5) + warp;
}

// out, inp (N,C) elem; mean, rstd (N) f32; weight, bias (C) elem, bias may be null. One warp a row.
template <int W>
__device__ void forward(elem *out, float *mean, float *rstd, const elem *inp, const elem *weight, const elem *bias,
                        int N, int C) {
    float *x;
    long long n = row(x, C);
    if (n >= N) return;
    for (int c = (threadIdx.x & 31) * W; c < C; c += 32 * W) {
        Pack<elem, W> a = load<W>(inp + n * C + c);
#pragma unroll
        for (int k = 0; k < W; k++) x[c + k] = to_float(a.v[k]);
    }
    normalise<W>(out, mean, rstd, x, weight, bias, n, C);
}
extern "C" __global__ void layernorm_forward(elem *out, float *mean, float *rstd, const elem *inp, const elem *weight,
                                             const elem *bias, int N, int C) {
    forward<VEC>(out, mean, rstd, inp, weight, bias, N, C);
}
extern "C" __global__ void layernorm_forward_1(elem *out, float *mean, float *rstd, const elem *inp, const elem *weight,
                                               const elem *bias, int N, int C) {
    forward<1>(out, mean, rstd, inp, weight, bias, N, C);
}

// sum = a + dropout(b), rounded to elem; out = layernorm(sum). The normalisation reads the rounded sum, so that a
// recomputation from the stored sum gives the same bits.
template <int W>
__device__ void residual_forward(elem *sum, elem *out, float *mean, float *rstd, const elem *a, const elem *b,
                                 const elem *weight, const elem *bias, int N, int T, int C, const Dropout &drop) {
    float *x;
    long long n = row(x, C);
    if (n >= N) return;
    Dropper dropper(drop, (u32)(n / T));
    for (int c = (threadIdx.x & 31) * W; c < C; c += 32 * W) {
        Pack<elem, W> pa = load<W>(a + n * C + c), pb = load<W>(b + n * C + c), y;
        float v[W];
#pragma unroll
        for (int k = 0; k < W; k++) v[k] = to_float(pb.v[k]);
        dropper.apply(v, (u32)(n % T * C + c));
#pragma unroll
        for (int k = 0; k < W; k++) {
            from_float(y.v[k], to_float(pa.v[k]) + v[k]);
            x[c + k] = to_float(y.v[k]);
        }
        store<W>(sum + n * C + c, y);
    }
    normalise<W>(out, mean, rstd, x, weight, bias, n, C);
}
extern "C" __global__ void residual_layernorm_forward(elem *sum, elem *out, float *mean, float *rstd, const elem *a,
                                                      const elem *b, const elem *weight, const elem *bias, int N, int T,
                                                      int C, Dropout drop) {
    residual_forward<VEC>(sum, out, mean, rstd, a, b, weight, bias, N, T, C, drop);
}
extern "C" __global__ void residual_layernorm_forward_1(elem *sum, elem *out, float *mean, float *rstd, const elem *a,
                                                        const elem *b, const elem *weight, const elem *bias, int N,
                                                        int T, int C, Dropout drop) {
    residual_forward<1>(sum, out, mean, rstd, a, b, weight, bias, N, T, C, drop);
}

// With g = dout*weight and h = (inp-mean)*rstd: dinp = rstd * (g - avg(g) - h*avg(g*h)), = or += by `accumulate`.
// partial (blocks,2,C) f32 gets each block's column sums of dout*h and dout; layernorm_backward_weight adds them up.
//
// A block walks tiles of ROWS rows. First a warp a row makes dinp; then a thread a pack of columns sums the tile, which
// the caches still hold. Dynamic shared memory: 2*C floats for each group of `groups` row groups, 2*C*groups in all.
static const int ROWS = 16;
template <int W>
__device__ void backward(elem *dinp, float *partial, const elem *dout, const elem *inp, const elem *weight,
                         const float *mean, const float *rstd, int N, int C, int accumulate) {
    extern __shared__ float acc[];
    __shared__ float mu[ROWS], rs[ROWS];
    int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;
    int packs = C / W, groups = max(1, (int)blockDim.x / packs), group = tid / packs;
    if (packs > blockDim.x) group = 0;
    for (int i = tid; i < 2 * C * groups; i += blockDim.x) acc[i] = 0.0f;
    __syncthreads();
    for (int n0 = blockIdx.x * ROWS; n0 < N; n0 += gridDim.x * ROWS) {
        int rows = min(ROWS, N - n0);
        for (int i = warp; i < rows; i += warps) {
            long long n = n0 + i;
            float m = mean[n], r = rstd[n], sg = 0.0f, sgh = 0.0f;
            for (int c = lane * W; c < C; c += 32 * W) {
                Pack<elem, W> d = load<W>(dout + n * C + c), x = load<W>(inp + n * C + c), w = load<W>(weight + c);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    float g = to_float(d.v[k]) * to_float(w.v[k]);
                    sg += g;
                    sgh += g * ((to_float(x.v[k]) - m) * r);
                }
            }
            sg = warp_sum(sg) / C;
            sgh = warp_sum(sgh) / C;
            for (int c = lane * W; c < C; c += 32 * W) {
                Pack<elem, W> d = load<W>(dout + n * C + c), x = load<W>(inp + n * C + c), w = load<W>(weight + c), y;
                if (accumulate) y = load<W>(dinp + n * C + c);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    float h = (to_float(x.v[k]) - m) * r;
                    float v = (to_float(d.v[k]) * to_float(w.v[k]) - sg - h * sgh) * r;
                    from_float(y.v[k], accumulate ? to_float(y.v[k]) + v : v);
                }
                store<W>(dinp + n * C + c, y);
            }
            if (lane == 0) {
                mu[i] = m;
                rs[i] = r;
            }
        }
        __syncthreads();
        if (group < groups)
            for (int p = packs > blockDim.x ? tid : tid % packs; p < packs; p += blockDim.x) {
                float dw[W] = {}, db[W] = {};
#pragma unroll 4
                for (int i = group; i < rows; i += groups) {
                    long long at = (long long)(n0 + i) * C + p * W;
                    Pack<elem, W> d = load<W>(dout + at), x = load<W>(inp + at);
#pragma unroll
                    for (int k = 0; k < W; k++) {
                        dw[k] += to_float(d.v[k]) * ((to_float(x.v[k]) - mu[i]) * rs[i]);
                        db[k] += to_float(d.v[k]);
                    }
                }
#pragma unroll
                for (int k = 0; k < W; k++) {
                    acc[2 * C * group + p * W + k] += dw[k];
                    acc[2 * C * group + C + p * W + k] += db[k];
                }
            }
        __syncthreads();
    }
    for (int i = tid; i < 2 * C; i += blockDim.x) {
        float s = acc[i];
        for (int g = 1; g < groups; g++) s += acc[2 * C * g + i];
        partial[(long long)blockIdx.x * 2 * C + i] = s;
    }
}
extern "C" __global__ void layernorm_backward(elem *dinp, float *partial, const elem *dout, const elem *inp,
                                              const elem *weight, const float *mean, const float *rstd, int N, int C,
                                              int accumulate) {
    backward<VEC>(dinp, partial, dout, inp, weight, mean, rstd, N, C, accumulate);
}
extern "C" __global__ void layernorm_backward_1(elem *dinp, float *partial, const elem *dout, const elem *inp,
                                                const elem *weight, const float *mean, const float *rstd, int N, int C,
                                                int accumulate) {
    backward<1>(dinp, partial, dout, inp, weight, mean, rstd, N, C, accumulate);
}

// dweight[c] += sum over blocks of partial[.,0,c]; dbias[c] += that of partial[.,1,c]; dbias may be null.
// A block does 32 columns: its 8 warps take every eighth block's row, then the eight are added in order.
extern "C" __global__ void layernorm_backward_weight(float *dweight, float *dbias, const float *partial, int blocks,
                                                     int C) {
    __shared__ float part[8][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * 32 + lane;
    float s = 0.0f;
    if (i < 2 * C)
#pragma unroll 4
        for (int b = warp; b < blocks; b += 8) s += partial[(long long)b * 2 * C + i];
    part[warp][lane] = s;
    __syncthreads();
    if (warp != 0 || i >= 2 * C) return;
#pragma unroll
    for (int w = 1; w < 8; w++) s += part[w][lane];
    if (i < C) dweight[i] += s;
    else if (dbias) dbias[i - C] += s;
}
