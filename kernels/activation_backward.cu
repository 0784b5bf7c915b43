// The gradient of an activation y = f(x):
//
//     dx = dy * f'(x)
//
// f' is computed from y, and from x in the modes whose y does not tell it (NEEDS_X). Where relu,
// clipped_relu, hardsigmoid and hardswish are flat dx is 0 whatever dy is: a selection, no product. `dx` may be the same
// memory as y, dy or x: a thread reads all it needs before it writes.
//
// NaN rule, every mode: NaN in y (or in an x that is read) gives NaN (CUDNN_PROPAGATE_NAN).

#include "strided.cuh"

// As in pointwise.cu.
enum Mode {
    IDENTITY = 0,
    RELU = 1,
    CLIPPED_RELU = 2,  // coef: the ceiling
    ELU = 3,           // coef: the negative saturation
    SIGMOID = 4,
    TANH = 5,
    SWISH = 6,       // coef: beta in x * sigmoid(beta * x)
    GELU = 7,        // the exact one, with erf
    LEAKY_RELU = 8,  // coef: the negative slope
    HARDSIGMOID = 9,
    HARDSWISH = 10,
    PRELU = 11,  // x stands in y's place, and in x's the slopes, broadcast
};

__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float error_function_complement(float x) { return erfcf(x); }
__device__ inline double error_function_complement(double x) { return erfc(x); }

// `x` is y itself where the mode does not need x.
template <int MODE, bool NEEDS_X, typename A>
__device__ inline A gradient(A y, A dy, A x, A coef) {
    const A zero = 0, one = 1;
    if constexpr (MODE == RELU) return y > zero ? dy : zero;
    if constexpr (MODE == CLIPPED_RELU) return y > zero && y < coef ? dy : zero;
    if constexpr (MODE == ELU) {
        if constexpr (NEEDS_X) return x > zero ? dy : dy * (coef * exponential(x));
        return y > zero ? dy : dy * (y + coef);
    }
    if constexpr (MODE == SIGMOID) return dy * (y * (one - y));
    if constexpr (MODE == TANH) return dy * ((one - y) * (one + y));
    if constexpr (MODE == SWISH) {
        const A gate = one / (one + exponential(-coef * x));
        return dy * (gate + coef * x * gate * (one - gate));
    }
    if constexpr (MODE == GELU) {
        // 1 + erf(t) = erfc(-t), without the cancellation for large negative t
        const A below = A(0.5) * error_function_complement(A(-0.70710678118654752440) * x);
        return dy * (below + x * (A(0.39894228040143267794) * exponential(A(-0.5) * x * x)));
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

template <typename I, typename T, int MODE, bool NEEDS_X, int COUNT, int UNROLL>
__global__ void __launch_bounds__(256) activation_backward(
    Walk<I, 4> walk, T *dx, const T *y, const T *dy, const T *x, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x * UNROLL;
    long long first = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    for (; first < walk.packs; first += step) {
        Place<I, 4> place[UNROLL];
        Pack<T, COUNT> ys[UNROLL], dys[UNROLL], xs[NEEDS_X ? UNROLL : 1] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            place[u] = place_of<COUNT>(walk, first + u * (int)blockDim.x);
            ys[u] = load_pack<COUNT>(y + place[u].offset[1], place[u].available);
            dys[u] = load_pack<COUNT>(dy + place[u].offset[2], place[u].available);
            if constexpr (MODE == PRELU) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    if (i < place[u].available)
                        xs[u].element[i] = x[place[u].offset[3] + i * walk.inner_stride[3]];
            } else if constexpr (NEEDS_X) {
                xs[u] = load_pack<COUNT>(x + place[u].offset[3], place[u].available);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            Pack<T, COUNT> results;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A value = widen(ys[u].element[i]), incoming = widen(dys[u].element[i]);
                A before = value;
                if constexpr (NEEDS_X) before = widen(xs[u].element[i]);
                A result = gradient<MODE, NEEDS_X, A>(value, incoming, before, coef);
                if (MODE != PRELU && before != before) result = before;
                if (value != value) result = value;
                results.element[i] = narrow<T>(result);
            }
            store_pack<COUNT>(dx + place[u].offset[0], results, place[u].available);
        }
    }
}
