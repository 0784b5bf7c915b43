// Elements taken as they are (gather.cuh) where channels, or images, lie side by side in result and
// source: a thread has packs of them, each at one site.
//
// Memory traffic: the result is written once, and what it takes of the source is read once. Sites
// that nearest upsampling takes several times lie near each other, so the cache has them.
// It reaches
// float32 94 to 101 %, float16 77 to 92 % of a copy's speed on an H100 (docs/kernels.md).

#include "gather.cuh"

// A pack of the source, or the sum of those in a box.
template <bool TAKES_ONE, int COUNT, typename T, typename I>
__device__ inline Pack<T, COUNT> gathered_pack(
    const Gather<I> &g, const T *source, const GatherRow<TAKES_ONE, I> &row,
    const GatherRange<TAKES_ONE, I> &w, I available) {
    const Strides<I> &s = g.source;
    if constexpr (TAKES_ONE) {
        return load_pack<COUNT>(
            source + (row.d.begin * s.d + row.h.begin * s.h + w.begin * s.w), available);
    } else {
        Arithmetic<T> totals[COUNT] = {};
        for (I d = row.d.begin; d < row.d.end; ++d)
            for (I h = row.h.begin; h < row.h.end; ++h)
                for (I iw = w.begin; iw < w.end; ++iw) {
                    const auto pack =
                        load_pack<COUNT>(source + (d * s.d + h * s.h + iw * s.w), available);
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) totals[i] += widen(pack.element[i]);
                }
        Pack<T, COUNT> made;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) made.element[i] = narrow<T>(totals[i]);
        return made;
    }
}

// A thread has UNROLL packs of a row, all loaded before the first is stored.
template <typename I, typename T, bool TAKES_ONE, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) gather_nhwc(
    Gather<I> g, T *__restrict__ result, const T *__restrict__ source, Arithmetic<T> empty) {
    const I lane_packs = quotient(g.lanes + COUNT - 1, I(COUNT));
    Pack<T, COUNT> nothing;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) nothing.element[i] = narrow<T>(empty);

    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> first(g.column_tiles, tile, UNROLL);
        if (first.row >= g.rows) continue;
        const auto row = GatherRow<TAKES_ONE, I>::of(g, first.row);
        Pack<T, COUNT> packs[UNROLL];
        I target[UNROLL], available[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const I pack = first.pack + u * (int)blockDim.x, w = quotient(pack, lane_packs);
            const I lane = (pack - w * lane_packs) * COUNT;
            available[u] = pack < g.row_packs ? g.lanes - lane : I(0);
            target[u] = row.result + w * g.result.w + lane * g.result.lane;
            const auto of_w = GatherRange<TAKES_ONE, I>::of(g.axis[2], w);
            packs[u] = nothing;
            if (row.is_there() && of_w.is_there() && available[u] > 0)
                packs[u] = gathered_pack<TAKES_ONE, COUNT>(
                    g, source + row.source + lane * g.source.lane, row, of_w, available[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) store_pack<COUNT>(result + target[u], packs[u], available[u]);
    }
}
