// Moving bytes on the card without computing: destination[n,c,s] = value[n,c,s] between different
// strides, and zero-filling the border rows of a pitched block. Elements are bit patterns of 2, 4
// or 8 bytes (`Word`); NaN payloads survive. Source and destination must not overlap.
//
//     copy_strided   the innermost axis agrees (or nothing is contiguous): rows of packs
//     transpose      the innermost axes differ (NCHW, NHWC and CHWN among each other): tiles through
//                    shared memory
//     fill_zero      `count` rows of `width` words, `pitch` words apart
//
// Memory traffic: every element is read once and written once. `transpose` reached 71 to 100 % of a
// copy's speed on an H200 where runs begin on 16-byte boundaries, and 38 to 58 % where they do not,
// as in NCHW of odd extents, before their packs were SHIFTED (docs/kernels.md).

#include "strided.cuh"

struct CopyGeometry {
    Axes size;                      // in words
    Axes destination, value;        // strides in words
    long long tiles, column_tiles;  // blocks' worth of work: in all, and along a row
};

// As in pointwise.cu: a thread owns UNROLL packs of COUNT words, down the rows or along one row;
// CONTIGUOUS says that the inner strides are 1.
template <typename Word, int COUNT, int UNROLL, bool UNROLL_ROWS, bool CONTIGUOUS>
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
};

// Where the runs of a tile begin: one for each q in `value`, for each p in `destination`.
template <bool SPLIT>
struct Runs {
    long long stride, inner, outer_stride, first;

    // of all before the tile, where they are no part of `at`
    __device__ long long begin() const { return SPLIT ? 0 : first * stride; }
    __device__ long long at(int run) const {
        if (!SPLIT) return run * stride;
        const long long outside = quotient(first + run, inner);
        return outside * outer_stride + (first + run - outside * inner) * stride;
    }
};

constexpr int TRANSPOSE_THREADS = 256;

// Where a thread is in a tile made of runs of ACROSS packs, in each round of the block over it.
template <int ACROSS>
struct Rounds {
    static constexpr bool EVEN = TRANSPOSE_THREADS % ACROSS == 0;  // then `pack` never changes
    static constexpr int STEP = TRANSPOSE_THREADS / ACROSS;        // and `run` takes this step

    static __device__ int run(int round) {
        if (EVEN) return threadIdx.x / ACROSS + round * STEP;
        return (threadIdx.x + round * TRANSPOSE_THREADS) / ACROSS;
    }
    static __device__ int pack(int round) {
        if (EVEN) return threadIdx.x % ACROSS;
        return (threadIdx.x + round * TRANSPOSE_THREADS) % ACROSS;
    }
    template <bool SPLIT>
    static __device__ long long offset(int round, const Runs<SPLIT> &runs) {
        if (!SPLIT && EVEN)
            return (int)(threadIdx.x / ACROSS) * runs.stride + round * (STEP * runs.stride);
        return runs.at(run(round));
    }
};

// Runs of a tile in shared memory are padded so that a warp that walks across them meets 32
// different banks: an odd pitch does it for 32 and more runs; for fewer, each is shifted by the
// lanes that one run takes.
template <int TILE_P, int TILE_Q>
constexpr int PITCH = TILE_Q >= 32 ? (TILE_P | 1) : TILE_P + (32 + TILE_Q - 1) / TILE_Q;

// How a side's runs are cut into packs.
//     ALIGNED  every run begins where a pack may begin
//     FLAT     runs as short as the tile is narrow, that follow each other without a gap: packs run on
//              from one to the next
//     SHIFTED  runs begin anywhere: packs lie on their boundaries, and the first and the last one of a
//              run are moved word by word
enum Side { ALIGNED = 0, FLAT = 1, SHIFTED = 2 };

template <int SIDE, int LENGTH, int AREA, int COUNT>
constexpr int ACROSS = SIDE == FLAT ? AREA / COUNT : LENGTH / COUNT + (SIDE == SHIFTED);

// How far the words at `run` are behind the last boundary of packs.
template <int SIDE, int COUNT, typename Word>
__device__ inline int shift_of(const Word *run) {
    return SIDE == SHIFTED ? (int)((unsigned long long)run / sizeof(Word) % COUNT) : 0;
}

// One tile, of which left_p x left_q words exist (CHECKED; else all do): everything is read before
// anything waits.
template <bool CHECKED, typename Word, int TILE_P, int TILE_Q, int LOAD, int STORE, int READ,
          int WRITTEN, bool SPLIT_READ, bool SPLIT_WRITTEN>
__device__ inline void transpose_tile(
    Word *tile, Word *__restrict__ target, const Word *__restrict__ source,
    const Runs<SPLIT_WRITTEN> &target_runs, const Runs<SPLIT_READ> &source_runs, int left_p,
    int left_q) {
    constexpr int AREA = TILE_P * TILE_Q, PITCHED = PITCH<TILE_P, TILE_Q>;
    constexpr int READ_ACROSS = ACROSS<READ, TILE_P, AREA, LOAD>;
    constexpr int WRITE_ACROSS = ACROSS<WRITTEN, TILE_Q, AREA, STORE>;
    using Read = Rounds<READ_ACROSS>;
    using Write = Rounds<WRITE_ACROSS>;
    constexpr int PACKS_READ = READ == FLAT ? READ_ACROSS : TILE_Q * READ_ACROSS;
    constexpr int PACKS_WRITTEN = WRITTEN == FLAT ? WRITE_ACROSS : TILE_P * WRITE_ACROSS;
    constexpr int READ_ROUNDS = (PACKS_READ + TRANSPOSE_THREADS - 1) / TRANSPOSE_THREADS;
    constexpr int WRITE_ROUNDS = (PACKS_WRITTEN + TRANSPOSE_THREADS - 1) / TRANSPOSE_THREADS;

    Pack<Word, LOAD> read[READ_ROUNDS];
    int begin_p[READ_ROUNDS];  // the first word of a pack, in its run
#pragma unroll
    for (int round = 0; round < READ_ROUNDS; ++round) {
        if (threadIdx.x + round * TRANSPOSE_THREADS >= PACKS_READ) continue;
        const int q = Read::run(round);  // flat: 0
        const Word *run = source + Read::offset(round, source_runs);
        const int p = Read::pack(round) * LOAD - shift_of<READ, LOAD>(run);
        const int left = !CHECKED ? (READ == FLAT ? AREA : TILE_P)
                         : READ == FLAT ? left_q * TILE_P
                                        : (q < left_q ? left_p : 0);
        begin_p[round] = p;
        if (READ == SHIFTED && (p < 0 || left - p < LOAD)) {
#pragma unroll
            for (int i = 0; i < LOAD; ++i)
                if (p + i >= 0 && p + i < left) read[round].element[i] = run[p + i];
        } else {
            read[round] = load_pack<LOAD>(run + p, CHECKED ? left - p : LOAD);
        }
    }
#pragma unroll
    for (int round = 0; round < READ_ROUNDS; ++round) {
        if (threadIdx.x + round * TRANSPOSE_THREADS >= PACKS_READ) continue;
        const int q = Read::run(round);
#pragma unroll
        for (int i = 0; i < LOAD; ++i) {
            const int p = begin_p[round] + i;
            if (READ == SHIFTED && (p < 0 || p >= TILE_P)) continue;
            tile[READ == FLAT ? p / TILE_P * PITCHED + p % TILE_P : q * PITCHED + p] =
                read[round].element[i];
        }
    }
    __syncthreads();
    Pack<Word, STORE> written[WRITE_ROUNDS];
    int begin_q[WRITE_ROUNDS];
#pragma unroll
    for (int round = 0; round < WRITE_ROUNDS; ++round) {
        if (threadIdx.x + round * TRANSPOSE_THREADS >= PACKS_WRITTEN) continue;
        const int p = Write::run(round);
        const Word *run = target + Write::offset(round, target_runs);
        begin_q[round] = Write::pack(round) * STORE - shift_of<WRITTEN, STORE>(run);
#pragma unroll
        for (int i = 0; i < STORE; ++i) {
            const int q = begin_q[round] + i;
            if (WRITTEN == SHIFTED && (q < 0 || q >= TILE_Q)) continue;
            written[round].element[i] =
                tile[WRITTEN == FLAT ? q % TILE_Q * PITCHED + q / TILE_Q : q * PITCHED + p];
        }
    }
#pragma unroll
    for (int round = 0; round < WRITE_ROUNDS; ++round) {
        if (threadIdx.x + round * TRANSPOSE_THREADS >= PACKS_WRITTEN) continue;
        const int p = Write::run(round), q = begin_q[round];
        const int left = !CHECKED ? (WRITTEN == FLAT ? AREA : TILE_Q)
                         : WRITTEN == FLAT ? left_p * TILE_Q
                                           : (p < left_p ? left_q : 0);
        Word *run = target + Write::offset(round, target_runs);
        if (WRITTEN == SHIFTED && (q < 0 || left - q < STORE)) {
#pragma unroll
            for (int i = 0; i < STORE; ++i)
                if (q + i >= 0 && q + i < left) run[q + i] = written[round].element[i];
        } else {
            store_pack<STORE>(run + q, written[round], CHECKED ? left - q : STORE);
        }
    }
    __syncthreads();  // the next tile overwrites this one
}

// A block of 256 threads moves TILE_P x TILE_Q words at a time: it reads runs along p, LOAD words a
// thread, and writes runs along q, STORE words a thread. The tile is shaped by the host: near
// square where both axes are long, exactly as narrow as the tensor where it has few channels (or
// images), so that no lane idles. One axis goes with blockIdx.x (P_ALONG_X: p, else q), the other
// with y, the batch with z; each loops where the grid ends.
template <typename Word, int TILE_P, int TILE_Q, int LOAD, int STORE, bool P_ALONG_X, int SPLIT,
          int READ, int WRITTEN>
__global__ void __launch_bounds__(TRANSPOSE_THREADS, sizeof(Word) == 8 ? 3 : 4) transpose(
    TransposeGeometry geometry, Word *__restrict__ destination, const Word *__restrict__ value) {
    static_assert((READ == FLAT ? TILE_P * TILE_Q : TILE_P) % LOAD == 0, "of whole packs");
    static_assert((WRITTEN == FLAT ? TILE_P * TILE_Q : TILE_Q) % STORE == 0, "of whole packs");
    __shared__ Word tile[TILE_Q * PITCH<TILE_P, TILE_Q>];
    const long long begin_p = (P_ALONG_X ? blockIdx.x : blockIdx.y) * (long long)TILE_P;
    const long long begin_q = (P_ALONG_X ? blockIdx.y : blockIdx.x) * (long long)TILE_Q;
    const long long step_p = (P_ALONG_X ? gridDim.x : gridDim.y) * (long long)TILE_P;
    const long long step_q = (P_ALONG_X ? gridDim.y : gridDim.x) * (long long)TILE_Q;

    for (long long n = blockIdx.z; n < geometry.batch; n += gridDim.z)
        for (long long p = begin_p; p < geometry.size_p; p += step_p)
            for (long long q = begin_q; q < geometry.size_q; q += step_q) {
                const Runs<SPLIT == SPLIT_Q> source_runs = {
                    geometry.value_q, geometry.inner, geometry.outer_stride, q};
                const Runs<SPLIT == SPLIT_P> target_runs = {
                    geometry.destination_p, geometry.inner, geometry.outer_stride, p};
                const Word *source = value + n * geometry.value_n + source_runs.begin() + p;
                Word *target = destination + n * geometry.destination_n + target_runs.begin() + q;
                const long long rest_p = geometry.size_p - p, rest_q = geometry.size_q - q;
                if (rest_p >= TILE_P && rest_q >= TILE_Q)
                    transpose_tile<false, Word, TILE_P, TILE_Q, LOAD, STORE, READ, WRITTEN>(
                        tile, target, source, target_runs, source_runs, TILE_P, TILE_Q);
                else
                    transpose_tile<true, Word, TILE_P, TILE_Q, LOAD, STORE, READ, WRITTEN>(
                        tile, target, source, target_runs, source_runs,
                        rest_p < TILE_P ? (int)rest_p : TILE_P,
                        rest_q < TILE_Q ? (int)rest_q : TILE_Q);
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
