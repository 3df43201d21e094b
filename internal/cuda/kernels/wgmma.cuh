// Hopper's tensor cores: wgmma, issued by a warpgroup of four warps, operands in shared memory, sums in registers.
//
// Tiles are Tile<64>: rows of 64 elements, 128 bytes, whose swizzle is the tensor cores' own 128-byte one, in groups of 8
// rows (1024 bytes). An operand lies "by rows", 64 of the summed dimension in each tile row, or "transposed", 64 of the
// other dimension in each row and the summed dimension down the rows.
#pragma once
#include "mma.cuh"

namespace hopper {

// descriptor of a tile that starts at `address`; `next` is the distance in bytes to the tile of the next 64 columns where
// a transposed operand is wider than one.
__device__ __forceinline__ u64 descriptor(u32 address, u32 next = 16) {
    return (u64)((address & 0x3ffff) >> 4) | (u64)(next >> 4) << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// visible makes this thread's finished copies to shared memory readable by the tensor cores.
__device__ __forceinline__ void visible() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// settled tells the compiler that c has its value only now: after wait, and before what it would compute from c earlier.
template <int J> __device__ __forceinline__ void settled(float (&c)[J][4]) {
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(c[j][i])::"memory");
}

#if defined(SNUG_F16)
#define WGMMA_TYPES "f32.f16.f16"
#else
#define WGMMA_TYPES "f32.bf16.bf16"
#endif
#define SUMS(c, j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define SUMS8(c, j)                                                                                                    \
    SUMS(c, j), SUMS(c, j + 1), SUMS(c, j + 2), SUMS(c, j + 3), SUMS(c, j + 4), SUMS(c, j + 5), SUMS(c, j + 6), SUMS(c, j + 7)
#define REGISTERS32                                                                                                    \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"
#define REGISTERS64                                                                                                    \
    REGISTERS32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"    \
                "%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS128                                                                                                   \
    REGISTERS64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,"    \
                "%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,"   \
                "%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// multiply starts c (64 x 64) += a (64 x 16, in registers) * b (16 x 64, transposed in shared memory).
__device__ __forceinline__ void multiply(float (&c)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16." WGMMA_TYPES " {" REGISTERS32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : SUMS8(c, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// multiply starts c (64 x 64) += a (64 x 16) * b (16 x 64), both by rows in shared memory; `keep` 0 starts the sum anew.
__device__ __forceinline__ void multiply(float (&c)[8][4], u64 a, u64 b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16." WGMMA_TYPES " {" REGISTERS32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : SUMS8(c, 0) : "l"(a), "l"(b), "r"(keep));
}

// multiply starts c (64 x 256) += a (64 x 16) * b (16 x 256); AT, BT: that operand is transposed; `keep` 0 starts the sum anew.
template <int AT, int BT> __device__ __forceinline__ void multiply(float (&c)[32][4], u64 a, u64 b, int keep) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16." WGMMA_TYPES " {" REGISTERS128 "}, %128, %129, p, 1, 1, %131, %132;\n}"
                 : SUMS8(c, 0), SUMS8(c, 8), SUMS8(c, 16), SUMS8(c, 24) : "l"(a), "l"(b), "r"(keep), "n"(AT), "n"(BT));
}

} // namespace hopper
