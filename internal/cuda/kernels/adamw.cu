// The update: the gradients' global norm, and AdamW on fp32 values. One launch covers many tensors: a table says
// where they lie, and a block finds the one that it works on.
#include "common.cuh"

// Entry is one tensor of the table, in blocks first, first+1, … of the grid. norm_partial reads grad alone.
struct Entry {
    elem *param;
    void *master; // what completes param to its fp32 value: see Value
    float *m, *v;
    const void *grad;      // elem where half is set, else fp32
    long long n;
    int first, half;
};

// entry_of is the last entry whose first block is not after this one.
__device__ __forceinline__ Entry entry_of(const Entry *table, int entries) {
    int lo = 0, hi = entries;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (table[mid].first <= (int)blockIdx.x) lo = mid;
        else hi = mid;
    }
    return table[lo];
}

// load4 reads 4 neighbouring elements, store4 writes them; both at multiples of 4.
__device__ __forceinline__ float4 load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }
__device__ __forceinline__ void store4(float *p, float4 x) { *reinterpret_cast<float4 *>(p) = x; }
#if defined(SNUG_BF16) || defined(SNUG_F16)
__device__ __forceinline__ float4 load4(const elem *p) {
    uint2 w = *reinterpret_cast<const uint2 *>(p);
    return make_float4(to_float(elem{(u16)w.x}), to_float(elem{(u16)(w.x >> 16)}), to_float(elem{(u16)w.y}), to_float(elem{(u16)(w.y >> 16)}));
}
__device__ __forceinline__ void store4(elem *p, float4 x) {
    *reinterpret_cast<uint2 *>(p) = make_uint2(pack2<elem>(x.x, x.y), pack2<elem>(x.z, x.w));
}
#endif
__device__ __forceinline__ float4 grad4(const Entry &e, long long i) {
    return e.half ? load4((const elem *)e.grad + i) : load4((const float *)e.grad + i);
}
__device__ __forceinline__ float grad1(const Entry &e, long long i) {
    return e.half ? to_float(((const elem *)e.grad)[i]) : ((const float *)e.grad)[i];
}

// partial[b] = sum of squares of block b's NORM_PIECE elements.
static const int NORM_PIECE = 1 << 16;
extern "C" __global__ void norm_partial(float *partial, const Entry *table, int entries) {
    __shared__ float scratch[33];
    Entry e = entry_of(table, entries);
    long long i0 = (long long)(blockIdx.x - e.first) * NORM_PIECE;
    int n = (int)min((long long)NORM_PIECE, e.n - i0), quads = n / 4;
    float s = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 g = grad4(e, i0 + 4 * i);
        s += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
    for (int i = quads * 4 + threadIdx.x; i < n; i += blockDim.x) {
        float g = grad1(e, i0 + i);
        s += g * g;
    }
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) partial[blockIdx.x] = s;
}

// norm[0] = sqrt(sum of partial) / loss_scale. One block.
extern "C" __global__ void norm_final(float *norm, const float *partial, int n, float loss_scale) {
    __shared__ float scratch[33];
    float s = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += partial[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) norm[0] = sqrtf(s) / loss_scale;
}

// Value is where a parameter's fp32 value is kept, by the type of the weights (program.MasterOf).
#if defined(SNUG_BF16)
// In two halves: param is the value's upper half rounded by the lower one, master. `split` of halves.go has the rule.
#define ADAMW adamw_split
struct Value {
    static __device__ __forceinline__ float join(u32 weight, u32 low) { return __uint_as_float((weight << 16) + (u32)(short)low); }
    // bits are x's, those of a NaN such that the rule holds for it too.
    static __device__ __forceinline__ u32 bits(float x) {
        u32 b = __float_as_uint(x);
        return x == x ? b : (b | 0x400000u) & 0xffff0000u;
    }
    static __device__ __forceinline__ float load(const Entry &e, long long i) { return join(e.param[i].bits, ((u16 *)e.master)[i]); }
    static __device__ __forceinline__ void store(const Entry &e, long long i, float x) {
        u32 b = bits(x);
        e.param[i].bits = (u16)((b + 0x8000u) >> 16);
        ((u16 *)e.master)[i] = (u16)b;
    }
    static __device__ __forceinline__ float4 load4(const Entry &e, long long i) {
        uint2 w = *reinterpret_cast<const uint2 *>(e.param + i), l = *reinterpret_cast<const uint2 *>((u16 *)e.master + i);
        return make_float4(join(w.x & 0xffffu, l.x), join(w.x >> 16, l.x >> 16), join(w.y & 0xffffu, l.y), join(w.y >> 16, l.y >> 16));
    }
    static __device__ __forceinline__ void store4(const Entry &e, long long i, float4 x) {
        u32 a = bits(x.x), b = bits(x.y), c = bits(x.z), d = bits(x.w);
        *reinterpret_cast<uint2 *>((u16 *)e.master + i) = make_uint2((a & 0xffffu) | b << 16, (c & 0xffffu) | d << 16);
        a += 0x8000u, b += 0x8000u, c += 0x8000u, d += 0x8000u;
        *reinterpret_cast<uint2 *>(e.param + i) = make_uint2(a >> 16 | (b & 0xffff0000u), c >> 16 | (d & 0xffff0000u));
    }
};
#elif defined(SNUG_F16)
// In master, whole; param is its rounding.
#define ADAMW adamw_master
struct Value {
    static __device__ __forceinline__ float load(const Entry &e, long long i) { return ((float *)e.master)[i]; }
    static __device__ __forceinline__ void store(const Entry &e, long long i, float x) {
        ((float *)e.master)[i] = x;
        from_float(e.param[i], x);
    }
    static __device__ __forceinline__ float4 load4(const Entry &e, long long i) { return ::load4((float *)e.master + i); }
    static __device__ __forceinline__ void store4(const Entry &e, long long i, float4 x) {
        ::store4((float *)e.master + i, x);
        ::store4(e.param + i, x);
    }
};
#else
// In param itself.
#define ADAMW adamw
struct Value {
    static __device__ __forceinline__ float load(const Entry &e, long long i) { return e.param[i]; }
    static __device__ __forceinline__ void store(const Entry &e, long long i, float x) { e.param[i] = x; }
    static __device__ __forceinline__ float4 load4(const Entry &e, long long i) { return ::load4(e.param + i); }
    static __device__ __forceinline__ void store4(const Entry &e, long long i, float4 x) { ::store4(e.param + i, x); }
};
#endif

// Adam is the numbers of one step, the same for every element; scale is the clipping over the loss scale.
struct Adam {
    float lr, step, root, beta1, beta2, eps, decay, scale;
    __device__ __forceinline__ void update(float &w, float &m, float &v, float g) const {
        g *= scale;
        m = beta1 * m + (1.0f - beta1) * g;
        v = beta2 * v + (1.0f - beta2) * g * g;
        w -= lr * decay * w;
        w -= step * (m / (sqrtf(v) / root + eps));
    }
};

// PyTorch's AdamW: g = grad * min(1, clip/(norm+1e-6)) / loss_scale; w -= lr*decay*w; m, v the running means of g and g*g;
// w -= lr/(1-beta1^t) * m / (sqrt(v/(1-beta2^t)) + eps). A norm that is not finite leaves everything as it was.
// step = lr/(1-beta1^t) and root = sqrt(1-beta2^t) come from the host in double.
// Value reads and writes parameters in fp32. A block does ADAMW_PIECE elements of a tensor, a thread QUADS runs of 4 at a time, all of them loaded before the first is stored.
static const int ADAMW_PIECE = 1 << 14, QUADS = 2;
extern "C" __global__ void __launch_bounds__(256, 4) ADAMW(const Entry *table, const float *norm, int entries, float lr, float step, float root,
                                                           float beta1, float beta2, float eps, float decay, float clip, float loss_scale) {
    float total = norm[0];
    if (!(fabsf(total) <= 3.402823466e38f)) return;
    float scale = 1.0f / loss_scale;
    if (clip > 0.0f) scale *= fminf(1.0f, clip / (total + 1e-6f));
    Adam adam = {lr, step, root, beta1, beta2, eps, decay, scale};
    Entry e = entry_of(table, entries);
    long long i0 = (long long)(blockIdx.x - e.first) * ADAMW_PIECE, i1 = min(i0 + ADAMW_PIECE, e.n), whole = i1 - i1 % 4;
    long long stride = 4 * blockDim.x;
    for (long long at = i0 + 4 * threadIdx.x; at < whole; at += QUADS * stride) {
        float4 w[QUADS], m[QUADS], v[QUADS], g[QUADS];
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            long long i = at + q * stride;
            if (i >= whole) break;
            w[q] = Value::load4(e, i);
            m[q] = load4(e.m + i);
            v[q] = load4(e.v + i);
            g[q] = grad4(e, i);
        }
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            long long i = at + q * stride;
            if (i >= whole) break;
            adam.update(w[q].x, m[q].x, v[q].x, g[q].x);
            adam.update(w[q].y, m[q].y, v[q].y, g[q].y);
            adam.update(w[q].z, m[q].z, v[q].z, g[q].z);
            adam.update(w[q].w, m[q].w, v[q].w, g[q].w);
            store4(e.m + i, m[q]);
            store4(e.v + i, v[q]);
            Value::store4(e, i, w[q]);
        }
    }
    for (long long i = whole + threadIdx.x; i < i1; i += blockDim.x) {
        float w = Value::load(e, i), m = e.m[i], v = e.v[i];
        adam.update(w, m, v, grad1(e, i));
        e.m[i] = m;
        e.v[i] = v;
        Value::store(e, i, w);
    }
}
