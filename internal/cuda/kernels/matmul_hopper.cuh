// The products of matmul.cu on Hopper's wgmma: 128 x 256 of D by two warpgroups, K 64 at a time, four buffers deep.
#pragma once
#include "wgmma.cuh"

namespace hopper {

// fill_operand copies WIDE rows (or columns) of an operand from `first` on, 64 of the summed dimension from k0 on:
// by rows as WIDE tile rows, transposed as WIDE/64 tiles one after the other.
template <int WIDE, bool TRANS>
__device__ __forceinline__ void fill_operand(u32 at, const elem *src, int ld, int first, int k0, int count, int k_end) {
    if constexpr (TRANS) {
#pragma unroll
        for (int j = 0; j < WIDE / 64; j++)
            fill<64, 64, 256, true>(Tile<64>{at + j * 8192}, src, ld, k0, first + j * 64, k_end, count);
    } else {
        fill<WIDE, 64, 256, true>(Tile<64>{at}, src, ld, first, k0, count, k_end);
    }
}

template <bool AT, bool BT> __device__ __forceinline__ void product(const Job &job) {
    const int BM = 128, BN = 256, BK = 64, STAGES = 4, STAGE = (BM + BN) * BK * 2, BAND = 8;
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    int M = job.M, N = job.N, tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    int band = blockIdx.x / (BAND * tiles_n), first = band * BAND, high = min(BAND, tiles_m - first);
    int inside = blockIdx.x - band * BAND * tiles_n;
    int m0 = (first + inside % high) * BM, n0 = inside / high * BN;
    int k_first = blockIdx.z * job.k_split, k_end = min(job.K, k_first + job.k_split);
    int steps = (k_end - k_first + BK - 1) / BK;

    auto fetch = [&](int step) {
        u32 at = base + (step % STAGES) * STAGE;
        int k0 = k_first + step * BK;
        fill_operand<BM, AT>(at, job.a, AT ? M : job.K, m0, k0, M, k_end);
        fill_operand<BN, BT>(at + BM * BK * 2, job.b, BT ? N : job.K, n0, k0, N, k_end);
    };
    int group = threadIdx.x >> 7;
    float acc[2][16][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 2; s++) {
        if (s < steps) fetch(s);
        copy_commit();
    }
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 3>();
        visible();
        __syncthreads();
        // Every warp has waited for the products of step-2, whose buffer is filled anew.
        if (step + STAGES - 2 < steps) fetch(step + STAGES - 2);
        copy_commit();
        u32 a = base + (step % STAGES) * STAGE + group * 8192, b = base + (step % STAGES) * STAGE + BM * BK * 2;
        fence();
#pragma unroll
        for (int k = 0; k < BK / 16; k++) {
            u64 da = descriptor(a + k * (AT ? 2048 : 32));
            u32 kb = k * (BT ? 2048 : 32);
            multiply<AT, BT>(acc[0], da, descriptor(b + kb, 8192));
            multiply<AT, BT>(acc[1], da, descriptor(b + 16384 + kb, 8192));
        }
        commit();
        wait<1>();
    }
    wait<0>();
    settled(acc[0]);
    settled(acc[1]);
    int lane = threadIdx.x & 31, m = m0 + (threadIdx.x >> 5) * 16 + (lane >> 2);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int low = 0; low < 2; low++) {
                int n = n0 + half * 128 + j * 8 + (lane & 3) * 2;
                float x[2] = {acc[half][j][low * 2], acc[half][j][low * 2 + 1]};
                if (m + low * 8 < M && n < N) finish<AT, true>(job, x, m + low * 8, n);
            }
}

} // namespace hopper

extern "C" __global__ void __launch_bounds__(256, 1) matmul_nt_hopper(Job job) { hopper::product<false, false>(job); }
extern "C" __global__ void __launch_bounds__(256, 1) matmul_nn_hopper(Job job) { hopper::product<false, true>(job); }
extern "C" __global__ void __launch_bounds__(256, 1) matmul_tn_hopper(Job job) { hopper::product<true, true>(job); }
