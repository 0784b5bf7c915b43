// Masks as bits: eight elements along the last axis share a byte, the first in the lowest bit.
//
//     slope_mask       bit = whether the slope of an activation at x is 1
//     masked_gradient  dx = bit ? dy : dy * slope (or 0, whatever dy is, if it selects)
//
// Memory traffic: x, dy and dx are read or written once, and of a mask a bit for each element.
// It reaches
// float32 97 to 99 %, float16 62 to 100 % of a copy's speed on an H100 (docs/kernels.md).
//
// A thread has one byte. The walk is over the bytes; a last operand, of which nothing is read,
// carries the byte's place along the last axis. `extent` is the elements along that axis, the steps
// are from one of them to the next. NaN rule, as in PyTorch: a relu's and a clipped relu's slope is 1
// there, so that dy passes, a leaky relu's is the one below 0.

#include "strided.cuh"

enum Mode { RELU = 1, CLIPPED_RELU = 2, LEAKY_RELU = 8 };  // as in activation.cuh

// The elements of a byte come in packs of COUNT; those past the end of the row are left out.
template <typename I, typename T, int MODE, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) slope_mask(
    Walk<I, 3> walk, unsigned char *mask, const T *x, long long extent, long long step,
    Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < walk.packs;
         at += stride) {
        const Place<I, 3> place = place_of<1>(walk, at);
        const long long left = extent - 8ll * place.offset[2];
        const T *source = x + place.offset[1];
        unsigned bits = 0;
#pragma unroll
        for (int first = 0; first < 8; first += COUNT) {
            const auto pack = load_pack<COUNT>(source + first * step, left - first);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A value = widen(pack.element[i]);
                const bool flat = MODE == LEAKY_RELU
                                      ? !(value > A(0))
                                      : value <= A(0) || (MODE == CLIPPED_RELU && value >= coef);
                bits |= (flat || first + i >= left ? 0u : 1u) << (first + i);
            }
        }
        mask[place.offset[0]] = (unsigned char)bits;
    }
}

template <typename I, typename T, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) masked_gradient(
    Walk<I, 4> walk, T *dx, const unsigned char *mask, const T *dy, long long extent,
    long long dx_step, long long dy_step, long long selects, Arithmetic<T> slope) {
    using A = Arithmetic<T>;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < walk.packs;
         at += stride) {
        const Place<I, 4> place = place_of<1>(walk, at);
        const long long left = extent - 8ll * place.offset[3];
        const unsigned bits = mask[place.offset[1]];
        Pack<T, COUNT> packs[8 / COUNT];
#pragma unroll
        for (int u = 0; u < 8 / COUNT; ++u)
            packs[u] = load_pack<COUNT>(
                dy + place.offset[2] + u * COUNT * dy_step, left - u * COUNT);
#pragma unroll
        for (int u = 0; u < 8 / COUNT; ++u) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A value = widen(packs[u].element[i]);
                const A below = selects ? A(0) : value * slope;
                const bool passes = bits >> (u * COUNT + i) & 1u;
                packs[u].element[i] = narrow<T>(passes ? value : below);
            }
            store_pack<COUNT>(
                dx + place.offset[0] + u * COUNT * dx_step, packs[u], left - u * COUNT);
        }
    }
}
