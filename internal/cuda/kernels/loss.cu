// Softmax cross-entropy over a chunk of rows, and its gradient in the logits' own place.
#include "common.cuh"

// losses[n] = log(sum_v exp(logits[n,v])) - logits[n,target]; then, with gradient, logits[n,v] becomes
// (softmax[n,v] - [v = target]) * scale. logits (n,V) elem; targets (n) i32, -1 gives loss 0 and gradient 0.
// One block a row. Maximum and sum come from one pass (online softmax): a row is read twice, the second time from cache.
template <int W> __device__ void loss(float *losses, elem *logits, const int *targets, int V, float scale, int gradient) {
    __shared__ float scratch[33], maxima[33];
    long long n = blockIdx.x;
    elem *x = logits + n * V;
    int target = targets[n], tid = threadIdx.x;
    if (target < 0) {
        if (tid == 0) losses[n] = 0.0f;
        if (gradient)
            for (int v = tid; v < V; v += blockDim.x) from_float(x[v], 0.0f);
        return;
    }
    float top = -3.402823466e38f, sum = 0.0f;
    for (int v = tid * W; v < V; v += blockDim.x * W) {
        Pack<elem, W> p = load<W>(x + v);
        float m = top;
#pragma unroll
        for (int k = 0; k < W; k++) m = fmaxf(m, to_float(p.v[k]));
        float s = 0.0f;
#pragma unroll
        for (int k = 0; k < W; k++) s += __expf(to_float(p.v[k]) - m);
        sum = sum * __expf(top - m) + s;
        top = m;
    }
    float m = warp_max(top);
    if ((tid & 31) == 0) maxima[tid >> 5] = m;
    __syncthreads();
    if (tid < 32) {
        m = warp_max(tid < (blockDim.x >> 5) ? maxima[tid] : -3.402823466e38f);
        if (tid == 0) maxima[32] = m;
    }
    __syncthreads();
    m = maxima[32];
    sum = block_sum(sum * __expf(top - m), scratch);
    if (tid == 0) losses[n] = logf(sum) + m - to_float(x[target]);
    if (!gradient) return;
    __syncthreads(); // the target's logit is read before it is overwritten
    float k0 = scale / sum;
    for (int v = tid * W; v < V; v += blockDim.x * W) {
        Pack<elem, W> p = load<W>(x + v);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float y = __expf(to_float(p.v[k]) - m) * k0;
            from_float(p.v[k], v + k == target ? y - scale : y);
        }
        store<W>(x + v, p);
    }
}
extern "C" __global__ void loss_rows(float *losses, elem *logits, const int *targets, int V, float scale, int gradient) {
    loss<VEC>(losses, logits, targets, V, scale, gradient);
}
extern "C" __global__ void loss_rows_1(float *losses, elem *logits, const int *targets, int V, float scale, int gradient) {
    loss<1>(losses, logits, targets, V, scale, gradient);
}

// sum[0] += losses[0] + .. + losses[n-1]: one block, each thread's share strided, then a fixed tree.
extern "C" __global__ void loss_sum(float *sum, const float *losses, int n) {
    __shared__ float scratch[33];
    float s = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) s += losses[i];
    s = block_sum(s, scratch);
    if (threadIdx.x == 0) sum[0] += s;
}
