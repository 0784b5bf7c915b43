// The fused pointwise pass after a convolution. Memory traffic: each tensor that is there is read once,
// and the result written once:
//
//     destination[n,c,s] = alpha * activation(scale[c] * (value[n,c,s] + addend[n,c,s]) + shift[c])
//                        + beta * old[n,c,s]
//
// `addend`, `scale`, `shift` and `old` may be absent: then that term is left out, not read as zero,
// so a NaN in memory that beta = 0 excludes is never seen (null scale and shift; ADDEND and OLD). Everything is computed in the arithmetic
// type (float, or double for double) and rounded once. `destination` may be the same memory as
// `value`, `addend` or `old`: a thread reads all it needs before it writes.
// It reaches
// float32 90 to 102 %, float16 54 to 102 % of a copy's speed on an H100 (docs/kernels.md).
//
// NaN rule: activation.cuh's.
//
// The host maps (n, c, s) onto (outer, middle, inner) with `inner` contiguous where any axis is:
// channels-first has inner = s and a channel per row, channels-last inner = c and a channel per
// column (CHANNEL_INNER). A row is one (outer, middle) pair; a thread owns UNROLL packs of COUNT
// elements, taken down the rows (UNROLL_ROWS) or along one row, all loaded before the first is used.

#include "activation.cuh"
#include "element.cuh"

struct PointwiseGeometry {
    Axes size;                             // in elements
    Axes destination, value, addend, old;  // strides in elements
    long long tiles, column_tiles;         // blocks' worth of work: in all, and along a row
};

// ADDEND and OLD say that these operands are there: absent ones shall cost no registers.
// CONTIGUOUS says that every inner stride is 1; where it is false, COUNT is 1.
template <typename T, typename V, typename D, int MODE, bool ADDEND, bool OLD, int COUNT,
          int UNROLL, bool UNROLL_ROWS, bool CHANNEL_INNER, bool CONTIGUOUS>
__global__ void __launch_bounds__(BLOCK_THREADS, 2) pointwise(
    PointwiseGeometry geometry, D *destination, const V *value, const Arithmetic<T> *addend,
    const T *__restrict__ scale, const T *__restrict__ shift, const D *old, Arithmetic<T> alpha,
    Arithmetic<T> beta, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    const Axes size = geometry.size;
    const long long rows = size.outer * size.middle;

    for (long long tile = blockIdx.x; tile < geometry.tiles; tile += gridDim.x) {
        const long long row_tile = (unsigned long long)tile / geometry.column_tiles;
        const long long column_tile = tile - row_tile * geometry.column_tiles;
        const long long first_row =
            row_tile * blockDim.y * (UNROLL_ROWS ? UNROLL : 1) + threadIdx.y;
        const long long first_column =
            (column_tile * blockDim.x * (UNROLL_ROWS ? 1 : UNROLL) + threadIdx.x) * COUNT;

        long long outer[UNROLL], middle[UNROLL], column[UNROLL], available[UNROLL];
        Pack<V, COUNT> values[UNROLL];
        Pack<A, COUNT> addends[ADDEND ? UNROLL : 1];
        Pack<D, COUNT> olds[OLD ? UNROLL : 1];

        Row row(first_row, size);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (UNROLL_ROWS && u > 0) row.advance(blockDim.y, size);
            outer[u] = row.outer;
            middle[u] = row.middle;
            column[u] = first_column + (UNROLL_ROWS ? 0 : u * (int)blockDim.x * COUNT);
            const bool inside = first_row + (UNROLL_ROWS ? u * (int)blockDim.y : 0) < rows;
            available[u] = inside ? size.inner - column[u] : 0;
        }
        auto offset = [&](const Axes &stride, int u) {
            return outer[u] * stride.outer + middle[u] * stride.middle +
                   column[u] * (CONTIGUOUS ? 1 : stride.inner);
        };

#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            values[u] = load_pack<COUNT>(value + offset(geometry.value, u), available[u]);
        if constexpr (ADDEND) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                addends[u] = load_pack<COUNT>(addend + offset(geometry.addend, u), available[u]);
        }
        if constexpr (OLD) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
                olds[u] = load_pack<COUNT>(old + offset(geometry.old, u), available[u]);
        }

        // The channels' parameters: for channels-last one pair a column, the same for all rows of
        // the thread, else one pair a row. Absent ones are 1 and -0: x * 1 + (-0) is x, always.
        constexpr int PARAMETERS = CHANNEL_INNER ? COUNT : UNROLL;
        A scales[PARAMETERS], shifts[PARAMETERS];
#pragma unroll
        for (int i = 0; i < PARAMETERS; ++i) scales[i] = A(1), shifts[i] = A(-0.0);
        auto read = [&](A(&parameters)[PARAMETERS], const T *__restrict__ source) {
            if constexpr (CHANNEL_INNER) {
                const auto pack = load_pack<COUNT>(source + column[0], available[0]);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) parameters[i] = widen(pack.element[i]);
            } else {
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    if (!UNROLL_ROWS && u > 0)
                        parameters[u] = parameters[0];
                    else if (available[u] > 0)
                        parameters[u] = widen(source[middle[u]]);
            }
        };
        if (scale) read(scales, scale);
        if (shift) read(shifts, shift);

#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (available[u] <= 0) continue;
            Pack<D, COUNT> results;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                A x = widen(values[u].element[i]);
                if constexpr (ADDEND) x += addends[u].element[i];
                x = x * scales[CHANNEL_INNER ? i : u] + shifts[CHANNEL_INNER ? i : u];
                x = alpha * activation<MODE, D>(x, coef);
                if constexpr (OLD) x += beta * A(widen(olds[u].element[i]));
                results.element[i] = narrow<D>(x);
            }
            store_pack<COUNT>(destination + offset(geometry.destination, u), results, available[u]);
        }
    }
}
