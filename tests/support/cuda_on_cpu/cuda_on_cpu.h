// As much of CUDA's C++ as kernels/*.cu use, for g++: read before a kernel in place of CUDA's headers.
//
// No standard header is read, so that an instance of a kernel compiles in a fraction of a second.
// threads.cpp runs the threads. Arithmetic is the CPU's: it fuses no multiplication with an
// addition, and keeps subnormal numbers.
#pragma once

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __constant__ static const
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
// One kernel is one library, whose thread-local memory is what its blocks share: threads.cpp fills
// it with NaN before each block.
#define __shared__ static __thread

using size_t = decltype(sizeof(0));
extern "C" void *memcpy(void *, const void *, size_t);
extern "C" void *memset(void *, int, size_t);

// -- vectors, aligned as on the card: a misaligned access traps ------------------------------------

#define VECTORS(type, name, align1, align2, align4)                                      \
    struct alignas(align1) name##1 { type x; };                                          \
    struct alignas(align2) name##2 { type x, y; };                                       \
    struct name##3 { type x, y, z; };                                                    \
    struct alignas(align4) name##4 { type x, y, z, w; };                                 \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                     \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }          \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTORS(signed char, char, 1, 2, 4)
VECTORS(unsigned char, uchar, 1, 2, 4)
VECTORS(short, short, 2, 4, 8)
VECTORS(unsigned short, ushort, 2, 4, 8)
VECTORS(int, int, 4, 8, 16)
VECTORS(unsigned int, uint, 4, 8, 16)
VECTORS(long long, longlong, 8, 16, 16)
VECTORS(unsigned long long, ulonglong, 8, 16, 16)
VECTORS(float, float, 4, 8, 16)
VECTORS(double, double, 8, 16, 16)
#undef VECTORS

// -- threads ---------------------------------------------------------------------------------------

struct dim3 {
    unsigned int x = 1, y = 1, z = 1;
};
extern "C" {
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
void cuda_on_cpu_barrier(int line);
// What the threads of `mask` hand in is there for all of them: `value` of lane `source`, and one bit
// a lane whose value is not 0.
unsigned long long cuda_on_cpu_exchange(
    unsigned mask, unsigned long long value, int source, unsigned *votes, int line);
}
constexpr int warpSize = 32;

// The line is where the kernel says it: threads that wait for each other at different ones fail.
inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_cpu_barrier(line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    unsigned votes;
    cuda_on_cpu_exchange(mask, 0, -1, &votes, line);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}

inline unsigned cuda_on_cpu_lane() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    unsigned votes;
    cuda_on_cpu_exchange(mask, predicate != 0, -1, &votes, line);
    return votes;
}
inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, !predicate, line) == 0;
}

template <typename T>
inline T cuda_on_cpu_from(unsigned mask, T value, int source, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "what CUDA's shuffles move");
    unsigned long long bits = 0;
    unsigned votes;
    memcpy(&bits, &value, sizeof(T));
    bits = cuda_on_cpu_exchange(mask, bits, source, &votes, line);
    memcpy(&value, &bits, sizeof(T));
    return value;
}
// A lane beyond its group of `width` stays with its own value.
template <typename T>
inline T __shfl_sync(
    unsigned mask, T value, int source, int width = 32, int line = __builtin_LINE()) {
    const int lane = cuda_on_cpu_lane(), group = lane & -width;
    return cuda_on_cpu_from(mask, value, group + (source & (width - 1)), line);
}
template <typename T>
inline T __shfl_xor_sync(
    unsigned mask, T value, int other, int width = 32, int line = __builtin_LINE()) {
    const int lane = cuda_on_cpu_lane(), source = lane ^ other;
    return cuda_on_cpu_from(mask, value, source < (lane & -width) + width ? source : lane, line);
}
template <typename T>
inline T __shfl_up_sync(
    unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
    const int lane = cuda_on_cpu_lane(), source = lane - (int)by;
    return cuda_on_cpu_from(mask, value, source >= (lane & -width) ? source : lane, line);
}
template <typename T>
inline T __shfl_down_sync(
    unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
    const int lane = cuda_on_cpu_lane(), source = lane + (int)by;
    return cuda_on_cpu_from(mask, value, source < (lane & -width) + width ? source : lane, line);
}

// One thread runs at a time.
#define ATOMIC(name, update)                                  \
    template <typename T>                                     \
    inline T name(T *address, decltype(T()) value) {          \
        const T old = *address;                               \
        *address = update;                                    \
        return old;                                           \
    }
ATOMIC(atomicAdd, old + value)
ATOMIC(atomicSub, old - value)
ATOMIC(atomicMin, value < old ? value : old)
ATOMIC(atomicMax, value > old ? value : old)
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicXor, old ^ value)
ATOMIC(atomicExch, value)
#undef ATOMIC
template <typename T>
inline T atomicCAS(T *address, decltype(T()) expected, decltype(T()) value) {
    const T old = *address;
    if (old == expected) *address = value;
    return old;
}

// -- memory: plain accesses, whose alignment is checked ---------------------------------------------

#define LOAD(name) template <typename T> inline T name(const T *address) { return *address; }
#define STORE(name) \
    template <typename T> inline void name(T *address, decltype(T()) value) { *address = value; }
LOAD(__ldg) LOAD(__ldca) LOAD(__ldcg) LOAD(__ldcs) LOAD(__ldcv) LOAD(__ldlu)
STORE(__stwb) STORE(__stcg) STORE(__stcs) STORE(__stwt)
#undef LOAD
#undef STORE

// -- arithmetic ------------------------------------------------------------------------------------

#define BITS(name, To, From)                                          \
    inline To name(From x) {                                          \
        static_assert(sizeof(To) == sizeof(From), "bits are moved");  \
        To y;                                                         \
        memcpy(&y, &x, sizeof(y));                                    \
        return y;                                                     \
    }
BITS(__int_as_float, float, int)
BITS(__uint_as_float, float, unsigned)
BITS(__float_as_int, int, float)
BITS(__float_as_uint, unsigned, float)
BITS(__longlong_as_double, double, long long)
BITS(__double_as_longlong, long long, double)

#define ONE(name)                                   \
    extern "C" double name(double) noexcept;        \
    extern "C" float name##f(float) noexcept;       \
    inline float name(float x) { return name##f(x); }
#define TWO(name)                                          \
    extern "C" double name(double, double) noexcept;       \
    extern "C" float name##f(float, float) noexcept;       \
    inline float name(float x, float y) { return name##f(x, y); }
ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sqrt) ONE(cbrt)
ONE(sin) ONE(cos) ONE(tan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asin) ONE(acos) ONE(atan)
ONE(erf) ONE(erfc) ONE(fabs) ONE(floor) ONE(ceil) ONE(trunc) ONE(round) ONE(rint) ONE(nearbyint)
TWO(fmin) TWO(fmax) TWO(fmod) TWO(pow) TWO(hypot) TWO(copysign) TWO(atan2) TWO(fdim)
#undef ONE
#undef TWO
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }

template <typename T> inline bool isnan(T x) { return __builtin_isnan(x); }
template <typename T> inline bool isinf(T x) { return __builtin_isinf(x); }
template <typename T> inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <typename T> inline bool signbit(T x) { return __builtin_signbit(x); }

#define ORDER(type)                                                   \
    inline type min(type x, type y) { return y < x ? y : x; }         \
    inline type max(type x, type y) { return x < y ? y : x; }
ORDER(int) ORDER(unsigned) ORDER(long) ORDER(unsigned long) ORDER(long long) ORDER(unsigned long long)
#undef ORDER
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }
inline double min(double x, double y) { return fmin(x, y); }
inline double max(double x, double y) { return fmax(x, y); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long llabs(long long x) { return x < 0 ? -x : x; }

inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline long long __mul64hi(long long x, long long y) { return (long long)(((__int128)x * y) >> 64); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
inline unsigned __umulhi(unsigned x, unsigned y) { return ((unsigned long long)x * y) >> 32; }

// -- 16-bit floats ----------------------------------------------------------------------------------

struct __half {
    _Float16 value;
    __half() = default;
    __half(float x) : value((_Float16)x) {}
    operator float() const { return (float)value; }
};
inline float __half2float(__half x) { return (float)x.value; }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __float2half(float x) { return __half(x); }
inline __half __double2half(double x) {
    __half y;
    y.value = (_Float16)x;
    return y;
}
inline unsigned short __half_as_ushort(__half x) {
    unsigned short bits;
    memcpy(&bits, &x, 2);
    return bits;
}
inline __half __ushort_as_half(unsigned short bits) {
    __half x;
    memcpy(&x, &bits, 2);
    return x;
}

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {  // to nearest, ties to even
        const unsigned wide = __float_as_uint(x);
        bits = x != x ? 0x7fff : (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    }
    operator float() const { return __uint_as_float((unsigned)bits << 16); }
};
inline float __bfloat162float(__nv_bfloat16 x) { return (float)x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
inline __nv_bfloat16 __double2bfloat16(double x) {
    float near = (float)x;
    if (x == x && (double)near != x) {  // to odd first, so that it is rounded once
        const unsigned bits = __float_as_uint(near);
        near = __uint_as_float((fabs((double)near) > fabs(x) ? bits - 1 : bits) | 1);
    }
    return __nv_bfloat16(near);
}

// -- how threads.cpp and Python call a kernel -------------------------------------------------------

template <int... at>
struct CudaOnCpuIndices {};
template <typename... P>
struct CudaOnCpuCall {
    static constexpr int COUNT = sizeof...(P);
    static constexpr int BYTES[COUNT + 1] = {(int)sizeof(P)..., -1};
    template <int... at>
    static void run(void (*kernel)(P...), void **arguments, CudaOnCpuIndices<at...>) {
        kernel(*static_cast<P *>(arguments[at])...);
    }
    static void run(void (*kernel)(P...), void **arguments) {
        run(kernel, arguments, CudaOnCpuIndices<__integer_pack(COUNT)...>());
    }
};
template <typename... P>
CudaOnCpuCall<P...> cuda_on_cpu_call(void (*)(P...));

// The end of every source that Python compiles: one thread of the kernel, and its parameters' sizes
// up to a -1.
#define CUDA_ON_CPU_KERNEL(...)                                                                  \
    using Call = decltype(cuda_on_cpu_call(&__VA_ARGS__));                                       \
    extern "C" void cuda_on_cpu_thread(void **arguments) { Call::run(&__VA_ARGS__, arguments); } \
    extern "C" int cuda_on_cpu_parameter_bytes(int at) { return Call::BYTES[at]; }
