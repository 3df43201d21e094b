// The maps over activations: residual, dropout, GELU, casts, and the column sums of a bias' gradient.
#include "common.cuh"

__device__ __forceinline__ long long first(int W) { return ((long long)blockIdx.x * blockDim.x + threadIdx.x) * W; }

// out = a + dropout(b). n elements, TC of them a sequence.
template <int W>
__device__ void residual(elem *out, const elem *a, const elem *b, long long n, long long TC, const Dropout &drop) {
    long long i = first(W);
    if (i >= n) return;
    Pack<elem, W> pa = load<W>(a + i), pb = load<W>(b + i), y;
    float v[W];
#pragma unroll
    for (int k = 0; k < W; k++) v[k] = to_float(pb.v[k]);
    Dropper(drop, (u32)(i / TC)).apply(v, (u32)(i % TC));
#pragma unroll
    for (int k = 0; k < W; k++) from_float(y.v[k], to_float(pa.v[k]) + v[k]);
    store<W>(out + i, y);
}
extern "C" __global__ void residual_forward(elem *out, const elem *a, const elem *b, long long n, long long TC,
                                            Dropout drop) {
    residual<VEC>(out, a, b, n, TC, drop);
}
extern "C" __global__ void residual_forward_1(elem *out, const elem *a, const elem *b, long long n, long long TC,
                                              Dropout drop) {
    residual<1>(out, a, b, n, TC, drop);
}

// dinp = dout * mask / (1-p), the mask drawn again from its counter.
template <int W> __device__ void dropout(elem *dinp, const elem *dout, long long n, long long TC, const Dropout &drop) {
    long long i = first(W);
    if (i >= n) return;
    Pack<elem, W> d = load<W>(dout + i), y;
    float v[W];
#pragma unroll
    for (int k = 0; k < W; k++) v[k] = to_float(d.v[k]);
    Dropper(drop, (u32)(i / TC)).apply(v, (u32)(i % TC));
#pragma unroll
    for (int k = 0; k < W; k++) from_float(y.v[k], v[k]);
    store<W>(dinp + i, y);
}
extern "C" __global__ void dropout_backward(elem *dinp, const elem *dout, long long n, long long TC, Dropout drop) {
    dropout<VEC>(dinp, dout, n, TC, drop);
}
extern "C" __global__ void dropout_backward_1(elem *dinp, const elem *dout, long long n, long long TC, Dropout drop) {
    dropout<1>(dinp, dout, n, TC, drop);
}

// gelu(x) = x * Phi(x), Phi(x) = (1 + erf(x/sqrt 2))/2, the exact one. In fp32 erf is erff's. For 16-bit elements erfc is
// Abramowitz and Stegun's 7.1.28, 1/(1 + a1 z + ... + a6 z^6)^16 with z = |x|/sqrt 2: its error, 3e-7, is far below their
// rounding. gelu(x) = max(x,0) - |x| erfc(z)/2; the root and the half are in the coefficients.
__device__ __forceinline__ float gelu(float x) {
    if (sizeof(elem) == 4) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    float z = fabsf(x), half;
    float q = 1.044273782f + z * (5.207516304e-2f + z * (2.207699846e-2f + z * (3.422739239e-3f + z * (3.968613701e-5f + z * (5.105520901e-5f + z * 5.621299664e-6f)))));
    q *= q;
    q *= q;
    q *= q;
    q *= q;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(half) : "f"(q));
    return fmaxf(x, 0.0f) - z * half;
}

// gelu'(x) = Phi(x) + x*phi(x). For 16-bit elements Phi is Abramowitz and Stegun's 7.1.26 (1.5e-7), whose exponential is phi's too.
__device__ __forceinline__ float Phi(float x, float &phi) {
    phi = 0.39894228040143268f * __expf(-0.5f * x * x);
    if (sizeof(elem) == 4) return 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    float t = __fdividef(1.0f, 1.0f + 0.23164190f * fabsf(x)); // 0.3275911 / sqrt 2
    float poly = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float tail = 1.25331413731550025f * poly * phi; // sqrt(pi/2) * phi = exp(-x^2/2)/2
    return x < 0.0f ? tail : 1.0f - tail;
}
__device__ __forceinline__ float gelu_slope(float x) {
    float phi, p = Phi(x, phi);
    return p + x * phi;
}

// A thread does GELUS packs, a block's width apart, so that all its loads are under way at once.
static const int GELUS = 2;

extern "C" __global__ void gelu_forward(elem *out, const elem *pre, long long n) {
    long long i0 = ((long long)blockIdx.x * GELUS * blockDim.x + threadIdx.x) * VEC, step = (long long)blockDim.x * VEC;
    if (i0 + (GELUS - 1) * step + VEC <= n) {
        Pack<elem, VEC> x[GELUS], y;
#pragma unroll
        for (int j = 0; j < GELUS; j++) x[j] = load<VEC>(pre + i0 + j * step);
#pragma unroll
        for (int j = 0; j < GELUS; j++) {
#pragma unroll
            for (int k = 0; k < VEC; k++) from_float(y.v[k], gelu(to_float(x[j].v[k])));
            store<VEC>(out + i0 + j * step, y);
        }
        return;
    }
    for (int j = 0; j < GELUS; j++)
        for (int k = 0; k < VEC; k++)
            if (i0 + j * step + k < n) from_float(out[i0 + j * step + k], gelu(to_float(pre[i0 + j * step + k])));
}

// dpre = dout * gelu'(pre); dpre may be dout.
extern "C" __global__ void gelu_backward(elem *dpre, const elem *dout, const elem *pre, long long n) {
    long long i0 = ((long long)blockIdx.x * GELUS * blockDim.x + threadIdx.x) * VEC, step = (long long)blockDim.x * VEC;
    if (i0 + (GELUS - 1) * step + VEC <= n) {
        Pack<elem, VEC> x[GELUS], d[GELUS], y;
#pragma unroll
        for (int j = 0; j < GELUS; j++) {
            x[j] = load<VEC>(pre + i0 + j * step);
            d[j] = load<VEC>(dout + i0 + j * step);
        }
#pragma unroll
        for (int j = 0; j < GELUS; j++) {
#pragma unroll
            for (int k = 0; k < VEC; k++) from_float(y.v[k], to_float(d[j].v[k]) * gelu_slope(to_float(x[j].v[k])));
            store<VEC>(dpre + i0 + j * step, y);
        }
        return;
    }
    for (int j = 0; j < GELUS; j++)
        for (int k = 0; k < VEC; k++) {
            long long i = i0 + j * step + k;
            if (i < n) from_float(dpre[i], to_float(dout[i]) * gelu_slope(to_float(pre[i])));
        }
}

// Conversions between fp32 and elem.
extern "C" __global__ void cast_from_f32(elem *dst, const float *src, long long n) {
    for (long long i = first(1); i < n; i += (long long)gridDim.x * blockDim.x) from_float(dst[i], src[i]);
}
extern "C" __global__ void cast_to_f32(float *dst, const elem *src, long long n) {
    for (long long i = first(1); i < n; i += (long long)gridDim.x * blockDim.x) dst[i] = to_float(src[i]);
}

// partial[g,oc] = sum of dout[n,oc] over the rows n of group g = blockIdx.y (`rows` rows each), n ascending in a thread.
// A block does 32 packs of columns with 8 row lanes, added in order. bias_backward_sum then adds the groups to dbias, or overwrites it.
template <int W> __device__ void bias_sum(float *partial, const elem *dout, int N, int OC, int rows) {
    __shared__ float part[8][32][W];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, c = (blockIdx.x * 32 + lane) * W;
    float s[W] = {};
    int n1 = min(N, (int)(blockIdx.y + 1) * rows);
    if (c < OC)
#pragma unroll 4
        for (int n = blockIdx.y * rows + warp; n < n1; n += 8) {
            Pack<elem, W> d = load<W>(dout + (long long)n * OC + c);
#pragma unroll
            for (int k = 0; k < W; k++) s[k] += to_float(d.v[k]);
        }
#pragma unroll
    for (int k = 0; k < W; k++) part[warp][lane][k] = s[k];
    __syncthreads();
    if (warp != 0 || c >= OC) return;
#pragma unroll
    for (int k = 0; k < W; k++) {
        for (int w = 1; w < 8; w++) s[k] += part[w][lane][k];
        partial[(long long)blockIdx.y * OC + c + k] = s[k];
    }
}
extern "C" __global__ void bias_backward(float *partial, const elem *dout, int N, int OC, int rows) {
    bias_sum<VEC>(partial, dout, N, OC, rows);
}
extern "C" __global__ void bias_backward_1(float *partial, const elem *dout, int N, int OC, int rows) {
    bias_sum<1>(partial, dout, N, OC, rows);
}
extern "C" __global__ void bias_backward_sum(float *dbias, const float *partial, int groups, int OC,
                                             int overwrite) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= OC) return;
    float s = 0.0f;
    for (int g = 0; g < groups; g++) s += partial[(long long)g * OC + c];
    dbias[c] = overwrite ? s : dbias[c] + s;
}
