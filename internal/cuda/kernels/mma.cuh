// Tensor cores from Ampere on: mma.sync m16n8k16 over 16-bit elements with fp32 sums, and ldmatrix.
#pragma once
#include "common.cuh"

// A 16x16 fragment holds 4 words a thread, B 16x8 two, C 16x8 four floats. With g = lane/4 and q = lane%4, a thread's
// c[0], c[1] are row g, columns 2q and 2q+1; c[2], c[3] are row g+8.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if defined(SNUG_F16)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ __forceinline__ void ldmatrix_trans(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// Tile is a matrix of 16-bit elements in shared memory, COLS a row, its 16-byte chunks swizzled so that the eight rows
// an ldmatrix reads at one chunk column lie in different banks.
template <int COLS> struct Tile {
    static const int CHUNKS = COLS / 8;
    u32 base;
    __device__ __forceinline__ u32 at(int row, int chunk) const {
        int swizzled = CHUNKS % 8 == 0 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
        return base + (u32)((row * CHUNKS + swizzled) * 16);
    }
    // frag_a reads rows r..r+15, columns k..k+15 as an A fragment.
    __device__ __forceinline__ void frag_a(u32 (&f)[4], int r, int k) const {
        int lane = threadIdx.x & 31;
        ldmatrix(f, at(r + (lane & 15), k / 8 + (lane >> 4)));
    }
    // frag_a_trans reads the same fragment of the transposed tile: rows k..k+15 hold the summed dimension.
    __device__ __forceinline__ void frag_a_trans(u32 (&f)[4], int r, int k) const {
        int lane = threadIdx.x & 31;
        ldmatrix_trans(f, at(k + (lane & 7) + ((lane >> 4) << 3), r / 8 + ((lane >> 3) & 1)));
    }
    // frag_b reads two B fragments: columns n..n+7 in f[0], f[1] and n+8..n+15 in f[2], f[3]; tile rows are columns of B.
    __device__ __forceinline__ void frag_b(u32 (&f)[4], int n, int k) const {
        int lane = threadIdx.x & 31;
        ldmatrix(f, at(n + (lane & 7) + ((lane >> 4) << 3), k / 8 + ((lane >> 3) & 1)));
    }
    // frag_b_trans reads the same two fragments where tile rows are the summed dimension.
    __device__ __forceinline__ void frag_b_trans(u32 (&f)[4], int n, int k) const {
        int lane = threadIdx.x & 31;
        ldmatrix_trans(f, at(k + (lane & 15), n / 8 + (lane >> 4)));
    }
};
