// Element types and how they are loaded, computed with and stored. Shared by every kernel here.
//
// Tensors hold __half, __nv_bfloat16, float or double. Arithmetic happens in float for the first
// three and in double for the last; a value is rounded once, when it is stored. Compiles under
// nvcc and under NVRTC, which knows no standard headers: hence `long long` and not `int64_t`.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

// COUNT neighbouring elements, aligned so that the compiler moves them in accesses of up to 16
// bytes, the widest one instruction can do. The host promises the alignment by choosing COUNT.
template <typename Element, int COUNT>
struct alignas(sizeof(Element) * COUNT < 16 ? sizeof(Element) * COUNT : 16) Pack {
    Element element[COUNT];
};

// Reads COUNT elements at `source`, or only the first `available` where a row ends inside a pack.
template <int COUNT, typename Element>
__device__ inline Pack<Element, COUNT> load_pack(const Element *source, long long available) {
    if (available >= COUNT) return *reinterpret_cast<const Pack<Element, COUNT> *>(source);
    Pack<Element, COUNT> pack = {};
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (i < available) pack.element[i] = source[i];
    return pack;
}

template <int COUNT, typename Element>
__device__ inline void store_pack(
    Element *destination, const Pack<Element, COUNT> &pack, long long available) {
    if (available >= COUNT) {
        *reinterpret_cast<Pack<Element, COUNT> *>(destination) = pack;
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        if (i < available) destination[i] = pack.element[i];
}
