// Elements taken as they are (gather.cuh) where the rows of the result lie without gaps in memory:
// sites side by side, or the channels of one site behind those of another, however many.
//
// Memory traffic: the result is written once, and what it takes of the source is read once.
// It reaches
// float32 68 to 91 %, float16 43 to 65 % of a copy's speed on an H100 (docs/kernels.md).
//
// Rows begin anywhere, in the result and in the source. So packs lie on the boundaries of the
// result, the first and the last one of a row in part beside it, and are filled element by element:
// the cache has what the neighbouring threads read of the same bytes.

#include "gather.cuh"

// An element of the source, or the sum of those in a box.
template <bool TAKES_ONE, typename T, typename I>
__device__ inline T gathered_element(
    const Gather<I> &g, const T *source, const GatherRow<TAKES_ONE, I> &row,
    const GatherRange<TAKES_ONE, I> &w) {
    const Strides<I> &s = g.source;
    if constexpr (TAKES_ONE) {
        return source[row.d.begin * s.d + row.h.begin * s.h + w.begin * s.w];
    } else {
        Arithmetic<T> total = 0;
        for (I d = row.d.begin; d < row.d.end; ++d)
            for (I h = row.h.begin; h < row.h.end; ++h)
                for (I iw = w.begin; iw < w.end; ++iw)
                    total += widen(source[d * s.d + h * s.h + iw * s.w]);
        return narrow<T>(total);
    }
}

// A thread has up to PACKS packs of a row, one after the other.
template <typename I, typename T, bool TAKES_ONE, int COUNT, int PACKS>
__global__ void __launch_bounds__(BLOCK_THREADS) gather_nchw(
    Gather<I> g, T *__restrict__ result, const T *__restrict__ source, Arithmetic<T> empty) {
    const T nothing = narrow<T>(empty);
    const I length = g.made.w * g.lanes;
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> column(g.column_tiles, tile, PACKS);
        if (column.row >= g.rows) continue;
        const auto row = GatherRow<TAKES_ONE, I>::of(g, column.row);
        const bool is_there = row.is_there();
        T *target = result + row.result;
        const T *origin = source + row.source;
        const int behind = (int)((unsigned long long)target / sizeof(T) % COUNT);
#pragma unroll 1
        for (int u = 0; u < PACKS; ++u) {
            const I first = (column.pack + u * (int)blockDim.x) * COUNT - behind;
            if (first >= length) break;
            const I begin = most(first, I(0)), w = quotient(begin, g.lanes);
            I lane = begin - w * g.lanes;
            Edge<I> edge(g.axis[2], w);
            GatherRange<TAKES_ONE, I> of_w(g.axis[2], edge);
            Pack<T, COUNT> made;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                made.element[i] = nothing;
                if (first + i < 0 || first + i >= length) continue;
                if (is_there && of_w.is_there())
                    made.element[i] =
                        gathered_element<TAKES_ONE>(g, origin + lane * g.source.lane, row, of_w);
                if (++lane == g.lanes) {
                    lane = 0;
                    of_w = GatherRange<TAKES_ONE, I>(g.axis[2], edge);
                }
            }
            if (first >= 0) {
                store_pack<COUNT>(target + first, made, length - first);
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    if (first + i >= 0 && first + i < length) target[first + i] = made.element[i];
            }
        }
    }
}
