// Two tensors into one, the second broadcast (cuDNN's OpTensor and AddTensor):
//
//     c = op(alpha_a * a, alpha_b * b)
//
// b has stride 0 along the axes on which it has one element. `c` may be the same memory as `a`: a
// thread reads all it needs before it writes. Memory traffic: a and b are read once and c is written
// once; what of b is broadcast comes from the caches. Where READS_A is false, a is absent and c = alpha_b *
// b. prelu: b are the slopes below 0. NaN rule: minimum and maximum give NaN where either operand is NaN (CUDNN_PROPAGATE_NAN).
// It reaches
// float32 100 to 101 %, float16 100 to 103 % of a copy's speed on an H100 (docs/kernels.md).

#include "strided.cuh"

enum Op { ADD = 0, MULTIPLY = 1, MINIMUM = 2, MAXIMUM = 3, PRELU = 4, DIVIDE = 5 };

// How b runs along the innermost axis: not at all, in packs like a, or in any other way. CARRIED:
// a and c are one packed row and b's rows are no whole packs (a bias of 7 x 7 images); then packs
// lie across b's rows, and the walk is in elements.
enum Spread { CONSTANT = 0, PACKED = 1, STRIDED = 2, CARRIED = 3 };

template <int OP, typename A>
__device__ inline A combine(A a, A b) {
    if constexpr (OP == ADD) return a + b;
    if constexpr (OP == MULTIPLY) return a * b;
    if constexpr (OP == DIVIDE) return a / b;
    if constexpr (OP == PRELU) return a > A(0) ? a : a * b;
    // Where b is NaN the comparison fails and b is taken.
    if constexpr (OP == MINIMUM) return a < b || a != a ? a : b;
    return a > b || a != a ? a : b;
}

// The elements of b that a pack meets.
template <int SPREAD, int COUNT, typename I, typename T>
__device__ inline Pack<T, COUNT> load_b(
    const Walk<I, 3> &walk, const T *__restrict__ b, const Place<I, 3> &place, long long pack) {
    Pack<T, COUNT> values = {};
    if constexpr (SPREAD == PACKED) {
        values = load_pack<COUNT>(b + place.offset[2], place.available);
    } else if constexpr (SPREAD == CONSTANT) {
        if (place.available > 0) values.element[0] = b[place.offset[2]];
#pragma unroll
        for (int i = 1; i < COUNT; ++i) values.element[i] = values.element[0];
    } else if constexpr (SPREAD == STRIDED) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i < place.available) values.element[i] = b[place.offset[2] + i * walk.inner_stride[2]];
    } else {
        I offset = 0, left = 0;  // in this row of b
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i >= place.available) break;
            if (left == 0) {
                const Place<I, 3> row = place_of<1>(walk, pack * COUNT + i);
                offset = row.offset[2];
                left = row.available;
            }
            values.element[i] = b[offset];
            offset += walk.inner_stride[2];
            --left;
        }
    }
    return values;
}

template <typename I, typename T, int OP, bool READS_A, int SPREAD, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) op_tensor(
    Walk<I, 3> walk, T *c, const T *a, const T *__restrict__ b, Arithmetic<T> alpha_a,
    Arithmetic<T> alpha_b) {
    using A = Arithmetic<T>;
    const long long packs = SPREAD == CARRIED ? (walk.packs + (COUNT - 1ll)) / COUNT : walk.packs;
    const long long step = (long long)gridDim.x * blockDim.x * UNROLL;
    long long first = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    for (; first < packs; first += step) {
        Place<I, 3> place[UNROLL];
        Pack<T, COUNT> as[UNROLL], bs[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const long long pack = first + u * (int)blockDim.x;
            if constexpr (SPREAD == CARRIED) {
                const bool inside = pack < packs;
                place[u].offset[0] = place[u].offset[1] = inside ? (I)(pack * COUNT) : 0;
                place[u].available = inside ? walk.packs - (I)(pack * COUNT) : 0;
            } else {
                place[u] = place_of<COUNT>(walk, pack);
            }
            if constexpr (READS_A)
                as[u] = load_pack<COUNT>(a + place[u].offset[1], place[u].available);
            bs[u] = load_b<SPREAD, COUNT>(walk, b, place[u], pack);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            Pack<T, COUNT> results;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A second = alpha_b * A(widen(bs[u].element[i]));
                if constexpr (READS_A)
                    results.element[i] =
                        narrow<T>(combine<OP, A>(alpha_a * A(widen(as[u].element[i])), second));
                else
                    results.element[i] = narrow<T>(second);
            }
            store_pack<COUNT>(c + place[u].offset[0], results, place[u].available);
        }
    }
}
