// Causal attention without a T x T matrix (FlashAttention-2's order of work), on mma.sync tensor cores.
//
// qkv (B,T,3C): a row holds q, k and v, each C = NH*HS wide. S = q k^T / sqrt(HS); P = softmax(S) over keys up to the
// query; out = dropout(P) v; lse[b,h,t] = log sum exp of row t of S.
// HS is the padded head size of the instance (32, 64, 96, 128); columns from hs on are zeros. hs and C are multiples of 8.
#include "attention_dropout.cuh"

#define INFINITY_F __int_as_float(0x7f800000)

// load_rows starts the copy of ROWS rows of one head from row t0 on; rows from T on become zeros.
template <int HS, int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(Tile<HS> tile, const elem *src, long long stride, int t0, int T, int hs) {
    const int CHUNKS = HS / 8;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int r = i / CHUNKS, c = i % CHUNKS;
        bool valid = t0 + r < T && c * 8 < hs;
        copy16(tile.at(r, c), valid ? src + (t0 + r) * stride + c * 8 : src, valid);
    }
}

// store_rows writes a warp's 16 rows of accumulators times `scale` through its own 16 rows of shared memory.
template <int HS>
__device__ __forceinline__ void store_rows(elem *dst, long long stride, Tile<HS> tile, int row0, int t0, int T, int hs,
                                           const float (&acc)[HS / 8][4], float scale0, float scale1) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < HS / 8; j++) {
        u32 lo = pack2<elem>(acc[j][0] * scale0, acc[j][1] * scale0), hi = pack2<elem>(acc[j][2] * scale1, acc[j][3] * scale1);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile.at(row0 + g, j) + q * 4), "r"(lo) : "memory");
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile.at(row0 + g + 8, j) + q * 4), "r"(hi) : "memory");
    }
    __syncwarp();
    const int CHUNKS = HS / 8;
#pragma unroll
    for (int i = lane; i < 16 * CHUNKS; i += 32) {
        int r = i / CHUNKS, c = i % CHUNKS;
        int4 x;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(tile.at(row0 + r, c)));
        if (t0 + r < T && c * 8 < hs) *reinterpret_cast<int4 *>(dst + (t0 + r) * stride + c * 8) = x;
    }
}

// row_delta is the sum over a head's columns of dout*out in row t, which four neighbouring lanes find together and one of
// them writes; 0 from T on.
__device__ __forceinline__ float row_delta(float *delta, const elem *dout, const elem *out, long long stride, int t, int T, int hs) {
    int q = threadIdx.x & 3;
    float s = 0.0f;
    if (t < T)
        for (int c = q * 8; c < hs; c += 32) {
            Pack<elem, 8> x = load<8>(dout + t * stride + c), y = load<8>(out + t * stride + c);
#pragma unroll
            for (int k = 0; k < 8; k++) s += to_float(x.v[k]) * to_float(y.v[k]);
        }
    s += __shfl_xor_sync(0xffffffffu, s, 1);
    s += __shfl_xor_sync(0xffffffffu, s, 2);
    if (q == 0 && t < T) delta[t] = s;
    return s;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && SNUG_HS == 64
#include "attention_hopper.cuh"
#define HOPPER 1
#else
#define HOPPER 0
#endif

// A block does BR = WARPS*MT*16 queries of one head and sequence, a warp MT*16 of them; keys come BC at a time, two
// buffers deep. Grid (ceil(T/BR), NH, B); the longest rows start first.
template <int HS, int WARPS, int MT, int BC, bool DROP>
__device__ __forceinline__ void forward(elem *out, float *lse, const elem *qkv, int T, int NH, int hs, float scale,
                                        const Dropout &drop) {
    const int BR = WARPS * MT * 16, THREADS = WARPS * 32;
    extern __shared__ __align__(128) char shared[];
    u32 base = shared_address(shared);
    Tile<HS> Q = {base};
    const u32 QB = BR * HS * 2, KB = BC * HS * 2;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, q0 = (int)(gridDim.x - 1 - blockIdx.x) * BR;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs;
    int blocks = (min(T, q0 + BR) + BC - 1) / BC;

    load_rows<HS, BR, THREADS>(Q, src, stride, q0, T, hs);
    load_rows<HS, BC, THREADS>(Tile<HS>{base + QB}, src + C, stride, 0, T, hs);
    load_rows<HS, BC, THREADS>(Tile<HS>{base + QB + KB}, src + 2 * C, stride, 0, T, hs);
    copy_commit();

    u32 qf[MT][HS / 16][4];
    float o[MT][HS / 8][4] = {}, top[MT][2], sum[MT][2] = {};
#pragma unroll
    for (int m = 0; m < MT; m++) top[m][0] = top[m][1] = -INFINITY_F;
    int row0 = warp * MT * 16;
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);

    for (int kb = 0; kb < blocks; kb++) {
        copy_wait<0>();
        __syncthreads();
        if (kb == 0)
#pragma unroll
            for (int m = 0; m < MT; m++)
#pragma unroll
                for (int k = 0; k < HS / 16; k++) Q.frag_a(qf[m][k], row0 + m * 16, k * 16);
        Tile<HS> K = {base + QB + (kb & 1) * 2 * KB}, V = {K.base + KB};
        if (kb + 1 < blocks) {
            Tile<HS> K1 = {base + QB + ((kb + 1) & 1) * 2 * KB}, V1 = {K1.base + KB};
            load_rows<HS, BC, THREADS>(K1, src + C, stride, (kb + 1) * BC, T, hs);
            load_rows<HS, BC, THREADS>(V1, src + 2 * C, stride, (kb + 1) * BC, T, hs);
            copy_commit();
        }
        int c0 = kb * BC;
        if (c0 > q0 + row0 + MT * 16 - 1) continue; // every key is after every query of this warp
        u32 kept[MT];
#pragma unroll
        for (int m = 0; m < MT; m++) kept[m] = DROP ? kept_rows<BC / 8>(dropper, h * T + q0 + row0 + m * 16, c0, T) : 0;
        float s[MT][BC / 8][4] = {};
#pragma unroll
        for (int k = 0; k < HS / 16; k++)
#pragma unroll
            for (int j = 0; j < BC / 16; j++) {
                u32 f[4];
                K.frag_b(f, j * 16, k * 16);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma(s[m][2 * j], qf[m][k], f[0], f[1]);
                    mma(s[m][2 * j + 1], qf[m][k], f[2], f[3]);
                }
            }
        bool mask = c0 + BC - 1 > q0 + row0;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            int r0 = q0 + row0 + m * 16 + g;
            if (mask)
#pragma unroll
                for (int j = 0; j < BC / 8; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (c0 + j * 8 + q * 2 + (i & 1) > r0 + (i >> 1) * 8) s[m][j][i] = -INFINITY_F;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float t = top[m][i];
#pragma unroll
                for (int j = 0; j < BC / 8; j++) t = fmaxf(t, fmaxf(s[m][j][2 * i], s[m][j][2 * i + 1]));
                t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 1));
                t = fmaxf(t, __shfl_xor_sync(0xffffffffu, t, 2));
                float fade = exp2f((top[m][i] - t) * k2), shift = t * k2, part = 0.0f;
                top[m][i] = t;
#pragma unroll
                for (int j = 0; j < BC / 8; j++) {
                    float p0 = exp2f(s[m][j][2 * i] * k2 - shift), p1 = exp2f(s[m][j][2 * i + 1] * k2 - shift);
                    part += p0 + p1;
                    s[m][j][2 * i] = p0;
                    s[m][j][2 * i + 1] = p1;
                }
                sum[m][i] = sum[m][i] * fade + part;
#pragma unroll
                for (int j = 0; j < HS / 8; j++) {
                    o[m][j][2 * i] *= fade;
                    o[m][j][2 * i + 1] *= fade;
                }
            }
        }
#pragma unroll
        for (int k = 0; k < BC / 16; k++) {
            u32 p[MT][4];
#pragma unroll
            for (int m = 0; m < MT; m++) {
                p[m][0] = pack2<elem>(s[m][2 * k][0], s[m][2 * k][1]);
                p[m][1] = pack2<elem>(s[m][2 * k][2], s[m][2 * k][3]);
                p[m][2] = pack2<elem>(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
                p[m][3] = pack2<elem>(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (DROP) p[m][i] = dropped_pair(p[m][i], kept[m], 2 * k + i / 2, i % 2 * 2);
            }
#pragma unroll
            for (int j = 0; j < HS / 16; j++) {
                u32 f[4];
                V.frag_b_trans(f, j * 16, k * 16);
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    mma(o[m][2 * j], p[m], f[0], f[1]);
                    mma(o[m][2 * j + 1], p[m], f[2], f[3]);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        float inv[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float l = sum[m][i];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            inv[i] = (DROP ? drop.scale : 1.0f) / l;
            int t = q0 + row0 + m * 16 + g + i * 8;
            if (q == 0 && t < T) lse[((long long)b * NH + h) * T + t] = top[m][i] * scale + logf(l);
        }
        store_rows<HS>(out + (long long)b * T * C + h * hs, C, Q, row0 + m * 16, q0 + row0 + m * 16, T, hs, o[m], inv[0], inv[1]);
    }
}

// dk and dv of WARPS*16 keys of one head and sequence. Everything is held transposed, keys down the rows, so that the
// probabilities pass from one product to the next in registers: with S^T = k q^T / sqrt(HS),
// P^T = exp(S^T - lse), dv = dropout(P^T) dout, dS^T = P^T * (dropout'(v dout^T) - delta), dk = dS^T q / sqrt(HS).
// Queries come BQ at a time, two buffers deep, from the first that sees these keys. Grid (ceil(T/keys), NH, B).
template <int HS, int WARPS, int BQ, bool KEEP, bool DROP>
__device__ __forceinline__ void backward_kv(elem *dqkv, const elem *dout, const elem *qkv, const float *lse,
                                            const float *delta, int T, int NH, int hs, float scale, const Dropout &drop) {
    const int BK = WARPS * 16, THREADS = WARPS * 32;
    extern __shared__ __align__(128) char shared[];
    u32 base = shared_address(shared);
    const u32 KB = BK * HS * 2, QB = BQ * HS * 2;
    Tile<HS> K = {base}, V = {base + KB};
    float *stats = reinterpret_cast<float *>(shared + 2 * KB + 4 * QB); // two buffers of (lse*log2e, delta) of BQ queries
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, k0 = blockIdx.x * BK, row0 = warp * 16;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs, *dsrc = dout + (long long)b * T * C + h * hs;
    const float *lse0 = lse + ((long long)b * NH + h) * T, *delta0 = delta + ((long long)b * NH + h) * T;

    auto fetch = [&](int t0, int buffer) {
        Tile<HS> Q = {base + 2 * KB + buffer * 2 * QB}, O = {Q.base + QB};
        load_rows<HS, BQ, THREADS>(Q, src, stride, t0, T, hs);
        load_rows<HS, BQ, THREADS>(O, dsrc, C, t0, T, hs);
        copy_commit();
        for (int i = threadIdx.x; i < BQ; i += THREADS) {
            bool in = t0 + i < T;
            stats[buffer * 2 * BQ + i] = in ? lse0[t0 + i] * LOG2E : INFINITY_F;
            stats[buffer * 2 * BQ + BQ + i] = in ? delta0[t0 + i] : 0.0f;
        }
    };
    load_rows<HS, BK, THREADS>(K, src + C, stride, k0, T, hs);
    load_rows<HS, BK, THREADS>(V, src + 2 * C, stride, k0, T, hs);
    int first = k0 / BQ * BQ;
    fetch(first, 0);

    u32 kf[KEEP ? HS / 16 : 1][4], vf[KEEP ? HS / 16 : 1][4];
    float dk[HS / 8][4] = {}, dv[HS / 8][4] = {};
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);
    int buffer = 0;
    for (int t0 = first; t0 < T; t0 += BQ, buffer ^= 1) {
        copy_wait<0>();
        __syncthreads();
        if (KEEP && t0 == first)
#pragma unroll
            for (int k = 0; k < (KEEP ? HS / 16 : 1); k++) {
                K.frag_a(kf[k], row0, k * 16);
                V.frag_a(vf[k], row0, k * 16);
            }
        if (t0 + BQ < T) fetch(t0 + BQ, buffer ^ 1);
        if (t0 + BQ - 1 < k0 + row0) continue; // every query is before every key of this warp
        Tile<HS> Q = {base + 2 * KB + buffer * 2 * QB}, O = {Q.base + QB};
        const float *st = stats + buffer * 2 * BQ;
        u32 kept = DROP ? kept_columns<BQ / 8>(dropper, h * T + t0, k0 + row0, T) : 0;
        float s[BQ / 8][4] = {}, dp[BQ / 8][4] = {};
#pragma unroll
        for (int k = 0; k < HS / 16; k++) {
            u32 ka[4], va[4];
            if (!KEEP) {
                K.frag_a(ka, row0, k * 16);
                V.frag_a(va, row0, k * 16);
            }
#pragma unroll
            for (int j = 0; j < BQ / 16; j++) {
                u32 f[4];
                Q.frag_b(f, j * 16, k * 16);
                mma(s[2 * j], KEEP ? kf[KEEP ? k : 0] : ka, f[0], f[1]);
                mma(s[2 * j + 1], KEEP ? kf[KEEP ? k : 0] : ka, f[2], f[3]);
                O.frag_b(f, j * 16, k * 16);
                mma(dp[2 * j], KEEP ? vf[KEEP ? k : 0] : va, f[0], f[1]);
                mma(dp[2 * j + 1], KEEP ? vf[KEEP ? k : 0] : va, f[2], f[3]);
            }
        }
        bool mask = t0 < k0 + row0 + 15;
#pragma unroll
        for (int j = 0; j < BQ / 8; j++) {
            float2 l = *reinterpret_cast<const float2 *>(st + j * 8 + q * 2);
            float2 d = *reinterpret_cast<const float2 *>(st + BQ + j * 8 + q * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = t0 + j * 8 + q * 2 + (i & 1), key = k0 + row0 + g + (i >> 1) * 8;
                float p = exp2f(s[j][i] * k2 - (i & 1 ? l.y : l.x));
                if (mask && key > t) p = 0.0f;
                float f = DROP ? dropper.factor(is_kept(kept, j, i)) : 1.0f;
                dp[j][i] = p * (dp[j][i] * f - (i & 1 ? d.y : d.x));
                s[j][i] = p * f;
            }
        }
#pragma unroll
        for (int k = 0; k < BQ / 16; k++) {
            u32 p[4] = {pack2<elem>(s[2 * k][0], s[2 * k][1]), pack2<elem>(s[2 * k][2], s[2 * k][3]),
                        pack2<elem>(s[2 * k + 1][0], s[2 * k + 1][1]), pack2<elem>(s[2 * k + 1][2], s[2 * k + 1][3])};
            u32 d[4] = {pack2<elem>(dp[2 * k][0], dp[2 * k][1]), pack2<elem>(dp[2 * k][2], dp[2 * k][3]),
                        pack2<elem>(dp[2 * k + 1][0], dp[2 * k + 1][1]), pack2<elem>(dp[2 * k + 1][2], dp[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < HS / 16; j++) {
                u32 f[4];
                O.frag_b_trans(f, j * 16, k * 16);
                mma(dv[2 * j], p, f[0], f[1]);
                mma(dv[2 * j + 1], p, f[2], f[3]);
                Q.frag_b_trans(f, j * 16, k * 16);
                mma(dk[2 * j], d, f[0], f[1]);
                mma(dk[2 * j + 1], d, f[2], f[3]);
            }
        }
    }
    elem *dst = dqkv + (long long)b * T * stride + h * hs;
    store_rows<HS>(dst + C, stride, K, row0, k0 + row0, T, hs, dk, scale, scale);
    store_rows<HS>(dst + 2 * C, stride, V, row0, k0 + row0, T, hs, dv, 1.0f, 1.0f);
}

// delta and dq of WARPS*16 queries: dS = P * (dropout'(dout v^T) - delta), dq = dS k / sqrt(HS). Keys come BC at a time.
template <int HS, int WARPS, int BC, bool DROP>
__device__ __forceinline__ void backward_q(elem *dqkv, float *delta, const elem *dout, const elem *qkv, const elem *out,
                                           const float *lse, int T, int NH, int hs, float scale, const Dropout &drop) {
    const int BR = WARPS * 16, THREADS = WARPS * 32;
    extern __shared__ __align__(128) char shared[];
    u32 base = shared_address(shared);
    const u32 QB = BR * HS * 2, KB = BC * HS * 2;
    Tile<HS> Q = {base}, O = {base + QB};
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, q0 = (int)(gridDim.x - 1 - blockIdx.x) * BR, row0 = warp * 16;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs, *dsrc = dout + (long long)b * T * C + h * hs;
    int blocks = (min(T, q0 + BR) + BC - 1) / BC;

    auto fetch = [&](int kb) {
        Tile<HS> K = {base + 2 * QB + (kb & 1) * 2 * KB}, V = {K.base + KB};
        load_rows<HS, BC, THREADS>(K, src + C, stride, kb * BC, T, hs);
        load_rows<HS, BC, THREADS>(V, src + 2 * C, stride, kb * BC, T, hs);
        copy_commit();
    };
    load_rows<HS, BR, THREADS>(Q, src, stride, q0, T, hs);
    load_rows<HS, BR, THREADS>(O, dsrc, C, q0, T, hs);
    fetch(0);

    float l[2], d[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = q0 + row0 + g + i * 8;
        long long stats = ((long long)b * NH + h) * T;
        l[i] = t < T ? lse[stats + t] * LOG2E : INFINITY_F;
        d[i] = row_delta(delta + stats, dsrc, out + (long long)b * T * C + h * hs, C, t, T, hs);
    }
    u32 qf[HS / 16][4], of[HS / 16][4];
    float dq[HS / 8][4] = {};
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);
    for (int kb = 0; kb < blocks; kb++) {
        copy_wait<0>();
        __syncthreads();
        if (kb == 0)
#pragma unroll
            for (int k = 0; k < HS / 16; k++) {
                Q.frag_a(qf[k], row0, k * 16);
                O.frag_a(of[k], row0, k * 16);
            }
        if (kb + 1 < blocks) fetch(kb + 1);
        int c0 = kb * BC;
        if (c0 > q0 + row0 + 15) continue;
        Tile<HS> K = {base + 2 * QB + (kb & 1) * 2 * KB}, V = {K.base + KB};
        u32 kept = DROP ? kept_rows<BC / 8>(dropper, h * T + q0 + row0, c0, T) : 0;
        float s[BC / 8][4] = {}, dp[BC / 8][4] = {};
#pragma unroll
        for (int k = 0; k < HS / 16; k++)
#pragma unroll
            for (int j = 0; j < BC / 16; j++) {
                u32 f[4];
                K.frag_b(f, j * 16, k * 16);
                mma(s[2 * j], qf[k], f[0], f[1]);
                mma(s[2 * j + 1], qf[k], f[2], f[3]);
                V.frag_b(f, j * 16, k * 16);
                mma(dp[2 * j], of[k], f[0], f[1]);
                mma(dp[2 * j + 1], of[k], f[2], f[3]);
            }
        bool mask = c0 + BC - 1 > q0 + row0;
#pragma unroll
        for (int j = 0; j < BC / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = q0 + row0 + g + (i >> 1) * 8, key = c0 + j * 8 + q * 2 + (i & 1);
                float p = exp2f(s[j][i] * k2 - l[i >> 1]);
                if (mask && key > t) p = 0.0f;
                float f = DROP ? dropper.factor(is_kept(kept, j, i)) : 1.0f;
                dp[j][i] = p * (dp[j][i] * f - d[i >> 1]);
            }
#pragma unroll
        for (int k = 0; k < BC / 16; k++) {
            u32 a[4] = {pack2<elem>(dp[2 * k][0], dp[2 * k][1]), pack2<elem>(dp[2 * k][2], dp[2 * k][3]),
                        pack2<elem>(dp[2 * k + 1][0], dp[2 * k + 1][1]), pack2<elem>(dp[2 * k + 1][2], dp[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < HS / 16; j++) {
                u32 f[4];
                K.frag_b_trans(f, j * 16, k * 16);
                mma(dq[2 * j], a, f[0], f[1]);
                mma(dq[2 * j + 1], a, f[2], f[3]);
            }
        }
    }
    store_rows<HS>(dqkv + (long long)b * T * stride + h * hs, stride, Q, row0, q0 + row0, T, hs, dq, scale, scale);
}

// Instances: padded head size, and the numbers that internal/cuda's attention table repeats (warps, rows, columns).
// On Hopper the instance for 64 channels is attention_hopper.cuh's, with the same blocks and the same shared memory.
#if HOPPER
// Blocks that a multiprocessor must hold: the products of one hide in the others' arithmetic. 0 leaves it to the compiler.
#define F_BLOCKS 3
#define KV_BLOCKS 3
#define Q_BLOCKS 4
#define FORWARD(HS, FW, FM, FC, DROP) hopper::forward<DROP>
#define BACKWARD_KV(HS, KW, KQ, KEEP, DROP) hopper::backward_kv<DROP>
#define BACKWARD_Q(HS, QW, QC, DROP) hopper::backward_q<DROP>
#else
#define F_BLOCKS (SNUG_HS == 32 ? 4 : 0)
#define KV_BLOCKS 1
#define Q_BLOCKS 0
#define FORWARD(HS, FW, FM, FC, DROP) forward<HS, FW, FM, FC, DROP>
#define BACKWARD_KV(HS, KW, KQ, KEEP, DROP) backward_kv<HS, KW, KQ, KEEP, DROP>
#define BACKWARD_Q(HS, QW, QC, DROP) backward_q<HS, QW, QC, DROP>
#endif
#define INSTANCE_OF(NAME, HS, FW, FM, FC, KW, KQ, KEEP, QW, QC, DROP)                                                  \
    extern "C" __global__ void __launch_bounds__(FW * 32, F_BLOCKS) attention_forward_##NAME(                          \
        elem *out, float *lse, const elem *qkv, int T, int NH, int hs, float scale, Dropout drop) {                    \
        FORWARD(HS, FW, FM, FC, DROP)(out, lse, qkv, T, NH, hs, scale, drop);                                          \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(KW * 32, KV_BLOCKS) attention_backward_kv_##NAME(                     \
        elem *dqkv, const elem *dout, const elem *qkv, const float *lse, const float *delta, int T, int NH, int hs,    \
        float scale, Dropout drop) {                                                                                   \
        BACKWARD_KV(HS, KW, KQ, KEEP, DROP)(dqkv, dout, qkv, lse, delta, T, NH, hs, scale, drop);                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(QW * 32, Q_BLOCKS) attention_backward_q_##NAME(                       \
        elem *dqkv, float *delta, const elem *dout, const elem *qkv, const elem *out, const float *lse, int T, int NH, \
        int hs, float scale, Dropout drop) {                                                                           \
        BACKWARD_Q(HS, QW, QC, DROP)(dqkv, delta, dout, qkv, out, lse, T, NH, hs, scale, drop);                        \
    }
#define INSTANCE(HS, FW, FM, FC, KW, KQ, KEEP, QW, QC)                                                                 \
    INSTANCE_OF(HS, HS, FW, FM, FC, KW, KQ, KEEP, QW, QC, false)                                                       \
    INSTANCE_OF(HS##_drop, HS, FW, FM, FC, KW, KQ, KEEP, QW, QC, true)

#if SNUG_HS == 32
INSTANCE(32, 4, 1, 64, 4, 64, true, 4, 64)
#elif SNUG_HS == 64
INSTANCE(64, 4, 2, 64, 4, 64, true, 4, 64)
#elif SNUG_HS == 96
INSTANCE(96, 4, 1, 64, 4, 32, false, 4, 32)
#else
INSTANCE(128, 4, 1, 64, 4, 32, false, 4, 32)
#endif
