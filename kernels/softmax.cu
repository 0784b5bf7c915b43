// Softmax where the channels are contiguous: every row of `inner` channels by itself.
// softmax_steps.cuh says what is computed.
//
//     softmax_rows    LANES neighbouring threads share a row, each with PACKS packs of COUNT elements,
//                     LANES packs apart: it is kept in registers
//     softmax_staged  rows whose length keeps them from being read in packs: where they follow each
//                     other without a gap, a block moves many of them in wide packs between memory and
//                     shared memory, and its threads take them from there
//     softmax_long    a block has a row that is longer than its registers, and goes over it twice
//
// Memory traffic: the operands are read once and the result written once; maximum, differences,
// exponentials, sum and quotient are one kernel. What `softmax_long` reads a second time, last first,
// it has read just before, and the cache has it. They reach
// forward 66 to 97 %, backward 62 to 102 % of a copy's speed on an H200 (docs/kernels.md).
// The result may be the same memory as an operand.

#include "softmax_steps.cuh"

struct SoftmaxRows {
    Axes size;                      // rows outer x middle, of inner channels
    Axes result, first, second;     // strides in elements; inner is contiguous
    long long tile_rows;            // rows that a block takes at once
    long long tiles, middle_tiles;  // blocks' worth of work: in all, and in each outer
};

// As `store_pack`, to shared memory, which that cannot address.
template <int COUNT, typename Element>
__device__ inline void stage_pack(
    Element *destination, const Pack<Element, COUNT> &pack, int available) {
    using Wide = Access<sizeof(Element) * COUNT>;
    if (available >= COUNT) {
        Wide wide;
        static_assert(sizeof(wide) == sizeof(pack), "a pack is one access");
        memcpy(&wide, &pack, sizeof(pack));
        *reinterpret_cast<Wide *>(destination) = wide;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < available) destination[i] = pack.element[i];
    }
}

// As `load_pack`; what is not available counts for nothing, so that nobody has to ask again: nothing is
// larger than -infinity and its exponential is 0, and to sums 0 adds nothing.
template <int TASK, int COUNT, typename T>
__device__ inline Pack<T, COUNT> load_filled(const T *source, int available) {
    Pack<T, COUNT> pack;
    if (available >= COUNT) return load_pack<COUNT>(source, COUNT);
    const T nothing = narrow<T>(FORWARD<TASK> ? minus_infinity<Arithmetic<T>>() : Arithmetic<T>(0));
#pragma unroll
    for (int i = 0; i < COUNT; ++i) pack.element[i] = i < available ? source[i] : nothing;
    return pack;
}

// One row, in memory of either kind where COUNT is 1. Lanes without a row (`channels` 0) take part
// in the exchange.
template <typename T, int TASK, int COUNT, int PACKS, int LANES>
__device__ inline void softmax_row(T *result, const T *first, const T *second, int channels) {
    using A = Arithmetic<T>;
    constexpr bool BACKWARD = !FORWARD<TASK>;
    const int lane = threadIdx.x % LANES;
    Pack<T, COUNT> packs[PACKS], others[BACKWARD ? PACKS : 1];
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int at = (p * LANES + lane) * COUNT;
        packs[p] = load_filled<TASK, COUNT>(first + at, channels - at);
        if constexpr (BACKWARD) others[p] = load_filled<TASK, COUNT>(second + at, channels - at);
    }

    A m = 0;
    if constexpr (!BACKWARD) {
        m = minus_infinity<A>();
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) m = larger(m, widen(packs[p].element[i]));
        m = join_lanes<LANES>(m, [](A a, A b) { return larger(a, b); });
    }

    A terms[PACKS][COUNT], total = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const A b = BACKWARD ? widen(others[BACKWARD ? p : 0].element[i]) : A(0);
            terms[p][i] = term_of<T, TASK>(A(widen(packs[p].element[i])), b, m);
            total += terms[p][i];
        }
    total = prepared<TASK>(join_lanes<LANES>(total, [](A a, A b) { return a + b; }));

#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
        const int at = (p * LANES + lane) * COUNT;
        if (at >= channels) continue;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const A b = BACKWARD ? widen(others[BACKWARD ? p : 0].element[i]) : A(0);
            const A a = widen(packs[p].element[i]);
            packs[p].element[i] = narrow<T>(outcome<T, TASK>(a, b, terms[p][i], m, total));
        }
        if constexpr (COUNT == 1) result[at] = packs[p].element[0];
        else store_pack<COUNT>(result + at, packs[p], channels - at);
    }
}

template <int LANES>
constexpr int THREADS = LANES > BLOCK_THREADS ? LANES : BLOCK_THREADS;

// Two large blocks run at once where a thread's values leave registers for that: one reads while the
// other writes.
template <typename T, int TASK, int ELEMENTS, int LANES>
constexpr int BLOCKS =
    LANES > BLOCK_THREADS && LANES < 1024 && ELEMENTS * sizeof(Arithmetic<T>) * (FORWARD<TASK> ? 1 : 2) <= 160 ? 2 : 1;

template <typename T, int TASK, int COUNT, int PACKS, int LANES>
__global__ void __launch_bounds__(THREADS<LANES>, BLOCKS<T, TASK, PACKS * COUNT, LANES>)
    softmax_rows(SoftmaxRows geometry, T *result, const T *first, const T *second) {
    constexpr int ROWS = THREADS<LANES> / LANES;
    const long long rows = geometry.size.outer * geometry.size.middle;
    for (long long tile = blockIdx.x; tile < geometry.tiles; tile += gridDim.x) {
        const long long index = tile * ROWS + threadIdx.x / LANES;
        const Row row(index < rows ? index : 0, geometry.size);
        auto offset = [&](const Axes &stride) {
            return row.outer * stride.outer + row.middle * stride.middle;
        };
        softmax_row<T, TASK, COUNT, PACKS, LANES>(
            result + offset(geometry.result), first + offset(geometry.first),
            second + offset(geometry.second), index < rows ? (int)geometry.size.inner : 0);
    }
}

// A block goes over a row in chunks of PACKS packs a thread, and reads the next one while it computes;
// the last one stays in registers.
template <typename T, int TASK, int COUNT, int PACKS, int LANES>
__global__ void __launch_bounds__(LANES) softmax_long(
    SoftmaxRows geometry, T *result, const T *first, const T *second) {
    using A = Arithmetic<T>;
    constexpr bool BACKWARD = !FORWARD<TASK>;
    constexpr int CHUNK = LANES * PACKS * COUNT;
    const long long rows = geometry.size.outer * geometry.size.middle;
    const long long channels = geometry.size.inner, last = (channels - 1) / CHUNK * CHUNK;

    for (long long index = blockIdx.x; index < rows; index += gridDim.x) {
        const Row row(index, geometry.size);
        auto offset = [&](const Axes &stride) {
            return row.outer * stride.outer + row.middle * stride.middle;
        };
        const T *a_source = first + offset(geometry.first);
        const T *b_source = second + offset(geometry.second);
        T *target = result + offset(geometry.result);
        auto place = [](int p) { return (p * LANES + (int)threadIdx.x) * COUNT; };  // in a chunk
        auto left = [&](long long begin) { return (int)min(channels - begin, (long long)CHUNK); };
        struct Chunk {
            Pack<T, COUNT> packs[PACKS], others[BACKWARD ? PACKS : 1];
        };
        auto load = [&](long long begin) {
            Chunk chunk;
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const int at = place(p);
                chunk.packs[p] = load_filled<TASK, COUNT>(a_source + begin + at, left(begin) - at);
                if constexpr (BACKWARD)
                    chunk.others[p] =
                        load_filled<TASK, COUNT>(b_source + begin + at, left(begin) - at);
            }
            return chunk;
        };

        Peak<A> peak = {BACKWARD ? A(0) : minus_infinity<A>(), 0};
        Chunk chunk = load(0);
        for (long long begin = 0; begin <= last; begin += CHUNK) {
            const Chunk next = begin < last ? load(begin + CHUNK) : chunk;
            A m = peak.m, sum = 0;
            if constexpr (!BACKWARD) {
#pragma unroll
                for (int p = 0; p < PACKS; ++p)
#pragma unroll
                    for (int i = 0; i < COUNT; ++i)
                        m = larger(m, A(widen(chunk.packs[p].element[i])));
            }
            const A base = m == minus_infinity<A>() ? A(0) : m;
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const A b = BACKWARD ? widen(chunk.others[BACKWARD ? p : 0].element[i]) : A(0);
                    sum += term_of<T, TASK>(A(widen(chunk.packs[p].element[i])), b, base);
                }
            peak.sum = peak.sum * rescaling(peak.m, m) + sum;
            peak.m = m;
            chunk = next;
        }
        A m = peak.m;
        if constexpr (!BACKWARD) {
            m = join_lanes<LANES>(m, [](A a, A b) { return larger(a, b); });
            peak.sum *= rescaling(peak.m, m);
        }
        const double sum = join_lanes<LANES>(peak.sum, sum_of_two);
        const A total = prepared<TASK>(A(sum));

        for (long long begin = last; begin >= 0; begin -= CHUNK) {
            const Chunk next = begin > 0 ? load(begin - CHUNK) : chunk;
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const A a = widen(chunk.packs[p].element[i]);
                    const A b = BACKWARD ? widen(chunk.others[BACKWARD ? p : 0].element[i]) : A(0);
                    const A term = TASK == ACCURATE ? exponential_for<T>(a - m) : A(0);
                    chunk.packs[p].element[i] = narrow<T>(outcome<T, TASK>(a, b, term, m, total));
                }
                store_pack<COUNT>(
                    target + begin + place(p), chunk.packs[p], left(begin) - place(p));
            }
            chunk = next;
        }
    }
}

// Here COUNT is of the packs between memory and shared memory, and ITEMS elements belong to a lane.
template <typename T, int TASK, int COUNT, int ITEMS, int LANES, int STAGE_BYTES>
__global__ void __launch_bounds__(BLOCK_THREADS) softmax_staged(
    SoftmaxRows geometry, T *result, const T *first, const T *second) {
    constexpr int OPERANDS = FORWARD<TASK> ? 1 : 2;
    constexpr int STAGE = STAGE_BYTES / OPERANDS / sizeof(T);
    constexpr int PACKS = (STAGE / COUNT + BLOCK_THREADS - 1) / BLOCK_THREADS;
    __shared__ __align__(16) T stage[OPERANDS][STAGE];
    const int channels = (int)geometry.size.inner;

    for (long long tile = blockIdx.x; tile < geometry.tiles; tile += gridDim.x) {
        const long long outer = divided(tile, geometry.middle_tiles);
        const long long first_row = (tile - outer * geometry.middle_tiles) * geometry.tile_rows;
        const int rows = (int)min(geometry.tile_rows, geometry.size.middle - first_row);
        const int elements = rows * channels;
        auto offset = [&](const Axes &stride) {
            return outer * stride.outer + first_row * channels;
        };

#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) {
            const T *source =
                o == 0 ? first + offset(geometry.first) : second + offset(geometry.second);
            Pack<T, COUNT> packs[PACKS];
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const int at = (p * BLOCK_THREADS + threadIdx.x) * COUNT;
                packs[p] = load_pack<COUNT>(source + at, elements - at);
            }
#pragma unroll
            for (int p = 0; p < PACKS; ++p) {
                const int at = (p * BLOCK_THREADS + threadIdx.x) * COUNT;
                if (at < elements) stage_pack<COUNT>(stage[o] + at, packs[p], elements - at);
            }
        }
        __syncthreads();
        // All threads as often as any: a row's lanes exchange values.
        for (int begin = 0; begin < rows; begin += BLOCK_THREADS / LANES) {
            const int row = begin + threadIdx.x / LANES;
            const int at = row < rows ? row * channels : 0;
            softmax_row<T, TASK, 1, ITEMS, LANES>(
                stage[0] + at, stage[0] + at, stage[OPERANDS - 1] + at, row < rows ? channels : 0);
        }
        __syncthreads();
        T *destination = result + offset(geometry.result);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const int at = (p * BLOCK_THREADS + threadIdx.x) * COUNT;
            if (at < elements)
                store_pack<COUNT>(
                    destination + at, load_pack<COUNT>(stage[0] + at, elements - at),
                    elements - at);
        }
        __syncthreads();
    }
}
