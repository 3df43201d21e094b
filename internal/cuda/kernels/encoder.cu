// The embedding: out[n,c] = dropout(wte[idx[n],c] + wpe[t,c]), n = b*T + t.
#include "common.cuh"

// out (B*T,C) elem; idx (B*T) i32; wte (V,C), wpe (T,C) elem. One thread a pack of W channels.
template <int W>
__device__ void forward(elem *out, const int *idx, const elem *wte, const elem *wpe, int N, int T, int C, Dropout drop) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    int packs = C / W;
    if (i >= (long long)N * packs) return;
    int n = (int)(i / packs), c = (int)(i % packs) * W, t = n % T;
    Pack<elem, W> a = load<W>(wte + (long long)idx[n] * C + c), b = load<W>(wpe + (long long)t * C + c), y;
    float x[W];
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = to_float(a.v[k]) + to_float(b.v[k]);
    Dropper(drop, n / T).apply(x, (u32)(t * C + c));
#pragma unroll
    for (int k = 0; k < W; k++) from_float(y.v[k], x[k]);
    store<W>(out + (long long)n * C + c, y);
}
extern "C" __global__ void encoder_forward(elem *out, const int *idx, const elem *wte, const elem *wpe, int N, int T,
                                           int C, Dropout drop) {
    forward<VEC>(out, idx, wte, wpe, N, T, C, drop);
}
extern "C" __global__ void encoder_forward_1(elem *out, const int *idx, const elem *wte, const elem *wpe, int N, int T,
                                             int C, Dropout drop) {
    forward<1>(out, idx, wte, wpe, N, T, C, drop);
}

// add adds W elements of dout at row n, column c, after their dropout, to sum.
template <int W, bool DROP>
__device__ __forceinline__ void add(float (&sum)[W], const elem *dout, int n, int c, int T, int C, const Dropout &drop) {
    Pack<elem, W> d = load<W>(dout + (long long)n * C + c);
    float x[W];
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = to_float(d.v[k]);
    if (DROP) Dropper(drop, n / T).apply(x, (u32)(n % T * C + c));
#pragma unroll
    for (int k = 0; k < W; k++) sum[k] += x[k];
}

// dwpe[t,c] += sum over b of dropout'(dout[b,t,c]); with overwrite = for +=. dwpe f32. A block does 32 packs: its 8 warps
// take every eighth sequence, then the eight are added in order.
template <int W>
__device__ void wpe_backward(float *dwpe, const elem *dout, int B, int T, int C, int overwrite, const Dropout &drop) {
    __shared__ float part[7][W][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    long long i = ((long long)blockIdx.x * 32 + lane) * W;
    bool works = i < (long long)T * C;
    int t = (int)(i / C), c = (int)(i % C);
    float sum[W] = {};
    int end = works ? B : 0;
    if (drop.threshold)
        for (int b = warp; b < end; b += 8) add<W, true>(sum, dout, b * T + t, c, T, C, drop);
    else
#pragma unroll 4
        for (int b = warp; b < end; b += 8) add<W, false>(sum, dout, b * T + t, c, T, C, drop);
    if (warp > 0)
#pragma unroll
        for (int k = 0; k < W; k++) part[warp - 1][k][lane] = sum[k];
    __syncthreads();
    if (warp > 0 || !works) return;
#pragma unroll
    for (int k = 0; k < W; k++) {
        for (int w = 0; w < 7; w++) sum[k] += part[w][k][lane];
        dwpe[i + k] = overwrite ? sum[k] : dwpe[i + k] + sum[k];
    }
}
extern "C" __global__ void encoder_backward_wpe(float *dwpe, const elem *dout, int B, int T, int C, int overwrite,
                                                Dropout drop) {
    wpe_backward<VEC>(dwpe, dout, B, T, C, overwrite, drop);
}
extern "C" __global__ void encoder_backward_wpe_1(float *dwpe, const elem *dout, int B, int T, int C, int overwrite,
                                                  Dropout drop) {
    wpe_backward<1>(dwpe, dout, B, T, C, overwrite, drop);
}

// first[s,v] and count[s,v]: where token v first stands in segment s of idx, `segment` places long, and how often. Both were
// set before: first to 0x7f7f7f7f, count to 0.
extern "C" __global__ void encoder_backward_count(int *first, int *count, const int *idx, int N, int V, int segment) {
    int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    int at = n / segment * V + idx[n];
    atomicMin(first + at, n);
    atomicAdd(count + at, 1);
}

// dwte[v,c] += sum of dropout'(dout[n,c]) over the n with idx[n] = v, in an order fixed by idx alone.
//
// One block a token v and segment s of idx, which leaves unless v stands there. It walks idx from v's first place, STRIDE
// places a thread at a time, listing the token's places in ascending order until all are found, and adds their rows. Rows
// are dealt to `lanes` row groups by rank in the list and the groups are added in order, so the sum does not depend on timing.
// With one segment dwte gets the sum, with more partial[s,v,c] does, and encoder_backward_sum adds them up.
// dwte, partial f32. Grid (V, segments). Dynamic shared memory: C floats for each row group but the first.
static const int STRIDE = 4; // places a thread looks at in one round
static const int LIST = 2048;
template <int W>
__device__ void wte_backward(float *dwte, float *partial, const elem *dout, const int *idx, const int *first_of,
                             const int *count_of, int N, int T, int C, int segment, const Dropout &drop) {
    __shared__ int list[LIST];
    __shared__ int warp_count[32];
    extern __shared__ float sums[];
    int at = blockIdx.y * gridDim.x + blockIdx.x, v = blockIdx.x, total = count_of[at];
    if (total == 0) return;
    int end = min(N, ((int)blockIdx.y + 1) * segment);
    int n = first_of[at], tid = threadIdx.x, threads = blockDim.x, warp = tid >> 5, warps = threads >> 5;
    int packs = C / W, lanes = max(1, threads / packs), lane = tid / packs;
    // A row wider than the block is walked in strips of `threads` packs.
    for (int p0 = 0; p0 < packs; p0 += threads) {
        int p = p0 + (packs <= threads ? tid % packs : tid);
        bool works = lane < lanes && p < packs;
        float sum[W] = {};
        int m0 = n;
        for (int base = 0; base < total;) { // base places are done
            int have = 0;
            while (base + have < total && have + threads * STRIDE <= LIST) {
                // A thread's places are neighbours, so that the list is ascending.
                int m = m0 + tid * STRIDE, mine = 0;
                bool hit[STRIDE];
#pragma unroll
                for (int k = 0; k < STRIDE; k++) {
                    hit[k] = m + k < end && idx[m + k] == v;
                    mine += hit[k];
                }
                int before = mine; // places of the warp's lanes up to this one
#pragma unroll
                for (int d = 1; d < 32; d <<= 1) {
                    int other = __shfl_up_sync(0xffffffffu, before, d);
                    if ((tid & 31) >= d) before += other;
                }
                if ((tid & 31) == 31) warp_count[warp] = before;
                before -= mine;
                __syncthreads();
                int found = 0;
                for (int w = 0; w < warps; w++) {
                    if (w < warp) before += warp_count[w];
                    found += warp_count[w];
                }
#pragma unroll
                for (int k = 0; k < STRIDE; k++)
                    if (hit[k]) list[have + before++] = m + k;
                have += found;
                m0 += threads * STRIDE;
                __syncthreads();
            }
            if (works) {
                int start = ((lane - base) % lanes + lanes) % lanes;
                if (drop.threshold)
#pragma unroll 2
                    for (int j = start; j < have; j += lanes) add<W, true>(sum, dout, list[j], p * W, T, C, drop);
                else
#pragma unroll 4
                    for (int j = start; j < have; j += lanes) add<W, false>(sum, dout, list[j], p * W, T, C, drop);
            }
            base += have;
            __syncthreads();
        }
        if (works && lane > 0)
#pragma unroll
            for (int k = 0; k < W; k++) sums[(lane - 1) * C + p * W + k] = sum[k];
        __syncthreads();
        if (works && lane == 0) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                float s = sum[k];
                for (int l = 1; l < lanes; l++) s += sums[(l - 1) * C + p * W + k];
                if (gridDim.y > 1) partial[(long long)at * C + p * W + k] = s;
                else dwte[(long long)v * C + p * W + k] += s;
            }
        }
        __syncthreads();
    }
}
extern "C" __global__ void encoder_backward_wte(float *dwte, float *partial, const elem *dout, const int *idx,
                                                const int *first, const int *count, int N, int T, int C, int segment,
                                                Dropout drop) {
    wte_backward<VEC>(dwte, partial, dout, idx, first, count, N, T, C, segment, drop);
}
extern "C" __global__ void encoder_backward_wte_1(float *dwte, float *partial, const elem *dout, const int *idx,
                                                  const int *first, const int *count, int N, int T, int C, int segment,
                                                  Dropout drop) {
    wte_backward<1>(dwte, partial, dout, idx, first, count, N, T, C, segment, drop);
}

// dwte[v,c] += sum over segments of partial[s,v,c], where v stands in the segment, s ascending. One thread an element.
extern "C" __global__ void encoder_backward_sum(float *dwte, const float *partial, const int *count, int V, int C,
                                                int segments) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= V * C) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int s = 0; s < segments; s++)
        if (count[s * V + i / C]) sum += partial[(long long)s * V * C + i];
    dwte[i] += sum;
}
