// The update: the gradients' global norm, and AdamW with fp32 master weights. One launch covers many tensors: a table says
// where they lie, and a block finds the one that it works on.
#include "common.cuh"

// Entry is one tensor of the table, in blocks first, first+1, … of the grid. norm_partial reads grad alone.
struct Entry {
    elem *param;
    float *master, *m, *v; // master null: param is fp32
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
// A block does ADAMW_PIECE elements of a tensor, a thread QUADS runs of 4 at a time, all of them loaded before the first is stored.
static const int ADAMW_PIECE = 1 << 14, QUADS = 2;
extern "C" __global__ void __launch_bounds__(256) adamw(const Entry *table, const float *norm, int entries, float lr, float step, float root,
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
            w[q] = e.master ? load4(e.master + i) : load4(e.param + i);
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
            if (e.master) store4(e.master + i, w[q]);
            store4(e.param + i, w[q]);
        }
    }
    for (long long i = whole + threadIdx.x; i < i1; i += blockDim.x) {
        float w = e.master ? e.master[i] : to_float(e.param[i]), m = e.m[i], v = e.v[i];
        adam.update(w, m, v, grad1(e, i));
        e.m[i] = m;
        e.v[i] = v;
        if (e.master) e.master[i] = w;
        from_float(e.param[i], w);
    }
}
