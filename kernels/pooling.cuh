// What the pooling kernels share: their geometry, their modes, and comparisons.
//
// All tensors have six axes here: two outer ones, three spatial ones and the lanes. Channels-first
// has (n, c, d, h, w, 1), channels-last (1, n, d, h, w, c), so that the last axis that is not 1 is
// contiguous; missing spatial axes have extent 1.
//
// A maximum is one of the values of its window, to the bit. CuPy's -ftz=true would take subnormal
// floats as zero, so the comparisons are written in PTX, which flushes only where it says so.
#pragma once

#include "strided.cuh"

enum Mode { MAX = 0, AVERAGE_INCLUDE_PADDING = 1, AVERAGE_EXCLUDE_PADDING = 2 };

struct Extents {
    long long d, h, w;
};
struct Strides {
    long long a, b, d, h, w, lane;
};

// NaN propagates: a NaN among the two is the larger.
__device__ inline float larger(float a, float b) {
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
#else
    float most;
    asm("max.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return a != a ? a : b != b ? b : most;
#endif
}
__device__ inline double larger(double a, double b) { return a > b || a != a ? a : b; }

// NaN equals NaN: it is the maximum of its window.
__device__ inline bool same_value(float a, float b) {
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

// Takes the innermost axis off an index.
__device__ inline long long take(long long &index, long long size) {
    if (size == 1) return 0;
    const long long outside = quotient(index, size);
    const long long at = index - outside * size;
    index = outside;
    return at;
}

__device__ inline long long smaller(long long a, long long b) { return a < b ? a : b; }
__device__ inline long long larger(long long a, long long b) { return a > b ? a : b; }

// The elements of x in a window of `size` that begins at `begin` (negative: in the padding).
struct Clipped {
    long long low, high;

    __device__ Clipped(long long begin, int size, long long extent)
        : low(larger(begin, 0ll)), high(larger(low, smaller(begin + size, extent))) {}
    __device__ long long count() const { return high - low; }
};

__device__ inline long long floor_quotient(long long a, long long b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}
