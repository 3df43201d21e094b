// Dropout of attention's probabilities: which of a thread's elements of a tile are kept.
//
// A counter's four words belong to four neighbouring keys of one query (each row starts a counter of its own), and lanes
// next to each other own those keys. So each lane draws whole counters, a fair share of the ones that its neighbours and
// it need together, and they swap bits. `kept` has bit 8*i + j for element i of column group j of an accumulator.
#pragma once
#include "mma.cuh"

// drawn is the kept bits of four words of each of J counters, `step` apart from `quad` on: bit 8*w + j for word w.
template <int J> __device__ __forceinline__ u32 drawn(const Dropper &d, u32 quad, u32 step) {
    u32 bits = 0;
#pragma unroll
    for (int j = 0; j < J; j++) {
        uint4 w = d.words(quad + j * step);
        if (w.x >= d.threshold) bits |= 1u << j;
        if (w.y >= d.threshold) bits |= 0x100u << j;
        if (w.z >= d.threshold) bits |= 0x10000u << j;
        if (w.w >= d.threshold) bits |= 0x1000000u << j;
    }
    return bits;
}

// swapped trades bits with the lane whose number differs by `lane`: the lower lane keeps the bits under `low` and gets the
// other's in the places SHIFT above, the upper lane the other way round.
template <int SHIFT> __device__ __forceinline__ u32 swapped(u32 mine, int lane, u32 low) {
    u32 other = __shfl_xor_sync(0xffffffffu, mine, lane);
    mine = threadIdx.x & lane ? (mine & ~low) | (other >> SHIFT & low) : (mine & low) | (other << SHIFT & ~low);
    asm volatile("" : "+r"(mine)::"memory"); // drawn here, where the caller has registers or time for it
    return mine;
}

// kept_rows: element i of group j is query g + 8*(i/2) and key 8*j + 2*q + i%2 of the tile whose first query is `row`
// (h*T + t) and whose first key is c0. Of two lanes that share a counter one draws for query g, the other for g + 8.
template <int J> __device__ __forceinline__ u32 kept_rows(const Dropper &d, int row, int c0, int T) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    u32 quad = (u32)(row + g + (q & 1) * 8) * ((u32)(T + 3) / 4) + c0 / 4 + q / 2;
    return swapped<16>(drawn<J>(d, quad, 2), 1, 0x0000ffffu);
}

// kept_columns: element i of group j is key g + 8*(i/2) and query 8*j + 2*q + i%2. Of four lanes that share counters each
// draws one element's for all four.
template <int J> __device__ __forceinline__ u32 kept_columns(const Dropper &d, int row, int c0, int T) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, i = g & 3;
    u32 quads = (u32)(T + 3) / 4;
    u32 quad = (u32)(row + q * 2 + (i & 1)) * quads + c0 / 4 + g / 4 + (i >> 1) * 2;
    u32 bits = swapped<8>(drawn<J>(d, quad, 8 * quads), 4, 0x00ff00ffu);
    return swapped<16>(bits, 8, 0x0000ffffu);
}

// is_kept is the bit of element i of group j.
__device__ __forceinline__ bool is_kept(u32 kept, int j, int i) { return kept & 1u << (8 * i + j); }

// dropped_pair zeroes the dropped halves of a packed pair, elements i and i+1 of group j: each half's ones or zeros are
// its bit's, moved to the top of a byte and spread by the byte's sign.
__device__ __forceinline__ u32 dropped_pair(u32 pair, u32 kept, int j, int i) {
    u32 mask;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(mask) : "r"(kept << (7 - j)), "r"(i ? 0xbbaa : 0x9988));
    return pair & mask;
}
