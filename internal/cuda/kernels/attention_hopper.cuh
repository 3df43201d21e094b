// Attention's three kernels for heads of up to 64 channels on Hopper's wgmma. The mathematics, the order of work and the
// register layouts are attention.cu's; a product's right operand comes from shared memory, read once for the four warps of
// a warpgroup, and products run while the warps do the softmax.
#pragma once
#include "wgmma.cuh"

namespace hopper {

// further is the descriptor of what lies `bytes` behind d's tile; an address has room to grow in its own half.
__device__ __forceinline__ u64 further(u64 d, u32 bytes) { return d >> 32 << 32 | (u32)d + bytes / 16; }

// rows_by_columns: c = a b^T over the 64 channels of a head: a's 64 rows and b's 64 rows lie in tiles at these addresses.
__device__ __forceinline__ void rows_by_columns(float (&c)[8][4], u32 a, u32 b) {
#pragma unroll
    for (int k = 0; k < 4; k++) multiply(c, further(descriptor(a), k * 32), further(descriptor(b), k * 32), k);
}

// weighted adds p (64 x 64, packed as A fragments) times the 64 rows of the tile at b to c.
__device__ __forceinline__ void weighted(float (&c)[8][4], const u32 (&p)[4][4], u32 b) {
#pragma unroll
    for (int k = 0; k < 4; k++) multiply(c, p[k], further(descriptor(b), k * 2048));
}

// packed turns a 64 x 64 accumulator into A fragments.
__device__ __forceinline__ void packed(u32 (&p)[4][4], const float (&s)[8][4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        p[k][0] = pack2<elem>(s[2 * k][0], s[2 * k][1]);
        p[k][1] = pack2<elem>(s[2 * k][2], s[2 * k][3]);
        p[k][2] = pack2<elem>(s[2 * k + 1][0], s[2 * k + 1][1]);
        p[k][3] = pack2<elem>(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}

// dropped is what dropout keeps of p.
__device__ __forceinline__ void dropped(u32 (&m)[4][4], const u32 (&p)[4][4], u32 kept) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) m[k][i] = dropped_pair(p[k][i], kept, 2 * k + i / 2, i % 2 * 2);
}

// unpacked is one of a word's two elements.
__device__ __forceinline__ float unpacked(u32 word, int high) {
    elem x;
    x.bits = (u16)(high ? word >> 16 : word);
    return to_float(x);
}

// load_tile starts the copy of ROWS rows of one head from row t0 on, as attention.cu's load_rows does: a thread stays in one
// column of 16 bytes, and its rows are 16 apart.
template <int ROWS>
__device__ __forceinline__ void load_tile(u32 tile, const elem *src, long long stride, int t0, int T, int hs) {
    int r0 = threadIdx.x >> 3, c = threadIdx.x & 7;
    const char *column = reinterpret_cast<const char *>(src + c * 8);
#pragma unroll
    for (int r = r0; r < r0 + ROWS; r += 16)
        copy16(Tile<64>{tile}.at(r, c), column + (long long)(t0 + r) * ((int)stride * 2), t0 + r < T && c * 8 < hs);
}

// load_pair does 64 rows of two tiles, k's and C columns further v's. Rows that are 16 apart lie alike in their groups of 8.
__device__ __forceinline__ void load_pair(u32 k, u32 v, const elem *src, int C, long long stride, int t0, int T, int hs) {
    int r0 = threadIdx.x >> 3, c = threadIdx.x & 7, left = c * 8 < hs ? T - t0 - r0 : 0, apart = (int)stride * 32;
    const char *row = reinterpret_cast<const char *>(src + c * 8) + (long long)(t0 + r0) * ((int)stride * 2);
    u32 at = Tile<64>{0}.at(r0, c);
#pragma unroll
    for (int r = 0; r < 64; r += 16, row += apart) {
        copy16(k + at + r * 128, row, r < left);
        copy16(v + at + r * 128, row + C * 2, r < left);
    }
}

// raise masks s (64 queries from t0, 64 keys from c0). Where a weight of the warp would be above 2^8 it raises the rows' tops
// to their largest s and fades o and sum to them. Few tiles need that: weights and their sums have room, and what a row is
// divided by in the end was made with the same tops. A thread's rows are g and g+8 of its warp's 16.
__device__ __forceinline__ void raise(float (&s)[8][4], float (&o)[8][4], float (&top)[2], float (&sum)[2], int t0, int c0,
                                      float k2) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, w0 = t0 + (int)(threadIdx.x >> 5) * 16;
    if (c0 + 63 > w0)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (c0 + j * 8 + q * 2 + (i & 1) > w0 + g + (i >> 1) * 8) s[j][i] = -INFINITY_F;
    float t[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        t[i] = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
#pragma unroll
        for (int j = 1; j < 8; j++) t[i] = fmaxf(t[i], fmaxf(s[j][2 * i], s[j][2 * i + 1]));
    }
    if (!__any_sync(0xffffffffu, (t[0] - top[0]) * k2 > 8.0f || (t[1] - top[1]) * k2 > 8.0f)) return;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        t[i] = fmaxf(t[i], top[i]);
        t[i] = fmaxf(t[i], __shfl_xor_sync(0xffffffffu, t[i], 1));
        t[i] = fmaxf(t[i], __shfl_xor_sync(0xffffffffu, t[i], 2));
        float fade = power2((top[i] - t[i]) * k2);
        top[i] = t[i];
        sum[i] *= fade;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            o[j][2 * i] *= fade;
            o[j][2 * i + 1] *= fade;
        }
    }
}

// weights turns s into exp(s - top), packed as A fragments, and adds their row sums; then dropout takes its part.
template <bool DROP>
__device__ __forceinline__ void weights(u32 (&p)[4][4], float (&s)[8][4], const float (&top)[2], float (&sum)[2], float k2,
                                        u32 kept) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float shift = top[i] * k2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float p0 = power2(s[j][2 * i] * k2 - shift), p1 = power2(s[j][2 * i + 1] * k2 - shift);
            sum[i] += p0 + p1;
            s[j][2 * i] = p0;
            s[j][2 * i + 1] = p1;
        }
    }
    packed(p, s);
    if (DROP) dropped(p, p, kept);
}

// One warpgroup does 128 queries as two halves of 64: one half's products run during the other's exponentials.
template <bool DROP>
__device__ __forceinline__ void forward(elem *out, float *lse, const elem *qkv, int T, int NH, int hs, float scale,
                                        const Dropout &drop) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    const u32 QB = 128 * 128, KB = 64 * 128;
    Tile<64> Q = {base};
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, q0 = (int)(gridDim.x - 1 - blockIdx.x) * 128;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs;
    int blocks = (min(T, q0 + 128) + 63) / 64, shared_blocks = (min(T, q0 + 64) + 63) / 64; // of the second half, of both

    auto fetch = [&](int kb) {
        u32 at = base + QB + (kb & 1) * 2 * KB;
        load_pair(at, at + KB, src + C, (int)C, stride, kb * 64, T, hs);
        copy_commit();
    };
    load_tile<128>(base, src, stride, q0, T, hs);
    fetch(0);
    float o[2][8][4] = {}, top[2][2], sum[2][2] = {};
    top[0][0] = top[0][1] = top[1][0] = top[1][1] = -INFINITY_F;
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);
    for (int kb = 0; kb < shared_blocks; kb++) {
        u32 kept0 = DROP ? kept_rows<8>(dropper, h * T + q0 + warp * 16, kb * 64, T) : 0; // while the copies run
        u32 kept1 = DROP ? kept_rows<8>(dropper, h * T + q0 + 64 + warp * 16, kb * 64, T) : 0;
        copy_wait<0>();
        visible();
        __syncthreads();
        u32 K = base + QB + (kb & 1) * 2 * KB, V = K + KB, p0[4][4], p1[4][4];
        float s0[8][4], s1[8][4];
        fence();
        rows_by_columns(s0, base, K);
        rows_by_columns(s1, base + KB, K);
        commit();
        if (kb + 1 < blocks) fetch(kb + 1);
        wait<0>();
        settled(s0);
        settled(s1);
        raise(s0, o[0], top[0], sum[0], q0, kb * 64, k2);
        raise(s1, o[1], top[1], sum[1], q0 + 64, kb * 64, k2);
        weights<DROP>(p0, s0, top[0], sum[0], k2, kept0);
        fence();
        weighted(o[0], p0, V);
        commit();
        weights<DROP>(p1, s1, top[1], sum[1], k2, kept1);
        fence();
        weighted(o[1], p1, V);
        commit();
        wait<0>();
        settled(o[0]);
        settled(o[1]);
    }
    if (blocks > shared_blocks) { // the keys that only the second half sees
        int kb = shared_blocks;
        u32 kept1 = DROP ? kept_rows<8>(dropper, h * T + q0 + 64 + warp * 16, kb * 64, T) : 0;
        copy_wait<0>();
        visible();
        __syncthreads();
        u32 K = base + QB + (kb & 1) * 2 * KB, p1[4][4];
        float s1[8][4];
        fence();
        rows_by_columns(s1, base + KB, K);
        commit();
        wait<0>();
        settled(s1);
        raise(s1, o[1], top[1], sum[1], q0 + 64, kb * 64, k2);
        weights<DROP>(p1, s1, top[1], sum[1], k2, kept1);
        fence();
        weighted(o[1], p1, K + KB);
        commit();
        wait<0>();
        settled(o[1]);
    }
    __syncthreads(); // every warp's products have read Q: its place holds the results now
#pragma unroll
    for (int m = 0; m < 2; m++) {
        float inv[2];
        int t0 = q0 + m * 64 + warp * 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float l = sum[m][i];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            inv[i] = (DROP ? drop.scale : 1.0f) / l;
            int t = t0 + g + i * 8;
            if (q == 0 && t < T) lse[((long long)b * NH + h) * T + t] = top[m][i] * scale + logf(l);
        }
        store_rows<64>(out + (long long)b * T * C + h * hs, C, Q, m * 64 + warp * 16, t0, T, hs, o[m], inv[0], inv[1]);
    }
}

// dk and dv of 64 keys; queries come 64 at a time.
template <bool DROP>
__device__ __forceinline__ void backward_kv(elem *dqkv, const elem *dout, const elem *qkv, const float *lse,
                                            const float *delta, int T, int NH, int hs, float scale, const Dropout &drop) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    const u32 TB = 64 * 128; // bytes of a tile: K, V, then two buffers of Q and dout
    float *stats = reinterpret_cast<float *>(shared + 6 * TB);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, k0 = blockIdx.x * 64, row0 = warp * 16;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs, *dsrc = dout + (long long)b * T * C + h * hs;
    const float *lse0 = lse + ((long long)b * NH + h) * T, *delta0 = delta + ((long long)b * NH + h) * T;

    float shrink = DROP ? 1.0f / drop.scale : 1.0f;
    auto fetch = [&](int t0, int buffer) {
        u32 at = base + (2 + buffer * 2) * TB;
        load_tile<64>(at, src, stride, t0, T, hs);
        load_tile<64>(at + TB, dsrc, C, t0, T, hs);
        copy_commit();
        int i = threadIdx.x & 63, t = t0 + i;
        if (threadIdx.x < 64) stats[buffer * 128 + i] = t < T ? lse0[t] * LOG2E : INFINITY_F;
        else stats[buffer * 128 + 64 + i] = t < T ? (DROP ? delta0[t] * shrink : delta0[t]) : 0.0f;
    };
    load_tile<64>(base, src + C, stride, k0, T, hs);
    load_tile<64>(base + TB, src + 2 * C, stride, k0, T, hs);
    fetch(k0, 0);
    float dk[8][4] = {}, dv[8][4] = {};
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);
    int buffer = 0;
    for (int t0 = k0; t0 < T; t0 += 64, buffer ^= 1) {
        u32 kept = DROP ? kept_columns<8>(dropper, h * T + t0, k0 + row0, T) : 0; // while the copies run
        copy_wait<0>();
        visible();
        __syncthreads();
        u32 Q = base + (2 + buffer * 2) * TB, O = Q + TB;
        const float *st = stats + buffer * 128;
        float s[8][4], dp[8][4];
        fence();
        rows_by_columns(s, base, Q);
        commit();
        rows_by_columns(dp, base + TB, O);
        commit();
        if (t0 + 64 < T) fetch(t0 + 64, buffer ^ 1);
        wait<1>();
        settled(s);
        bool mask = t0 == k0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 l = *reinterpret_cast<const float2 *>(st + j * 8 + q * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int t = t0 + j * 8 + q * 2 + (i & 1), key = k0 + row0 + g + (i >> 1) * 8;
                s[j][i] = power2(s[j][i] * k2 - (i & 1 ? l.y : l.x));
                if (mask && key > t) s[j][i] = 0.0f;
            }
        }
        u32 p[4][4], m[4][4], d[4][4]; // P, what dropout leaves of it, dS
        packed(p, s);
        if (DROP) dropped(m, p, kept);
        wait<0>();
        settled(dp);
        fence();
        weighted(dv, DROP ? m : p, O);
        commit();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 e = *reinterpret_cast<const float2 *>(st + 64 + j * 8 + q * 2);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // P is read back from its packed form, which frees s for a third block a multiprocessor.
                float all = unpacked(p[j / 2][j % 2 * 2 + i / 2], i & 1), w = i & 1 ? e.y : e.x;
                if (DROP) dp[j][i] = unpacked(m[j / 2][j % 2 * 2 + i / 2], i & 1) * dp[j][i] - all * w;
                else dp[j][i] = all * (dp[j][i] - w);
            }
        }
        packed(d, dp);
        fence();
        weighted(dk, d, Q);
        commit();
        wait<0>();
        settled(dk);
        settled(dv);
    }
    __syncthreads();
    float grow = DROP ? drop.scale : 1.0f;
    elem *dst = dqkv + (long long)b * T * stride + h * hs;
    store_rows<64>(dst + C, stride, Tile<64>{base}, row0, k0 + row0, T, hs, dk, scale * grow, scale * grow);
    store_rows<64>(dst + 2 * C, stride, Tile<64>{base + TB}, row0, k0 + row0, T, hs, dv, grow, grow);
}

// delta and dq of 64 queries; keys come 64 at a time.
template <bool DROP>
__device__ __forceinline__ void backward_q(elem *dqkv, float *delta, const elem *dout, const elem *qkv, const elem *out,
                                           const float *lse, int T, int NH, int hs, float scale, const Dropout &drop) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    const u32 TB = 64 * 128; // Q, dout, then two buffers of K and V
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    int h = blockIdx.y, b = blockIdx.z, q0 = (int)(gridDim.x - 1 - blockIdx.x) * 64, row0 = warp * 16;
    long long C = (long long)NH * hs, stride = 3 * C;
    const elem *src = qkv + (long long)b * T * stride + h * hs, *dsrc = dout + (long long)b * T * C + h * hs;
    int blocks = (min(T, q0 + 64) + 63) / 64;

    auto fetch = [&](int kb) {
        u32 at = base + (2 + (kb & 1) * 2) * TB;
        load_pair(at, at + TB, src + C, (int)C, stride, kb * 64, T, hs);
        copy_commit();
    };
    load_tile<64>(base, src, stride, q0, T, hs);
    load_tile<64>(base + TB, dsrc, C, q0, T, hs);
    fetch(0);
    float l[2], e[2], shrink = DROP ? 1.0f / drop.scale : 1.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int t = q0 + row0 + g + i * 8;
        long long stats = ((long long)b * NH + h) * T;
        l[i] = t < T ? lse[stats + t] * LOG2E : INFINITY_F;
        e[i] = row_delta(delta + stats, dsrc, out + (long long)b * T * C + h * hs, C, t, T, hs) * shrink;
    }
    float dq[8][4] = {};
    float k2 = scale * LOG2E;
    Dropper dropper(drop, b);
    for (int kb = 0; kb < blocks; kb++) {
        u32 kept = DROP ? kept_rows<8>(dropper, h * T + q0 + row0, kb * 64, T) : 0; // while the copies run
        copy_wait<0>();
        visible();
        __syncthreads();
        u32 K = base + (2 + (kb & 1) * 2) * TB, V = K + TB;
        float s[8][4], dp[8][4];
        fence();
        rows_by_columns(s, base, K);
        commit();
        rows_by_columns(dp, base + TB, V);
        commit();
        if (kb + 1 < blocks) fetch(kb + 1);
        wait<1>();
        settled(s);
        bool mask = kb == blocks - 1;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[j][i] = power2(s[j][i] * k2 - l[i >> 1]);
                if (mask && kb * 64 + j * 8 + q * 2 + (i & 1) > q0 + row0 + g + (i >> 1) * 8) s[j][i] = 0.0f;
            }
        wait<0>();
        settled(dp);
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float f = !DROP || is_kept(kept, j, i) ? dp[j][i] : 0.0f;
                dp[j][i] = s[j][i] * (f - e[i >> 1]);
            }
        u32 d[4][4];
        packed(d, dp);
        fence();
        weighted(dq, d, K);
        commit();
        wait<0>();
        settled(dq);
    }
    __syncthreads();
    if (DROP) scale *= drop.scale;
    store_rows<64>(dqkv + (long long)b * T * stride + h * hs, stride, Tile<64>{base}, row0, q0 + row0, T, hs, dq, scale, scale);
}

} // namespace hopper
