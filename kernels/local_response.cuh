// What local response normalization and its gradient compute, however their kernels walk channels:
//
//     s  = k + alpha / size * (sum of x ** 2 over BEFORE channels before to BEHIND behind)
//     y  = x / s ** beta
//     dx = dy / s ** beta - 2 alpha beta / size * x * (sum of dy x / s ** (beta + 1))
//
// the second sum over the channels in whose own sum this one is: from BEHIND before to BEFORE
// behind. Only channels that there are count.
#pragma once

#include "strided.cuh"

// Those beta that need no logarithm.
enum Beta { ANY, HALF, THREE_QUARTERS, ONE };

template <typename A>
struct Response {
    A share, beta, k;  // share: alpha / size
};

__device__ inline float power(float x, float y) { return powf(x, y); }
__device__ inline double power(double x, double y) { return pow(x, y); }
__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }
// The root of what `inverse_root` made: 0, infinite, or so far from both that a fast quotient does.
__device__ inline float root_of_root(float x) { return __fdividef(1, rsqrtf(x)); }
__device__ inline double root_of_root(double x) { return sqrt(x); }

// The last steps are fused by hand, as the compiler would fuse them in each kernel in its own way:
// a call that is cut may run on any of the kernels, and gives the same bits.
template <typename A>
__device__ inline A add_square(A value, A total) {
    return fma(value, value, total);
}

// dx of the first term of its formula, of x, and of the sum of the other terms.
template <typename A>
__device__ inline A gradient_of(const Response<A> &r, A own, A x, A others) {
    return fma(-2 * r.share * r.beta * x, others, own);
}

// s of a channel by the sum of squares; s ** -beta, and quotients by s.
template <Beta BETA, typename A>
struct Scale {
    A s, root, inverse;  // root: s ** -0.5

    __device__ Scale(const Response<A> &r, A squares) {
        s = fma(r.share, squares, r.k);
        if constexpr (BETA == HALF || BETA == THREE_QUARTERS) root = inverse_root(s);
        if constexpr (BETA == HALF) inverse = root;
        // two roots, not a root of s * sqrt(s), which may overflow
        else if constexpr (BETA == THREE_QUARTERS) inverse = root * root_of_root(root);
        else if constexpr (BETA == ONE) inverse = 1 / s;
        else inverse = power(s, -r.beta);
    }
    __device__ A over_s(A value) const {
        if constexpr (BETA == HALF || BETA == THREE_QUARTERS) return value * root * root;
        else return value / s;
    }
};

// Tensors as rows: (outer, middle, inner), the axis along which neighbouring threads lie innermost.
template <typename I>
struct Three {
    I outer, middle, inner;
};

template <typename I, int OPERANDS>
struct Rows {
    Three<I> size, stride[OPERANDS];  // strides in elements
    I row_packs;                      // packs in a row
};
