// What the pooling kernels share: their geometry, their modes, and comparisons.
//
// All tensors have six axes here: two outer ones, three spatial ones and the lanes. Channels-first
// has (n, c, d, h, w, 1), channels-last (1, n, d, h, w, c), CHWN (1, c, d, h, w, n), so that the
// last axis that is not 1 is contiguous; missing spatial axes have extent 1. I, the type of indices,
// is int where all elements of every tensor lie within 2**31 of its first, else long long: that is
// half the instructions.
//
// A maximum is one of the values of its window, to the bit. CuPy's -ftz=true would take subnormal
// floats as zero, so the comparisons are written in PTX, which flushes only where it says so. The C++
// beside it is for the CPU, on which the tests run kernels where there is no card.
#pragma once

#include "strided.cuh"

enum Mode { MAX = 0, AVERAGE_INCLUDE_PADDING = 1, AVERAGE_EXCLUDE_PADDING = 2 };

template <typename I>
struct Extents {
    I d, h, w;
};
template <typename I>
struct Strides {
    I a, b, d, h, w, lane;
};

// NaN propagates: a NaN among the two is the larger.
__device__ inline float larger(float a, float b) {
#ifndef __CUDA_ARCH__
    return a > b || a != a ? a : b;
#elif __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
#else
    float most;
    asm("max.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return a != a ? a : b != b ? b : most;
#endif
}
__device__ inline double larger(double a, double b) { return a > b || a != a ? a : b; }

// a > b.
__device__ inline bool is_larger(float a, float b) {
#ifndef __CUDA_ARCH__
    return a > b;
#else
    int larger;
    asm("{\n"
        ".reg .pred larger;\n"
        "setp.gt.f32 larger, %1, %2;\n"
        "selp.s32 %0, 1, 0, larger;\n"
        "}"
        : "=r"(larger)
        : "f"(a), "f"(b));
    return larger;
#endif
}
__device__ inline bool is_larger(double a, double b) { return a > b; }

// NaN equals NaN: it is the maximum of its window.
__device__ inline bool same_value(float a, float b) {
#ifndef __CUDA_ARCH__
    return a == b || (a != a && b != b);
#else
    int same;
    asm("{\n"
        ".reg .pred equal, both_nan, other_nan;\n"
        "setp.nan.f32 other_nan, %2, %2;\n"
        "setp.nan.and.f32 both_nan, %1, %1, other_nan;\n"
        "setp.eq.or.f32 equal, %1, %2, both_nan;\n"
        "selp.s32 %0, 1, 0, equal;\n"
        "}"
        : "=r"(same)
        : "f"(a), "f"(b));
    return same;
#endif
}
__device__ inline bool same_value(double a, double b) { return a == b || (a != a && b != b); }

template <typename A>
__device__ inline A negative_infinity() {
    return A(-1e300) * A(1e300);
}
template <>
__device__ inline float negative_infinity<float>() {
    return __int_as_float(0xff800000);
}

template <typename I>
__device__ inline I at_offset(const Strides<I> &stride, I a, I b, I d, I h, I w, I lane) {
    return a * stride.a + b * stride.b + d * stride.d + h * stride.h + w * stride.w +
           lane * stride.lane;
}

// Takes the innermost axis off an index.
template <typename I>
__device__ inline I take(I &index, I size) {
    if (size == 1) return 0;
    const I outside = quotient(index, size), at = index - outside * size;
    index = outside;
    return at;
}

template <typename I>
__device__ inline I least(I a, I b) {
    return a < b ? a : b;
}
template <typename I>
__device__ inline I most(I a, I b) {
    return a > b ? a : b;
}

// The elements of x in a window of `size` that begins at `begin` (negative: in the padding).
template <typename I>
struct Clipped {
    I low, high;

    __device__ Clipped(I begin, I size, I extent)
        : low(most(begin, I(0))), high(most(low, least(begin + size, extent))) {}
    __device__ I count() const { return high - low; }
    __device__ bool has(I at) const { return at >= low && at < high; }
};

// The elements of a window that lie in x, one after another in row-major order, STEP at a time.
template <typename I, int STEP>
struct Sites {
    I across, down, step_rows, step_columns;
    I depth, row, column;

    __device__ Sites(const Clipped<I> &h, const Clipped<I> &w, int first)
        : across(most(w.count(), I(1))), down(most(h.count(), I(1))) {
        step_rows = quotient(I(STEP), across);
        step_columns = STEP - step_rows * across;
        row = quotient(I(first), across);
        column = first - row * across;
        depth = 0;
        wrap();
    }
    __device__ void wrap() {
        while (row >= down) row -= down, ++depth;
    }
    __device__ void advance() {
        column += step_columns;
        row += step_rows;
        if (column >= across) column -= across, ++row;
        wrap();
    }
};

// Rounded down; b is positive.
template <typename I>
__device__ inline I floor_quotient(I a, I b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// A run of `words` words in memory and in `stage`, which begins as far behind a boundary of packs.
template <typename T>
struct Staging {
    static constexpr int COUNT = 16 / sizeof(T);
    static __device__ int shift(const T *at) {
        return (int)((unsigned long long)at / sizeof(T) % COUNT);
    }
    static __device__ void store(T *target, const T *stage, int words) {
        const int behind = shift(target);
        for (int first = threadIdx.x * COUNT; first < words + behind; first += BLOCK_THREADS * COUNT) {
            const int at = first - behind;
            const uint4 wide = *reinterpret_cast<const uint4 *>(stage + first);
            Pack<T, COUNT> pack;
            memcpy(&pack, &wide, sizeof(wide));
            if (at >= 0) store_pack<COUNT>(target + at, pack, words - at);
            else
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    if (at + i >= 0 && at + i < words) target[at + i] = pack.element[i];
        }
    }
};
