// Moving bytes on the card without computing: destination[n,c,s] = value[n,c,s] between different
// strides, and zero-filling the border rows of a pitched block. Elements are bit patterns of 2, 4
// or 8 bytes (`Word`); NaN payloads survive. Source and destination must not overlap.
//
//     copy_strided   the innermost axis agrees (or nothing is contiguous): rows of packs
//     transpose      channels-first <-> channels-last: tiles through shared memory
//     fill_zero      `count` rows of `width` words, `pitch` words apart

#include "element.cuh"

struct Axes {
    long long outer, middle, inner;
};

struct CopyGeometry {
    Axes size;                      // in words
    Axes destination, value;        // strides in words; inner is 1 where COUNT > 1
    long long tiles, column_tiles;  // blocks' worth of work: in all, and along a row
};

// As in pointwise.cu: a thread owns UNROLL packs of COUNT words, down the rows or along one row.
template <typename Word, int COUNT, int UNROLL, bool UNROLL_ROWS>
__global__ void __launch_bounds__(256) copy_strided(
    CopyGeometry geometry, Word *__restrict__ destination, const Word *__restrict__ value) {
    const Axes size = geometry.size;
    const long long rows = size.outer * size.middle;

    for (long long tile = blockIdx.x; tile < geometry.tiles; tile += gridDim.x) {
        const long long row_tile = (unsigned long long)tile / geometry.column_tiles;
        const long long column_tile = tile - row_tile * geometry.column_tiles;
        const long long first_row =
            row_tile * blockDim.y * (UNROLL_ROWS ? UNROLL : 1) + threadIdx.y;
        const long long first_column =
            (column_tile * blockDim.x * (UNROLL_ROWS ? 1 : UNROLL) + threadIdx.x) * COUNT;

        Pack<Word, COUNT> packs[UNROLL];
        long long target[UNROLL], available[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const long long row = first_row + (UNROLL_ROWS ? u * (int)blockDim.y : 0);
            const long long column = first_column + (UNROLL_ROWS ? 0 : u * (int)blockDim.x * COUNT);
            available[u] = row < rows ? size.inner - column : 0;
            const long long outer = size.outer == 1 ? 0 : (unsigned long long)row / size.middle;
            const long long middle = row - outer * size.middle;
            auto offset = [&](const Axes &stride) {
                return outer * stride.outer + middle * stride.middle +
                       column * (COUNT > 1 ? 1 : stride.inner);
            };
            target[u] = offset(geometry.destination);
            packs[u] = load_pack<COUNT>(value + offset(geometry.value), available[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            store_pack<COUNT>(destination + target[u], packs[u], available[u]);
    }
}

// p is the axis contiguous in `value`, q the one contiguous in `destination`: channels-first to
// channels-last has p = s and q = c, the way back p = c and q = s.
struct TransposeGeometry {
    long long size_p, size_q;
    long long value_n, value_q;              // strides in words; value's p stride is 1
    long long destination_n, destination_p;  // destination's q stride is 1
    long long tiles, tiles_p, tiles_q;       // in all (n included), along p, along q
};

// A block of 256 threads moves TILE_P x TILE_Q words: reads runs along p, LOAD words a thread,
// writes runs along q, STORE words a thread. The tile is shaped by the host: near square where both
// axes are long, exactly as narrow as the tensor where it has few channels, so that no lane idles.
template <typename Word, int TILE_P, int TILE_Q, int LOAD, int STORE>
__global__ void __launch_bounds__(256, 3) transpose(
    TransposeGeometry geometry, Word *__restrict__ destination, const Word *__restrict__ value) {
    constexpr int THREADS = 256;
    // Rows of the tile are padded so that a warp that walks q meets 32 different banks: an odd
    // pitch does it for 32 and more rows; for fewer, each row is shifted by the lanes of one row.
    constexpr int PITCH = TILE_Q >= 32 ? (TILE_P | 1) : TILE_P + (32 + TILE_Q - 1) / TILE_Q;
    constexpr int LOADS = TILE_Q * (TILE_P / LOAD), STORES = TILE_P * (TILE_Q / STORE);
    constexpr int LOAD_ROUNDS = (LOADS + THREADS - 1) / THREADS;
    constexpr int STORE_ROUNDS = (STORES + THREADS - 1) / THREADS;
    static_assert(TILE_P % LOAD == 0 && TILE_Q % STORE == 0, "a tile holds whole packs");
    __shared__ Word tile[TILE_Q * PITCH];
    const int thread = threadIdx.x;

    for (long long index = blockIdx.x; index < geometry.tiles; index += gridDim.x) {
        const long long rest = (unsigned long long)index / geometry.tiles_q;
        const long long n = (unsigned long long)rest / geometry.tiles_p;
        const long long first_q = (index - rest * geometry.tiles_q) * TILE_Q;
        const long long first_p = (rest - n * geometry.tiles_p) * TILE_P;
        const long long left_p = geometry.size_p - first_p, left_q = geometry.size_q - first_q;
        const Word *source = value + n * geometry.value_n + first_q * geometry.value_q + first_p;
        Word *target =
            destination + n * geometry.destination_n + first_p * geometry.destination_p + first_q;

        Pack<Word, LOAD> packs[LOAD_ROUNDS];
#pragma unroll
        for (int round = 0; round < LOAD_ROUNDS; ++round) {
            const int item = round * THREADS + thread;
            const int q = item / (TILE_P / LOAD), p = item % (TILE_P / LOAD) * LOAD;
            if (q < TILE_Q && q < left_q)
                packs[round] = load_pack<LOAD>(source + q * geometry.value_q + p, left_p - p);
        }
#pragma unroll
        for (int round = 0; round < LOAD_ROUNDS; ++round) {
            const int item = round * THREADS + thread;
            const int q = item / (TILE_P / LOAD), p = item % (TILE_P / LOAD) * LOAD;
            if (q < TILE_Q) {
#pragma unroll
                for (int i = 0; i < LOAD; ++i) tile[q * PITCH + p + i] = packs[round].element[i];
            }
        }
        __syncthreads();
#pragma unroll
        for (int round = 0; round < STORE_ROUNDS; ++round) {
            const int item = round * THREADS + thread;
            const int p = item / (TILE_Q / STORE), q = item % (TILE_Q / STORE) * STORE;
            if (p < TILE_P && p < left_p) {
                Pack<Word, STORE> pack;
#pragma unroll
                for (int i = 0; i < STORE; ++i) pack.element[i] = tile[(q + i) * PITCH + p];
                store_pack<STORE>(target + p * geometry.destination_p + q, pack, left_q - q);
            }
        }
        __syncthreads();  // the next tile overwrites this one
    }
}

// The host picks the widest Word (up to 16 bytes) that divides address, width and pitch.
template <typename Word>
__global__ void __launch_bounds__(256) fill_zero(
    Word *destination, long long width, long long count, long long pitch) {
    const long long total = width * count, step = (long long)gridDim.x * blockDim.x;
    const Word zero = {};
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const long long row = (unsigned long long)i / width;
        destination[row * pitch + (i - row * width)] = zero;
    }
}
