// The small arithmetic between the sweeps over a tensor, on float64 states that hold a few numbers
// a channel or an image. One thread each; the result may be the same memory as the first operand.
// Memory traffic: next to none.

#include "element.cuh"
#include "moments.cuh"

struct Extent {
    long long count;  // channels, images or numbers
};

template <typename Body>
__device__ inline void for_each(long long count, Body body) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        body(i);
}

// Rows of a state: counts, means, sums of squared deviations.
__global__ void merge_moments(
    Extent extent, double *result, const double *state, const double *part) {
    const long long channels = extent.count;
    for_each(channels, [&](long long c) {
        const Moments a = load_moments(state, c, channels), b = load_moments(part, c, channels);
        store_moments(result, c, channels, merged_moments(a, b));
    });
}

enum Statistic { MEAN = 0, INVERSE_DEVIATION = 1, RUNNING_MEAN = 2, RUNNING_VARIANCE = 3 };

// `old` is read for the running ones only, and may be the result.
template <typename V, int STATISTIC>
__global__ void moments_result(
    Extent extent, V *result, const double *state, const V *old, double epsilon,
    double factor) {
    const long long channels = extent.count;
    for_each(channels, [&](long long c) {
        const double count = state[c], mean = state[channels + c];
        const double squares = state[2 * channels + c];
        double value = mean;
        if (STATISTIC == INVERSE_DEVIATION) value = 1 / sqrt(squares / count + epsilon);
        if (STATISTIC == RUNNING_VARIANCE) value = squares / (count == 1 ? 1 : count - 1);
        if (STATISTIC == RUNNING_MEAN || STATISTIC == RUNNING_VARIANCE)
            value = (1 - factor) * (double)old[c] + factor * value;
        result[c] = (V)value;
    });
}

template <typename V>
__global__ void state_row(
    Extent extent, V *result, const double *state, long long row) {
    const double *source = state + row * extent.count;
    for_each(extent.count, [&](long long c) { result[c] = (V)source[c]; });
}

template <typename V>
__global__ void scale_row(
    Extent extent, double *result, const double *state, const V *factor, long long row) {
    const double *source = state + row * extent.count;
    double *destination = result + row * extent.count;
    for_each(extent.count, [&](long long c) { destination[c] = source[c] * (double)factor[c]; });
}

__global__ void add_states(
    Extent extent, double *result, const double *state, const double *part) {
    for_each(extent.count, [&](long long i) { result[i] = state[i] + part[i]; });
}

// Pairs (maximum m, sum of exp(x - m)). A part that is -infinity throughout has m = -infinity and
// the sum 0, and adds nothing.
__global__ void merge_image_maximum(
    Extent extent, double *result, const double *state, const double *part) {
    for_each(extent.count, [&](long long n) {
        const double m_a = state[2 * n], m_b = part[2 * n];
        const double sum_a = state[2 * n + 1], sum_b = part[2 * n + 1];
        const double m = m_a > m_b ? m_a : m_b;
        // Equal ones need no factor, and infinite ones must not be subtracted.
        const double joined = (m_a == m ? sum_a : sum_a * exp(m_a - m)) +
                              (m_b == m ? sum_b : sum_b * exp(m_b - m));
        const bool nan = isnan(m_a) || isnan(m_b);
        result[2 * n] = nan ? m_a + m_b : m;
        result[2 * n + 1] = joined;
    });
}
