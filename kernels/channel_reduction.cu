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

    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;
        const long long first_column = COLUMNS ? group * blockDim.x * COUNT : 0;

        double center[COLUMNS ? COUNT : 1] = {};  // widened once, and not for every element
        if constexpr (!IS_TOTAL<KIND>) {
#pragma unroll
            for (int i = 0; i < (COLUMNS ? COUNT : 1); ++i) {
                const long long column = first_column + threadIdx.x * COUNT + i;
                if (COLUMNS && column >= walk.size.inner) continue;
                const long long channel = COLUMNS ? column % channels : group;
                center[i] = KIND == PRODUCTS ? mean[channel] : first_of(x, channel, channel_stride);
            }
        }

        double sums[SUMS][PARALLEL] = {};
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            const GroupTile<2, COUNT, UNROLL, UNROLL_ROWS, COLUMNS> at(walk, group, tile);
            Pack<T, COUNT> values[UNROLL], gradients[READS_DY ? UNROLL : 1];
            at.load(values, x, 0);
            if constexpr (READS_DY) at.load(gradients, dy, 1);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    if (!at.has(u, i)) continue;
                    const int chain = COLUMNS ? i : (u * COUNT + i) % 2;
                    const double value = widen(values[u].element[i]);
                    if constexpr (KIND == TOTAL) {
                        sums[0][chain] += value;
                    } else if constexpr (IS_TOTAL<KIND>) {
                        const double factor = widen(gradients[u].element[i]);
                        if (KIND == NEGATIVE && factor > 0) continue;  // 0, whatever the other is
                        sums[0][chain] = fma(value, factor, sums[0][chain]);
                    } else {
                        const double difference = value - center[COLUMNS ? i : 0];
                        double weight = difference;
                        if constexpr (KIND == PRODUCTS) weight = widen(gradients[u].element[i]);
                        sums[0][chain] += weight;
                        sums[1][chain] = fma(weight, difference, sums[1][chain]);
                    }
                }
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
