// Attention of a sequence that grows: new rows join the keys and values of the rows before, and look at all of them.
// keys, values (T,C) elem; qkv (n,3C) holds rows pos ... pos+n-1.
#include "common.cuh"

// keys[pos+r] = k of row r, values[pos+r] = v. One thread an element of (n,C).
extern "C" __global__ void cache_store(elem *keys, elem *values, const elem *qkv, int pos, int n, int C) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)n * C) return;
    const elem *row = qkv + i / C * 3 * C + i % C;
    keys[(long long)pos * C + i] = row[C];
    values[(long long)pos * C + i] = row[2 * C];
}

// block_max gives every thread the largest over the block; scratch holds 33 floats.
__device__ __forceinline__ float block_max(float x, float *scratch) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = warp_max(scratch[lane < warps ? lane : 0]);
        if (lane == 0) scratch[32] = y;
    }
    __syncthreads();
    float y = scratch[32];
    __syncthreads();
    return y;
}

// weighted is the sum of p[j] v[j*C] over j = first, first+step, ... below count.
__device__ __forceinline__ float weighted(const float *p, const elem *v, int first, int step, int count, long long C) {
    float o = 0.0f;
    for (int j = first; j < count; j += step) o += p[j] * to_float(v[j * C]);
    return o;
}

// out[r] = softmax(scale q k^T) v over the pos+r+1 keys of head h. Grid (NH, n).
// Shared memory: q (hs), one partial sum a thread, and one score a key.
extern "C" __global__ void attention_cached(elem *out, const elem *keys, const elem *values, const elem *qkv, int pos,
                                            int NH, int hs, float scale) {
    extern __shared__ float shared[];
    __shared__ float scratch[33];
    float *q = shared, *part = q + hs, *p = part + blockDim.x;
    int h = blockIdx.x, r = blockIdx.y, count = pos + r + 1;
    long long C = (long long)NH * hs;
    for (int c = threadIdx.x; c < hs; c += blockDim.x) q[c] = to_float(qkv[r * 3 * C + h * hs + c]) * scale;
    __syncthreads();

    // A thread a key: its columns lie together.
    float top = __int_as_float(0xff800000);
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        const elem *k = keys + j * C + h * hs;
        float s = 0.0f;
        if (hs % VEC == 0) {
            for (int c = 0; c < hs; c += VEC) {
                Pack<elem, VEC> x = load<VEC>(k + c);
#pragma unroll
                for (int i = 0; i < VEC; i++) s += q[c + i] * to_float(x.v[i]);
            }
        } else {
            for (int c = 0; c < hs; c++) s += q[c] * to_float(k[c]);
        }
        p[j] = s;
        top = fmaxf(top, s);
    }
    top = block_max(top, scratch);
    float sum = 0.0f;
    for (int j = threadIdx.x; j < count; j += blockDim.x) {
        p[j] = expf(p[j] - top);
        sum += p[j];
    }
    sum = block_sum(sum, scratch);

    // A thread a column; where the block is wide enough, groups of hs threads share the keys.
    int groups = max(1, (int)blockDim.x / hs), g = threadIdx.x / hs;
    if (groups == 1) {
        for (int c = threadIdx.x; c < hs; c += blockDim.x)
            from_float(out[r * C + h * hs + c], weighted(p, values + h * hs + c, 0, 1, count, C) / sum);
        return;
    }
    if (g < groups) part[threadIdx.x] = weighted(p, values + h * hs + threadIdx.x % hs, g, groups, count, C);
    __syncthreads();
    if (threadIdx.x < hs) {
        float o = 0.0f;
        for (int i = 0; i < groups; i++) o += part[i * hs + threadIdx.x];
        from_float(out[r * C + h * hs + threadIdx.x], o / sum);
    }
}
