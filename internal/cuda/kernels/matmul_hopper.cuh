// The products of matmul.cu on Hopper: wgmma fed by bulk tensor copies.
//
// A cluster of two blocks makes 256 x 256 of D, each block 128 rows of it. One thread of a block keeps four buffers filled,
// 64 of K each; two warpgroups multiply, 64 x 256 each. The blocks share B: each copies half of it to both. D leaves through
// shared memory, each warp's part by itself: late where it can, beside the next tile's products (Late), else at once.
//
// Clusters are as many as the card holds at once and take tile after tile. Where the last round would leave most of the card
// idle, its tiles' sums over K are cut among all clusters and left as partial sums, which matmul_hopper_reduce adds in the
// order of K. The first clusters do `length` steps of one tile each, `parts` of them to a tile and all at the same pace, so
// that they find each other's rows in cache; the others share what is left at the tiles' ends.
#pragma once
#include "tma.cuh"
#include "wgmma.cuh"

namespace hopper {

const int TILE = 256, STEP = 64, STAGES = 4, A_BYTES = 128 * STEP * 2, STAGE_BYTES = A_BYTES + TILE * STEP * 2;
const int BOX = 16 * 128, BOXES = 2; // a warp writes D from boxes of 16 rows of 128 bytes

struct Job {
    const elem *bias; // (N), may be null
    void *d;
    int M, N, K;
    int whole;         // tiles that are not cut
    int accumulate;    // add to D
    int clusters;
    int parts, length; // of the cut tiles
};

// Piece is `count` of a tile's steps over K, from `first` on; its sums are D's, or go to a slot of the partial sums.
struct Piece {
    int tile, first, count, slot;
};

// Schedule is how the tiles are shared out.
struct Schedule {
    int rows, cols;                // of tiles
    int steps;                     // of a tile
    int whole, cut, parts, length; // cut: tiles that are
    int share, helpers;            // steps at the end of a cut tile, and the clusters that do them
    __device__ __forceinline__ Schedule(const Job &job)
        : rows((job.M + TILE - 1) / TILE), cols((job.N + TILE - 1) / TILE), steps((job.K + STEP - 1) / STEP), whole(job.whole),
          cut(rows * cols - whole), parts(job.parts), length(job.length), share(steps - parts * length),
          helpers(job.clusters - parts * cut) {}
    // range is where a helper's range of those steps, tile by tile, begins, and the one before it ends.
    __device__ __forceinline__ int range(int helper) const { return (int)((long long)helper * cut * share / helpers); }
    // owner is the helper whose range holds a step.
    __device__ __forceinline__ int owner(int step) const { return (int)(((long long)(step + 1) * helpers - 1) / (cut * share)); }
    // slot is where a helper leaves the sums of a cut tile's end: no two are the same, for one of the numbers grows from each to the next.
    __device__ __forceinline__ int slot(int tile, int helper) const { return parts * cut + tile + helper; }
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
    int cluster, clusters, helper, tile, unit, end;
    __device__ __forceinline__ Worker(const Job &job, int c)
        : Schedule(job), cluster(c), clusters(job.clusters), helper(c - parts * cut), tile(c), unit(0), end(1) {
        if (helper >= 0) unit = range(helper), end = range(helper + 1);
    }
    __device__ __forceinline__ bool next(Piece &p) {
        if (tile < whole) {
            p = {tile, 0, steps, -1};
            tile += clusters;
            return true;
        }
        if (unit >= end) return false;
        if (helper < 0) {
            p = {whole + cluster % cut, cluster / cut * length, length, cluster};
            unit = end;
            return true;
        }
        int t = unit / share, done = unit - t * share;
        p = {whole + t, parts * length + done, min(share - done, end - unit), slot(t, helper)};
        unit += p.count;
        return true;
    }
};

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

// put writes 16 rows and 16 columns of a box, from its column group j on. A thread has four words of them: rows lane/4 and
// lane/4 + 8 of group j, then of group j + 1.
__device__ __forceinline__ void put(u32 box, int j, const u32 (&x)[4]) {
    int lane = threadIdx.x & 31, r = lane & 15;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
                 ::"r"(box + r * 128 + (((j + (lane >> 4)) ^ (r & 7)) << 4)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// put_sums rounds and writes 16 rows and 16 columns (16-bit elements) or 8 (fp32) of a warp's sums.
__device__ __forceinline__ void put_sums(elem, u32 box, int j, const float (&x)[4], const float (&y)[4]) {
    u32 words[4] = {pack2<elem>(x[0], x[1]), pack2<elem>(x[2], x[3]), pack2<elem>(y[0], y[1]), pack2<elem>(y[2], y[3])};
    put(box, j, words);
}
__device__ __forceinline__ void put_sums(float, u32 box, int j, const float (&x)[4], const float (&y)[4]) {
    int lane = threadIdx.x & 31, r = lane >> 2, q = lane & 3;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *z = (i < 2 ? x : y) + i % 2 * 2;
        int row = r + i % 2 * 8, chunk = 2 * (j + i / 2) + (q >> 1);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(box + row * 128 + ((chunk ^ r) << 4) + (q & 1) * 8), "f"(z[0]), "f"(z[1]) : "memory");
    }
}

// write fills box `box` of T with a warp's sums, after `finish` has changed those of each column pair.
template <typename T, typename Finish> __device__ __forceinline__ void write(float (&acc)[32][4], u32 at, int box, Finish finish) {
    const int GROUPS = 16 / sizeof(T); // of 8 columns in a box
    int q = threadIdx.x & 3;
#pragma unroll
    for (int j = box * GROUPS; j < (box + 1) * GROUPS; j += 2) {
        finish(acc[j], j * 8 + q * 2);
        finish(acc[j + 1], j * 8 + 8 + q * 2);
        put_sums(T(), at, j % GROUPS, acc[j], acc[j + 1]);
    }
    visible();
    __syncwarp();
}

// emit sends a warp's 16 x 256 sums on their way, a box at a time; `send` starts the store of a box at its first column.
template <typename T, typename Finish, typename Send>
__device__ __forceinline__ void emit(float (&acc)[32][4], u32 boxes, Finish finish, Send send) {
    bool first = (threadIdx.x & 31) == 0;
    const int COUNT = 256 * sizeof(T) / 128;
#pragma unroll
    for (int box = 0; box < COUNT; box++) {
        u32 at = boxes + box % BOXES * BOX;
        if (first) store_read<BOXES - 1>();
        __syncwarp();
        write<T>(acc, at, box, finish);
        if (first) {
            send(at, box * (COUNT == 4 ? 64 : 32));
            store_commit();
        }
    }
}

// PlusD is a `finish` that adds what D held. Outside D it reads some element that is there, for nothing is stored.
struct Nothing {
    __device__ __forceinline__ void operator()(float (&)[4], int) const {}
};
struct PlusD {
    const elem *high, *low; // this thread's rows
    int n, N;
    __device__ __forceinline__ PlusD(const Job &job, int m, int n) : n(n), N(job.N) {
        int row = m + (threadIdx.x >> 2 & 7);
        high = (const elem *)job.d + (long long)min(row, job.M - 1) * N;
        low = (const elem *)job.d + (long long)min(row + 8, job.M - 1) * N;
    }
    __device__ __forceinline__ void operator()(float (&x)[4], int col) const {
        int c = min(n + col, N - 2);
        Pack<elem, 2> h = load<2>(high + c), l = load<2>(low + c);
        x[0] += to_float(h.v[0]), x[1] += to_float(h.v[1]), x[2] += to_float(l.v[0]), x[3] += to_float(l.v[1]);
    }
};

// leave sends D's rows m.. and columns n.. on their way at once.
template <typename Out> __device__ __forceinline__ void leave(const Job &job, float (&acc)[32][4], const TensorMap *d, u32 boxes, int m, int n) {
    auto send = [&](u32 at, int col) { store_box(d, m, n + col, at); };
    if (!job.accumulate) emit<Out>(acc, boxes, Nothing(), send);
    else if constexpr (sizeof(Out) == 4) emit<Out>(acc, boxes, Nothing(), [&](u32 at, int col) { add_box(d, m, n + col, at); });
    else emit<Out>(acc, boxes, PlusD(job, m, n), send);
}

// Late keeps a warp's sums of one tile, rounded: half the registers of the sums themselves. They leave in SLICES slices of 32
// columns, each beside a step of the next tile's products, which the tensor cores do meanwhile.
const int SLICES = 8;

struct Late {
    const TensorMap *d;
    u32 boxes;
    int m, n; // of the held sums
    bool any, first;
    u32 held[32][2]; // columns 8j + 2q and the next, of rows lane/4 and lane/4 + 8

    __device__ __forceinline__ Late(const TensorMap *d, u32 boxes) : d(d), boxes(boxes), any(false), first((threadIdx.x & 31) == 0) {}

    // take rounds the sums of the tile at (row, col), + bias where there is one.
    __device__ __forceinline__ void take(const Job &job, float (&acc)[32][4], int row, int col) {
        m = row, n = col, any = true;
        if (job.bias) {
            const elem *bias = job.bias + (threadIdx.x & 3) * 2;
#pragma unroll
            for (int j = 0; j < 32; j++) {
                Pack<elem, 2> b = load<2>(bias + min(n + j * 8, job.N - 8)); // outside D any that is there
                acc[j][0] += to_float(b.v[0]), acc[j][1] += to_float(b.v[1]), acc[j][2] += to_float(b.v[0]), acc[j][3] += to_float(b.v[1]);
            }
        }
#pragma unroll
        for (int j = 0; j < 32; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                held[j][i] = pack2<elem>(acc[j][2 * i], acc[j][2 * i + 1]);
                asm volatile("" : "+r"(held[j][i])::"memory"); // now, not when it is used: the sums' registers are needed
            }
    }

    // slice writes 32 columns to their box, and sends it off when it has its 64.
    __device__ __forceinline__ void slice(int s) {
        u32 box = boxes + s / 2 % BOXES * BOX;
        if (s % 2 == 0) {
            if (first) store_read<BOXES - 1>();
            __syncwarp();
        }
#pragma unroll
        for (int j = s * 4; j < s * 4 + 4; j += 2) {
            u32 x[4] = {held[j][0], held[j][1], held[j + 1][0], held[j + 1][1]};
            put(box, j % 8, x);
        }
        if (s % 2 == 0) return;
        visible();
        __syncwarp();
        if (!first) return;
        store_box(d, m, n + s / 2 * 64, box);
        store_commit();
    }

    // rest sends off all that is held.
    __device__ __forceinline__ void rest() {
        if (any)
#pragma unroll
            for (int s = 0; s < SLICES; s++) slice(s);
        any = false;
    }
};

// Sums are a warpgroup's sums over the buffers as they come: begin starts a step's products, end waits for those of the step
// before it and hands its buffer on. A buffer is handed on in both blocks, because each fills half of B in both.
template <bool AT, bool BT> struct Sums {
    u32 base, full, empty, before;
    Ring ring;
    float acc[32][4];
    __device__ __forceinline__ Sums(u32 base, u32 full, u32 empty) : base(base), full(full), empty(empty), ring{0, 0} {}
    __device__ __forceinline__ void begin(bool more) {
        u32 at = base + ring.at * STAGE_BYTES;
        u64 a = descriptor(at + ((threadIdx.x >> 7) - 1) * 8192), b = descriptor(at + A_BYTES, 8192);
        barrier_wait(full + ring.at * 8, ring.parity);
        fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            multiply<AT, BT>(acc, a + k * ((AT ? 2048 : 32) >> 4), b + k * ((BT ? 2048 : 32) >> 4), more || k > 0);
        commit();
    }
    __device__ __forceinline__ void end(bool more) {
        wait<1>();
        if (more) release();
        before = ring.at;
        ring.advance();
    }
    __device__ __forceinline__ void finish() {
        wait<0>();
        settled(acc);
        release();
    }
    __device__ __forceinline__ void release() {
        if ((threadIdx.x & 127) < 2) barrier_arrive(empty + before * 8, threadIdx.x & 127);
    }
};

template <bool AT, bool BT, typename Out, bool LATE>
__device__ __forceinline__ void multiply_all(const Job &job, const TensorMap *d, const TensorMap *partial, u32 base, u32 full, u32 empty, u32 rank) {
    int warp = (threadIdx.x >> 5) - 4;
    u32 boxes = base + STAGES * STAGE_BYTES + warp * BOXES * BOX;
    Worker worker(job, blockIdx.x / 2);
    Sums<AT, BT> sums(base, full, empty);
    Late late(d, boxes);
    for (Piece p; worker.next(p);) {
        int i = 0, row, col;
        if (LATE && p.count < SLICES) late.rest();
        if (LATE && late.any) {
#pragma unroll
            for (int s = 0; s < SLICES; s++) {
                sums.begin(s > 0);
                late.slice(s);
                sums.end(s > 0);
            }
            i = SLICES;
            late.any = false;
        }
        worker.place(p.tile, row, col);
        row = row * TILE + rank * 128 + warp * 16, col *= TILE;
        for (; i < p.count; i++) {
            sums.begin(i > 0);
            sums.end(i > 0);
        }
        sums.finish();
        if (p.slot >= 0) {
            int m = (p.slot * 2 + rank) * 128 + warp * 16;
            emit<float>(sums.acc, boxes, Nothing(), [&](u32 at, int c) { store_box(partial, m, c, at); });
        } else if (LATE) {
            late.take(job, sums.acc, row, col);
        } else {
            leave<Out>(job, sums.acc, d, boxes, row, col);
        }
    }
    if (LATE) late.rest();
    if ((threadIdx.x & 31) == 0) store_wait();
}

template <bool AT, bool BT, typename Out, bool LATE>
__device__ __forceinline__ void product(const Job &job, const TensorMap *a, const TensorMap *b, const TensorMap *d, const TensorMap *partial) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared), full = base + STAGES * STAGE_BYTES + 8 * BOXES * BOX, empty = full + STAGES * 8, rank = cluster_rank();
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
        multiply_all<AT, BT, Out, LATE>(job, d, partial, base, full, empty, rank);
    }
    cluster_sync(); // no block ends while the other may still write to it
}

// reduce adds the partial sums of a cut tile, in the order of K, and finishes D from them. A block does 16 rows.
template <typename Out> __device__ __forceinline__ void reduce(const Job &job, const float *partial) {
    Schedule all(job);
    int cut = blockIdx.x / 16, half = blockIdx.x / 8 & 1, row, col, from = 0, to = -1;
    if (all.share > 0) from = all.owner(cut * all.share), to = all.owner((cut + 1) * all.share - 1);
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
        float4 s = {};
        auto add = [&](int slot) {
            float4 x = *(const float4 *)(p + (long long)slot * (TILE * TILE));
            s.x += x.x, s.y += x.y, s.z += x.z, s.w += x.w;
        };
        for (int part = 0; part < all.parts; part++) add(part * all.cut + cut);
        for (int h = from; h <= to; h++) add(all.slot(cut, h));
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

#define HOPPER(name, AT, BT, Out, LATE)                                                                                \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                     \
        name(const hopper::Job job, const __grid_constant__ hopper::TensorMap a, const __grid_constant__ hopper::TensorMap b, \
             const __grid_constant__ hopper::TensorMap d, const __grid_constant__ hopper::TensorMap partial) {         \
        hopper::product<AT, BT, Out, LATE>(job, &a, &b, &d, &partial);                                                 \
    }
HOPPER(matmul_nt_hopper, false, false, elem, true)
HOPPER(matmul_nn_hopper, false, true, elem, true)
HOPPER(matmul_nn_hopper_add, false, true, elem, false)  // to D
HOPPER(matmul_tn_hopper, true, true, elem, false)       // or added to D
HOPPER(matmul_tn_hopper_sum, true, true, float, false)  // the same in fp32

extern "C" __global__ void matmul_hopper_reduce(hopper::Job job, const float *partial) { hopper::reduce<elem>(job, partial); }
extern "C" __global__ void matmul_hopper_reduce_sum(hopper::Job job, const float *partial) { hopper::reduce<float>(job, partial); }
