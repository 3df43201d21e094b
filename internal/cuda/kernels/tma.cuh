// Hopper's bulk tensor copies between device and shared memory, the barriers that they complete on, and clusters of blocks.
//
// A TensorMap is made by the host (tensormap.go): a matrix of rows, and the box of it that one copy moves, 128 bytes wide.
// In shared memory a box is rows of 128 bytes whose 16-byte chunks are swizzled by the row's number modulo 8: Tile<64> of
// mma.cuh, and what wgmma reads. Outside the matrix a copy reads zeros and writes nothing.
#pragma once
#include "mma.cuh"

namespace hopper {

struct alignas(64) TensorMap {
    u64 words[16];
};

// ---- barriers: in shared memory, by phases; a phase ends when its arrivals and its bytes are in ----

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// barrier_expect arrives and adds to the bytes that the phase waits for.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// barrier_arrive arrives at the barrier of block `rank` of this cluster.
__device__ __forceinline__ void barrier_arrive(u32 barrier, u32 rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n}"
                 ::"r"(barrier), "r"(rank) : "memory");
}
// barrier_wait waits for the end of the phase of this parity. SNUG_WATCH: for two seconds, then the kernel fails.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    u32 done;
#if defined(SNUG_WATCH)
    u64 start = 0, now;
#endif
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#if defined(SNUG_WATCH)
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (!start) start = now;
        if (!done && now - start > 2000000000ull) asm volatile("trap;");
#endif
    } while (!done);
}

// ---- clusters ----

__device__ __forceinline__ u32 cluster_rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
// cluster_sync waits for every thread of the cluster; what each wrote before is seen by all.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- copies, each started by one thread ----

// copy_box brings the box at (row, col) to shared memory; its bytes count at `barrier`.
__device__ __forceinline__ void copy_box(u32 dst, const TensorMap *map, int row, int col, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(dst), "l"(map), "r"(col), "r"(row), "r"(barrier) : "memory");
}
// copy_box_to brings it to the same place in every block of `mask`; its bytes count at the same barrier of each.
__device__ __forceinline__ void copy_box_to(u16 mask, u32 dst, const TensorMap *map, int row, int col, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                 ::"r"(dst), "l"(map), "r"(col), "r"(row), "r"(barrier), "h"(mask) : "memory");
}
// store_box writes a box of shared memory to (row, col); add_box adds it there.
__device__ __forceinline__ void store_box(const TensorMap *map, int row, int col, u32 src) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(col), "r"(row), "r"(src) : "memory");
}
__device__ __forceinline__ void add_box(const TensorMap *map, int row, int col, u32 src) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(col), "r"(row), "r"(src) : "memory");
}
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// store_read waits until at most N of this thread's stores still read shared memory; store_wait until all are done.
template <int N> __device__ __forceinline__ void store_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// These change how many registers each thread of this warpgroup may have.
template <int N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

} // namespace hopper
