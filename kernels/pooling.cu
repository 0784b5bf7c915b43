// The largest or the mean value of each window (cudnnPoolingForward).
//
//     pool_rows      w is contiguous in x, and rows begin on wide boundaries: a thread makes OUTPUTS
//                    neighbours along w and reads each row of x that their windows share once, in
//                    packs
//     pool_windows   any strides: a thread makes COUNT lanes (packs of channels in NHWC, of images in
//                    CHWN) of OUTPUTS windows one below the other, and reads each row of x that they
//                    share once
//     pool_by_warp   the same for large windows: a warp shares a window
//
// Memory traffic: x is read once and y written once. Rows that the windows of different threads
// share are read again, from the caches. They reach
// NCHW 74 to 101 %, NHWC 96 to 117 %, CHWN 94 to 104 % of a copy's speed on an H200 (docs/kernels.md).
// Without lanes `pool_windows` takes 45 instructions a window of 3x3 with strides of 2, which has four
// elements of x to itself: a third of those for which memory leaves time.
//
// NaN rule: a window with a NaN gives NaN (CUDNN_PROPAGATE_NAN). Padding is never a maximum.
// Averages are summed in the arithmetic type, in an order that depends on the window alone.

#include "pooling.cuh"

// Elements of a window of which `pool_windows` loads all before it uses the first.
constexpr int SMALL_WINDOW = 16;

template <typename I>
struct PoolingGeometry {
    I a, b, lanes;      // lanes: in elements
    Extents<I> y, x;    // spatial sizes
    Extents<I> before;  // padding; negative where the first window begins inside x
    Strides<I> y_stride, x_stride;
    I total;  // threads' (or warps') worth of work
};

template <int MODE, typename A>
__device__ inline A start() {
    return MODE == MAX ? negative_infinity<A>() : A(0);
}
template <int MODE, typename A>
__device__ inline A include(A total, A x) {
    if constexpr (MODE == MAX) return larger(total, x);
    return total + x;
}
template <int MODE, typename A, typename I>
__device__ inline A finish(A total, long long whole, I inside) {
    if constexpr (MODE == MAX) return total;
    return total / (MODE == AVERAGE_INCLUDE_PADDING ? A(whole) : A(inside));
}

// LEFT columns of padding lie before the first window. The columns [o * SW, (o + OUTPUTS) * SW) are
// loaded in packs of LOAD, those that windows need beyond them one by one. The host promises that
// rows and packs are aligned.
template <typename I, typename T, int MODE, int KD, int KH, int KW, int SD, int SH, int SW, int LEFT,
          int OUTPUTS, int LOAD, int STORE>
__global__ void __launch_bounds__(BLOCK_THREADS) pool_rows(
    PoolingGeometry<I> g, T *__restrict__ y, const T *__restrict__ x) {
    using A = Arithmetic<T>;
    constexpr int MAIN = OUTPUTS * SW;
    constexpr int RIGHT = KW - SW - LEFT > 0 ? KW - SW - LEFT : 0;
    const I groups = (g.y.w + OUTPUTS - 1) / OUTPUTS;
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.total; i += step) {
        I rest = (I)i;
        const I first = take(rest, groups) * OUTPUTS;
        const I h = take(rest, g.y.h), d = take(rest, g.y.d);
        const I b = take(rest, g.b), a = rest;
        const I column = first * SW;
        const I top = h * SH - g.before.h, front = d * SD - g.before.d;
        const T *plane = x + a * g.x_stride.a + b * g.x_stride.b + column;

        A totals[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) totals[o] = start<MODE, A>();
        for (int at_d = 0; at_d < KD; ++at_d) {
            const I depth = front + at_d;
            if (KD > 1 && (depth < 0 || depth >= g.x.d)) continue;
            // All rows are loaded before the first is used.
            Pack<T, LOAD> packs[KH][MAIN / LOAD];
            T left[KH][LEFT > 0 ? LEFT : 1], right[KH][RIGHT > 0 ? RIGHT : 1];
            int available[KH];
#pragma unroll
            for (int k = 0; k < KH; ++k) {
                const I row = top + k;
                const bool inside = row >= 0 && row < g.x.h;
                const T *source = plane + depth * g.x_stride.d + row * g.x_stride.h;
                // beyond MAIN + RIGHT it does not matter how many
                available[k] = inside ? (int)least(g.x.w - column, I(MAIN + RIGHT)) : -LEFT;
#pragma unroll
                for (int p = 0; p < MAIN / LOAD; ++p)
                    packs[k][p] = load_pack<LOAD>(source + p * LOAD, available[k] - p * LOAD);
#pragma unroll
                for (int e = 0; e < LEFT; ++e)
                    if (e - LEFT < available[k] && column + e >= LEFT)
                        left[k][e] = source[e - LEFT];
#pragma unroll
                for (int e = 0; e < RIGHT; ++e)
                    if (MAIN + e < available[k]) right[k][e] = source[MAIN + e];
            }
#pragma unroll
            for (int k = 0; k < KH; ++k) {
                A values[LEFT + MAIN + RIGHT];
#pragma unroll
                for (int e = -LEFT; e < MAIN + RIGHT; ++e) {
                    const bool present = e < available[k] && (e >= 0 || column >= -e);
                    T value;
                    if (e < 0) value = left[k][e + LEFT < 0 ? 0 : e + LEFT];
                    else if (e < MAIN) value = packs[k][e / LOAD].element[e % LOAD];
                    else value = right[k][e - MAIN];
                    values[LEFT + e] = present ? A(widen(value)) : start<MODE, A>();
                }
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
                    for (int j = 0; j < KW; ++j)
                        totals[o] = include<MODE>(totals[o], values[o * SW + j]);
            }
        }

        const I across = Clipped<I>(front, KD, g.x.d).count() * Clipped<I>(top, KH, g.x.h).count();
        T *target = y + a * g.y_stride.a + b * g.y_stride.b + d * g.y_stride.d +
                    h * g.y_stride.h + first;
#pragma unroll
        for (int p = 0; p < OUTPUTS / STORE; ++p) {
            Pack<T, STORE> results;
#pragma unroll
            for (int e = 0; e < STORE; ++e) {
                const int o = p * STORE + e;
                const I inside =
                    across * Clipped<I>(column + o * SW - LEFT, KW, g.x.w).count();
                results.element[e] =
                    narrow<T>(finish<MODE>(totals[o], (long long)KD * KH * KW, inside));
            }
            store_pack<STORE>(target + p * STORE, results, g.y.w - first - p * STORE);
        }
    }
}

// Where a thread's windows lie in x: OUTPUTS of them one below the other, of at least as many that there
// are; and their first lane. The last ones overlap with those above, so that no thread has fewer.
template <typename I, int COUNT, int OUTPUTS, int SD, int SH, int SW>
struct Window {
    I y_offset, x_offset, available;
    I front, top, left;

    __device__ Window(const PoolingGeometry<I> &g, I index) {
        const I lane = take(index, (g.lanes + COUNT - 1) / COUNT) * COUNT;
        const I w = take(index, g.y.w), group = take(index, (g.y.h + OUTPUTS - 1) / OUTPUTS);
        const I d = take(index, g.y.d), b = take(index, g.b), a = index;
        available = g.lanes - lane;
        const I h = least(group * OUTPUTS, g.y.h - OUTPUTS);
        y_offset = at_offset(g.y_stride, a, b, d, h, w, lane);
        x_offset = a * g.x_stride.a + b * g.x_stride.b + lane * g.x_stride.lane;
        front = d * SD - g.before.d;
        top = h * SH - g.before.h;
        left = w * SW - g.before.w;
    }
};

template <typename I, typename T, int MODE, int COUNT>
__device__ inline void store_window(
    T *target, const Arithmetic<T> (&totals)[COUNT], long long whole, I inside,
    I available) {
    Pack<T, COUNT> results;
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
        results.element[i] = narrow<T>(finish<MODE>(totals[i], whole, inside));
    store_pack<COUNT>(target, results, available);
}

// All of a thread's small windows, loaded before the first is used. CHECKED: some element may lie
// outside of x, or of the lanes.
template <bool CHECKED, typename I, typename T, int MODE, int COUNT, int KH, int KW, int SH, int OUTPUTS,
          bool UNIT, typename Place>
__device__ inline void small_windows(
    const PoolingGeometry<I> &g, const Place &at, T *__restrict__ y, const T *__restrict__ x) {
    using A = Arithmetic<T>;
    constexpr int ROWS = (OUTPUTS - 1) * SH + KH;  // of x, under all of the windows
    const bool has_depth = at.front >= 0 && at.front < g.x.d;
    const Clipped<I> w(at.left, KW, g.x.w), rows(at.top, ROWS, g.x.h);
    const T *source =
        x + (at.x_offset + at.front * g.x_stride.d + at.top * g.x_stride.h + at.left * g.x_stride.w);
    Pack<T, COUNT> packs[ROWS][KW];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < KW; ++c) {
            const bool present = has_depth && rows.has(at.top + r) && w.has(at.left + c);
            packs[r][c] = load_pack<COUNT>(
                source + r * g.x_stride.h + (UNIT ? I(c) : c * g.x_stride.w),
                CHECKED ? (present ? at.available : I(0)) : I(COUNT));
        }
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o) {
        A totals[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) totals[e] = start<MODE, A>();
#pragma unroll
        for (int k = 0; k < KH * KW; ++k) {
            const int r = o * SH + k / KW, c = k % KW;
            const bool present =
                !CHECKED || (has_depth && rows.has(at.top + r) && w.has(at.left + c));
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (present)
                    totals[e] = include<MODE>(totals[e], A(widen(packs[r][c].element[e])));
        }
        const I inside = has_depth * Clipped<I>(at.top + o * SH, KH, g.x.h).count() * w.count();
        store_window<I, T, MODE, COUNT>(
            y + o * g.y_stride.h, totals, (long long)KH * KW, CHECKED ? inside : I(KH * KW),
            CHECKED ? at.available : I(COUNT));
    }
}

// UNIT: neighbours along w lie side by side in x. PADDED: not all windows lie within x, or not all packs
// within the lanes.
template <typename I, typename T, int MODE, int COUNT, int KD, int KH, int KW, int SD, int SH,
          int SW, int OUTPUTS, bool UNIT, bool PADDED>
__global__ void __launch_bounds__(BLOCK_THREADS) pool_windows(
    PoolingGeometry<I> g, T *__restrict__ y, const T *__restrict__ x) {
    using A = Arithmetic<T>;
    constexpr int ROWS = (OUTPUTS - 1) * SH + KH;
    constexpr bool SMALL = KD == 1 && (OUTPUTS > 1 || KH * KW <= SMALL_WINDOW);
    static_assert(SMALL || OUTPUTS == 1, "windows that share rows are held as a whole");
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.total; i += step) {
        const Window<I, COUNT, OUTPUTS, SD, SH, SW> at(g, (I)i);
        T *target = y + at.y_offset;
        if constexpr (SMALL) {
            const bool whole = !PADDED || (at.available >= COUNT && at.front >= 0 && at.front < g.x.d && at.top >= 0 && at.top + ROWS <= g.x.h &&
                               at.left >= 0 && at.left + KW <= g.x.w);
            if (whole)
                small_windows<false, I, T, MODE, COUNT, KH, KW, SH, OUTPUTS, UNIT>(g, at, target, x);
            else
                small_windows<true, I, T, MODE, COUNT, KH, KW, SH, OUTPUTS, UNIT>(g, at, target, x);
        } else {
            const Clipped<I> d(at.front, KD, g.x.d), h(at.top, KH, g.x.h), w(at.left, KW, g.x.w);
            const T *source = x + at.x_offset;
            A totals[COUNT];
#pragma unroll
            for (int e = 0; e < COUNT; ++e) totals[e] = start<MODE, A>();
            for (I depth = d.low; depth < d.high; ++depth)
                for (I row = h.low; row < h.high; ++row) {
                    const T *line = source + depth * g.x_stride.d + row * g.x_stride.h;
#pragma unroll 4
                    for (I column = w.low; column < w.high; ++column) {
                        const auto pack =
                            load_pack<COUNT>(line + column * g.x_stride.w, at.available);
#pragma unroll
                        for (int e = 0; e < COUNT; ++e)
                            totals[e] = include<MODE>(totals[e], A(widen(pack.element[e])));
                    }
                }
            store_window<I, T, MODE, COUNT>(
                target, totals, (long long)KD * KH * KW, d.count() * h.count() * w.count(),
                at.available);
        }
    }
}

template <typename I, typename T, int MODE, int COUNT, int KD, int KH, int KW, int SD, int SH,
          int SW>
__global__ void __launch_bounds__(BLOCK_THREADS) pool_by_warp(
    PoolingGeometry<I> g, T *__restrict__ y, const T *__restrict__ x) {
    using A = Arithmetic<T>;
    const int thread = threadIdx.x % 32;
    const long long step = (long long)gridDim.x * (blockDim.x / 32);
    long long i = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    for (; i < g.total; i += step) {
        const Window<I, COUNT, 1, SD, SH, SW> at(g, (I)i);
        const Clipped<I> d(at.front, KD, g.x.d), h(at.top, KH, g.x.h), w(at.left, KW, g.x.w);
        const I inside = d.count() * h.count() * w.count();
        const T *source = x + at.x_offset;
        A totals[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) totals[e] = start<MODE, A>();
        Sites<I, 32> site(h, w, thread);
#pragma unroll 4
        for (I k = thread; k < inside; k += 32, site.advance()) {
            const auto pack = load_pack<COUNT>(
                source + (d.low + site.depth) * g.x_stride.d + (h.low + site.row) * g.x_stride.h +
                    (w.low + site.column) * g.x_stride.w,
                at.available);
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                totals[e] = include<MODE>(totals[e], A(widen(pack.element[e])));
        }
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
            for (int other = 16; other > 0; other /= 2)
                totals[e] = include<MODE>(totals[e], __shfl_xor_sync(~0u, totals[e], other));
        if (thread == 0)
            store_window<I, T, MODE, COUNT>(
                y + at.y_offset, totals, (long long)KD * KH * KW, inside, at.available);
    }
}
