// The products of matmul.cu on Hopper: wgmma fed by bulk tensor copies.
//
// A cluster of two blocks makes 256 x 256 of D, each block 128 rows of it. One thread of a block keeps four buffers filled,
// 64 of K each; two warpgroups multiply, 64 x 256 each. The blocks share B: each copies half of it to both. D leaves through
// shared memory, each warp's part by itself, while the next tile's copies are under way.
//
// Clusters are as many as the card holds at once and take tile after tile. Where the last round would leave most of the card
// idle, the tiles from `whole` on are cut instead: their steps over K, laid end to end, make one range a cluster. A tile that
// two or more clusters share is left as partial sums, which matmul_hopper_reduce adds in the order of K.
#pragma once
#include "tma.cuh"
#include "wgmma.cuh"

namespace hopper {

const int TILE = 256, STEP = 64, STAGES = 4, A_BYTES = 128 * STEP * 2, STAGE_BYTES = A_BYTES + TILE * STEP * 2;
const int WARP_STAGING = 2 * 2048, STAGING = 8 * WARP_STAGING; // two boxes of 16 rows a warp

struct Job {
    const elem *bias; // (N), may be null
    void *d;
    int M, N, K;
    int whole;
    int accumulate; // add to D
    int clusters;
};

// Piece is `count` of a tile's steps over K, from `first` on.
struct Piece {
    int tile, first, count;
};

// Schedule is how the tiles are shared out.
struct Schedule {
    int rows, cols; // of tiles
    int steps;      // of a tile
    int whole, rest, clusters;
    __device__ __forceinline__ Schedule(const Job &job)
        : rows((job.M + TILE - 1) / TILE), cols((job.N + TILE - 1) / TILE), steps((job.K + STEP - 1) / STEP), whole(job.whole),
          rest((rows * cols - job.whole) * steps), clusters(job.clusters) {}
    // range is where a cluster's range of the cut tiles' steps begins, and the one before it ends.
    __device__ __forceinline__ int range(int cluster) const { return (int)((long long)cluster * rest / clusters); }
    // owner is the cluster whose range holds a step.
    __device__ __forceinline__ int owner(int step) const { return (int)(((long long)(step + 1) * clusters - 1) / rest); }
    // place finds a tile's row and column of tiles: 8 rows at a time, so that neighbours share operands in cache.
    __device__ __forceinline__ void place(int tile, int &row, int &col) const {
        const int BAND = 8;
        int band = tile / (BAND * cols), inside = tile - band * BAND * cols, high = min(BAND, rows - band * BAND);
        row = band * BAND + inside % high;
        col = inside / high;
    }
};

// Worker walks through one cluster's pieces.
struct Worker : Schedule {
    int tile, unit, end;
    __device__ __forceinline__ Worker(const Job &job, int cluster)
        : Schedule(job), tile(cluster), unit(range(cluster)), end(range(cluster + 1)) {}
    __device__ __forceinline__ bool next(Piece &p) {
        if (tile < whole) {
            p = {tile, 0, steps};
            tile += clusters;
            return true;
        }
        if (unit >= end) return false;
        int cut = unit / steps, first = unit - cut * steps;
        p = {whole + cut, first, min(steps - first, end - unit)};
        unit += p.count;
        return true;
    }
};

// slot is where the partial sums of a cluster's piece lie: its range has at most one that starts inside a tile, and one that
// starts with a tile and does not end it. A slot is two blocks' 128 x 256.
__device__ __forceinline__ int slot(int cluster, int first) { return 2 * cluster + (first == 0); }

// Ring counts through the buffers.
struct Ring {
    u32 at, parity;
    __device__ __forceinline__ void advance() {
        if (++at == STAGES) at = 0, parity ^= 1;
    }
};

template <bool AT, bool BT>
__device__ __forceinline__ void feed(const Job &job, const TensorMap *a, const TensorMap *b, u32 base, u32 full, u32 empty, u32 rank) {
    Worker worker(job, blockIdx.x / 2);
    Ring ring = {0, 1}; // the first time around every buffer is free
    for (Piece p; worker.next(p);) {
        int row, col;
        worker.place(p.tile, row, col);
        int m = row * TILE + rank * 128, n = col * TILE + rank * 128;
        for (int k = p.first * STEP, end = k + p.count * STEP; k < end; k += STEP) {
            u32 at = base + ring.at * STAGE_BYTES, half = at + A_BYTES + rank * (128 * STEP * 2), bar = full + ring.at * 8;
            barrier_wait(empty + ring.at * 8, ring.parity);
            barrier_expect(bar, STAGE_BYTES);
            if constexpr (AT) {
                copy_box(at, a, k, m, bar);
                copy_box(at + 8192, a, k, m + 64, bar);
            } else {
                copy_box(at, a, m, k, bar);
            }
            if constexpr (BT) {
                copy_box_to(3, half, b, k, n, bar);
                copy_box_to(3, half + 8192, b, k, n + 64, bar);
            } else {
                copy_box_to(3, half, b, n, k, bar);
            }
            ring.advance();
        }
    }
}

// put writes the sums of row r, columns 8j + 2q and the next, to a box of T.
__device__ __forceinline__ void put(elem, u32 box, int r, int j, int q, float x, float y) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(box + r * 128 + ((j ^ (r & 7)) << 4) + q * 4), "r"(pack2<elem>(x, y)) : "memory");
}
__device__ __forceinline__ void put(float, u32 box, int r, int j, int q, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                 ::"r"(box + r * 128 + (((2 * j + (q >> 1)) ^ (r & 7)) << 4) + (q & 1) * 8), "f"(x), "f"(y) : "memory");
}

// emit sends a warp's 16 x 256 sums on their way, a box of 16 rows of 128 bytes at a time: `finish` changes the sums of a
// column pair, `send` starts the store of a box at its first column.
template <typename T, typename Finish, typename Send>
__device__ __forceinline__ void emit(float (&acc)[32][4], u32 staging, Finish finish, Send send) {
    const int GROUPS = 16 / sizeof(T); // of 8 columns in a box
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
#pragma unroll
    for (int box = 0; box < 32 / GROUPS; box++) {
        u32 at = staging + box % 2 * 2048;
        if (lane == 0) store_read<1>();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            float(&x)[4] = acc[box * GROUPS + j];
            finish(x, (box * GROUPS + j) * 8 + q * 2);
            put(T(), at, g, j, q, x[0], x[1]);
            put(T(), at, g + 8, j, q, x[2], x[3]);
        }
        visible();
        __syncwarp();
        if (lane == 0) {
            send(at, box * GROUPS * 8);
            store_commit();
        }
    }
}

// settle finishes D's rows m.. and columns n.. from a warp's sums: + bias, + D.
template <typename Out>
__device__ __forceinline__ void settle(const Job &job, float (&acc)[32][4], const TensorMap *d, u32 staging, int m, int n) {
    if constexpr (sizeof(Out) == 4) {
        emit<float>(acc, staging, [](float(&)[4], int) {}, [&](u32 at, int col) {
            if (job.accumulate) add_box(d, m, n + col, at);
            else store_box(d, m, n + col, at);
        });
        return;
    }
    const elem *bias = job.bias, *old = job.accumulate ? (const elem *)job.d : nullptr;
    int row = m + (threadIdx.x >> 2 & 7);
    emit<elem>(acc, staging, [&](float(&x)[4], int col) {
        if (n + col >= job.N) return;
        if (bias) {
            Pack<elem, 2> b = load<2>(bias + n + col);
            float y = to_float(b.v[0]), z = to_float(b.v[1]);
            x[0] += y, x[1] += z, x[2] += y, x[3] += z;
        }
        if (!old) return;
#pragma unroll
        for (int low = 0; low < 2; low++) {
            if (row + low * 8 >= job.M) continue;
            Pack<elem, 2> o = load<2>(old + (long long)(row + low * 8) * job.N + n + col);
            x[2 * low] += to_float(o.v[0]), x[2 * low + 1] += to_float(o.v[1]);
        }
    }, [&](u32 at, int col) { store_box(d, m, n + col, at); });
}

template <bool AT, bool BT, typename Out>
__device__ __forceinline__ void multiply_all(const Job &job, const TensorMap *d, const TensorMap *partial, u32 base, u32 full, u32 empty, u32 rank) {
    int cluster = blockIdx.x / 2, group = (threadIdx.x >> 7) - 1, warp = (threadIdx.x >> 5) - 4, thread = threadIdx.x & 127;
    u32 staging = base + STAGES * STAGE_BYTES + warp * WARP_STAGING;
    Worker worker(job, cluster);
    Ring ring = {0, 0};
    float acc[32][4];
    for (Piece p; worker.next(p);) {
        u32 before = 0;
        for (int i = 0; i < p.count; i++) {
            u32 at = base + ring.at * STAGE_BYTES;
            u64 a = descriptor(at + group * 8192), b = descriptor(at + A_BYTES, 8192);
            barrier_wait(full + ring.at * 8, ring.parity);
            fence();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++)
                multiply<AT, BT>(acc, a + k * ((AT ? 2048 : 32) >> 4), b + k * ((BT ? 2048 : 32) >> 4), i > 0 || k > 0);
            commit();
            wait<1>();
            if (i > 0 && thread < 2) barrier_arrive(empty + before * 8, thread); // in both blocks: each fills half of B here
            before = ring.at;
            ring.advance();
        }
        wait<0>();
        settled(acc);
        if (thread < 2) barrier_arrive(empty + before * 8, thread);
        int row, col;
        worker.place(p.tile, row, col);
        if (p.count == worker.steps) {
            settle<Out>(job, acc, d, staging, row * TILE + rank * 128 + warp * 16, col * TILE);
        } else {
            int m = (slot(cluster, p.first) * 2 + rank) * 128 + warp * 16;
            emit<float>(acc, staging, [](float(&)[4], int) {}, [&](u32 at, int c) { store_box(partial, m, c, at); });
        }
    }
    if ((threadIdx.x & 31) == 0) store_wait();
}

template <bool AT, bool BT, typename Out>
__device__ __forceinline__ void product(const Job &job, const TensorMap *a, const TensorMap *b, const TensorMap *d, const TensorMap *partial) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared), full = base + STAGES * STAGE_BYTES + STAGING, empty = full + STAGES * 8, rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 4); // two warpgroups of two blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        fewer_registers<40>();
        if (threadIdx.x == 0) feed<AT, BT>(job, a, b, base, full, empty, rank);
    } else {
        more_registers<232>();
        multiply_all<AT, BT, Out>(job, d, partial, base, full, empty, rank);
    }
    cluster_sync(); // no block ends while the other may still write to it
}

// reduce adds the partial sums of a cut tile, in the order of K, and finishes D from them. A block does 16 rows.
template <typename Out> __device__ __forceinline__ void reduce(const Job &job, const float *partial) {
    Schedule all(job);
    int cut = blockIdx.x / 16, half = blockIdx.x / 8 & 1, row, col;
    int from = all.owner(cut * all.steps), to = all.owner((cut + 1) * all.steps - 1);
    if (from == to) return; // one cluster made the whole of it
    all.place(all.whole + cut, row, col);
    int n = col * TILE + threadIdx.x % 64 * 4;
    if (n >= job.N) return;
    float bias[4] = {};
    if (job.bias) {
        Pack<elem, 4> b = load<4>(job.bias + n);
        for (int i = 0; i < 4; i++) bias[i] = to_float(b.v[i]);
    }
    for (int i = 0; i < 4; i++) {
        int r = blockIdx.x % 8 * 16 + i * 4 + threadIdx.x / 64, m = row * TILE + half * 128 + r;
        if (m >= job.M) return;
        const float *p = partial + ((long long)half * 128 + r) * TILE + threadIdx.x % 64 * 4;
        float4 s = *(const float4 *)(p + (long long)slot(from, 0) * (2 * 128 * TILE));
        for (int c = from + 1; c <= to; c++) {
            float4 x = *(const float4 *)(p + (long long)slot(c, 1) * (2 * 128 * TILE));
            s.x += x.x, s.y += x.y, s.z += x.z, s.w += x.w;
        }
        float sum[4] = {s.x + bias[0], s.y + bias[1], s.z + bias[2], s.w + bias[3]};
        Out *d = (Out *)job.d + (long long)m * job.N + n;
        Pack<Out, 4> y;
        if (job.accumulate) {
            y = load<4>(d);
            for (int e = 0; e < 4; e++) sum[e] += to_float(y.v[e]);
        }
        for (int e = 0; e < 4; e++) from_float(y.v[e], sum[e]);
        store(d, y);
    }
}

} // namespace hopper

#define HOPPER(name, AT, BT, Out)                                                                                      \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                     \
        name(const hopper::Job job, const __grid_constant__ hopper::TensorMap a, const __grid_constant__ hopper::TensorMap b, \
             const __grid_constant__ hopper::TensorMap d, const __grid_constant__ hopper::TensorMap partial) {         \
        hopper::product<AT, BT, Out>(job, &a, &b, &d, &partial);                                                       \
    }
HOPPER(matmul_nt_hopper, false, false, elem)
HOPPER(matmul_nn_hopper, false, true, elem)
HOPPER(matmul_tn_hopper, true, true, elem)
HOPPER(matmul_tn_hopper_sum, true, true, float) // D is fp32

extern "C" __global__ void matmul_hopper_reduce(hopper::Job job, const float *partial) { hopper::reduce<elem>(job, partial); }
extern "C" __global__ void matmul_hopper_reduce_sum(hopper::Job job, const float *partial) { hopper::reduce<float>(job, partial); }
