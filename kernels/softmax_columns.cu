// Softmax where the sites are contiguous: a thread has COUNT neighbouring sites, and the channels
// y, y + Y, ... of them, Y being the block's height; what the threads of a column found is joined.
// softmax_steps.cuh says what is computed.
//
// Few channels are kept in registers, read once (`softmax_columns`). Many are swept twice
// (`softmax_columns_swept`); that kernel is right for any strides. The result may be the same
// memory as an operand.
//
// Memory traffic: the operands are read once and the result written once; swept, operands are read
// twice (y of a logarithm's gradient once).
// It reaches
// float32 88 to 100 %, float16 88 to 99 % of a copy's speed on an H100 (docs/kernels.md).

#include "softmax_steps.cuh"

struct SoftmaxColumns {
    long long images, channels, sites;
    Axes result, first, second;  // strides in elements: of images, channels, sites
    long long column_tiles;      // blocks along an image's sites
};

// Where a thread's column begins.
struct Column {
    long long image, site;

    __device__ Column(const SoftmaxColumns &geometry, long long tile, int count) {
        image = divided(tile, geometry.column_tiles);
        site = ((tile - image * geometry.column_tiles) * blockDim.x + threadIdx.x) * count;
    }
    __device__ long long offset(const Axes &stride) const {
        return image * stride.outer + site * stride.inner;
    }
};

// One number for each site of a thread; the joins of all of them share their barriers.
template <typename Number, int COUNT>
struct Sites {
    Number site[COUNT];
};

template <typename Number, int COUNT, typename Join>
__device__ inline void join_columns(
    Number (&mine)[COUNT], Sites<Number, COUNT> *shared, Join join) {
    if (blockDim.y == 1) return;
    Sites<Number, COUNT> state;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) state.site[i] = mine[i];
    state = join_threads(
        state, shared, threadIdx.y * blockDim.x + threadIdx.x, blockDim.x, blockDim.y,
        [&](const Sites<Number, COUNT> &p, const Sites<Number, COUNT> &q) {
            Sites<Number, COUNT> joined;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) joined.site[i] = join(p.site[i], q.site[i]);
            return joined;
        });
#pragma unroll
    for (int i = 0; i < COUNT; ++i) mine[i] = state.site[i];
}

template <typename T, int TASK, int COUNT, int PACKS>
__global__ void __launch_bounds__(BLOCK_THREADS) softmax_columns(
    SoftmaxColumns geometry, T *result, const T *first, const T *second) {
    using A = Arithmetic<T>;
    constexpr bool BACKWARD = !FORWARD<TASK>;
    __shared__ Sites<A, COUNT> shared[BLOCK_THREADS];
    const long long tiles = geometry.images * geometry.column_tiles;

    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Column column(geometry, tile, COUNT);
        const long long available = geometry.sites - column.site;
        const T *a_source = first + column.offset(geometry.first);
        const T *b_source = second + column.offset(geometry.second);
        Pack<T, COUNT> packs[PACKS], others[BACKWARD ? PACKS : 1];
        auto channel_of = [&](int p) { return p * (int)blockDim.y + (int)threadIdx.y; };
        auto inside = [&](int p) { return channel_of(p) < geometry.channels; };
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            const long long channel = channel_of(p), there = inside(p) ? available : 0;
            packs[p] = load_pack<COUNT>(a_source + channel * geometry.first.middle, there);
            if constexpr (BACKWARD)
                others[p] = load_pack<COUNT>(b_source + channel * geometry.second.middle, there);
        }

        A m[COUNT] = {}, total[COUNT] = {}, terms[PACKS][COUNT];
        if constexpr (!BACKWARD) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) m[i] = minus_infinity<A>();
#pragma unroll
            for (int p = 0; p < PACKS; ++p)
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    if (inside(p)) m[i] = larger(m[i], widen(packs[p].element[i]));
            join_columns(m, shared, [](A a, A b) { return larger(a, b); });
        }
#pragma unroll
        for (int p = 0; p < PACKS; ++p)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A b = BACKWARD ? widen(others[BACKWARD ? p : 0].element[i]) : A(0);
                terms[p][i] = term_of<T, TASK>(A(widen(packs[p].element[i])), b, m[i]);
                if (inside(p)) total[i] += terms[p][i];
            }
        join_columns(total, shared, [](A a, A b) { return a + b; });
#pragma unroll
        for (int i = 0; i < COUNT; ++i) total[i] = prepared<TASK>(total[i]);

        T *destination = result + column.offset(geometry.result);
#pragma unroll
        for (int p = 0; p < PACKS; ++p) {
            if (!inside(p) || available <= 0) continue;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A b = BACKWARD ? widen(others[BACKWARD ? p : 0].element[i]) : A(0);
                const A a = widen(packs[p].element[i]);
                packs[p].element[i] =
                    narrow<T>(outcome<T, TASK>(a, b, terms[p][i], m[i], total[i]));
            }
            const long long channel = channel_of(p);
            store_pack<COUNT>(
                destination + channel * geometry.result.middle, packs[p], available);
        }
    }
}

// UNROLL channels at once, in both sweeps; sums over many channels are float64.
template <typename T, int TASK, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) softmax_columns_swept(
    SoftmaxColumns geometry, T *result, const T *first, const T *second) {
    using A = Arithmetic<T>;
    constexpr bool BACKWARD = !FORWARD<TASK>;
    __shared__ Sites<Peak<A>, COUNT> shared[BLOCK_THREADS];
    const long long tiles = geometry.images * geometry.column_tiles;

    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Column column(geometry, tile, COUNT);
        const long long available = geometry.sites - column.site;
        const T *a_source = first + column.offset(geometry.first);
        const T *b_source = second + column.offset(geometry.second);
        Pack<T, COUNT> packs[UNROLL], others[UNROLL] = {};
        auto load = [&](Pack<T, COUNT>(&into)[UNROLL], const T *source, long long stride,
                        long long from) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const long long channel = from + u * (int)blockDim.y;
                into[u] = load_pack<COUNT>(
                    source + channel * stride, channel < geometry.channels ? available : 0);
            }
        };
        const long long step = (long long)blockDim.y * UNROLL;

        Peak<A> peaks[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) peaks[i] = {BACKWARD ? A(0) : minus_infinity<A>(), 0};
        for (long long from = threadIdx.y; from < geometry.channels; from += step) {
            if (TASK != LOG_BACKWARD) load(packs, a_source, geometry.first.middle, from);
            if (BACKWARD) load(others, b_source, geometry.second.middle, from);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                A values[UNROLL];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    const bool inside = from + u * (int)blockDim.y < geometry.channels;
                    const A b = widen(others[u].element[i]);
                    values[u] =
                        inside && TASK != LOG_BACKWARD ? A(widen(packs[u].element[i])) : A(0);
                    if (BACKWARD)  // absent ones were loaded as 0
                        peaks[i].sum += term_of<T, TASK>(values[u], b, A(0));
                    else if (!inside)
                        values[u] = minus_infinity<A>();
                }
                if (!BACKWARD) extend<T>(peaks[i], values);
            }
        }
        join_columns(peaks, shared, [](const Peak<A> &p, const Peak<A> &q) {
            return BACKWARD ? Peak<A>{A(0), p.sum + q.sum} : join_peaks(p, q);
        });

        A total[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) total[i] = prepared<TASK>(A(peaks[i].sum));
        T *destination = result + column.offset(geometry.result);
        for (long long from = threadIdx.y; from < geometry.channels; from += step) {
            load(packs, a_source, geometry.first.middle, from);
            if (BACKWARD) load(others, b_source, geometry.second.middle, from);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const long long channel = from + u * (int)blockDim.y;
                if (channel >= geometry.channels || available <= 0) continue;
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const A a = widen(packs[u].element[i]), b = widen(others[u].element[i]);
                    const A term = TASK == ACCURATE ? exponential_for<T>(a - peaks[i].m) : A(0);
                    packs[u].element[i] =
                        narrow<T>(outcome<T, TASK>(a, b, term, peaks[i].m, total[i]));
                }
                store_pack<COUNT>(
                    destination + channel * geometry.result.middle, packs[u], available);
            }
        }
        __syncthreads();
    }
}
