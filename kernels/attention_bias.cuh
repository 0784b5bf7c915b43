// What is added to scores: numbers of a bias, or of a mask minus infinity where a key is not seen.
#pragma once

#include "softmax_steps.cuh"

template <typename A, typename B>
__device__ inline A widen_bias(B bias) {
    return A(widen(bias));
}
template <typename A>
__device__ inline A widen_bias(unsigned char seen) {
    return seen ? A(0) : minus_infinity<A>();
}
