// How kernels walk a tensor group by group: a channel of all images, or an image with all its
// channels. What is reduced together, or scaled alike, is one group.
//
// Two orders of memory. Where a group's elements lie in runs (a channel of a channels-first tensor,
// an image), blocks take `parts` of one group. Where groups are the columns (the channels of a
// channels-last tensor), COLUMNS, blocks take parts of all rows of a few neighbouring columns.
// Blocks that follow each other take neighbouring groups: short runs share lines of the cache.
//
// A row is a run of `inner` elements at one (outer, middle); a thread owns UNROLL packs of COUNT
// elements, taken down the rows (UNROLL_ROWS, always with COLUMNS) or along one row. Short rows
// that follow each other without a gap may come joined, as columns that repeat the channels: then
// the last one of each `outer` has `last_inner` elements only.
#pragma once

#include "element.cuh"

// In 32 bits where the number allows it, which is several times faster. Neither is negative.
__device__ inline long long divided(long long a, long long b) {
    if (((a | b) >> 32) == 0) return (unsigned)a / (unsigned)b;
    return (unsigned long long)a / (unsigned long long)b;
}
__device__ inline long long remainder_of(long long a, long long b) {
    return a < b ? a : a - divided(a, b) * b;
}

template <int OPERANDS>
struct GroupWalk {
    Axes size;                         // the rows of a group (COLUMNS: of the tensor), in elements
    long long last_inner;              // elements of the last row along `middle`
    long long groups, parts;           // COLUMNS: a group is one block's width of columns
    long long tiles, column_tiles;     // blocks' worth of work: in a group, and along a row
    Axes stride[OPERANDS];             // in elements
    long long group_stride[OPERANDS];  // not with COLUMNS
};

template <int OPERANDS, int COUNT, int UNROLL, bool UNROLL_ROWS, bool COLUMNS>
struct GroupTile {
    long long offset[OPERANDS][UNROLL];
    int available[UNROLL];  // elements of each pack that are inside, 0 to COUNT

    __device__ GroupTile(const GroupWalk<OPERANDS> &walk, long long group, long long tile) {
        static_assert(UNROLL_ROWS || !COLUMNS, "a thread's columns are the same in all its rows");
        const bool one = COLUMNS || walk.column_tiles == 1;
        const long long row_tile = one ? tile : divided(tile, walk.column_tiles);
        const long long column_tile = COLUMNS ? group : tile - row_tile * walk.column_tiles;
        const long long first_row =
            row_tile * blockDim.y * (UNROLL_ROWS ? UNROLL : 1) + threadIdx.y;
        const long long first_column =
            (column_tile * blockDim.x * (UNROLL_ROWS ? 1 : UNROLL) + threadIdx.x) * COUNT;
        const long long rows = walk.size.outer * walk.size.middle;
        Row row(first_row, walk.size);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (UNROLL_ROWS && u > 0) row.advance(blockDim.y, walk.size);
            const long long column = first_column + (UNROLL_ROWS ? 0 : u * (int)blockDim.x * COUNT);
            const bool inside = first_row + (UNROLL_ROWS ? u * (int)blockDim.y : 0) < rows;
            const bool last = row.middle == walk.size.middle - 1;
            const long long left =
                inside ? (last ? walk.last_inner : walk.size.inner) - column : 0;
            available[u] = left >= COUNT ? COUNT : left > 0 ? (int)left : 0;
#pragma unroll
            for (int o = 0; o < OPERANDS; ++o)
                offset[o][u] = (COLUMNS ? 0 : group * walk.group_stride[o]) +
                               row.outer * walk.stride[o].outer +
                               row.middle * walk.stride[o].middle + column * walk.stride[o].inner;
        }
    }

    // All of a thread's packs at once, so that they are in flight together.
    template <typename Element>
    __device__ void load(
        Pack<Element, COUNT> (&packs)[UNROLL], const Element *source, int operand) const {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            packs[u] = load_pack<COUNT>(source + offset[operand][u], available[u]);
    }

    // To where operand 0 has it.
    template <typename Element>
    __device__ void store(Element *destination, const Pack<Element, COUNT> &pack, int u) const {
        if (available[u] > 0) store_pack<COUNT>(destination + offset[0][u], pack, available[u]);
    }

    __device__ bool has(int u, int i) const { return i < available[u]; }
};

// The same of a tile that lies inside, as nearly all do: a pack is as far from the next as any other,
// and nothing is asked of an element.
template <int OPERANDS, int COUNT, int UNROLL>
struct WholeTile {
    long long start[OPERANDS], step[OPERANDS];

    template <typename Element>
    __device__ void load(
        Pack<Element, COUNT> (&packs)[UNROLL], const Element *source, int operand) const {
        source += start[operand];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            packs[u] = load_pack<COUNT>(source + u * step[operand], COUNT);
    }

    template <typename Element>
    __device__ void store(Element *destination, const Pack<Element, COUNT> &pack, int u) const {
        store_pack<COUNT>(destination + start[0] + u * step[0], pack, COUNT);
    }

    __device__ constexpr bool has(int, int) const { return true; }
};

// Calls `visit` with a thread's part of a tile.
template <int COUNT, int UNROLL, bool UNROLL_ROWS, bool COLUMNS, int OPERANDS, typename Visit>
__device__ inline void visit_tile(
    const GroupWalk<OPERANDS> &walk, long long group, long long tile, Visit visit) {
    const bool one = COLUMNS || walk.column_tiles == 1;
    const long long row_tile = one ? tile : divided(tile, walk.column_tiles);
    const long long column_tile = COLUMNS ? group : tile - row_tile * walk.column_tiles;
    const long long row = row_tile * blockDim.y * (UNROLL_ROWS ? UNROLL : 1) + threadIdx.y;
    const long long column =
        (column_tile * blockDim.x * (UNROLL_ROWS ? 1 : UNROLL) + threadIdx.x) * COUNT;
    const int rows = UNROLL_ROWS ? (UNROLL - 1) * blockDim.y : 0;
    const int columns = UNROLL_ROWS ? 0 : (UNROLL - 1) * blockDim.x * COUNT;
    // The last row may be a short one.
    if (walk.size.outer == 1 && row + rows < walk.size.middle - 1 &&
        column + columns + COUNT <= walk.size.inner) {
        WholeTile<OPERANDS, COUNT, UNROLL> whole;
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) {
            whole.start[o] = (COLUMNS ? 0 : group * walk.group_stride[o]) +
                             row * walk.stride[o].middle + column * walk.stride[o].inner;
            whole.step[o] = UNROLL_ROWS ? blockDim.y * walk.stride[o].middle
                                        : blockDim.x * COUNT * walk.stride[o].inner;
        }
        visit(whole);
    } else {
        visit(GroupTile<OPERANDS, COUNT, UNROLL, UNROLL_ROWS, COLUMNS>(walk, group, tile));
    }
}

// Joins the states of `height` threads `width` places apart, in a tree that depends on nothing but
// these numbers; each of them gets the result. All threads of the block call it.
template <typename State, typename Join>
__device__ inline State join_threads(
    State mine, State *shared, int place, int width, int height, Join join) {
    const int rank = place / width;
    shared[place] = mine;
    __syncthreads();
    int half = 1;
    while (2 * half < height) half *= 2;
    for (; half > 0; half /= 2) {
        if (rank < half && rank + half < height)
            shared[place] = join(shared[place], shared[place + half * width]);
        __syncthreads();
    }
    const State result = shared[place - rank * width];
    __syncthreads();
    return result;
}

__device__ inline double sum_of_two(double a, double b) { return a + b; }

// A double rounded once: by way of float it would be rounded twice.
template <typename Element>
__device__ inline Element narrow_double(double x);
template <>
__device__ inline __half narrow_double<__half>(double x) { return __double2half(x); }
template <>
__device__ inline __nv_bfloat16 narrow_double<__nv_bfloat16>(double x) {
    return __double2bfloat16(x);
}
template <>
__device__ inline float narrow_double<float>(double x) { return (float)x; }
template <>
__device__ inline double narrow_double<double>(double x) { return x; }
