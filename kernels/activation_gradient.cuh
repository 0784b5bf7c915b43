// Gradients of activations from y, and from x where y does not tell the slope (NEEDS_X). Where relu,
// clipped_relu, hardsigmoid and hardswish are flat dx is 0 whatever dy is: a selection, no product.
//
// NaN rule: that of PyTorch's CUDA kernels. Where y (or x) is NaN the slope is 1 of relu, clipped_relu,
// elu and hardswish, coef of leaky_relu, 0 of hardsigmoid, and NaN of those that compute it.
#pragma once

#include "activation.cuh"

constexpr int PRELU = -1;  // no activation: x stands in y's place, and in x's the slopes, broadcast

// `x` is y itself where the mode does not need x. T: what the gradient is stored as.
template <int MODE, bool NEEDS_X, typename T = float, typename A>
__device__ inline A gradient(A y, A dy, A x, A coef) {
    const A zero = 0, one = 1;
    if constexpr (MODE == RELU) return y <= zero ? zero : dy;
    if constexpr (MODE == CLIPPED_RELU) return y <= zero || y >= coef ? zero : dy;
    if constexpr (MODE == ELU) {
        if constexpr (NEEDS_X) return x <= zero ? dy * (coef * exponential(x)) : dy;
        return y <= zero ? dy * (y + coef) : dy;
    }
    if constexpr (MODE == SIGMOID) return dy * (y * (one - y));
    if constexpr (MODE == TANH) return dy * ((one - y) * (one + y));
    if constexpr (MODE == SWISH) {
        const A gate = one / (one + exponential(-coef * x));
        return dy * (gate + coef * x * gate * (one - gate));
    }
    if constexpr (MODE == GELU && sizeof(T) == 2) {
        const NormalShare share(x);
        return dy * (share.below + x * (0.39894228040143267794f * share.density));
    }
    if constexpr (MODE == GELU) {
        // 1 + erf(t) = erfc(-t), without the cancellation for large negative t
        const A below = A(0.5) * error_function_complement(A(-0.70710678118654752440) * x);
        return dy * (below + x * (A(0.39894228040143267794) * exponential(A(-0.5) * x * x)));
    }
    if constexpr (MODE == GELU_TANH) {
        const A exponent = gelu_tanh_exponent(x);
        const A below = exponential(exponent > zero ? -exponent : exponent);
        const A gate = one / (one + below);
        const A inner = x * (below * gate * gate);  // 0 before x * x can overflow
        const A steep = A(1.59576912160573071176) * (inner + A(3 * 0.044715) * inner * x * x);
        return dy * ((exponent > zero ? gate : below * gate) + steep);
    }
    if constexpr (MODE == MISH) {
        const A below = exponential(x > zero ? -x : x);
        const A under = mish_under(x, below), above = below * (below + one);
        const A steep = A(4) * (x > zero ? below * above : above) / (under * under);
        return dy * (mish_over(x, below) / under + x * steep);
    }
    if constexpr (MODE == PRELU) return y > zero ? dy : dy * x;
    if constexpr (MODE == LEAKY_RELU) return x > zero ? dy : dy * coef;
    if constexpr (MODE == HARDSIGMOID) return y > zero && y < one ? dy * (one / A(6)) : zero;
    if constexpr (MODE == HARDSWISH) {
        const A slope = x <= A(-3) ? zero : x < A(3) ? x / A(3) + A(0.5) : one;
        return slope == zero ? zero : dy * slope;
    }
    return dy;
}

// Modes of which y never tells the slope.
template <int MODE>
constexpr bool ALWAYS_NEEDS_X =
    MODE == SWISH || MODE == GELU || MODE == GELU_TANH || MODE == MISH || MODE == HARDSWISH;

// The same from what the activation was applied to. Where y tells the slope, y is made again and
// rounded as it was when it was stored, so that both passes agree where it is 0.
template <typename T, int MODE>
__device__ inline Arithmetic<T> gradient_before(
    Arithmetic<T> before, Arithmetic<T> dy, Arithmetic<T> coef) {
    if constexpr (MODE == IDENTITY) return dy;
    if constexpr (ALWAYS_NEEDS_X<MODE>) return gradient<MODE, true, T>(before, dy, before, coef);
    const Arithmetic<T> y = widen(narrow<T>(activation<MODE, T>(before, coef)));
    return gradient<MODE, false>(y, dy, y, coef);
}
