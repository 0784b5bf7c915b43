// Products of small matrices that lie in shared memory, a warp's on tensor cores: 16-bit elements,
// added up in float. Left (16 x 16) times right (16 x 8), in registers as mma.m16n8k16 has them: of
// lane 4g + t, the rows g and g + 8, the columns 2t and 2t + 1 (of the right one the column g).
//
// Cards before Ampere, and the tests on a CPU, get the same by shuffles and additions in float.
#pragma once

#include "element.cuh"

using Bits = unsigned short;  // of an element

struct Left {
    unsigned pairs[4];  // rows g and g + 8 of the first 8 columns, then of the others
};
struct Right {
    unsigned pairs[2];  // the first 8 rows of column g, then the others
};

template <typename T>
__device__ inline Bits bits_of(float x) {
    const T narrowed = narrow<T>(x);
    return *(const Bits *)&narrowed;
}
template <typename T>
__device__ inline unsigned pair_of(float low, float high) {
    return bits_of<T>(low) | (unsigned)bits_of<T>(high) << 16;
}
__device__ inline unsigned pair_of(Bits low, Bits high) { return low | (unsigned)high << 16; }
__device__ inline unsigned pair_at(const Bits *at) { return *(const unsigned *)at; }

// The rows of a matrix whose rows are STEP elements apart.
template <int STEP>
__device__ inline Left left_of_rows(const Bits *rows) {
    const int lane = threadIdx.x % 32;
    const Bits *at = rows + lane / 4 * STEP + lane % 4 * 2;
    return {{pair_at(at), pair_at(at + 8 * STEP), pair_at(at + 8), pair_at(at + 8 * STEP + 8)}};
}

// The transpose of such a matrix.
template <int STEP>
__device__ inline Right right_of_columns(const Bits *rows) {
    const int lane = threadIdx.x % 32;
    const Bits *at = rows + lane / 4 * STEP + lane % 4 * 2;
    return {{pair_at(at), pair_at(at + 8)}};
}

// The transpose, as the left one.
template <int STEP>
__device__ inline Left left_of_columns(const Bits *rows) {
    const int lane = threadIdx.x % 32;
    Left left;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    const Bits *at = rows + (lane % 8 + lane / 16 * 8) * STEP + lane / 8 % 2 * 8;
    const unsigned address = (unsigned)__cvta_generic_to_shared(at);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(left.pairs[0]), "=r"(left.pairs[1]), "=r"(left.pairs[2]), "=r"(left.pairs[3])
                 : "r"(address));
#else
    for (int part = 0; part < 4; ++part) {
        const Bits *at = rows + (lane % 4 * 2 + part / 2 * 8) * STEP + lane / 4 + part % 2 * 8;
        left.pairs[part] = pair_of(at[0], at[STEP]);
    }
#endif
    return left;
}

// Such a matrix itself, as the right one.
template <int STEP>
__device__ inline Right right_of_rows(const Bits *rows) {
    const int lane = threadIdx.x % 32;
    Right right;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    const unsigned address = (unsigned)__cvta_generic_to_shared(rows + lane % 16 * STEP);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(right.pairs[0]), "=r"(right.pairs[1])
                 : "r"(address));
#else
    for (int part = 0; part < 2; ++part) {
        const Bits *at = rows + (lane % 4 * 2 + part * 8) * STEP + lane / 4;
        right.pairs[part] = pair_of(at[0], at[STEP]);
    }
#endif
    return right;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

__device__ inline void multiply_as(const __half *, float (&sums)[4], const Left &left, const Right &right) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
                   "r"(right.pairs[0]), "r"(right.pairs[1]));
}
__device__ inline void multiply_as(
    const __nv_bfloat16 *, float (&sums)[4], const Left &left, const Right &right) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
                   "r"(right.pairs[0]), "r"(right.pairs[1]));
}

#else

template <typename T>
__device__ inline void multiply_as(const T *, float (&sums)[4], const Left &left, const Right &right) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    for (int k = 0; k < 16; ++k) {
        const int from = k % 8 / 2, shift = k % 2 * 16;
        float factors[4];
        for (int at = 0; at < 2; ++at) {
            const unsigned of_left = __shfl_sync(~0u, left.pairs[at + k / 8 * 2], row * 4 + from);
            const unsigned of_right = __shfl_sync(~0u, right.pairs[k / 8], (column + at) * 4 + from);
            const Bits bits[2] = {(Bits)(of_left >> shift), (Bits)(of_right >> shift)};
            factors[at] = widen(*(const T *)&bits[0]);
            factors[2 + at] = widen(*(const T *)&bits[1]);
        }
        for (int at = 0; at < 4; ++at) sums[at] += factors[at / 2] * factors[2 + at % 2];
    }
}

#endif

// Adds left times right to sums: of rows g and g + 8 the columns 2t and 2t + 1.
template <typename T>
__device__ inline void multiply(float (&sums)[4], const Left &left, const Right &right) {
    multiply_as((const T *)nullptr, sums, left, right);
}
