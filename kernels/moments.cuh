// Count, mean and sum of squared deviations, and those of two parts together (Chan, Golub and
// LeVeque, 1979).
#pragma once

struct Moments {
    double count, mean, squares;
};

__device__ inline Moments merged_moments(const Moments &a, const Moments &b) {
    // Where one part is empty the other stays, bit for bit, infinite or not.
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    const double count = a.count + b.count, share = b.count / count, delta = b.mean - a.mean;
    // Infinite means are not subtracted: those of one sign together are infinite, not NaN.
    const double mean = isfinite(delta) ? a.mean + delta * share
                                        : a.mean * (1 - share) + b.mean * share;
    return {count, mean, a.squares + b.squares + delta * delta * a.count * share};
}

// Column `at` of a state of three rows of `columns`.
__device__ inline Moments load_moments(const double *state, long long at, long long columns) {
    return {state[at], state[columns + at], state[2 * columns + at]};
}

__device__ inline void store_moments(
    double *state, long long at, long long columns, const Moments &moments) {
    state[at] = moments.count;
    state[columns + at] = moments.mean;
    state[2 * columns + at] = moments.squares;
}
