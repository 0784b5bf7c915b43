// Moving bytes on the card without computing: destination[n,c,s] = value[n,c,s] between different
// strides, and zero-filling the border rows of a pitched block. Elements are bit patterns of 2, 4
// or 8 bytes (`Word`); NaN payloads survive. Source and destination must not overlap.
//
//     copy_strided   the innermost axis agrees (or nothing is contiguous): rows of packs
//     transpose      the innermost axes differ (NCHW, NHWC and CHWN among each other): tiles through
//                    shared memory; either of up to six axes: windows, heads, parts of a map
//     fill_zero      `count` rows of `width` words, `pitch` words apart
//
// Memory traffic: every element is read once and written once. `transpose` reaches
// 89 to 99 % of a copy's speed on an H200 (docs/kernels.md).
// That hangs on registers: where they spilled, or were just enough, it lost a sixth to two thirds of
// its speed.

#include "strided.cuh"

// Three axes outside of what blocks go through, of which each is once in the grid: the first is its
// y, the others its z. Strides in words.
struct Outside {
    int last;  // extent of the last one
    long long destination[3], value[3];

    static __device__ long long begin(const long long *stride, int last) {
        const int outer = quotient((int)blockIdx.z, last);
        return blockIdx.y * stride[0] + outer * stride[1] + ((int)blockIdx.z - outer * last) * stride[2];
    }
};

struct CopyGeometry {
    Axes size;                      // in words
    Axes destination, value;        // strides in words
    long long tiles, column_tiles;  // blocks' worth of work: in all, and along a row
    Outside outside;
};

// As in pointwise.cu: a thread owns UNROLL packs of COUNT words, down the rows or along one row;
// CONTIGUOUS says that the inner strides are 1.
template <typename Word, int COUNT, int UNROLL, bool UNROLL_ROWS, bool CONTIGUOUS>
__global__ void __launch_bounds__(BLOCK_THREADS) copy_strided(
    CopyGeometry geometry, Word *__restrict__ destination, const Word *__restrict__ value) {
    const Axes size = geometry.size;
    const long long rows = size.outer * size.middle;
    const Outside &outside = geometry.outside;
    destination += Outside::begin(outside.destination, outside.last);
    value += Outside::begin(outside.value, outside.last);

    for (long long tile = blockIdx.x; tile < geometry.tiles; tile += gridDim.x) {
        const long long row_tile = (unsigned long long)tile / geometry.column_tiles;
        const long long column_tile = tile - row_tile * geometry.column_tiles;
        const long long first_row =
            row_tile * blockDim.y * (UNROLL_ROWS ? UNROLL : 1) + threadIdx.y;
        const long long first_column =
            (column_tile * blockDim.x * (UNROLL_ROWS ? 1 : UNROLL) + threadIdx.x) * COUNT;

        Pack<Word, COUNT> packs[UNROLL];
        long long target[UNROLL], available[UNROLL];
        Row row(first_row, size);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (UNROLL_ROWS && u > 0) row.advance(blockDim.y, size);
            const bool inside = first_row + (UNROLL_ROWS ? u * (int)blockDim.y : 0) < rows;
            const long long column = first_column + (UNROLL_ROWS ? 0 : u * (int)blockDim.x * COUNT);
            auto offset = [&](const Axes &stride) {
                return row.outer * stride.outer + row.middle * stride.middle +
                       column * (CONTIGUOUS ? 1 : stride.inner);
            };
            available[u] = inside ? size.inner - column : 0;
            target[u] = offset(geometry.destination);
            packs[u] = load_pack<COUNT>(value + offset(geometry.value), available[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            store_pack<COUNT>(destination + target[u], packs[u], available[u]);
    }
}

// p is the axis contiguous in `value`, q the one contiguous in `destination`: NCHW to NHWC has p = s
// and q = c, the way back p = c and q = s; NCHW to CHWN has p = (c, s) and q = n. A third axis, if
// there is one, is the batch: n between the first two, s between NHWC and CHWN.
//
// Where p or q is short there, c say, the batch joins it: p = (s, c) is contiguous in NHWC, too. In
// the other tensor it is then no axis of one stride, but SPLIT: `inner` elements one stride apart,
// and the batch outside of them another.
enum Split { WHOLE = 0, SPLIT_P = 1, SPLIT_Q = 2 };

struct TransposeGeometry {
    long long batch, size_p, size_q;
    long long value_n, value_q;              // strides in words; value's p stride is 1
    long long destination_n, destination_p;  // destination's q stride is 1
    long long inner, outer_stride;           // of the axis that is split; else 1 and 0
    long long near_tiles, far_tiles, tiles;  // along the axis that is gone along first; and in all
    long long value_words;                   // from its first to its last one
    Outside outside;
};

// Where the runs of a tile begin: one for each q in `value`, for each p in `destination`.
template <bool SPLIT>
struct Runs {
    long long stride, outer_stride, begin;
    int inner, first;  // how far in `inner` the tile begins

    __device__ Runs(long long first_run, long long stride, const TransposeGeometry &g)
        : stride(stride), outer_stride(g.outer_stride), inner((int)g.inner), first(0) {
        const long long outside = SPLIT ? quotient(first_run, g.inner) : 0;
        if (SPLIT) first = (int)(first_run - outside * inner);
        begin = outside * outer_stride + (SPLIT ? 0 : first_run * stride);
    }
    __device__ long long at(int run) const {
        if (!SPLIT) return run * stride;
        const int outside = quotient(first + run, inner);
        return outside * outer_stride + (first + run - outside * inner) * stride;
    }
};

// How a side's runs are cut into packs.
//     ALIGNED  runs begin where packs may, and are whole packs
//     FLAT     the tile has whole runs, which follow each other without a gap: packs run on from one to
//              the next
//     SHIFTED  runs begin anywhere: packs lie on their boundaries, the first and the last one of a run
//              in part beside it
enum Side { ALIGNED = 0, FLAT = 1, SHIFTED = 2 };

// One side of a tile: RUNS runs of LENGTH words in packs of COUNT, and which of them a thread has in
// each round of the block.
template <int SIDE, int RUNS, int LENGTH, int COUNT>
struct Packs {
    static constexpr int ACROSS = SIDE == FLAT      ? RUNS * LENGTH / COUNT
                                  : SIDE == ALIGNED ? LENGTH / COUNT
                                                    : (LENGTH + 2 * COUNT - 2) / COUNT;
    static constexpr int NUMBER = SIDE == FLAT ? ACROSS : RUNS * ACROSS;
    static constexpr int ROUNDS = (NUMBER + BLOCK_THREADS - 1) / BLOCK_THREADS;
    static constexpr bool EVEN = BLOCK_THREADS % ACROSS == 0;  // then the column never changes
    static_assert(SIDE == SHIFTED || ACROSS * COUNT == (SIDE == FLAT ? RUNS : 1) * LENGTH, "whole packs");

    // False where nothing is left for this thread; known when compiled but in the last round.
    static __device__ bool has(int round) {
        return (round + 1) * BLOCK_THREADS <= NUMBER ||
               threadIdx.x + round * BLOCK_THREADS < NUMBER;
    }
    static __device__ int run(int round) {  // flat: 0
        if (EVEN) return threadIdx.x / ACROSS + round * (BLOCK_THREADS / ACROSS);
        return (threadIdx.x + round * BLOCK_THREADS) / ACROSS;
    }
    // The pack's first word, in its run; `words` has that run.
    template <typename Word>
    static __device__ int first(int round, const Word *words) {
        const int column =
            EVEN ? threadIdx.x % ACROSS : (threadIdx.x + round * BLOCK_THREADS) % ACROSS;
        if (SIDE != SHIFTED) return column * COUNT;
        return column * COUNT - (int)((unsigned long long)words / sizeof(Word) % COUNT);
    }
    // Where word i of a pack is: its run in the tile, and its place there.
    static __device__ int run_of(int run, int first, int i) {
        return SIDE == FLAT ? (first + (LENGTH % COUNT ? i : 0)) / LENGTH : run;
    }
    static __device__ int place_of(int first, int i) {
        if (SIDE != FLAT) return first + i;
        return LENGTH % COUNT ? (first + i) % LENGTH : first % LENGTH + i;
    }
};

// Runs of a tile in shared memory are padded so that a warp that walks across them meets 32
// different banks: an odd pitch does it for 32 and more runs; for fewer, each is shifted by the
// lanes that one run takes.
template <int TILE_P, int TILE_Q>
constexpr int PITCH = TILE_Q >= 32 ? (TILE_P | 1) : TILE_P + (32 + TILE_Q - 1) / TILE_Q;

// So many blocks are to run at once on a multiprocessor, with registers accordingly: more of small
// tiles, so that enough bytes are on their way. Before 8.0 there are 1,024 threads at the most.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int MOST_BLOCKS = 4;
#else
constexpr int MOST_BLOCKS = 8;
#endif
template <int TILE_BYTES, typename Word>
constexpr int WANTED_BLOCKS =  // words of other sizes take more registers
    sizeof(Word) != 4 ? 4 : TILE_BYTES <= 8192 ? 8 : TILE_BYTES <= 12288 ? 6 : 5;
template <int TILE_BYTES, typename Word>
constexpr int BLOCKS = WANTED_BLOCKS<TILE_BYTES, Word> < MOST_BLOCKS ? WANTED_BLOCKS<TILE_BYTES, Word>
                                                                    : MOST_BLOCKS;

// A block of 256 threads moves TILE_P x TILE_Q words: it reads runs along p, LOAD words a thread, and
// writes runs along q, STORE words a thread; everything is read before anything waits. The host
// shapes the tile. Tiles go along p first (P_NEAR), or along q, then along the other, then the batch.
template <typename Word, int TILE_P, int TILE_Q, int LOAD, int STORE, bool P_NEAR, int SPLIT, int READ,
          int WRITTEN>
__global__ void __launch_bounds__(
    BLOCK_THREADS, BLOCKS<TILE_P * TILE_Q * sizeof(Word), Word>) transpose(
    TransposeGeometry g, Word *__restrict__ destination, const Word *__restrict__ value) {
    using Read = Packs<READ, TILE_Q, TILE_P, LOAD>;
    using Write = Packs<WRITTEN, TILE_P, TILE_Q, STORE>;
    constexpr int PITCHED = PITCH<TILE_P, TILE_Q>;
    __shared__ __align__(16) Word tile[TILE_Q * PITCHED];

    for (long long index = blockIdx.x; index < g.tiles; index += gridDim.x) {
        const long long line = quotient(index, g.near_tiles), n = quotient(line, g.far_tiles);
        const long long near = index - line * g.near_tiles, far = line - n * g.far_tiles;
        const long long first_p = (P_NEAR ? near : far) * TILE_P;
        const long long first_q = (P_NEAR ? far : near) * TILE_Q;
        const int left_p = (int)min(g.size_p - first_p, (long long)TILE_P);
        const int left_q = (int)min(g.size_q - first_q, (long long)TILE_Q);
        const Runs<SPLIT == SPLIT_Q> sources(first_q, g.value_q, g);
        const Runs<SPLIT == SPLIT_P> targets(first_p, g.destination_p, g);
        // Found anew for each tile: pointers that are kept are registers.
        const Word *source = value + Outside::begin(g.outside.value, g.outside.last) +
                             n * g.value_n + sources.begin + first_p;
        Word *target = destination + Outside::begin(g.outside.destination, g.outside.last) +
                       n * g.destination_n + targets.begin + first_q;

        Pack<Word, LOAD> read[Read::ROUNDS] = {};
#pragma unroll
        for (int round = 0; round < Read::ROUNDS; ++round) {
            if (!Read::has(round)) continue;
            const int q = Read::run(round);
            const Word *run = source + sources.at(q);
            const int p = Read::first(round, run);
            if (READ == FLAT) {
                read[round] = load_pack<LOAD>(run + p, left_q * TILE_P - p);
            } else if (READ == ALIGNED) {
                if (q < left_q && p < left_p) read[round] = load_pack<LOAD>(run + p, LOAD);
            } else if (q < left_q && p < left_p && p > -LOAD) {
                // What lies beside a run is another one's; only beyond the operand there is nothing.
                const long long at = run + p - value;
                if (at >= 0 && at + LOAD <= g.value_words) {
                    read[round] = load_pack<LOAD>(run + p, LOAD);
                } else {
#pragma unroll
                    for (int i = 0; i < LOAD; ++i)
                        if (p + i >= 0 && p + i < left_p) read[round].element[i] = run[p + i];
                }
            }
        }
#pragma unroll
        for (int round = 0; round < Read::ROUNDS; ++round) {
            if (!Read::has(round)) continue;
            const int q = Read::run(round), p = Read::first(round, source + sources.at(q));
#pragma unroll
            for (int i = 0; i < LOAD; ++i) {
                if (READ == SHIFTED && (p + i < 0 || p + i >= TILE_P)) continue;
                tile[Read::run_of(q, p, i) * PITCHED + Read::place_of(p, i)] = read[round].element[i];
            }
        }
        __syncthreads();
        // SHIFTED ones, which take more registers, round by round.
        constexpr int AT_ONCE = WRITTEN == SHIFTED ? 1 : Write::ROUNDS;
#pragma unroll
        for (int begin = 0; begin < Write::ROUNDS; begin += AT_ONCE) {
            Pack<Word, STORE> written[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                if (!Write::has(begin + u)) continue;
                const int p = Write::run(begin + u);
                const int q = Write::first(begin + u, target + targets.at(p));
#pragma unroll
                for (int i = 0; i < STORE; ++i) {
                    if (WRITTEN == SHIFTED && (q + i < 0 || q + i >= TILE_Q)) continue;
                    written[u].element[i] =
                        tile[Write::place_of(q, i) * PITCHED + Write::run_of(p, q, i)];
                }
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                if (!Write::has(begin + u)) continue;
                const int p = Write::run(begin + u);
                Word *run = target + targets.at(p);
                const int q = Write::first(begin + u, run);
                if (WRITTEN == FLAT) {
                    store_pack<STORE>(run + q, written[u], left_p * TILE_Q - q);
                } else if (WRITTEN == ALIGNED) {
                    if (p < left_p && q < left_q) store_pack<STORE>(run + q, written[u], STORE);
                } else if (p < left_p) {
                    if (q >= 0 && q + STORE <= left_q) {
                        store_pack<STORE>(run + q, written[u], STORE);
                    } else {
#pragma unroll
                        for (int i = 0; i < STORE; ++i)
                            if (q + i >= 0 && q + i < left_q) run[q + i] = written[u].element[i];
                    }
                }
            }
        }
        __syncthreads();  // the next tile overwrites this one
    }
}

// The host picks the widest Word (up to 16 bytes) that divides address, width and pitch.
template <typename Word>
__global__ void __launch_bounds__(BLOCK_THREADS) fill_zero(
    Word *destination, long long width, long long count, long long pitch) {
    const long long total = width * count, step = (long long)gridDim.x * blockDim.x;
    const Word zero = {};
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const long long row = (unsigned long long)i / width;
        destination[row * pitch + (i - row * width)] = zero;
    }
}
