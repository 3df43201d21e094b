// Matrix products on mma.sync tensor cores: 16-bit elements in, fp32 sums. D (M,N) = A B, summed over K.
//
// matmul_nt: A (M,K), B (N,K) as rows: out = inp weight^T, + bias.
// matmul_nn: A (M,K), B (K,N): dinp = or += dout weight.
// matmul_tn: A (K,M), B (K,N): dweight = or += dout^T inp, in fp32 or elem; K split over blockIdx.z into `partial` where M*N
//            alone cannot fill the card; matmul_reduce then adds the splits in order.
#include "mma.cuh"

struct Job {
    elem *out;         // D of nt, nn, and of tn without sum
    const elem *bias;  // nt: (N), may be null
    float *sum;        // tn: D in fp32, or the partial sums (splits,M,N); null where D is out
    const elem *a, *b;
    int M, N, K;       // K of one split is k_split
    int k_split;
    int accumulate;    // nn, tn: add to D
    int unused;
};

// fill copies a ROWS x COLS tile whose rows lie ld apart in memory; what lies outside (rows, cols) becomes zeros.
// Without ALIGNED rows may start at any element, and a chunk is gathered by element.
template <int ROWS, int COLS, int THREADS, bool ALIGNED>
__device__ __forceinline__ void fill(Tile<COLS> tile, const elem *src, long long ld, int r0, int c0, int rows, int cols) {
    const int CHUNKS = COLS / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS;
        const elem *p = src + (long long)(r0 + r) * ld + c0 + c * 8;
        if (ALIGNED) {
            bool valid = r0 + r < rows && c0 + c * 8 < cols;
            copy16(tile.at(r, c), valid ? p : src, valid);
        } else {
            u32 w[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 lo = 0, hi = 0;
                if (r0 + r < rows) {
                    if (c0 + c * 8 + 2 * k < cols) lo = p[2 * k].bits;
                    if (c0 + c * 8 + 2 * k + 1 < cols) hi = p[2 * k + 1].bits;
                }
                w[k] = lo | hi << 16;
            }
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(tile.at(r, c)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
        }
    }
}

// finish stores D[m,n] and D[m,n+1]. ALIGNED: N is a multiple of 8, so both are there and make one word.
template <bool SUM, bool ALIGNED> __device__ __forceinline__ void finish(const Job &job, float (&x)[2], int m, int n) {
    long long d = (long long)m * job.N + n;
    const int COUNT = ALIGNED ? 2 : 1; // columns handled together
    for (int e = 0; e < 2 && n + e < job.N; e += COUNT) {
        if (SUM && job.sum) {
            Pack<float, COUNT> *p = reinterpret_cast<Pack<float, COUNT> *>(job.sum + (long long)blockIdx.z * job.M * job.N + d + e), y = {};
            if (job.accumulate) y = *p;
            for (int k = 0; k < COUNT; k++) y.v[k] += x[e + k];
            *p = y;
        } else {
            Pack<elem, COUNT> *p = reinterpret_cast<Pack<elem, COUNT> *>(job.out + d + e), y;
            if (job.accumulate) y = *p;
            for (int k = 0; k < COUNT; k++) {
                float z = x[e + k];
                if (job.bias) z += to_float(job.bias[n + e + k]);
                from_float(y.v[k], job.accumulate ? z + to_float(y.v[k]) : z);
            }
            *p = y;
        }
    }
}

// A block makes BM x BN of D with (BM/WM)*(BN/WN) warps, each WM x WN; K comes BK at a time, STAGES buffers deep.
// AT: A lies (K,M). BT: B lies (K,N). Blocks are numbered so that neighbours share tiles in cache: 8 rows of blocks at a time.
template <int BM, int BN, int BK, int WM, int WN, int STAGES, bool AT, bool BT, bool ALIGNED>
__device__ __forceinline__ void product(const Job &job) {
    const int WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32;
    const int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE = A_BYTES + B_BYTES;
    typedef Tile<AT ? BM : BK> TileA;
    typedef Tile<BT ? BN : BK> TileB;
    extern __shared__ __align__(128) char shared[];
    u32 base = shared_address(shared);
    int M = job.M, N = job.N, tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int BAND = 8;
    int band = blockIdx.x / (BAND * tiles_n), first = band * BAND, high = min(BAND, tiles_m - first);
    int inside = blockIdx.x - band * BAND * tiles_n;
    int m0 = (first + inside % high) * BM, n0 = inside / high * BN;
    int k_first = blockIdx.z * job.k_split, k_end = min(job.K, k_first + job.k_split);
    int steps = (k_end - k_first + BK - 1) / BK;

    auto fetch = [&](int step) {
        u32 at = base + (step % STAGES) * STAGE;
        int k0 = k_first + step * BK;
        if (AT) fill<BK, BM, THREADS, ALIGNED>(Tile<BM>{at}, job.a, M, k0, m0, k_end, M);
        else fill<BM, BK, THREADS, ALIGNED>(Tile<BK>{at}, job.a, job.K, m0, k0, M, k_end);
        if (BT) fill<BK, BN, THREADS, ALIGNED>(Tile<BN>{at + A_BYTES}, job.b, N, k0, n0, k_end, N);
        else fill<BN, BK, THREADS, ALIGNED>(Tile<BK>{at + A_BYTES}, job.b, job.K, n0, k0, N, k_end);
    };
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
    float acc[WM / 16][WN / 8][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) fetch(s);
        copy_commit();
    }
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
        copy_commit();
        u32 at = base + (step % STAGES) * STAGE;
        TileA A = {at};
        TileB B = {at + A_BYTES};
#pragma unroll
        for (int k = 0; k < BK; k += 16) {
            u32 a[WM / 16][4], b[WN / 16][4];
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
                if (AT) A.frag_a_trans(a[i], wm + i * 16, k);
                else A.frag_a(a[i], wm + i * 16, k);
            }
#pragma unroll
            for (int j = 0; j < WN / 16; j++) {
                if (BT) B.frag_b_trans(b[j], wn + j * 16, k);
                else B.frag_b(b[j], wn + j * 16, k);
            }
#pragma unroll
            for (int i = 0; i < WM / 16; i++)
#pragma unroll
                for (int j = 0; j < WN / 8; j++) mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int m = m0 + wm + i * 16 + g + half * 8;
            if (m >= M) continue;
#pragma unroll
            for (int j = 0; j < WN / 8; j++) {
                int n = n0 + wn + j * 8 + q * 2;
                float x[2] = {acc[i][j][half * 2], acc[i][j][half * 2 + 1]};
                if (n < N) finish<AT, ALIGNED>(job, x, m, n);
            }
        }
}

// wide: 128x256 by 8 warps, 96 KB. square: 128x128 by 4 warps, 64 KB. small: 64x64 by 4 warps, any alignment, 24 KB.
#define INSTANCES(name, AT, BT)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256, 1) matmul_##name##_wide(Job job) {                               \
        product<128, 256, 32, 64, 64, 4, AT, BT, true>(job);                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2) matmul_##name##_square(Job job) {                             \
        product<128, 128, 32, 64, 64, 4, AT, BT, true>(job);                                                           \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) matmul_##name##_small(Job job) {                                 \
        product<64, 64, 32, 32, 32, 3, AT, BT, false>(job);                                                            \
    }
INSTANCES(nt, false, false)
INSTANCES(nn, false, true)
INSTANCES(tn, true, true)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "matmul_hopper.cuh"
#endif

// D[i] = or += partial[0,i] + partial[1,i] + ... in order. D is sum, or out where sum is null.
extern "C" __global__ void matmul_reduce(elem *out, float *sum, const float *partial, long long n, int splits, int accumulate) {
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
        float s = partial[i];
        for (int k = 1; k < splits; k++) s += partial[k * n + i];
        if (sum) sum[i] = accumulate ? sum[i] + s : s;
        else from_float(out[i], accumulate ? to_float(out[i]) + s : s);
    }
}
