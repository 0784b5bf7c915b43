// The activations, by cuDNN's modes: a template for each, so that a kernel pays for its own only.
//
// NaN rule, every mode: NaN in, NaN out (cuDNN's CUDNN_PROPAGATE_NAN). The comparisons are
// therefore written so that NaN takes the branch that returns x. Modes that are a
// product with x, as swish, are NaN of -infinity, as the product -infinity * 0 is.
#pragma once

#include "element.cuh"

enum Mode {
    IDENTITY = 0,
    RELU = 1,
    CLIPPED_RELU = 2,  // coef: the ceiling
    ELU = 3,           // coef: cuDNN's alpha, the negative saturation
    SIGMOID = 4,
    TANH = 5,
    SWISH = 6,  // coef: beta in x * sigmoid(beta * x)
    GELU = 7,   // the exact one, with erf
    LEAKY_RELU = 8,  // coef: the negative slope
    HARDSIGMOID = 9,
    HARDSWISH = 10,
    GELU_TANH = 11,  // cuDNN's GELU_APPROX_TANH
    MISH = 12,
};

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float exponential_minus_one(float x) { return expm1f(x); }
__device__ inline double exponential_minus_one(double x) { return expm1(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }
__device__ inline float error_function_complement(float x) { return erfcf(x); }
__device__ inline double error_function_complement(double x) { return erfc(x); }

// 2 u, where gelu_tanh is 0.5 x (1 + tanh(u)): x sigmoid(2 u), which loses nothing far below 0
template <typename A>
__device__ inline A gelu_tanh_exponent(A x) {
    return A(1.59576912160573071176) * x * (A(1) + A(0.044715) * x * x);
}

// The normal distribution's share below x, for results of half precision: below 0 it is
// exp(-x^2 / 2) P(t), t = 1 / (1 + 0.28 |x|), P fitted so that its relative error is below 4e-6, a
// hundredth of what rounding to float16 is. erfc takes three times as many instructions.
struct NormalShare {
    float below, density;  // density: exp(-x^2 / 2)

    __device__ explicit NormalShare(float x) {
        const float t = __fdividef(1.0f, 1.0f + 0.28f * fabsf(x));
        density = exp2f(x * x * -0.72134752044448170368f);
        float p = -5.0230336e-2f;
        p = p * t + 1.0544058e-1f;
        p = p * t + 2.495317e-2f;
        p = p * t + 9.445395e-2f;
        p = p * t + 1.0193636e-1f;
        p = p * t + 1.1174058e-1f;
        p = p * t + 1.1170385e-1f;
        const float tail = p * t * density;
        below = x > 0.0f ? 1.0f - tail : tail;
    }
};

// mish's gate, tanh(log(1 + e^x)), of x and exp(-|x|): without cancellation, and without overflow
template <typename A>
__device__ inline A mish_over(A x, A below) {
    return x > A(0) ? A(1) + A(2) * below : below * (below + A(2));
}
template <typename A>
__device__ inline A mish_under(A x, A below) {
    return x > A(0) ? A(1) + A(2) * below * (below + A(1)) : below * (below + A(2)) + A(2);
}

// T: what the result is stored as.
template <int MODE, typename T = float, typename A>
__device__ inline A activation(A x, A coef) {
    const A zero = 0, one = 1;
    if constexpr (MODE == RELU) return x < zero ? zero : x;
    if constexpr (MODE == CLIPPED_RELU) return x < zero ? zero : (x > coef ? coef : x);
    if constexpr (MODE == ELU) return x > zero ? x : coef * exponential_minus_one(x);
    if constexpr (MODE == SIGMOID) return one / (one + exponential(-x));
    if constexpr (MODE == TANH) return hyperbolic_tangent(x);
    if constexpr (MODE == SWISH) return x / (one + exponential(-coef * x));
    if constexpr (MODE == GELU && sizeof(T) == 2) return x * NormalShare(x).below;
    // 1 + erf(t) = erfc(-t), without the cancellation for large negative t
    if constexpr (MODE == GELU)
        return A(0.5) * x * error_function_complement(A(-0.70710678118654752440) * x);
    if constexpr (MODE == GELU_TANH) return x / (one + exponential(-gelu_tanh_exponent(x)));
    if constexpr (MODE == MISH) {
        const A below = exponential(x > zero ? -x : x);
        return x * (mish_over(x, below) / mish_under(x, below));
    }
    if constexpr (MODE == LEAKY_RELU) return x > zero ? x : coef * x;
    if constexpr (MODE == HARDSIGMOID || MODE == HARDSWISH) {
        const A line = x / A(6) + A(0.5);
        const A gate = line < zero ? zero : (line > one ? one : line);
        return MODE == HARDSWISH ? x * gate : gate;
    }
    return x;
}
