// Dropout of attention's probabilities: which of a thread's elements of a tile are kept.
//
// A counter's eight halves of words belong to eight neighbouring keys of one query (each row starts a counter of its own), and
// four or eight lanes own those keys. So each lane draws whole counters, a fair share of the ones that its neighbours and
// it need together, and they swap bits. `kept` has bit 8*i + j for element i of column group j of an accumulator.
#pragma once
#include "mma.cuh"

// drawn is the kept bits of J/2 counters, `step` apart from `counter` on: bit 16*(w%2) + 8*half + 2*m + w/2 for half a
// word w of counter m, which puts the owner's number where swapped wants it.
template <int J> __device__ __forceinline__ u32 drawn(const Dropper &d, u32 counter, u32 step) {
    u32 bits = 0;
#pragma unroll
    for (int m = 0; m < J / 2; m++) {
        uint4 w = d.words(counter + m * step);
        u32 word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (d.kept_low(word[i])) bits |= 1u << (16 * (i % 2) + 2 * m + i / 2);
            if (d.kept_high(word[i])) bits |= 1u << (16 * (i % 2) + 8 + 2 * m + i / 2);
        }
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
// (h*T + t) and whose first key is c0. Of four lanes that share counters, word q for lane q, each draws for one of two
// queries and for the even or the odd groups.
template <int J> __device__ __forceinline__ u32 kept_rows(const Dropper &d, int row, int c0, int T) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    u32 counter = (u32)(row + g + (q & 1) * 8) * ((u32)(T + 7) / 8) + c0 / 8 + q / 2;
    u32 bits = swapped<16>(drawn<J>(d, counter, 2), 1, 0x0000ffffu);
    return swapped<1>(bits, 2, 0x55555555u);
}

// kept_columns: element i of group j is key g + 8*(i/2) and query 8*j + 2*q + i%2. Of eight lanes that share counters, half a
// word for each, each draws for one i and for the even or the odd groups.
template <int J> __device__ __forceinline__ u32 kept_columns(const Dropper &d, int row, int c0, int T) {
    int lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3;
    u32 across = (u32)(T + 7) / 8;
    u32 counter = (u32)(row + g / 4 * 8 + q * 2 + (g & 1)) * across + c0 / 8 + (g >> 1 & 1);
    u32 bits = swapped<8>(drawn<J>(d, counter, 16 * across), 4, 0x00ff00ffu);
    bits = swapped<16>(bits, 8, 0x0000ffffu);
    return swapped<1>(bits, 16, 0x55555555u);
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
