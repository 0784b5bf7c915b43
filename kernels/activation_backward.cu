// The gradient of an activation y = f(x):
//
//     dx = dy * f'(x)
//
// f' is that of activation_gradient.cuh. Memory traffic: y, dy and, where f' needs it, x are read
// once, and dx is written once. `dx` may be the same memory as y, dy or x: a thread reads
// all it needs before it writes.
// It reaches
// float32 100 to 102 %, float16 100 % of a copy's speed on an H100 (docs/kernels.md).
//
// NaN rule: that of activation_gradient.cuh.

#include "activation_gradient.cuh"
#include "strided.cuh"

template <typename I, typename T, int MODE, bool NEEDS_X, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) activation_backward(
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
                results.element[i] =
                    narrow<T>(gradient<MODE, NEEDS_X, T>(value, incoming, before, coef));
            }
            store_pack<COUNT>(dx + place[u].offset[0], results, place[u].available);
        }
    }
}
