// The gradient before an activation and, in the same pass, its sums over all but the channels:
//
//     dz = dy * f'(y)                                     written, and of it
//         sum(dz)                                         -> the gradient of a bias
//         sum(dz), sum(dz * (x - mean))   PRODUCTS        -> both, for batch normalization; dy is
//                                                            the sum of two tensors then, dy and more
//
//     NORMALISED: y = f(v), v = scale * inverse deviation * (x - mean) + bias is made again of x,
//     and dz is not written: whoever needs it makes it again, too (normalise.cu). PRODUCTS, of dy
//     alone.
//
// dz may be the same memory as y, dy or x: a thread reads all it needs before it writes. Partial
// sums are left for channel_totals of channel_reduction.cu; they are of dz as it is stored, in
// float64, in an order that shapes and strides alone decide. PRODUCTS of half precision add four
// terms in float32 before each is widened (channel_sums.cuh).
//
// Memory traffic: each of y, dy, more, x and dz that there is, once. On an H200 in float32 that takes 0.76
// of the time of two passes without products, 0.80 of three with them.
// It reaches
// float32 89 to 97 %, float16 68 to 80 % of a copy's speed on an H100 (docs/kernels.md).
//
// NaN rule: NaN in y gives NaN in dz and in the channel's sums.

#include "activation_gradient.cuh"
#include "channel_sums.cuh"

// Operands of the walk.
enum { OF_DZ = 0, OF_Y = 1, OF_DY = 2, OF_X = 3, OF_MORE = 4 };

// What a thread has of a tile: stores dz where it is wanted, and adds to the sums.
template <int MODE, bool NORMALISED, bool PRODUCTS, int COUNT, int UNROLL, bool COLUMNS, typename At,
          typename T, int GROUPS, int PARALLEL, int SUMS>
__device__ inline void add_gradients(
    const At &at, T *dz, const T *y, const T *dy, const T *x, const T *more,
    const Arithmetic<T> (&center)[GROUPS], const Arithmetic<T> (&factor)[GROUPS],
    const Arithmetic<T> (&shift)[GROUPS], Arithmetic<T> coef, double (&sums)[PARALLEL][SUMS]) {
    using A = Arithmetic<T>;
    using Run = RunOf<T, !PRODUCTS>;
    constexpr bool TWO = PRODUCTS && !NORMALISED;
    // A run is of elements of one column that follow each other down the rows, or along a row.
    constexpr int OUTER = COLUMNS ? COUNT : UNROLL, INNER = COLUMNS ? UNROLL : COUNT;
    constexpr int LENGTH = Run::LENGTH < INNER ? Run::LENGTH : INNER;

    Pack<T, COUNT> gradients[UNROLL];
    [[maybe_unused]] Pack<T, COUNT> values[NORMALISED ? 1 : UNROLL];
    [[maybe_unused]] Pack<T, COUNT> inputs[PRODUCTS ? UNROLL : 1], others[TWO ? UNROLL : 1];
    at.load(gradients, dy, OF_DY);
    if constexpr (TWO) at.load(others, more, OF_MORE);
    if constexpr (!NORMALISED) at.load(values, y, OF_Y);
    if constexpr (PRODUCTS) at.load(inputs, x, OF_X);
#pragma unroll
    for (int outer = 0; outer < OUTER; ++outer)
#pragma unroll
        for (int first = 0; first < INNER; first += LENGTH) {
            const int chain = COLUMNS ? outer : (outer * INNER + first) / LENGTH % 2;
            [[maybe_unused]] typename Run::type run[SUMS] = {};
#pragma unroll
            for (int inner = first; inner < first + LENGTH; ++inner) {
                const int u = COLUMNS ? inner : outer, i = COLUMNS ? outer : inner;
                if (!at.has(u, i)) continue;
                const int g = COLUMNS ? i : 0;
                A incoming = widen(gradients[u].element[i]);
                if constexpr (TWO) incoming += widen(others[u].element[i]);
                A made;
                if constexpr (NORMALISED) {
                    const A normal = (widen(inputs[u].element[i]) - center[g]) * factor[g];
                    made = gradient_before<T, MODE>(normal + shift[g], incoming, coef);
                } else {
                    const A value = widen(values[u].element[i]);
                    made = gradient<MODE, false>(value, incoming, value, coef);
                    gradients[u].element[i] = narrow<T>(made);
                    made = widen(gradients[u].element[i]);
                }
                if constexpr (LENGTH > 1) {
                    run[0] += made;
                    run[1] = fma(made, widen(inputs[u].element[i]) - center[g], run[1]);
                } else {
                    sums[chain][0] += made;
                    if constexpr (PRODUCTS) {
                        const double input = widen(inputs[u].element[i]);
                        sums[chain][1] =
                            fma((double)made, input - center[g], sums[chain][1]);
                    }
                }
            }
            if constexpr (LENGTH > 1)
#pragma unroll
                for (int s = 0; s < SUMS; ++s) sums[chain][s] += run[s];
        }
    if constexpr (!NORMALISED) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) at.store(dz, gradients[u], u);
    }
}

template <typename T, int MODE, bool NORMALISED, bool PRODUCTS, int COUNT, int UNROLL,
          bool UNROLL_ROWS, bool COLUMNS>
__global__ void __launch_bounds__(BLOCK_THREADS) gradient_partials(
    GroupWalk<5> walk, T *dz, const T *y, const T *dy, const T *x, const T *more,
    const Arithmetic<T> *mean, const Arithmetic<T> *inverse_deviation, const Arithmetic<T> *scale,
    const Arithmetic<T> *bias, double *partial, long long channels, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    static_assert(PRODUCTS || !NORMALISED, "without x there is nothing to normalise");
    constexpr int SUMS = PRODUCTS ? 2 : 1;
    constexpr int GROUPS = COLUMNS ? COUNT : 1;    // groups of one thread
    constexpr int PARALLEL = COLUMNS ? COUNT : 2;  // two chains of additions are in flight at least

    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;

        A center[GROUPS] = {}, factor[GROUPS] = {}, shift[GROUPS] = {};
        if constexpr (PRODUCTS) {
#pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                const long long column = COLUMNS ? (group * blockDim.x + threadIdx.x) * COUNT + i : 0;
                if (COLUMNS && column >= walk.size.inner) continue;
                const long long channel = COLUMNS ? remainder_of(column, channels) : group;
                center[i] = mean[channel];
                if constexpr (NORMALISED) {
                    factor[i] = scale[channel] * inverse_deviation[channel];
                    shift[i] = bias[channel];
                }
            }
        }

        double sums[PARALLEL][SUMS] = {};
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            visit_tile<COUNT, UNROLL, UNROLL_ROWS, COLUMNS>(walk, group, tile, [&](const auto &at) {
                add_gradients<MODE, NORMALISED, PRODUCTS, COUNT, UNROLL, COLUMNS>(
                    at, dz, y, dy, x, more, center, factor, shift, coef, sums);
            });
        }
        leave_partials<COUNT, COLUMNS>(walk, sums, part, group, channels, partial);
    }
}
