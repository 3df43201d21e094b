// What every kernel shares: element types, 16-byte packs, copies to shared memory, reductions in a fixed order, and dropout
// by counter.
//
// Each .cu is compiled once per element type: SNUG_BF16, SNUG_F16 or SNUG_F32 chooses `elem`, the type of weights and
// activations. Sums are always fp32. No CUDA header is needed: NVRTC alone compiles these files.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#if defined(SNUG_BF16)
typedef bf16 elem;
#elif defined(SNUG_F16)
typedef f16 elem;
#else
typedef float elem;
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __int_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

__device__ __forceinline__ void from_float(float &y, float x) { y = x; }
__device__ __forceinline__ void from_float(bf16 &y, float x) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
__device__ __forceinline__ void from_float(f16 &y, float x) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}

// rounded is x after a trip through T: what a later kernel will read back.
template <typename T> __device__ __forceinline__ float rounded(float x) {
    T y;
    from_float(y, x);
    return to_float(y);
}

// pack2 rounds two floats to T; lo is the element at the lower address.
template <typename T> __device__ __forceinline__ u32 pack2(float lo, float hi);
template <> __device__ __forceinline__ u32 pack2<bf16>(float lo, float hi) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
template <> __device__ __forceinline__ u32 pack2<f16>(float lo, float hi) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}

// Pack is W neighbouring elements: 16 bytes when W is VEC<T>, one element when a row is not a multiple of that.
template <typename T> struct Vec { static const int W = 16 / sizeof(T); };
static const int VEC = Vec<elem>::W;

template <typename T, int W> struct alignas(W * sizeof(T)) Pack {
    T v[W];
};
template <int W, typename T> __device__ __forceinline__ Pack<T, W> load(const T *p) {
    return *reinterpret_cast<const Pack<T, W> *>(p);
}
template <int W, typename T> __device__ __forceinline__ void store(T *p, const Pack<T, W> &x) {
    *reinterpret_cast<Pack<T, W> *>(p) = x;
}
template <> __device__ __forceinline__ Pack<bf16, 8> load<8, bf16>(const bf16 *p) {
    union { int4 i; Pack<bf16, 8> x; } u;
    u.i = *reinterpret_cast<const int4 *>(p);
    return u.x;
}
template <> __device__ __forceinline__ void store<8, bf16>(bf16 *p, const Pack<bf16, 8> &x) {
    union U { int4 i; Pack<bf16, 8> x; __device__ U() {} } u;
    u.x = x;
    *reinterpret_cast<int4 *>(p) = u.i;
}

// unpack and pack are a pack's elements as floats: an instruction an element one way, one for two elements the other.
template <int W, typename T> __device__ __forceinline__ void unpack(float (&y)[W], const Pack<T, W> &x) {
#pragma unroll
    for (int k = 0; k < W; k++) y[k] = to_float(x.v[k]);
}
template <int W, typename T> __device__ __forceinline__ void pack(Pack<T, W> &y, const float (&x)[W]) {
#pragma unroll
    for (int k = 0; k < W; k++) from_float(y.v[k], x[k]);
}
union Words {
    u32 w[4];
    Pack<bf16, 8> bf;
    Pack<f16, 8> f;
    __device__ Words() {}
};
template <> __device__ __forceinline__ void unpack<8, bf16>(float (&y)[8], const Pack<bf16, 8> &x) {
    Words u;
    u.bf = x;
#pragma unroll
    for (int k = 0; k < 4; k++) y[2 * k] = __int_as_float(u.w[k] << 16), y[2 * k + 1] = __int_as_float(u.w[k] & 0xffff0000u);
}
template <> __device__ __forceinline__ void pack<8, bf16>(Pack<bf16, 8> &y, const float (&x)[8]) {
    Words u;
#pragma unroll
    for (int k = 0; k < 4; k++) u.w[k] = pack2<bf16>(x[2 * k], x[2 * k + 1]);
    y = u.bf;
}
template <> __device__ __forceinline__ void pack<8, f16>(Pack<f16, 8> &y, const float (&x)[8]) {
    Words u;
#pragma unroll
    for (int k = 0; k < 4; k++) u.w[k] = pack2<f16>(x[2 * k], x[2 * k + 1]);
    y = u.f;
}

// power2 is 2^x; what is below 2^-126 is 0.
__device__ __forceinline__ float power2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static const float LOG2E = 1.44269504088896340736f;

// ---- copies to shared memory that a thread does not wait for ----

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// copy16 starts an asynchronous copy of 16 bytes to shared memory, or of zeros when `valid` is false.
__device__ __forceinline__ void copy16(u32 address, const void *src, bool valid = true) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// copy_wait waits until all but the thread's last N groups of copies are there.
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ---- reductions, in an order fixed by the shape ----

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
    return x;
}

// block_sum gives every thread the sum over the block; scratch holds 33 floats.
__device__ __forceinline__ float block_sum(float x, float *scratch) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = warp_sum(lane < warps ? scratch[lane] : 0.0f);
        if (lane == 0) scratch[32] = y;
    }
    __syncthreads();
    float y = scratch[32];
    __syncthreads();
    return y;
}

// ---- dropout by counter ----

// philox is Philox4x32-10 (Salmon et al., 2011): four random words from a counter and the ten rounds' keys.
__device__ __forceinline__ uint4 philox(uint4 c, const uint2 *keys) {
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u64 a = (u64)0xD2511F53u * c.x, b = (u64)0xCD9E8D57u * c.z;
        c = make_uint4((u32)(b >> 32) ^ c.y ^ keys[i].x, (u32)b, (u32)(a >> 32) ^ c.w ^ keys[i].y, (u32)a);
    }
    return c;
}

// Dropout is one dropout layer in one micro-batch. Element e of a sequence is dropped where its 16 bits are below the upper
// half of threshold: the lower half of word e%8/2 of counter e/8 for an even e, the upper half for an odd one. threshold 0
// means no dropout; sample is the global index of the micro-batch's first sequence. Launched by value: 104 bytes.
struct Dropout {
    u32 threshold;
    float scale;
    u32 site;
    u32 unused;
    u64 sample;
    uint2 keys[10]; // of Philox's rounds: seed, then + (0x9E3779B9, 0xBB67AE85) a round; read from where parameters lie
};
struct Dropper {
    u32 threshold, site, sample_lo, sample_hi;
    float scale;
    const uint2 *keys;
    __device__ __forceinline__ Dropper(const Dropout &d, u32 sequence) {
        threshold = d.threshold;
        scale = d.scale;
        site = d.site;
        u64 sample = d.sample + sequence;
        keys = d.keys;
        sample_lo = (u32)sample;
        sample_hi = (u32)(sample >> 32);
    }
    // words are the random words of elements 8*counter .. 8*counter+7.
    __device__ __forceinline__ uint4 words(u32 counter) const {
        return philox(make_uint4(counter, site, sample_lo, sample_hi), keys);
    }
    // kept_low and kept_high say whether the elements of a word's halves are kept.
    __device__ __forceinline__ bool kept_low(u32 word) const { return word << 16 >= threshold; }
    __device__ __forceinline__ bool kept_high(u32 word) const { return word >= threshold; }
    // factor is 0 for a dropped element and 1/(1-p) for a kept one.
    __device__ __forceinline__ float factor(bool kept) const { return kept ? scale : 0.0f; }
    __device__ __forceinline__ float factor_at(u32 e) const {
        uint4 w = words(e >> 3);
        u32 i = e >> 1 & 3, word = i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
        return factor(e & 1 ? kept_high(word) : kept_low(word));
    }
    // apply drops W neighbouring elements, 1, 4 or 8; e0, the first one's index, is a multiple of W.
    template <int W> __device__ __forceinline__ void apply(float (&x)[W], u32 e0) const {
        if (!threshold) return;
        if (W == 1) {
            x[0] *= factor_at(e0);
            return;
        }
        uint4 w = words(e0 >> 3);
        u32 word[4] = {w.x, w.y, w.z, w.w};
        if (W == 4 && e0 & 4) word[0] = w.z, word[1] = w.w;
#pragma unroll
        for (int i = 0; i < W; i++) x[i] *= factor(i & 1 ? kept_high(word[i / 2 % 4]) : kept_low(word[i / 2 % 4]));
    }
};
