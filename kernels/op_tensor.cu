// Two tensors into one, the second broadcast (cuDNN's OpTensor and AddTensor):
//
//     c = op(alpha_a * a, alpha_b * b)
//
// b has stride 0 along the axes on which it has one element. `c` may be the same memory as `a`: a
// thread reads all it needs before it writes. Where READS_A is false, a is absent and c = alpha_b *
// b. NaN rule: minimum and maximum give NaN where either operand is NaN (CUDNN_PROPAGATE_NAN).

#include "strided.cuh"

enum Op { ADD = 0, MULTIPLY = 1, MINIMUM = 2, MAXIMUM = 3 };

// How b runs along the innermost axis: not at all, in packs like a, or in any other way.
enum Spread { CONSTANT = 0, PACKED = 1, STRIDED = 2 };

template <int OP, typename A>
__device__ inline A combine(A a, A b) {
    if constexpr (OP == ADD) return a + b;
    if constexpr (OP == MULTIPLY) return a * b;
    // Where b is NaN the comparison fails and b is taken.
    if constexpr (OP == MINIMUM) return a < b || a != a ? a : b;
    return a > b || a != a ? a : b;
}

template <typename T, int OP, bool READS_A, int SPREAD, int COUNT, int UNROLL>
__global__ void __launch_bounds__(256) op_tensor(
    Walk<3> walk, T *c, const T *a, const T *__restrict__ b, Arithmetic<T> alpha_a,
    Arithmetic<T> alpha_b) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x * UNROLL;
    long long first = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    for (; first < walk.packs; first += step) {
        Place<3> place[UNROLL];
        Pack<T, COUNT> as[UNROLL], bs[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            place[u] = place_of<COUNT>(walk, first + u * (int)blockDim.x);
            if constexpr (READS_A) as[u] = load_pack<COUNT>(a + place[u].offset[1], place[u].available);
            const T *source = b + place[u].offset[2];
            if constexpr (SPREAD == PACKED) {
                bs[u] = load_pack<COUNT>(source, place[u].available);
            } else if constexpr (SPREAD == CONSTANT) {
                if (place[u].available > 0) bs[u].element[0] = *source;
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    if (i < place[u].available) bs[u].element[i] = source[i * walk.inner_stride[2]];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            Pack<T, COUNT> results;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const A second = alpha_b * A(widen(bs[u].element[SPREAD == CONSTANT ? 0 : i]));
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
