// The gradient of pooling with respect to x (cudnnPoolingBackward), gathered: each element of dx
// sums what the windows over it give it, so nothing depends on the order of threads.
//
//     unpool_boxes    a thread makes a small box of dx in registers: it looks at all windows that reach
//                     into the box, rows of them from the last to the first, so that a row of x is read
//                     once. For small windows of which few overlap
//     unpool_tile     a block makes a box of dx. First, once per window that touches the box: which
//                     element its gradient goes to (max), or dy over the divisor (averages), into
//                     shared memory. Then every element of dx looks its windows up there. For
//                     larger windows
//     unpool_direct   a thread makes an element of dx from global memory: for windows of which too
//                     many overlap to fit in shared memory
//
// Memory traffic: a maximum reads y, dy and x once, an average dy alone; dx is written once. Windows
// that reach into several boxes are read by each, from the caches. Shares of a copy's speed on an H200
// (docs/kernels.md): `unpool_boxes` 56 to 99 % where windows do not overlap, 31 to 61 % where they do;
// `unpool_tile` in packs of lanes 54 to 93 %.
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

// The first element of each window that equals its maximum, one per lane; -1 if none.
template <int COUNT, int KD, int KH, int KW, typename I, typename T>
__device__ inline void first_equal(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Pack<T, COUNT> &y,
    I front, I top, I left, I available) {
    const Clipped<I> d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
    if constexpr (KD == 1 && KH * KW <= 16) {
        Pack<T, COUNT> packs[KH * KW];
        bool present[KH * KW];
#pragma unroll
        for (int k = 0; k < KH * KW; ++k) {
            const I row = top + k / KW, column = left + k % KW;
            present[k] = d.has(front) && h.has(row) && w.has(column);
            packs[k] = load_pack<COUNT>(
                x + front * g.x_stride.d + row * g.x_stride.h + column * g.x_stride.w,
                present[k] ? available : 0);
        }
#pragma unroll
        for (int k = KH * KW - 1; k >= 0; --k)  // the first one writes last
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (present[k] && same_value(widen(packs[k].element[e]), widen(y.element[e])))
                    found[e] = k;
    } else {
        for (I depth = d.low; depth < d.high; ++depth)
            for (I row = h.low; row < h.high; ++row) {
                const T *line = x + depth * g.x_stride.d + row * g.x_stride.h;
                const int before = ((int)(depth - front) * KH + (int)(row - top)) * KW;
                bool all = true;
#pragma unroll 4
                for (I column = w.low; column < w.high; ++column) {
                    const auto pack = load_pack<COUNT>(line + column * g.x_stride.w, available);
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
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Pack<T, COUNT> &y,
    I front, I top, I left, I available) {
    const Clipped<I> d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
    const I sites = d.count() * h.count() * w.count();
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
    Sites<I, 32> site(h, w, threadIdx.x % 32);
    for (I k = threadIdx.x % 32; k - (int)(threadIdx.x % 32) < sites; k += 32, site.advance()) {
        const I depth = d.low + site.depth, row = h.low + site.row, column = w.low + site.column;
        const auto pack = load_pack<COUNT>(
            x + depth * g.x_stride.d + row * g.x_stride.h + column * g.x_stride.w,
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

// The box is TB x TD x TH x TW elements of TL packs of COUNT lanes; a thread makes WIDE neighbours
// along w of it. TW is a multiple of WIDE, or all of w.
template <typename I, typename T, int MODE, bool BY_WARP, int COUNT, int WIDE, int TB, int TD,
          int TH, int TW, int TL, int PD, int PH, int PW, int KD, int KH, int KW, int SD, int SH,
          int SW>
__global__ void __launch_bounds__(256) unpool_tile(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    using D = Touching<I, TD, KD, SD, PD>;
    using H = Touching<I, TH, KH, SH, PH>;
    using W = Touching<I, TW, KW, SW, PW>;
    constexpr int WINDOWS = TB * D::WINDOWS * H::WINDOWS * W::WINDOWS * TL;
    constexpr int GROUPS = (TW + WIDE - 1) / WIDE;
    constexpr int ELEMENTS = TB * TD * TH * GROUPS * TL;
    __shared__ Pack<A, COUNT> gradients[WINDOWS];
    using Target = typename TargetOf<(long long)KD * KH * KW < 32768>::type;
    __shared__ Pack<Target, COUNT> targets[MODE == MAX ? WINDOWS : 1];

    for (long long tile = blockIdx.x; tile < g.total; tile += gridDim.x) {
        I rest = (I)tile;
        const I first_lane = take(rest, g.lane_tiles) * (TL * COUNT);
        const I first_w = take(rest, g.tiles.w) * TW, first_h = take(rest, g.tiles.h) * TH;
        const I first_d = take(rest, g.tiles.d) * TD, first_b = take(rest, g.b_tiles) * TB;
        const I a = rest;
        const D d(first_d + g.origin.d + g.before.d);
        const H h(first_h + g.origin.h + g.before.h);
        const W w(first_w + g.origin.w + g.before.w);

        constexpr unsigned THREADS = BY_WARP ? 32 : 1;  // of a window
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
                const T *source = x + at_offset(g.x_stride, a, b, I(0), I(0), I(0), at_lane);
                if (exists) {
                    if constexpr (BY_WARP)
                        first_equal_by_warp<COUNT, KD, KH, KW>(
                            found, g, source, maximum, front, top, left, available);
                    else
                        first_equal<COUNT, KD, KH, KW>(
                            found, g, source, maximum, front, top, left, available);
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

        for (unsigned i = threadIdx.x; i < ELEMENTS; i += 256) {
            const unsigned lane = i % TL, group = i / TL % GROUPS;
            const unsigned i_h = i / (TL * GROUPS) % TH, i_d = i / (TL * GROUPS * TH) % TD;
            const unsigned i_b = i / (TL * GROUPS * TH * TD), i_w = group * WIDE;
            const I at_lane = first_lane + I(lane * COUNT), b = first_b + I(i_b);
            const I at_w = first_w + I(i_w), at_h = first_h + I(i_h), at_d = first_d + I(i_d);
            if (at_lane >= g.lanes || b >= g.b || at_w >= g.dx.w || at_h >= g.dx.h ||
                at_d >= g.dx.d)
                continue;
            Pack<A, COUNT> totals[WIDE] = {};
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
                            const int window = (line + w_w) * TL + lane;
                            const Pack<A, COUNT> gradient = gradients[window];
                            if constexpr (MODE == MAX) {
                                const Pack<Target, COUNT> target = targets[window];
#pragma unroll
                                for (int e = 0; e < COUNT; ++e)
                                    if (target.element[e] == before + tap_w)
                                        totals[u].element[e] += gradient.element[e];
                            } else {
#pragma unroll
                                for (int e = 0; e < COUNT; ++e)
                                    totals[u].element[e] += gradient.element[e];
                            }
                        }
                }
            }
            // Lanes and columns are not both packs.
            Pack<T, COUNT * WIDE> results;
#pragma unroll
            for (int e = 0; e < COUNT * WIDE; ++e)
                results.element[e] = narrow<T>(totals[e / COUNT].element[e % COUNT]);
            store_pack<COUNT * WIDE>(
                dx + at_offset(g.dx_stride, a, b, at_d, at_h, at_w, at_lane), results,
                COUNT > 1 ? g.lanes - at_lane
                          : WIDE > 1 ? least(g.dx.w - at_w, I(TW - i_w)) : I(1));
        }
        __syncthreads();
    }
}

// A box is GH x GW strides of dx, times COUNT lanes; it begins PH and PW elements behind where a
// window begins. What a window gives is added in the order of `unpool_tile`. PADDED: some window has padding in it. Without, what
// lies outside of x belongs to windows that do not exist, whose gradient is 0. UNIT: neighbours along
// w lie side by side in all operands.
template <typename I, typename T, int MODE, int COUNT, int STORE, bool PADDED, bool UNIT, int GH,
          int GW, int PH, int PW, int KH, int KW, int SH, int SW>
__global__ void __launch_bounds__(256, 2) unpool_boxes(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    constexpr int BH = GH * SH, BW = GW * SW;  // elements of the box
    // Windows that begin a stride or more before its first own one and reach into it; and in all.
    constexpr int REACH_H = (KH - 1 - PH) / SH, REACH_W = (KW - 1 - PW) / SW;
    constexpr int NH = REACH_H + GH + (PH > 0), NW = REACH_W + GW + (PW > 0);
    constexpr int COLUMNS = MODE == MAX ? (NW - 1) * SW + KW : 1;  // of x under them
    constexpr int FRESH = KH < SH ? KH : SH;  // rows of x that the windows below do not have

    const long long step = (long long)gridDim.x * blockDim.x;
    long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; index < g.total; index += step) {
        I rest = (I)index;
        const I lane = take(rest, (g.lanes + COUNT - 1) / COUNT) * COUNT;
        const I group_w = take(rest, g.tiles.w), group_h = take(rest, g.tiles.h);
        const I i_d = take(rest, g.dx.d), b = take(rest, g.b), a = rest;
        const I depth = i_d + g.origin.d, lanes = g.lanes - lane;
        // The box's first element, in dx; and along each axis the last window that begins there or
        // before.
        const I first_h = group_h * BH, first_w = group_w * BW;
        const I own_h = floor_quotient(first_h + g.origin.h + g.before.h, I(SH));
        const I own_w = floor_quotient(first_w + g.origin.w + g.before.w, I(SW));
        const bool has_depth = depth < g.y.d;
        // Of the first window: its place in x, and where it lies there and in y and dy.
        const I low_w = own_w - REACH_W, left = low_w * SW - g.before.w;
        auto along = [](const Strides<I> &stride, int columns) {
            return UNIT ? I(columns) : columns * stride.w;
        };
        const T *source = x + at_offset(g.x_stride, a, b, depth, I(0), left, lane);
        const T *incoming_row = dy + at_offset(g.dy_stride, a, b, depth, I(0), low_w, lane);
        const T *maximum_row = y + at_offset(g.y_stride, a, b, depth, I(0), low_w, lane);

        A totals[BH][BW][COUNT] = {};
        Pack<T, COUNT> lines[KH][COLUMNS];
#pragma unroll
        for (int i_h = NH - 1; i_h >= 0; --i_h) {
            const I at_h = own_h - REACH_H + i_h, top = at_h * SH - g.before.h;
            const bool has_row = has_depth && at_h >= 0 && at_h < g.y.h;
            if constexpr (MODE == MAX) {
                if (i_h < NH - 1) {
#pragma unroll
                    for (int k = KH - 1; k >= FRESH; --k)
#pragma unroll
                        for (int c = 0; c < COLUMNS; ++c) lines[k][c] = lines[k - FRESH][c];
                }
#pragma unroll
                for (int k = 0; k < (i_h < NH - 1 ? FRESH : KH); ++k) {
                    const I row = top + k;
                    const bool inside = row >= 0 && row < g.x.h;
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) {
                        const I column = left + c;
                        lines[k][c] = load_pack<COUNT>(
                            source + row * g.x_stride.h + along(g.x_stride, c),
                            inside && column >= 0 && column < g.x.w ? lanes : I(0));
                    }
                }
            }
#pragma unroll
            for (int i_w = NW - 1; i_w >= 0; --i_w) {
                const I at_w = low_w + i_w;
                const I there = has_row && at_w >= 0 && at_w < g.y.w ? lanes : I(0);
                const auto incoming = load_pack<COUNT>(
                    incoming_row + at_h * g.dy_stride.h + along(g.dy_stride, i_w), there);
                Pack<T, COUNT> maximum;
                A share = KH * KW;
                if constexpr (MODE == MAX)
                    maximum = load_pack<COUNT>(
                        maximum_row + at_h * g.y_stride.h + along(g.y_stride, i_w), there);
                else if (PADDED && there > 0)
                    share = A(divisor<MODE, 1, KH, KW>(g, depth, top, at_w * SW - g.before.w));
#pragma unroll
                for (int e = 0; e < COUNT; ++e) {
                    int found = -1;
                    if constexpr (MODE == MAX) {
                        const A most = widen(maximum.element[e]);
                        auto look = [&](auto where) {
#pragma unroll
                            for (int k = KH * KW - 1; k >= 0; --k) {  // the first one writes last
                                const int c = i_w * SW + k % KW;
                                const I row = top + k / KW, column = left + c;
                                if (!PADDED || (row >= 0 && row < g.x.h && column >= 0 &&
                                                column < g.x.w))
                                    found = where(A(widen(lines[k / KW][c].element[e])), k);
                            }
                        };
                        if (most == most)
                            look([&](A value, int k) { return where_equal(value, most, k, found); });
                        else
                            look([&](A value, int k) { return value != value ? k : found; });
                    }
                    A gradient = widen(incoming.element[e]);
                    if constexpr (MODE != MAX) gradient /= share;
#pragma unroll
                    for (int k = 0; k < KH * KW; ++k) {
                        const int h = (i_h - REACH_H) * SH - PH + k / KW;
                        const int w = (i_w - REACH_W) * SW - PW + k % KW;
                        if (h >= 0 && h < BH && w >= 0 && w < BW && (MODE != MAX || found == k))
                            totals[h][w][e] += gradient;
                    }
                }
            }
        }

        T *target = dx + at_offset(g.dx_stride, a, b, i_d, first_h, first_w, lane);
#pragma unroll
        for (int h = 0; h < BH; ++h) {
            if (first_h + h >= g.dx.h) continue;
#pragma unroll
            for (int w = 0; w < BW; w += STORE) {
                const I beside = g.dx.w - first_w - w;
                // Lanes and columns are not both packs.
                Pack<T, COUNT * STORE> results;
#pragma unroll
                for (int e = 0; e < COUNT * STORE; ++e)
                    results.element[e] = narrow<T>(totals[h][w + e / COUNT][e % COUNT]);
                store_pack<COUNT * STORE>(
                    target + h * g.dx_stride.h + along(g.dx_stride, w), results,
                    COUNT > 1 ? (beside > 0 ? lanes : I(0)) : beside);
            }
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
