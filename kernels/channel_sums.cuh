// Sums over everything but the channels: how the threads of a block join theirs, and leave them as
// partial sums [parts][SUMS][columns] for `channel_totals` of channel_reduction.cu.
#pragma once

#include "group_walk.cuh"

// Sums of products and of squares are in float64. In half precision neighbouring terms are added in
// float32 first, so many of them: a term costs two instructions then, and not four of which three are
// slow. That rounds terms to 2^-24 of themselves, at random; what is made of the sums is rounded to
// 2^-8 or 2^-11.
template <typename T, bool EXACT>
struct RunOf {
    using type = double;
    static constexpr int LENGTH = 1;
};
template <>
struct RunOf<__half, false> {
    using type = float;
    static constexpr int LENGTH = 4;
};
template <>
struct RunOf<__nv_bfloat16, false> : RunOf<__half, false> {};

// Of `sums` a thread has one for each of its columns, or (not COLUMNS) two chains of additions for
// its group. All threads of the block call it.
template <int COUNT, bool COLUMNS, int OPERANDS, int SUMS, int PARALLEL>
__device__ inline void leave_partials(
    const GroupWalk<OPERANDS> &walk, const double (&sums)[PARALLEL][SUMS], long long part,
    long long group, long long channels, double *partial) {
    constexpr int MOST_COLUMNS = 256;  // the host sees to it
    __shared__ double shared[COLUMNS ? SUMS * COUNT * BLOCK_THREADS : BLOCK_THREADS];
    __shared__ double of_columns[COLUMNS ? SUMS * MOST_COLUMNS : 1];
    const int place = threadIdx.y * blockDim.x + threadIdx.x;
    const int threads = blockDim.x * blockDim.y;

    if constexpr (!COLUMNS) {
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            const double sum =
                join_threads(sums[0][s] + sums[1][s], shared, place, 1, threads, sum_of_two);
            if (place == 0) partial[(part * SUMS + s) * channels + group] = sum;
        }
    } else {
        const long long first_column = group * blockDim.x * COUNT;
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) shared[(s * COUNT + i) * threads + place] = sums[i][s];
        __syncthreads();
        // A thread joins what those above and below it have of a column, from the first row on.
        for (int k = place; k < SUMS * COUNT * (int)blockDim.x; k += threads) {
            const int of = k / (int)blockDim.x, x = k - of * (int)blockDim.x;
            const int s = of / COUNT, i = of % COUNT;
            double sum = 0;
            for (int y = 0; y < (int)blockDim.y; ++y)
                sum += shared[of * threads + y * (int)blockDim.x + x];
            of_columns[s * MOST_COLUMNS + x * COUNT + i] = sum;
        }
        __syncthreads();
        // Columns that repeat the channels are joined here where the block has all of them.
        const int columns = (int)min(walk.size.inner - first_column, (long long)blockDim.x * COUNT);
        const int kept = walk.groups == 1 ? (int)channels : columns;
        const long long width = walk.groups == 1 ? channels : walk.size.inner;
        for (int k = place; k < SUMS * kept; k += threads) {
            const int s = k / kept, first = k % kept;
            double sum = 0;
            for (int column = first; column < columns; column += kept)
                sum += of_columns[s * MOST_COLUMNS + column];
            partial[(part * SUMS + s) * width + first_column + first] = sum;
        }
        __syncthreads();
    }
}
