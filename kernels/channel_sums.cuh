// Sums over everything but the channels: how the threads of a block join theirs, and leave them as
// partial sums [parts][SUMS][columns] for `channel_totals` of channel_reduction.cu.
#pragma once

#include "group_walk.cuh"

// Of `sums` a thread has one for each of its columns, or (not COLUMNS) two chains of additions for
// its group. All threads of the block call it.
template <int COUNT, bool COLUMNS, int OPERANDS, int SUMS, int PARALLEL>
__device__ inline void leave_partials(
    const GroupWalk<OPERANDS> &walk, const double (&sums)[SUMS][PARALLEL], long long part,
    long long group, long long channels, double *partial) {
    constexpr int MOST_COLUMNS = 256;  // the host sees to it
    __shared__ double shared[BLOCK_THREADS];
    __shared__ double of_columns[COLUMNS ? SUMS * MOST_COLUMNS : 1];
    const int place = threadIdx.y * blockDim.x + threadIdx.x;

    if constexpr (!COLUMNS) {
        const int threads = blockDim.x * blockDim.y;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            const double sum =
                join_threads(sums[s][0] + sums[s][1], shared, place, 1, threads, sum_of_two);
            if (place == 0) partial[(part * SUMS + s) * channels + group] = sum;
        }
    } else {
        const long long first_column = group * blockDim.x * COUNT;
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const double sum =
                    join_threads(sums[s][i], shared, place, blockDim.x, blockDim.y, sum_of_two);
                if (threadIdx.y == 0) of_columns[s * MOST_COLUMNS + threadIdx.x * COUNT + i] = sum;
            }
        __syncthreads();
        // Columns that repeat the channels are joined here where the block has all of them.
        const int columns = (int)min(walk.size.inner - first_column, (long long)blockDim.x * COUNT);
        const int kept = walk.groups == 1 ? (int)channels : columns;
        const long long width = walk.groups == 1 ? channels : walk.size.inner;
        for (int k = place; k < SUMS * kept; k += blockDim.x * blockDim.y) {
            const int s = k / kept, first = k % kept;
            double sum = 0;
            for (int column = first; column < columns; column += kept)
                sum += of_columns[s * MOST_COLUMNS + column];
            partial[(part * SUMS + s) * width + first_column + first] = sum;
        }
        __syncthreads();
    }
}
