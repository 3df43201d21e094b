// Causal attention for what the tensor-core kernels do not take: fp32, and head sizes that are no multiple of 8.
// The mathematics and the layouts are attention.cu's. A warp does one row, its lanes share the head's columns.
#include "common.cuh"

// Up to 256 columns a head: lane i holds columns i, i+32, ...
static const int PARTS = 8;
struct Row {
    float v[PARTS];
    __device__ __forceinline__ void load(const elem *p, int hs) {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int c = i * 32 + (threadIdx.x & 31);
            v[i] = c < hs ? to_float(p[c]) : 0.0f;
        }
    }
    __device__ __forceinline__ void store(elem *p, int hs, float scale) const {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            int c = i * 32 + (threadIdx.x & 31);
            if (c < hs) from_float(p[c], v[i] * scale);
        }
    }
    __device__ __forceinline__ float dot(const Row &o) const {
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < PARTS; i++) s += v[i] * o.v[i];
        return warp_sum(s);
    }
    // v = v*a + o*b
    __device__ __forceinline__ void mix(float a, const Row &o, float b) {
#pragma unroll
        for (int i = 0; i < PARTS; i++) v[i] = v[i] * a + o.v[i] * b;
    }
};

__device__ __forceinline__ float factor(const Dropper &d, int h, int t, int k, int T) {
    return d.threshold ? d.factor_at((u32)((h * T + t) * ((T + 7) & ~7) + k)) : 1.0f;
}

// at finds the warp's row t; grid (ceil(T/warps), NH, B).
__device__ __forceinline__ int at() { return blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); }

extern "C" __global__ void attention_any_forward(elem *out, float *lse, const elem *qkv, int T, int NH, int hs, float scale,
                                                 Dropout drop) {
    int t = at(), h = blockIdx.y, b = blockIdx.z;
    if (t >= T) return;
    long long C = (long long)NH * hs;
    const elem *src = qkv + (long long)b * T * 3 * C + h * hs;
    Dropper dropper(drop, b);
    Row q, k, v, o = {};
    q.load(src + t * 3 * C, hs);
    float top = __int_as_float(0xff800000), sum = 0.0f;
    for (int j = 0; j <= t; j++) {
        k.load(src + j * 3 * C + C, hs);
        v.load(src + j * 3 * C + 2 * C, hs);
        float s = q.dot(k) * scale, m = fmaxf(top, s), fade = expf(top - m), p = expf(s - m);
        top = m;
        sum = sum * fade + p;
        o.mix(fade, v, p * factor(dropper, h, t, j, T));
    }
    o.store(out + ((long long)b * T + t) * C + h * hs, hs, 1.0f / sum);
    if ((threadIdx.x & 31) == 0) lse[((long long)b * NH + h) * T + t] = top + logf(sum);
}

// delta and dq of a row of queries.
extern "C" __global__ void attention_any_backward_q(elem *dqkv, float *delta, const elem *dout, const elem *qkv,
                                                    const elem *out, const float *lse, int T, int NH, int hs, float scale,
                                                    Dropout drop) {
    int t = at(), h = blockIdx.y, b = blockIdx.z;
    if (t >= T) return;
    long long C = (long long)NH * hs, stat = ((long long)b * NH + h) * T + t, row = ((long long)b * T + t) * C + h * hs;
    const elem *src = qkv + (long long)b * T * 3 * C + h * hs;
    Dropper dropper(drop, b);
    Row q, k, v, d, o, dq = {};
    q.load(src + t * 3 * C, hs);
    d.load(dout + row, hs);
    o.load(out + row, hs);
    float D = d.dot(o), l = lse[stat];
    if ((threadIdx.x & 31) == 0) delta[stat] = D;
    for (int j = 0; j <= t; j++) {
        k.load(src + j * 3 * C + C, hs);
        v.load(src + j * 3 * C + 2 * C, hs);
        float p = expf(q.dot(k) * scale - l), dp = d.dot(v) * factor(dropper, h, t, j, T);
        dq.mix(1.0f, k, p * (dp - D));
    }
    dq.store(dqkv + (long long)b * T * 3 * C + t * 3 * C + h * hs, hs, scale);
}

// dk and dv of a row of keys; delta is there already.
extern "C" __global__ void attention_any_backward_kv(elem *dqkv, const float *delta, const elem *dout, const elem *qkv,
                                                     const float *lse, int T, int NH, int hs, float scale, Dropout drop) {
    int j = at(), h = blockIdx.y, b = blockIdx.z;
    if (j >= T) return;
    long long C = (long long)NH * hs, stat = ((long long)b * NH + h) * T;
    const elem *src = qkv + (long long)b * T * 3 * C + h * hs, *dsrc = dout + (long long)b * T * C + h * hs;
    Dropper dropper(drop, b);
    Row q, k, v, d, dk = {}, dv = {};
    k.load(src + j * 3 * C + C, hs);
    v.load(src + j * 3 * C + 2 * C, hs);
    for (int t = j; t < T; t++) {
        q.load(src + t * 3 * C, hs);
        d.load(dsrc + t * C, hs);
        float p = expf(q.dot(k) * scale - lse[stat + t]), f = factor(dropper, h, t, j, T), dp = d.dot(v) * f;
        dv.mix(1.0f, d, p * f);
        dk.mix(1.0f, q, p * (dp - delta[stat + t]));
    }
    elem *dst = dqkv + (long long)b * T * 3 * C + j * 3 * C + h * hs;
    dk.store(dst + C, hs, scale);
    dv.store(dst + 2 * C, hs, 1.0f);
}
