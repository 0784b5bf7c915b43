// What the softmax and its gradient compute, element by element; the kernels differ in how they
// walk. Forward, over the elements x that belong together:
//
//     m = max(x), total = sum(exp(x - m));   ACCURATE  y = exp(x - m) / total
//                                            LOG       y = x - m - log(total)
//
// backward, from y and dy:
//
//     ACCURATE_BACKWARD  total = sum(y * dy), dx = y * (dy - total)
//     LOG_BACKWARD       total = sum(dy),     dx = dy - exp(y) * total
//
// `a` is x or y, `b` is dy. NaN rule: one NaN or +infinity among the x, or nothing but -infinity,
// makes the total NaN, and with it all results (as in PyTorch; cuDNN says nothing). The maximum
// may therefore pass over NaN, as fmax does.
#pragma once

#include "group_walk.cuh"

enum Task { ACCURATE = 0, LOG = 1, ACCURATE_BACKWARD = 2, LOG_BACKWARD = 3 };

template <int TASK>
constexpr bool FORWARD = TASK == ACCURATE || TASK == LOG;

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }

// For data of type T: the hardware's own, of about 20 good bits, is plenty for 16-bit elements.
template <typename T>
__device__ inline Arithmetic<T> exponential_for(Arithmetic<T> x) {
    if constexpr (sizeof(T) == 2) return __expf(x);
    else return exponential(x);
}
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

template <typename A>
__device__ inline A minus_infinity() {
    return -A(__int_as_float(0x7f800000));
}

// What is summed.
template <typename T, int TASK, typename A = Arithmetic<T>>
__device__ inline A term_of(A a, A b, A m) {
    if (FORWARD<TASK>) return exponential_for<T>(a - m);
    return TASK == ACCURATE_BACKWARD ? a * b : b;
}

// The total in the form in which `outcome` uses it.
template <int TASK, typename A>
__device__ inline A prepared(A total) {
    if (TASK == ACCURATE) return A(1) / total;
    return TASK == LOG ? logarithm(total) : total;
}

template <typename T, int TASK, typename A = Arithmetic<T>>
__device__ inline A outcome(A a, A b, A term, A m, A total) {
    if (TASK == ACCURATE) return term * total;
    if (TASK == LOG) return a - m - total;
    return TASK == ACCURATE_BACKWARD ? a * (b - total) : b - exponential_for<T>(a) * total;
}

// A running maximum and the sum of exp(x - m): begins as (-infinity, 0).
template <typename A>
struct Peak {
    A m;
    double sum;
};

// exp(a - b) for two maxima, where equal ones may be infinite.
template <typename A>
__device__ inline A rescaling(A a, A b) {
    return a == b ? A(1) : exponential(a - b);
}

template <typename A>
__device__ inline Peak<A> join_peaks(const Peak<A> &p, const Peak<A> &q) {
    const A m = larger(p.m, q.m);
    return {m, p.sum * rescaling(p.m, m) + q.sum * rescaling(q.m, m)};
}

// Takes `count` more values in; absent ones are -infinity. Few exponentials where m stays.
template <typename T, int COUNT, typename A = Arithmetic<T>>
__device__ inline void extend(Peak<A> &peak, const A (&values)[COUNT]) {
    A m = peak.m;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) m = larger(m, values[i]);
    const A base = m == minus_infinity<A>() ? A(0) : m;
    A sum = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sum += exponential_for<T>(values[i] - base);
    peak.sum = peak.sum * rescaling(peak.m, m) + sum;
    peak.m = m;
}

// Joins what LANES neighbouring threads have: each gets the result.
template <int LANES, typename A, typename Join>
__device__ inline A join_lanes(A mine, Join join) {
    constexpr int WIDTH = LANES < 32 ? LANES : 32;
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        mine = join(mine, __shfl_xor_sync(0xffffffffu, mine, step));
    if constexpr (LANES > 32) {
        // A row belongs to a warp's lanes, or to a block.
        constexpr int WARPS = LANES / 32;
        __shared__ A of_warps[WARPS];
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
        __syncthreads();
        mine = of_warps[threadIdx.x % WARPS];
#pragma unroll
        for (int step = WARPS / 2; step > 0; step /= 2)
            mine = join(mine, __shfl_xor_sync(0xffffffffu, mine, step));
        __syncthreads();
    }
    return mine;
}
