// Element types and how they are loaded, computed with and stored. Shared by every kernel here.
//
// Tensors hold __half, __nv_bfloat16, float or double. Arithmetic happens in float for the first
// three and in double for the last; a value is rounded once, when it is stored. Compiles under
// nvcc and under NVRTC, which knows no standard headers: hence `long long` and not `int64_t`.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BLOCK_THREADS = 256;  // of all kernels that do not say otherwise

// Bytes of the struct that a kernel takes first: the host's must have as many.
template <typename Kernel>
constexpr int STRUCT_BYTES = 0;
template <typename Struct, typename... Others>
constexpr int STRUCT_BYTES<void(Struct, Others...)> = sizeof(Struct);

template <typename Element>
struct ArithmeticOf {
    using type = float;
};
template <>
struct ArithmeticOf<double> {
    using type = double;
};
template <typename Element>
using Arithmetic = typename ArithmeticOf<Element>::type;

__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }

// Rounds to nearest even; out of range becomes infinity; NaN stays NaN.
template <typename Element>
__device__ inline Element narrow(Arithmetic<Element> x);
template <>
__device__ inline __half narrow<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ inline float narrow<float>(float x) { return x; }
template <>
__device__ inline double narrow<double>(double x) { return x; }

// COUNT neighbouring elements, moved in accesses of up to 16 bytes, the widest one instruction can
// do. The host promises the alignment by choosing COUNT.
template <typename Element, int COUNT>
struct Pack {
    Element element[COUNT];
};

template <int BYTES>
struct AccessOf;
template <>
struct AccessOf<1> { using type = unsigned char; };
template <>
struct AccessOf<2> { using type = unsigned short; };
template <>
struct AccessOf<4> { using type = unsigned int; };
template <>
struct AccessOf<8> { using type = uint2; };
template <>
struct AccessOf<16> { using type = uint4; };

template <int BYTES>
using Access = typename AccessOf<(BYTES < 16 ? BYTES : 16)>::type;

// Reads COUNT elements at `source`, or only the first `available` where a row ends inside a pack.
template <int COUNT, typename Element>
__device__ inline Pack<Element, COUNT> load_pack(const Element *source, long long available) {
    using Wide = Access<sizeof(Element) * COUNT>;
    constexpr int ACCESSES = sizeof(Element) * COUNT / sizeof(Wide);
    Pack<Element, COUNT> pack = {};
    if (available >= COUNT) {
        Wide wide[ACCESSES];
#pragma unroll
        for (int i = 0; i < ACCESSES; ++i) wide[i] = reinterpret_cast<const Wide *>(source)[i];
        memcpy(&pack, wide, sizeof(pack));
    } else if (COUNT > 1) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < available) pack.element[i] = source[i];
    }
    return pack;
}

// The counterpart. `__stwb` is the ordinary store; an assignment the compiler takes apart again into
// 4-byte stores where the elements are 16-bit. It is also a barrier to the compiler: load first.
template <int COUNT, typename Element>
__device__ inline void store_pack(
    Element *destination, const Pack<Element, COUNT> &pack, long long available) {
    using Wide = Access<sizeof(Element) * COUNT>;
    constexpr int ACCESSES = sizeof(Element) * COUNT / sizeof(Wide);
    if (available >= COUNT) {
        Wide wide[ACCESSES];
        memcpy(wide, &pack, sizeof(pack));
#pragma unroll
        for (int i = 0; i < ACCESSES; ++i) __stwb(reinterpret_cast<Wide *>(destination) + i, wide[i]);
    } else if (COUNT > 1) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < available) destination[i] = pack.element[i];
    }
}

// A tensor as rows: (n, c, s) with the contiguous axis innermost, whichever that is.
struct Axes {
    long long outer, middle, inner;
};

// The row `row` as (outer, middle). UNROLL rows `step` apart cost one division, not UNROLL.
struct Row {
    long long outer, middle;

    __device__ Row(long long row, const Axes &size) {
        outer = size.outer == 1 ? 0 : (unsigned long long)row / size.middle;
        middle = row - outer * size.middle;
    }
    __device__ void advance(long long step, const Axes &size) {
        middle += step;
        if (size.outer == 1 || middle < size.middle) return;
        const long long wraps = (unsigned long long)middle / size.middle;
        outer += wraps;
        middle -= wraps * size.middle;
    }
};
