// Softmax cross-entropy over a chunk of rows, and its gradient in the logits' own place.
//
// losses[n] = log(sum_v exp(logits[n,v])) - logits[n,target]; then, with gradient, logits[n,v] becomes
// (softmax[n,v] - [v = target]) * scale. logits (N,V) elem; targets (N) i32, -1 gives loss 0 and gradient 0.
// Maximum and sum come from one pass (online softmax), the gradient from a second one.
#include "common.cuh"

static const float LOWEST = -1e38f; // below every logit, and finite after * LOG2E

// Softmax is the largest of some logits and the sum of exp(logit - top) over them.
struct Softmax {
    float top = LOWEST, sum = 0.0f;
    template <int W> __device__ __forceinline__ void add(const float (&x)[W]) {
        float m = top, s = 0.0f;
#pragma unroll
        for (int k = 0; k < W; k++) m = fmaxf(m, x[k]);
        float shift = m * LOG2E;
#pragma unroll
        for (int k = 0; k < W; k++) s += power2(x[k] * LOG2E - shift);
        sum = sum * power2(top * LOG2E - shift) + s;
        top = m;
    }
    __device__ __forceinline__ void over_warp() {
        float m = warp_max(top);
        sum = warp_sum(sum * power2((top - m) * LOG2E));
        top = m;
    }
    // over_block waits for the block once; the next call needs other arrays.
    __device__ __forceinline__ void over_block(float (&tops)[32], float (&sums)[32]) {
        int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        over_warp();
        if (lane == 0) tops[warp] = top, sums[warp] = sum;
        __syncthreads();
        bool there = lane < blockDim.x >> 5;
        top = there ? tops[lane] : LOWEST;
        sum = there ? sums[lane] : 0.0f;
        over_warp();
    }
    __device__ __forceinline__ float loss(float logit) const { return logf(sum) + top - logit; }
};

// gradient writes (softmax - [v = target]) * scale of the row x to out for v = first, first+step, ..., W of them each.
template <int W>
__device__ __forceinline__ void gradient(elem *out, const elem *x, const Softmax &all, int first, int step, int V, int target,
                                         float logit, float scale) {
    float k0 = scale / all.sum, shift = all.top * LOG2E;
    for (int v = first; v < V; v += step) {
        float f[W] = {};
        if (target >= 0) {
            unpack(f, load<W>(x + v));
#pragma unroll
            for (int k = 0; k < W; k++) f[k] = power2(f[k] * LOG2E - shift) * k0;
        }
        Pack<elem, W> p;
        pack(p, f);
        store<W>(out + v, p);
    }
    // The target's element again, by the thread that wrote it.
    if (target >= first && (target - first) % step < W) from_float(out[target], power2(logit * LOG2E - shift) * k0 - scale);
}

// row is done by `threads` threads, of which this one is number t; `over` puts their parts together. It is read twice, the
// second time from cache.
template <int W, typename Over>
__device__ __forceinline__ void row(float *losses, elem *logits, const int *targets, long long n, int V, float scale,
                                    int with_gradient, int t, int threads, Over over) {
    elem *x = logits + n * V;
    int target = targets[n];
    Softmax all;
    for (int v = t * W; v < V; v += threads * W) {
        float f[W];
        unpack(f, load<W>(x + v));
        all.add(f);
    }
    float logit = target < 0 ? 0.0f : to_float(x[target]); // before a thread overwrites it: over waits for all
    over(all);
    if (t == 0) losses[n] = target < 0 ? 0.0f : all.loss(logit);
    if (with_gradient) gradient<W>(x, x, all, t * W, threads * W, V, target, logit, scale);
}

// One block a row.
template <int W>
__device__ __forceinline__ void by_blocks(float *losses, elem *logits, const int *targets, int V, float scale, int with_gradient) {
    __shared__ float tops[32], sums[32];
    row<W>(losses, logits, targets, blockIdx.x, V, scale, with_gradient, threadIdx.x, blockDim.x,
           [](Softmax &all) { all.over_block(tops, sums); });
}
// One warp a row, for short ones.
template <int W>
__device__ __forceinline__ void by_warps(float *losses, elem *logits, const int *targets, int N, int V, float scale,
                                         int with_gradient) {
    long long n = (long long)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (n < N)
        row<W>(losses, logits, targets, n, V, scale, with_gradient, threadIdx.x & 31, 32, [](Softmax &all) { all.over_warp(); });
}
#define INSTANCE(SUFFIX, W)                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024, 2) loss_blocks##SUFFIX(                                         \
        float *losses, elem *logits, const int *targets, int N, int V, float scale, int with_gradient) {               \
        by_blocks<W>(losses, logits, targets, V, scale, with_gradient);                                                \
    }                                                                                                                  \
    extern "C" __global__ void loss_warps##SUFFIX(float *losses, elem *logits, const int *targets, int N, int V,       \
                                                  float scale, int with_gradient) {                                    \
        by_warps<W>(losses, logits, targets, N, V, scale, with_gradient);                                              \
    }
INSTANCE(, VEC)
INSTANCE(_1, 1)

// Long rows, from shared memory, where a block may have two: one comes while the other is worked on. A block takes every
// gridDim.x-th row. A thread copies the packs that it reads itself, so that only the reduction waits for the block.
extern "C" __global__ void __launch_bounds__(1024) loss_held(float *losses, elem *logits, const int *targets, int N, int V,
                                                              float scale, int with_gradient) {
    extern __shared__ __align__(16) char rows[];
    __shared__ float tops[2][32], sums[2][32];
    const int W = VEC;
    int first = threadIdx.x * W, step = blockDim.x * W;
    auto held = [&](int turn) { return reinterpret_cast<elem *>(rows) + turn * V; };
    auto fetch = [&](int n, int turn) {
        if (n < N)
            for (int v = first; v < V; v += step) copy16(shared_address(held(turn) + v), logits + (long long)n * V + v);
        copy_commit();
    };
    fetch(blockIdx.x, 0);
    fetch(blockIdx.x + gridDim.x, 1);
    int turn = 0;
    for (int n = blockIdx.x; n < N; n += gridDim.x, turn ^= 1) {
        int target = targets[n];
        const elem *x = held(turn);
        Softmax all;
        copy_wait<1>();
        for (int v = first; v < V; v += step) {
            float f[W];
            unpack(f, load<W>(x + v));
            all.add(f);
        }
        bool owner = target >= first && (target - first) % step < W; // the thread that has the target's logit
        float logit = owner ? to_float(x[target]) : 0.0f;
        all.over_block(tops[turn], sums[turn]);
        if (owner) losses[n] = all.loss(logit);
        else if (target < 0 && threadIdx.x == 0) losses[n] = 0.0f;
        if (with_gradient) gradient<W>(logits + (long long)n * V, x, all, first, step, V, target, logit, scale);
        fetch(n + 2 * gridDim.x, turn);
    }
}

// sum[0] += losses[0] + .. + losses[n-1]: one block, each thread's share strided, then a fixed tree.
extern "C" __global__ void loss_sum(float *sum, const float *losses, int n) {
    __shared__ float scratch[33];
    float s = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += losses[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) sum[0] += s;
}
