// Sums over everything but the channels, in float64 and in two steps: each block adds up a part of
// some channels (`channel_partials`), then a few threads add up a channel's parts
// (`channel_totals`). Which thread adds what depends on shapes and strides alone, so results are
// the same in every run; nothing is atomic.
//
// blockIdx.y is the image, where each image has sums of its own; else there is one.
//
// Kinds:
//
//     TOTAL     sum(x)                                     -> total, rounded once
//     WEIGHTED  sum(x * dy)                                -> the same
//     NEGATIVE  sum(dy > 0 ? 0 : x * dy)                   -> the same
//     MOMENTS   sum(x - K), sum((x - K)^2), K: the first x  -> count, mean, sum((x - mean)^2)
//     PRODUCTS  sum(dy), sum(dy * (x - mean))              -> both
//
// MOMENTS subtracts an element of the channel first: a large mean cancels there, exactly or nearly,
// and not between the two sums. As K is one of the N elements, (K - mean)^2 <= N * variance, so no
// data lose more than the digits of N, and ordinary data lose none.
//
// In half precision MOMENTS and PRODUCTS add four terms in float32 before each is widened
// (channel_sums.cuh): there a product that overflows float32 is infinite.
//
// Memory traffic: x, and dy where a kind has it, is read once. What the blocks leave is a few sums a
// channel.
// It reaches
// float32 69 to 95 %, float16 35 to 87 % of a copy's speed on an H100 (docs/kernels.md).
//
// NaN in a channel gives NaN in its sums, as in cuDNN.

#include "channel_sums.cuh"

enum Kind { TOTAL = 0, MOMENTS = 1, PRODUCTS = 2, WEIGHTED = 3, NEGATIVE = 4 };

template <int KIND>
constexpr bool IS_TOTAL = KIND == TOTAL || KIND >= WEIGHTED;

// Elements from one image to the next.
struct Images {
    long long x, dy, partial, result;
};

// K; 0 where it is no number, so that one infinite x leaves the mean infinite wherever it stands.
template <typename T>
__device__ inline double first_of(const T *x, long long channel, long long channel_stride) {
    const double first = widen(x[channel * channel_stride]);
    return isfinite(first) ? first : 0.0;
}

// Adds what an element has to say: S is double, or the type of a run.
template <int KIND, typename S, int SUMS>
__device__ inline void add_term(S (&sums)[SUMS], S value, S factor, S center) {
    if constexpr (KIND == TOTAL) {
        sums[0] += value;
    } else if constexpr (IS_TOTAL<KIND>) {
        if (KIND == NEGATIVE && factor > 0) return;  // 0, whatever the other is
        sums[0] = fma(value, factor, sums[0]);
    } else {
        const S difference = value - center, weight = KIND == PRODUCTS ? factor : difference;
        sums[0] += weight;
        sums[1] = fma(weight, difference, sums[1]);
    }
}

template <typename T, int KIND, int COUNT, int UNROLL, bool UNROLL_ROWS, bool COLUMNS>
__global__ void __launch_bounds__(BLOCK_THREADS) channel_partials(
    GroupWalk<2> walk, const T *x, const T *dy, const Arithmetic<T> *mean, double *partial,
    long long channels, long long channel_stride, Images images) {
    constexpr int SUMS = IS_TOTAL<KIND> ? 1 : 2;
    constexpr bool READS_DY = KIND == PRODUCTS || KIND >= WEIGHTED;
    x += blockIdx.y * images.x;
    dy += blockIdx.y * images.dy;
    partial += blockIdx.y * images.partial;
    constexpr int PARALLEL = COLUMNS ? COUNT : 2;  // two chains of additions are in flight at least
    // A run is of elements of one column that follow each other down the rows, or along a row.
    constexpr int OUTER = COLUMNS ? COUNT : UNROLL, INNER = COLUMNS ? UNROLL : COUNT;
    using Run = RunOf<T, IS_TOTAL<KIND>>;
    constexpr int LENGTH = Run::LENGTH < INNER ? Run::LENGTH : INNER;

    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;
        const long long first_column = COLUMNS ? group * blockDim.x * COUNT : 0;

        // Widened once, and not for every element.
        typename Run::type center[COLUMNS ? COUNT : 1] = {};
        if constexpr (!IS_TOTAL<KIND>) {
#pragma unroll
            for (int i = 0; i < (COLUMNS ? COUNT : 1); ++i) {
                const long long column = first_column + threadIdx.x * COUNT + i;
                if (COLUMNS && column >= walk.size.inner) continue;
                const long long channel = COLUMNS ? remainder_of(column, channels) : group;
                center[i] = KIND == PRODUCTS ? mean[channel] : first_of(x, channel, channel_stride);
            }
        }

        double sums[PARALLEL][SUMS] = {};
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            visit_tile<COUNT, UNROLL, UNROLL_ROWS, COLUMNS>(walk, group, tile, [&](const auto &at) {
                Pack<T, COUNT> values[UNROLL];
                [[maybe_unused]] Pack<T, COUNT> gradients[READS_DY ? UNROLL : 1];
                at.load(values, x, 0);
                if constexpr (READS_DY) at.load(gradients, dy, 1);
#pragma unroll
                for (int outer = 0; outer < OUTER; ++outer)
#pragma unroll
                    for (int first = 0; first < INNER; first += LENGTH) {
                        const int chain = COLUMNS ? outer : (outer * INNER + first) / LENGTH % 2;
                        [[maybe_unused]] typename Run::type run[SUMS] = {};
#pragma unroll
                        for (int inner = first; inner < first + LENGTH; ++inner) {
                            const int u = COLUMNS ? inner : outer, i = COLUMNS ? outer : inner;
                            if (!at.has(u, i)) continue;
                            const typename Run::type value = widen(values[u].element[i]);
                            const typename Run::type factor =
                                READS_DY ? widen(gradients[READS_DY ? u : 0].element[i]) : value;
                            const auto middle = center[COLUMNS ? i : 0];
                            if constexpr (LENGTH == 1)
                                add_term<KIND, double>(sums[chain], value, factor, middle);
                            else
                                add_term<KIND>(run, value, factor, middle);
                        }
                        if constexpr (LENGTH > 1)
#pragma unroll
                            for (int s = 0; s < SUMS; ++s) sums[chain][s] += run[s];
                    }
            });
        }

        leave_partials<COUNT, COLUMNS>(walk, sums, part, group, channels, partial);
    }
}

struct ChannelTotals {
    long long parts, repeats, channels;  // the partial sums are [parts][SUMS][repeats][channels]
    long long count;                     // elements of a channel
    long long channel_stride;            // of x
};

// A row of threads has neighbouring channels. R: the type of the result; a state's is double.
template <typename T, typename R, int KIND>
__global__ void __launch_bounds__(BLOCK_THREADS) channel_totals(
    ChannelTotals geometry, R *result, const T *x, const double *partial, Images images) {
    constexpr int SUMS = IS_TOTAL<KIND> ? 1 : 2;
    x += blockIdx.y * images.x;
    partial += blockIdx.y * images.partial;
    result += blockIdx.y * images.result;
    __shared__ double shared[BLOCK_THREADS];
    const int place = threadIdx.y * blockDim.x + threadIdx.x;
    const long long channels = geometry.channels, count = geometry.count;
    const long long channel = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const bool inside = channel < channels;

    double sums[SUMS];
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        double sum = 0;
        for (long long part = threadIdx.y; inside && part < geometry.parts;
             part += blockDim.y)
            for (long long repeat = 0; repeat < geometry.repeats; ++repeat)
                sum += partial
                    [((part * SUMS + s) * geometry.repeats + repeat) * channels + channel];
        sums[s] = join_threads(sum, shared, place, blockDim.x, blockDim.y, sum_of_two);
    }
    if (!inside || threadIdx.y > 0) return;
    if constexpr (IS_TOTAL<KIND>) result[channel] = narrow_double<R>(sums[0]);
    if constexpr (KIND == MOMENTS) {
        const double shift = count == 0 ? 0.0 : first_of(x, channel, geometry.channel_stride);
        const double mean = count == 0 ? 0.0 : sums[0] / count;
        const double squares = sums[1] - sums[0] * mean;
        result[channel] = count;
        result[channels + channel] = shift + mean;
        // Rounding may take it below 0; NaN stays.
        result[2 * channels + channel] = squares < 0 ? 0.0 : squares;
    }
    if constexpr (KIND == PRODUCTS) {
        result[channel] = sums[0];
        result[channels + channel] = sums[1];
    }
}
