// Matrix products in fp32 for dtype=float32 without cuBLASLt: D[m,n] = sum over k of A[m*am + k*ak] * B[n*bn + k*bk],
// k ascending. + bias[n]; + D where accumulate. A block makes 64x64 with 256 threads, a thread 4x4, K 16 at a time.
#include "common.cuh"

extern "C" __global__ void matmul_f32(float *d, const float *bias, const float *a, const float *b, int M, int N, int K,
                                      long long am, long long ak, long long bn, long long bk, int accumulate) {
    __shared__ float as[16][65], bs[16][65];
    int tid = threadIdx.x, m0 = blockIdx.y * 64, n0 = blockIdx.x * 64, ty = tid / 16 * 4, tx = tid % 16 * 4;
    float acc[4][4] = {};
    for (int k0 = 0; k0 < K; k0 += 16) {
        for (int i = tid; i < 64 * 16; i += 256) {
            // Neighbouring threads walk the dimension that lies together in memory.
            int ra = ak == 1 ? i / 16 : i % 64, ka = ak == 1 ? i % 16 : i / 64;
            int rb = bk == 1 ? i / 16 : i % 64, kb = bk == 1 ? i % 16 : i / 64;
            as[ka][ra] = m0 + ra < M && k0 + ka < K ? a[(m0 + ra) * am + (k0 + ka) * ak] : 0.0f;
            bs[kb][rb] = n0 + rb < N && k0 + kb < K ? b[(n0 + rb) * bn + (k0 + kb) * bk] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += as[k][ty + i] * bs[k][tx + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            int m = m0 + ty + i, n = n0 + tx + j;
            if (m >= M || n >= N) continue;
            float x = acc[i][j];
            if (bias) x += bias[n];
            long long at = (long long)m * N + n;
            d[at] = accumulate ? d[at] + x : x;
        }
}
