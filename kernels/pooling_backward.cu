// The gradient of pooling with respect to x (cudnnPoolingBackward), gathered: each element of dx
// sums what the windows over it give it, so nothing depends on the order of threads.
//
//     unpool_apart    windows that do not overlap, side by side in packs of lanes: a thread has one of
//                     them, and nothing waits for another
//     unpool_tile     a block makes a box of dx. First, once per window that touches the box: which
//                     element its gradient goes to (max), or dy over the divisor (averages), into
//                     shared memory. Then every element of dx looks its windows up there. Without
//                     lanes (NCHW) the box is STAGED: whole rows, which follow each other in memory,
//                     so that x and dx go through shared memory in packs, whatever their extents
//     unpool_direct   a thread makes an element of dx from global memory: for windows of which too
//                     many overlap to fit in shared memory
//
// Memory traffic: a maximum reads y, dy and x once, an average dy alone; dx is written once. Windows
// that reach into several boxes are read by each, from the caches. Shares of a copy's speed on an H200
// are in docs/kernels.md.
//
// A maximum's gradient goes to the first element of the window that equals y, in row-major order.
// NaN equals NaN (CUDNN_PROPAGATE_NAN). Elements that no window touches get 0. dx is `rows` rows of
// x: `origin` is where it begins in x.

#include "pooling.cuh"

template <typename I>
struct UnpoolingGeometry {
    I a, b, lanes;                 // lanes: in elements
    Extents<I> dx, origin, x, y;   // dx: its spatial sizes; origin: its first element, in x
    Extents<I> before;             // padding; negative where the first window begins inside x
    Strides<I> dx_stride, y_stride, dy_stride, x_stride;
    Extents<I> tiles;
    I b_tiles, lane_tiles;
    I total;  // tiles, or elements for unpool_direct
};

template <int MODE, int KD, int KH, int KW, typename I>
__device__ inline I divisor(
    const UnpoolingGeometry<I> &g, I front, I top, I left) {
    if (MODE == AVERAGE_INCLUDE_PADDING) return I(KD) * KH * KW;
    return Clipped<I>(front, KD, g.x.d).count() * Clipped<I>(top, KH, g.x.h).count() *
           Clipped<I>(left, KW, g.x.w).count();
}

// One axis of a tile of SIZE elements: the windows of K elements every S that touch it. Window
// `low + i` begins `i * S - shift` elements after the tile's first. PHASE is where in a stride every
// tile begins; then shift is the same for all and known here, else PHASE is -1.
template <typename I, int SIZE, int K, int S, int PHASE>
struct Touching {
    static constexpr bool FIXED = PHASE >= 0;
    static constexpr int SHIFT = FIXED ? ((PHASE - K) % S + S) % S + K - S : K - 1;  // at most
    static constexpr int WINDOWS = (SIZE - 1 + SHIFT) / S + 1;
    static constexpr int COVERING = (K + S - 1) / S;  // windows over one element, at the most
    static constexpr int UNROLL = COVERING <= 4 ? COVERING : 1;
    I low;
    int moving_shift;

    // `begin`: the tile's first element, in padded x
    __device__ Touching(I begin) {
        low = floor_quotient(begin - K, I(S)) + 1;
        moving_shift = (int)(begin - low * S);
    }
    __device__ int shift() const { return FIXED ? SHIFT : moving_shift; }
    // The last window that begins at or before element `group * WIDE + at`; negative if none does.
    template <int WIDE>
    __device__ int last(int group, int at) const {
        // Neither term is below -S. Where whole strides make a group the second is a constant.
        if (FIXED && WIDE % S == 0) return group * (WIDE / S) + (at + SHIFT + S) / S - 1;
        return (group * WIDE + at + shift() + S) / S - 1;
    }
    // Where that element lies in that window.
    template <int WIDE>
    __device__ int tap(int group, int at) const {
        if (FIXED && WIDE % S == 0) return (at + SHIFT + S) % S;
        return (group * WIDE + at + shift() + S) % S;
    }
};

// The first element of each window that equals its maximum, one per lane; -1 if none. All are loaded
// before the first is used. CHECKED: some may lie outside of x, or of the lanes.
template <bool CHECKED, int COUNT, int KH, int KW, typename I, typename T>
__device__ inline void first_of_few(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Strides<I> &stride,
    const Pack<T, COUNT> &y, I front, I top, I left, I available) {
    using A = Arithmetic<T>;
    const Clipped<I> h(top, KH, g.x.h), w(left, KW, g.x.w);
    const bool has_depth = front >= 0 && front < g.x.d;
    auto present = [&](int k) {
        return !CHECKED || (has_depth && h.has(top + k / KW) && w.has(left + k % KW));
    };
    const T *source = x + (front * stride.d + top * stride.h + left * stride.w);
    Pack<T, COUNT> packs[KH * KW];
#pragma unroll
    for (int k = 0; k < KH * KW; ++k)
        packs[k] = load_pack<COUNT>(
            source + (k / KW * stride.h + k % KW * stride.w),
            CHECKED ? (present(k) ? available : I(0)) : I(COUNT));
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
        const A most = widen(y.element[e]);
        int place = -1;
        auto look = [&](auto where) {
#pragma unroll
            for (int k = KH * KW - 1; k >= 0; --k)  // the first one writes last
                if (present(k)) place = where(A(widen(packs[k].element[e])), k);
        };
        if (most == most)
            look([&](A value, int k) { return where_equal(value, most, k, place); });
        else
            look([&](A value, int k) { return value != value ? k : place; });
        found[e] = place;
    }
}

template <int COUNT, int KD, int KH, int KW, typename I, typename T>
__device__ inline void first_equal(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Strides<I> &stride,
    const Pack<T, COUNT> &y, I front, I top, I left, I available) {
    if constexpr (KD == 1 && KH * KW <= 16) {
        const bool whole = front >= 0 && front < g.x.d && top >= 0 && top + KH <= g.x.h &&
                           left >= 0 && left + KW <= g.x.w && available >= COUNT;
        if (whole)
            first_of_few<false, COUNT, KH, KW>(
                found, g, x, stride, y, front, top, left, available);
        else
            first_of_few<true, COUNT, KH, KW>(found, g, x, stride, y, front, top, left, available);
    } else {
        const Clipped<I> d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) found[e] = -1;
        for (I depth = d.low; depth < d.high; ++depth)
            for (I row = h.low; row < h.high; ++row) {
                const T *line = x + depth * stride.d + row * stride.h;
                const int before = ((int)(depth - front) * KH + (int)(row - top)) * KW;
                bool all = true;
#pragma unroll 4
                for (I column = w.low; column < w.high; ++column) {
                    const auto pack = load_pack<COUNT>(line + column * stride.w, available);
#pragma unroll
                    for (int e = 0; e < COUNT; ++e)
                        if (found[e] < 0 && same_value(widen(pack.element[e]), widen(y.element[e])))
                            found[e] = before + (int)(column - left);
                }
#pragma unroll
                for (int e = 0; e < COUNT; ++e) all = all && found[e] >= 0;
                if (all) return;
            }
    }
}

// The same with a warp for each window, 32 elements at a time.
template <int COUNT, int KD, int KH, int KW, typename I, typename T>
__device__ inline void first_equal_by_warp(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Strides<I> &stride,
    const Pack<T, COUNT> &y, I front, I top, I left, I available) {
    const Clipped<I> d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
    const I sites = d.count() * h.count() * w.count();
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
    Sites<I, 32> site(h, w, threadIdx.x % 32);
    for (I k = threadIdx.x % 32; k - (int)(threadIdx.x % 32) < sites; k += 32, site.advance()) {
        const I depth = d.low + site.depth, row = h.low + site.row, column = w.low + site.column;
        const auto pack = load_pack<COUNT>(
            x + depth * stride.d + row * stride.h + column * stride.w,
            k < sites ? available : 0);
        const int tap = (int)(((depth - front) * KH + (row - top)) * KW + (column - left));
        bool all = true;
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            const bool same = k < sites && same_value(widen(pack.element[e]), widen(y.element[e]));
            const unsigned votes = __ballot_sync(~0u, same);
            const int first = __shfl_sync(~0u, tap, votes ? __ffs(votes) - 1 : 0);
            if (found[e] < 0 && votes) found[e] = first;
            all = all && found[e] >= 0;
        }
        if (all) return;
    }
}

// Where in its window a maximum is; small, since shared memory limits the tile.
template <bool SMALL>
struct TargetOf {
    using type = int;
};
template <>
struct TargetOf<true> {
    using type = short;
};

// The box is TB x TD x TH x TW elements of TL packs of COUNT lanes. STAGE is 0, or so many words of
// shared memory for its x and its dx: TW is then all of w, and either TH all of h or TB 1. With CELLS, a
// thread makes so many strides of dx down, and one across, which have the same windows over them; else
// (0) WIDE neighbours along w (TW is a multiple of WIDE, or all of w).
template <typename I, typename T, int MODE, bool BY_WARP, int COUNT, int WIDE, int STAGE, int CELLS,
          int TB, int TD, int TH, int TW, int TL, int PD, int PH, int PW, int KD, int KH, int KW, int SD,
          int SH, int SW>
__global__ void __launch_bounds__(256, STAGE > 0 ? 4 : 3) unpool_tile(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    constexpr int CH = CELLS ? CELLS * SH : 1;  // rows of a cell
    constexpr int CELLS_H = (TH + CH - 1) / CH, CELLS_W = CELLS ? (TW + SW - 1) / SW : 1;
    using D = Touching<I, TD, KD, SD, PD>;
    using H = Touching<I, CELLS_H * CH, KH, SH, PH>;
    using W = Touching<I, CELLS ? CELLS_W * SW : TW, KW, SW, PW>;
    static_assert(!CELLS || (H::FIXED && W::FIXED), "cells begin at the same place in a stride");
    constexpr int WINDOWS = TB * D::WINDOWS * H::WINDOWS * W::WINDOWS * TL;
    __shared__ Pack<A, COUNT> gradients[WINDOWS];
    using Target = typename TargetOf<(long long)KD * KH * KW < 32768>::type;
    __shared__ Pack<Target, COUNT> targets[MODE == MAX ? WINDOWS : 1];
    __shared__ __align__(16) T stage[STAGE > 0 ? STAGE : 1];

    for (long long tile = blockIdx.x; tile < g.total; tile += gridDim.x) {
        I rest = (I)tile;
        const I first_lane = take(rest, g.lane_tiles) * (TL * COUNT);
        const I first_w = take(rest, g.tiles.w) * TW, first_h = take(rest, g.tiles.h) * TH;
        const I first_d = take(rest, g.tiles.d) * TD, first_b = take(rest, g.b_tiles) * TB;
        const I a = rest;
        const D d(first_d + g.origin.d + g.before.d);
        const H h(first_h + g.origin.h + g.before.h);
        const W w(first_w + g.origin.w + g.before.w);
        const int planes = (int)least(g.b - first_b, I(TB));

        // Rows of x under the tile's windows; of several planes all are.
        const I low_row = TB > 1 ? I(0) : most(h.low * SH - g.before.h, I(0));
        const T *staged = stage;  // row 0 of the first plane
        if constexpr (STAGE > 0 && MODE == MAX) {
            const I end = TB > 1 ? g.x.h
                                 : least((h.low + H::WINDOWS - 1) * SH - g.before.h + KH, g.x.h);
            const T *source = x + at_offset(
                g.x_stride, a, first_b, first_d + g.origin.d, low_row, I(0), I(0));
            const int words = end > low_row ? planes * (int)(end - low_row) * TW : 0;
            Staging<T>::template load<(STAGE / Staging<T>::COUNT + 255) / 256>(stage, source, words);
            staged = stage + Staging<T>::shift(source) - low_row * TW;
            __syncthreads();
        }

        constexpr unsigned THREADS = BY_WARP ? 32 : 1;  // of a window
#pragma unroll(STAGE > 0 && MODE != MAX ? 4 : 1)  // what they read is on its way together
        for (unsigned i = threadIdx.x / THREADS; i < WINDOWS; i += 256 / THREADS) {
            const unsigned lane = i % TL, i_w = i / TL % W::WINDOWS;
            const unsigned i_h = i / (TL * W::WINDOWS) % H::WINDOWS;
            const unsigned i_d = i / (TL * W::WINDOWS * H::WINDOWS) % D::WINDOWS;
            const unsigned i_b = i / (TL * W::WINDOWS * H::WINDOWS * D::WINDOWS);
            const I at_lane = first_lane + I(lane * COUNT), b = first_b + I(i_b);
            const I at_w = w.low + I(i_w), at_h = h.low + I(i_h), at_d = d.low + I(i_d);
            const bool exists = at_lane < g.lanes && b < g.b && at_w >= 0 && at_w < g.y.w &&
                                at_h >= 0 && at_h < g.y.h && at_d >= 0 && at_d < g.y.d;
            const I available = exists ? g.lanes - at_lane : 0;
            const I front = at_d * SD - g.before.d, top = at_h * SH - g.before.h;
            const I left = at_w * SW - g.before.w;
            const auto incoming = load_pack<COUNT>(
                dy + at_offset(g.dy_stride, a, b, at_d, at_h, at_w, at_lane), available);
            A share = 1;
            if constexpr (MODE == MAX) {
                const auto maximum = load_pack<COUNT>(
                    y + at_offset(g.y_stride, a, b, at_d, at_h, at_w, at_lane), available);
                int found[COUNT];
#pragma unroll
                for (int e = 0; e < COUNT; ++e) found[e] = -1;
                if (exists) {
                    auto look = [&](const T *source, const Strides<I> &stride) {
                        if constexpr (BY_WARP)
                            first_equal_by_warp<COUNT, KD, KH, KW>(
                                found, g, source, stride, maximum, front, top, left, available);
                        else
                            first_equal<COUNT, KD, KH, KW>(
                                found, g, source, stride, maximum, front, top, left, available);
                    };
                    if constexpr (STAGE > 0)
                        look(staged + (int)i_b * (TH * TW), Strides<I>{0, 0, 0, TW, 1, 0});
                    else
                        look(x + at_offset(g.x_stride, a, b, I(0), I(0), I(0), at_lane), g.x_stride);
                }
                Pack<Target, COUNT> target;
#pragma unroll
                for (int e = 0; e < COUNT; ++e) target.element[e] = (Target)found[e];
                targets[i] = target;
            } else if (exists) {
                share = A(divisor<MODE, KD, KH, KW>(g, front, top, left));
            }
            Pack<A, COUNT> gradient;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                gradient.element[e] = widen(incoming.element[e]);
                if constexpr (MODE != MAX) gradient.element[e] /= share;
            }
            gradients[i] = gradient;
        }
        __syncthreads();

        T *target_tile = dx + at_offset(g.dx_stride, a, first_b, first_d, first_h, first_w, first_lane);
        auto add = [&](A (&total)[COUNT], int window, int tap) {
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (MODE != MAX || targets[window].element[e] == tap)
                    total[e] += gradients[window].element[e];
        };
        if constexpr (CELLS > 0) {
            constexpr int CELL_COUNT = TB * TD * CELLS_H * CELLS_W * TL;
            constexpr int REACH_H = (CH - 1 + H::SHIFT) / SH, REACH_W = (SW - 1 + W::SHIFT) / SW;
            T *made = stage + Staging<T>::shift(target_tile);
            for (unsigned i = threadIdx.x; i < CELL_COUNT; i += 256) {
                const unsigned lane = i % TL, c_w = i / TL % CELLS_W;
                const unsigned c_h = i / (TL * CELLS_W) % CELLS_H;
                const unsigned i_d = i / (TL * CELLS_W * CELLS_H) % TD;
                const unsigned i_b = i / (TL * CELLS_W * CELLS_H * TD);
                const I lanes = g.lanes - first_lane - I(lane * COUNT);
                if (STAGE == 0 && (lanes <= 0 || (int)i_b >= planes || first_d + (I)i_d >= g.dx.d))
                    continue;  // of a stage such planes are not stored
                A totals[CH][SW][COUNT] = {};
#pragma unroll D::UNROLL
                for (int j_d = 0; j_d < D::COVERING; ++j_d) {
                    const int w_d = d.template last<1>(i_d, 0) - j_d;
                    const int tap_d = d.template tap<1>(i_d, 0) + j_d * SD;
                    if (w_d < 0 || tap_d >= KD) break;
#pragma unroll
                    for (int r_h = REACH_H; r_h >= 0; --r_h)
#pragma unroll
                        for (int r_w = REACH_W; r_w >= 0; --r_w) {
                            const int window =
                                (((i_b * D::WINDOWS + w_d) * H::WINDOWS + c_h * CELLS + r_h) * W::WINDOWS +
                                 c_w + r_w) * TL + lane;
#pragma unroll
                            for (int e_h = 0; e_h < CH; ++e_h)
#pragma unroll
                                for (int e_w = 0; e_w < SW; ++e_w) {
                                    const int tap_h = e_h + H::SHIFT - r_h * SH;
                                    const int tap_w = e_w + W::SHIFT - r_w * SW;
                                    if (tap_h >= 0 && tap_h < KH && tap_w >= 0 && tap_w < KW)
                                        add(totals[e_h][e_w], window,
                                            (tap_d * KH + tap_h) * KW + tap_w);
                                }
                        }
                }
#pragma unroll
                for (int e_h = 0; e_h < CH; ++e_h)
#pragma unroll
                    for (int e_w = 0; e_w < SW; ++e_w) {
                        const int i_h = c_h * CH + e_h, i_w = c_w * SW + e_w;
                        if ((TH % CH > 0 && i_h >= TH) || (TW % SW > 0 && i_w >= TW)) continue;
                        if (STAGE == 0 && (first_h + i_h >= g.dx.h || first_w + i_w >= g.dx.w))
                            continue;
                        Pack<T, COUNT> results;
#pragma unroll
                        for (int e = 0; e < COUNT; ++e)
                            results.element[e] = narrow<T>(totals[e_h][e_w][e]);
                        if constexpr (STAGE > 0)
                            made[((int)i_b * TH + i_h) * TW + i_w] = results.element[0];
                        else
                            store_pack<COUNT>(
                                target_tile + at_offset(
                                    g.dx_stride, I(0), (I)i_b, (I)i_d, (I)i_h, (I)i_w, I(lane * COUNT)),
                                results, lanes);
                    }
            }
            if constexpr (STAGE > 0) {
                __syncthreads();
                const int rows = (int)least(g.dx.h - first_h, I(TH));
                Staging<T>::store(target_tile, stage, ((planes - 1) * TH + rows) * TW);
            }
        } else {
            constexpr int GROUPS = (TW + WIDE - 1) / WIDE;
            constexpr int ELEMENTS = TB * TD * TH * GROUPS * TL;
            for (unsigned i = threadIdx.x; i < ELEMENTS; i += 256) {
                const unsigned lane = i % TL, group = i / TL % GROUPS;
                const unsigned i_h = i / (TL * GROUPS) % TH, i_d = i / (TL * GROUPS * TH) % TD;
                const unsigned i_b = i / (TL * GROUPS * TH * TD), i_w = group * WIDE;
                const I at_lane = first_lane + I(lane * COUNT), b = first_b + I(i_b);
                const I at_w = first_w + I(i_w), at_h = first_h + I(i_h), at_d = first_d + I(i_d);
                if (at_lane >= g.lanes || b >= g.b || at_w >= g.dx.w || at_h >= g.dx.h ||
                    at_d >= g.dx.d)
                    continue;
                A totals[WIDE][COUNT] = {};
#pragma unroll D::UNROLL
                for (int j_d = 0; j_d < D::COVERING; ++j_d) {
                    const int w_d = d.template last<1>(i_d, 0) - j_d;
                    const int tap_d = d.template tap<1>(i_d, 0) + j_d * SD;
                    if (w_d < 0 || tap_d >= KD) break;
#pragma unroll H::UNROLL
                    for (int j_h = 0; j_h < H::COVERING; ++j_h) {
                        const int w_h = h.template last<1>(i_h, 0) - j_h;
                        const int tap_h = h.template tap<1>(i_h, 0) + j_h * SH;
                        if (w_h < 0 || tap_h >= KH) break;
                        const int line = ((i_b * D::WINDOWS + w_d) * H::WINDOWS + w_h) * W::WINDOWS;
                        const int before = (tap_d * KH + tap_h) * KW;
#pragma unroll
                        for (int u = 0; u < WIDE; ++u)
#pragma unroll W::UNROLL
                            for (int j_w = 0; j_w < W::COVERING; ++j_w) {
                                const int w_w = w.template last<WIDE>(group, u) - j_w;
                                const int tap_w = w.template tap<WIDE>(group, u) + j_w * SW;
                                if (tap_w >= KW || w_w < 0 || w_w >= W::WINDOWS) break;
                                add(totals[u], (line + w_w) * TL + lane, before + tap_w);
                            }
                    }
                }
                // Lanes and columns are not both packs.
                Pack<T, COUNT * WIDE> results;
#pragma unroll
                for (int e = 0; e < COUNT * WIDE; ++e)
                    results.element[e] = narrow<T>(totals[e / COUNT][e % COUNT]);
                store_pack<COUNT * WIDE>(
                    dx + at_offset(g.dx_stride, a, b, at_d, at_h, at_w, at_lane), results,
                    COUNT > 1 ? g.lanes - at_lane
                              : WIDE > 1 ? least(g.dx.w - at_w, I(TW - i_w)) : I(1));
            }
        }
        __syncthreads();
    }
}

// Windows begin where strides of dx do, and are no longer than these: each is a thread's, and gives its
// stride of dx.
template <typename I, typename T, int MODE, int COUNT, int KH, int KW, int SH, int SW>
__global__ void __launch_bounds__(256, 2) unpool_apart(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; index < g.total; index += step) {
        I rest = (I)index;
        const I lane = take(rest, (g.lanes + COUNT - 1) / COUNT) * COUNT;
        const I cell_w = take(rest, g.tiles.w), cell_h = take(rest, g.tiles.h);
        const I i_d = take(rest, g.dx.d), b = take(rest, g.b), a = rest;
        const I depth = i_d + g.origin.d, lanes = g.lanes - lane;
        const I first_h = cell_h * SH, first_w = cell_w * SW;
        const I at_h = floor_quotient(first_h + g.origin.h + g.before.h, I(SH));
        const I at_w = floor_quotient(first_w + g.origin.w + g.before.w, I(SW));
        const bool exists = depth < g.y.d && at_h >= 0 && at_h < g.y.h && at_w >= 0 && at_w < g.y.w;
        const I top = at_h * SH - g.before.h, left = at_w * SW - g.before.w;
        const auto incoming = load_pack<COUNT>(
            dy + at_offset(g.dy_stride, a, b, depth, at_h, at_w, lane), exists ? lanes : I(0));
        int found[COUNT];
        A share = 1;
        if constexpr (MODE == MAX) {
            const auto maximum = load_pack<COUNT>(
                y + at_offset(g.y_stride, a, b, depth, at_h, at_w, lane), exists ? lanes : I(0));
            first_equal<COUNT, 1, KH, KW>(
                found, g, x + at_offset(g.x_stride, a, b, I(0), I(0), I(0), lane), g.x_stride, maximum,
                depth, top, left, exists ? lanes : I(0));
        } else if (exists) {
            share = A(divisor<MODE, 1, KH, KW>(g, depth, top, left));
        }
        T *target = dx + at_offset(g.dx_stride, a, b, i_d, first_h, first_w, lane);
#pragma unroll
        for (int k = 0; k < SH * SW; ++k) {
            const int h = k / SW, w = k % SW;
            const bool inside = h < KH && w < KW;
            Pack<T, COUNT> results;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                const A gradient = widen(incoming.element[e]);
                const bool mine = inside && (MODE != MAX || found[e] == h * KW + w);
                results.element[e] = narrow<T>(mine ? gradient / share : A(0));
            }
            store_pack<COUNT>(
                target + h * g.dx_stride.h + w * g.dx_stride.w, results,
                first_h + h < g.dx.h && first_w + w < g.dx.w ? lanes : I(0));
        }
    }
}

// Whether element (depth, row, column) of x is the first of its window that equals y.
template <int KH, int KW, typename I, typename T>
__device__ inline bool is_first_equal(
    const UnpoolingGeometry<I> &g, const T *x, T y, I front, I top, I left,
    I depth, I row, I column) {
    auto same = [&](I d, I h, I w) {
        const T value = x[d * g.x_stride.d + h * g.x_stride.h + w * g.x_stride.w];
        return same_value(widen(value), widen(y));
    };
    if (!same(depth, row, column)) return false;
    const Clipped<I> h(top, KH, g.x.h), w(left, KW, g.x.w);
    for (I d = most(front, I(0)); d <= depth; ++d)
        for (long long i = h.low; i < (d < depth ? h.high : row + 1); ++i)
            for (I j = w.low; j < (d < depth || i < row ? w.high : column); ++j)
                if (same(d, i, j)) return false;
    return true;
}

template <typename I, typename T, int MODE, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(256) unpool_direct(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < g.total; i += step) {
        I rest = (I)i;
        const I lane = take(rest, g.lanes), i_w = take(rest, g.dx.w);
        const I i_h = take(rest, g.dx.h), i_d = take(rest, g.dx.d);
        const I b = take(rest, g.b), a = rest;
        const I depth = i_d + g.origin.d, row = i_h + g.origin.h, column = i_w + g.origin.w;
        // The windows over an element: [first, last] along each axis, descending as in unpool_tile.
        const I last_d = least(floor_quotient(depth + g.before.d, I(SD)), g.y.d - 1);
        const I last_h = least(floor_quotient(row + g.before.h, I(SH)), g.y.h - 1);
        const I last_w = least(floor_quotient(column + g.before.w, I(SW)), g.y.w - 1);
        const T *source = x + a * g.x_stride.a + b * g.x_stride.b + lane * g.x_stride.lane;
        A total = 0;
        for (I d = last_d; d >= 0; --d) {
            const I front = d * SD - g.before.d;
            if (front + KD <= depth) break;
            for (I h = last_h; h >= 0; --h) {
                const I top = h * SH - g.before.h;
                if (top + KH <= row) break;
                for (I w = last_w; w >= 0; --w) {
                    const I left = w * SW - g.before.w;
                    if (left + KW <= column) break;
                    const A incoming = widen(dy[at_offset(g.dy_stride, a, b, d, h, w, lane)]);
                    if constexpr (MODE == MAX) {
                        const T maximum = y[at_offset(g.y_stride, a, b, d, h, w, lane)];
                        if (is_first_equal<KH, KW>(
                                g, source, maximum, front, top, left, depth, row, column))
                            total += incoming;
                    } else {
                        total += incoming / A(divisor<MODE, KD, KH, KW>(g, front, top, left));
                    }
                }
            }
        }
        dx[at_offset(g.dx_stride, a, b, i_d, i_h, i_w, lane)] = narrow<T>(total);
    }
}
