// The gradient of pooling with respect to x (cudnnPoolingBackward), gathered: each element of dx
// sums what the windows over it give it, so nothing depends on the order of threads.
//
//     unpool_strips   a thread has a strip of dx, as wide as a stride, and goes down it: the windows over
//                     it give their gradient to elements that are in registers until their last window is done
//     unpool_planes   the same without lanes (NCHW), where rows of dx follow each other: they are
//                     collected in shared memory and written in packs, whatever their extents
//     unpool_tile     for larger windows. A block makes a box of dx. First, once per window that touches
//                     the box: which element its gradient goes to (max), or dy over the divisor
//                     (averages), into shared memory. Then every element of dx looks its windows up there
//     unpool_direct   a thread makes an element of dx from global memory: for windows of which too
//                     many overlap to fit in shared memory
//
// Memory traffic: a maximum reads y, dy and x once, an average dy alone; dx is written once. What windows
// share is read again, from the caches. They reach
// NCHW 51 to 72 %, NHWC 78 to 98 %, CHWN 79 to 94 % of a copy's speed on an H200 (docs/kernels.md).
//
// Instructions decide. An H200 issues 70 a thread in the time that 10 bytes take (of an element of dx
// under a maximum: x, dx, and a quarter of y and dy each), 35 in that of an average's 5. Of windows of 3x3
// with strides of 2, an element takes 26 of a maximum and 6 of an average in packs of four lanes, 40
// and 15 in NCHW.
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
// `low + i` begins `i * S - shift` elements after the tile's first.
template <typename I, int SIZE, int K, int S>
struct Touching {
    static constexpr int WINDOWS = (SIZE + K - 2) / S + 1;
    static constexpr int COVERING = (K + S - 1) / S;  // windows over one element, at the most
    static constexpr int UNROLL = COVERING <= 4 ? COVERING : 1;
    I low;
    int shift;

    // `begin`: the tile's first element, in padded x
    __device__ Touching(I begin) {
        low = floor_quotient(begin - K, I(S)) + 1;
        shift = (int)(begin - low * S);
    }
    // The last window that begins at or before an element; negative if none does. `shift` is above -S.
    __device__ int last(int at) const { return (at + shift + S) / S - 1; }
    // Where that element lies in that window.
    __device__ int tap(int at) const { return (at + shift + S) % S; }
};

// The first element of each window that equals its maximum, one per lane; -1 if none.
template <int COUNT, int KD, int KH, int KW, typename I, typename T>
__device__ inline void first_equal(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Pack<T, COUNT> &y, I front,
    I top, I left, I available) {
    const Clipped<I> d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
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

// The same with a warp for each window, 32 elements at a time.
template <int COUNT, int KD, int KH, int KW, typename I, typename T>
__device__ inline void first_equal_by_warp(
    int (&found)[COUNT], const UnpoolingGeometry<I> &g, const T *x, const Pack<T, COUNT> &y, I front,
    I top, I left, I available) {
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

// The box is TB x TD x TH x TW elements of TL packs of COUNT lanes. A thread makes WIDE neighbours along
// w (TW is a multiple of WIDE, or all of w).
template <typename I, typename T, int MODE, bool BY_WARP, int COUNT, int WIDE, int TB, int TD, int TH,
          int TW, int TL, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(BLOCK_THREADS, 3) unpool_tile(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    using D = Touching<I, TD, KD, SD>;
    using H = Touching<I, TH, KH, SH>;
    using W = Touching<I, TW, KW, SW>;
    constexpr int WINDOWS = TB * D::WINDOWS * H::WINDOWS * W::WINDOWS * TL;
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
        for (unsigned i = threadIdx.x / THREADS; i < WINDOWS; i += BLOCK_THREADS / THREADS) {
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
                    const T *source = x + at_offset(g.x_stride, a, b, I(0), I(0), I(0), at_lane);
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
                share = A(1) / A(divisor<MODE, KD, KH, KW>(g, front, top, left));
            }
            Pack<A, COUNT> gradient;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                gradient.element[e] = widen(incoming.element[e]);
                if constexpr (MODE != MAX) gradient.element[e] *= share;
            }
            gradients[i] = gradient;
        }
        __syncthreads();

        auto add = [&](A (&total)[COUNT], int window, int tap) {
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (MODE != MAX || targets[window].element[e] == tap)
                    total[e] += gradients[window].element[e];
        };
        constexpr int GROUPS = (TW + WIDE - 1) / WIDE;
        constexpr int ELEMENTS = TB * TD * TH * GROUPS * TL;
        for (unsigned i = threadIdx.x; i < ELEMENTS; i += BLOCK_THREADS) {
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
                const int w_d = d.last(i_d) - j_d;
                const int tap_d = d.tap(i_d) + j_d * SD;
                if (w_d < 0 || tap_d >= KD) break;
#pragma unroll H::UNROLL
                for (int j_h = 0; j_h < H::COVERING; ++j_h) {
                    const int w_h = h.last(i_h) - j_h;
                    const int tap_h = h.tap(i_h) + j_h * SH;
                    if (w_h < 0 || tap_h >= KH) break;
                    const int line = ((i_b * D::WINDOWS + w_d) * H::WINDOWS + w_h) * W::WINDOWS;
                    const int before = (tap_d * KH + tap_h) * KW;
#pragma unroll
                    for (int u = 0; u < WIDE; ++u)
#pragma unroll W::UNROLL
                        for (int j_w = 0; j_w < W::COVERING; ++j_w) {
                            const int w_w = w.last(i_w + u) - j_w;
                            const int tap_w = w.tap(i_w + u) + j_w * SW;
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
        __syncthreads();
    }
}

// Whether 0 <= at < extent.
__device__ inline bool is_below(int at, int extent) { return (unsigned)at < (unsigned)extent; }
__device__ inline bool is_below(long long at, long long extent) {
    return (unsigned long long)at < (unsigned long long)extent;
}

// The same number, of which the compiler does not know that: what rarely follows from it is then worked
// out again, and takes no registers meanwhile.
template <typename I>
__device__ inline I anew(I number) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(I) == 4) asm volatile("" : "+r"(number));
    else asm volatile("" : "+l"(number));
#endif
    return number;
}

// An element of a window, the next in row-major order: `total` gets `gradient` if it is the first that
// equals `most`, which is no NaN. `wanted` is 1 until then. One comparison sets two predicates.
template <bool OWN, typename A>
__device__ inline void give(A &total, int &wanted, A gradient, A value, A most) {
    const bool equals = value == most;
    if (OWN && wanted && equals) total += gradient;
    wanted = wanted && !equals;
}
#ifdef __CUDA_ARCH__
template <bool OWN>
__device__ inline void give(float &total, int &wanted, float gradient, float value, float most) {
    if constexpr (OWN)
        asm("{\n"
            ".reg .pred wanted, first, later;\n"
            "setp.ne.s32 wanted, %1, 0;\n"
            "setp.eq.and.f32 first|later, %3, %4, wanted;\n"
            "@first add.f32 %0, %0, %2;\n"
            "selp.s32 %1, 1, 0, later;\n"
            "}"
            : "+f"(total), "+r"(wanted)
            : "f"(gradient), "f"(value), "f"(most));
    else
        asm("{\n"
            ".reg .pred wanted, later;\n"
            "setp.ne.s32 wanted, %0, 0;\n"
            "setp.neu.and.f32 later, %1, %2, wanted;\n"
            "selp.s32 %0, 1, 0, later;\n"
            "}"
            : "+r"(wanted)
            : "f"(value), "f"(most));
}
#endif

// A strip of dx: as deep and as wide as a stride, of COUNT lanes. The windows over it are scattered one
// row of windows after the other; REACH_D * SD + KD elements deep and so on are under them. What lies
// outside of x is held as NaN, which equals no maximum. UNIT: neighbours along w lie side by side.
// PADDED: not every window lies within x. FLAT: planes of y are those of x.
// JOINED neighbours along w are stored as one: 1, or a whole stride.
template <typename I, typename T, int MODE, int COUNT, int JOINED, bool UNIT, bool PADDED, bool FLAT,
          int KD, int KH, int KW, int SD, int SH, int SW>
struct Strip {
    using A = Arithmetic<T>;
    static constexpr int REACH_D = (KD - 1) / SD, REACH_H = (KH - 1) / SH, REACH_W = (KW - 1) / SW;
    static constexpr int DEEP = MODE == MAX ? REACH_D * SD + KD : 1;
    static constexpr int HIGH = MODE == MAX ? KH : 1, WIDE = MODE == MAX ? REACH_W * SW + KW : 1;
    static constexpr int KEPT = KH > SH ? KH - SH : 0;  // rows of x that the next windows share
    static constexpr int ROWS = KH > SH ? KH : SH;

    const UnpoolingGeometry<I> &g;
    const T *x, *y, *dy;
    I x_at, y_at, dy_at;  // offsets of this plane and lane
    I cell_d, cell_w;
    Pack<T, COUNT> under[DEEP][HIGH][WIDE];
    A totals[SD][ROWS][SW][COUNT] = {};

    __device__ bool inside(I cell_h, int d, int h, int w) const {
        return (FLAT || is_below((cell_d - REACH_D) * SD - g.before.d + d, g.x.d)) &&
               is_below(cell_h * SH - g.before.h + h, g.x.h) &&
               is_below((cell_w - REACH_W) * SW - g.before.w + w, g.x.w);
    }
    // Rows [from, to) under the windows that begin with row `cell_h` of strides.
    template <int FROM, int TO>
    __device__ void load(I cell_h) {
        const I corner = x_at + ((cell_d - REACH_D) * SD - g.before.d) * g.x_stride.d +
                         (cell_h * SH - g.before.h) * g.x_stride.h +
                         ((cell_w - REACH_W) * SW - g.before.w) * g.x_stride.w;
#pragma unroll
        for (int d = 0; d < DEEP; ++d)
#pragma unroll
            for (int h = FROM; h < TO; ++h) {
                const T *row = x + (corner + d * g.x_stride.d + h * g.x_stride.h);
#pragma unroll
                for (int w = 0; w < WIDE; ++w) {
#pragma unroll
                    for (int e = 0; PADDED && e < COUNT; ++e)
                        under[d][h][w].element[e] = narrow<T>(negative_infinity<A>() * A(0));
                    if (inside(cell_h, d, h, w))
                        under[d][h][w] =
                            load_pack<COUNT>(row + (UNIT ? I(w) : w * g.x_stride.w), COUNT);
                }
            }
    }
    // The windows in row `cell_h` of windows.
    template <bool NAN_TOO>
    __device__ void scatter(
        I row, const Pack<T, COUNT> (&maxima)[REACH_D + 1][REACH_W + 1],
        const Pack<T, COUNT> (&gradients)[REACH_D + 1][REACH_W + 1]) {
        const I cell_h = NAN_TOO ? anew(row) : row;
#pragma unroll
        for (int d = 0; d <= REACH_D; ++d)
#pragma unroll
            for (int w = 0; w <= REACH_W; ++w) {
                const I at_d = cell_d - REACH_D + d, at_w = cell_w - REACH_W + w;
                A share = 1;
                if (MODE != MAX) {
                    const I elements = divisor<MODE, KD, KH, KW>(
                        g, at_d * SD - g.before.d, cell_h * SH - g.before.h, at_w * SW - g.before.w);
                    share = A(1) / A(elements > 0 ? elements : I(1));
                }
#pragma unroll
                for (int e = 0; e < COUNT; ++e) {
                    const A most = widen(maxima[d][w].element[e]);
                    const A gradient = A(widen(gradients[d][w].element[e])) * share;
                    int wanted = 1;  // the first one that is equal is not yet found
#pragma unroll
                    for (int k = 0; k < KD * KH * KW; ++k) {
                        const int k_d = k / (KH * KW), k_h = k / KW % KH, k_w = k % KW;
                        const int to_d = (d - REACH_D) * SD + k_d, to_w = (w - REACH_W) * SW + k_w;
                        const bool own = to_d >= 0 && to_d < SD && to_w >= 0 && to_w < SW;
                        A &total = totals[own ? to_d : 0][k_h][own ? to_w : 0][e];
                        if constexpr (MODE != MAX) {
                            if (own) total += gradient;
                        } else if constexpr (NAN_TOO) {
                            const A value = widen(under[d * SD + k_d][k_h][w * SW + k_w].element[e]);
                            const bool equals = same_value(value, most) &&
                                                (!PADDED ||
                                                 inside(cell_h, d * SD + k_d, k_h, w * SW + k_w));
                            if (own && wanted && equals) total += gradient;
                            wanted = wanted && !equals;
                        } else {
                            const A value = widen(under[d * SD + k_d][k_h][w * SW + k_w].element[e]);
                            if (own) give<true>(total, wanted, gradient, value, most);
                            else give<false>(total, wanted, gradient, value, most);
                        }
                    }
                }
            }
    }
    // Rows of strides [first, end), each handed to `store` pack by pack where dx has it.
    template <typename Store>
    __device__ void go(I first, I end, const Store &store) {
        const I begin = least(first, most(first - REACH_H, I(0)));
        if constexpr (MODE == MAX && KEPT > 0) load<0, KEPT>(begin);
#pragma unroll 1
        for (I cell_h = begin; cell_h < end; ++cell_h) {
            if constexpr (MODE == MAX) load<KEPT, KH>(cell_h);
            Pack<T, COUNT> maxima[REACH_D + 1][REACH_W + 1] = {};
            Pack<T, COUNT> gradients[REACH_D + 1][REACH_W + 1] = {};
            bool has_nan = false;
#pragma unroll
            for (int d = 0; d <= REACH_D; ++d) {
                const I at_d = cell_d - REACH_D + d;
                const T *of_dy = dy + (dy_at + at_d * g.dy_stride.d + cell_h * g.dy_stride.h +
                                       cell_w * g.dy_stride.w);
                const T *of_y = y + (y_at + at_d * g.y_stride.d + cell_h * g.y_stride.h +
                                     cell_w * g.y_stride.w);
#pragma unroll
                for (int w = 0; w <= REACH_W; ++w) {
                    const I at_w = cell_w - REACH_W + w;
                    const bool exists = (FLAT || is_below(at_d, g.y.d)) && is_below(cell_h, g.y.h) &&
                                        is_below(at_w, g.y.w);
                    const I along = w - REACH_W;
                    if (exists)
                        gradients[d][w] =
                            load_pack<COUNT>(of_dy + (UNIT ? along : along * g.dy_stride.w), COUNT);
                    if (MODE == MAX && exists)
                        maxima[d][w] =
                            load_pack<COUNT>(of_y + (UNIT ? along : along * g.y_stride.w), COUNT);
                }
            }
#pragma unroll
            for (int d = 0; d <= REACH_D; ++d)
#pragma unroll
                for (int w = 0; w <= REACH_W; ++w)
                    if constexpr (MODE == MAX) {
#pragma unroll
                        for (int e = 0; e < COUNT; ++e) {
                            const A most = widen(maxima[d][w].element[e]);
                            has_nan = has_nan || most != most;
                        }
                    }
            if (MODE == MAX && has_nan) scatter<true>(cell_h, maxima, gradients);
            else scatter<false>(cell_h, maxima, gradients);
            if (cell_h >= first) {
#pragma unroll
                for (int d = 0; d < SD; ++d)
#pragma unroll
                    for (int h = 0; h < SH; ++h)
#pragma unroll
                        for (int w = 0; w < SW; w += JOINED) {
                            const I at_d = cell_d * SD - g.before.d - g.origin.d + d;
                            const I at_h = cell_h * SH - g.before.h - g.origin.h + h;
                            const I at_w = cell_w * SW - g.before.w - g.origin.w + w;
                            if ((!FLAT && !is_below(at_d, g.dx.d)) || !is_below(at_h, g.dx.h) ||
                                !is_below(at_w, g.dx.w))
                                continue;
                            Pack<T, COUNT * JOINED> results;
#pragma unroll
                            for (int e = 0; e < COUNT * JOINED; ++e)
                                results.element[e] = narrow<T>(totals[d][h][w + e / COUNT][e % COUNT]);
                            store(at_d, at_h, at_w, results);
                        }
            }
#pragma unroll
            for (int d = 0; d < SD; ++d)
#pragma unroll
                for (int h = 0; h < ROWS; ++h)
#pragma unroll
                    for (int w = 0; w < SW; ++w)
#pragma unroll
                        for (int e = 0; e < COUNT; ++e)
                            totals[d][h][w][e] = h + SH < ROWS ? totals[d][h + SH][w][e] : A(0);
            if constexpr (MODE == MAX && KEPT > 0)
#pragma unroll
                for (int d = 0; d < DEEP; ++d)
#pragma unroll
                    for (int h = 0; h < KEPT; ++h)
#pragma unroll
                        for (int w = 0; w < WIDE; ++w) under[d][h][w] = under[d][h + SH][w];
        }
    }
};

// A block has the strips of TL packs of lanes; a thread goes down ROWS strides of one.
template <typename I, typename T, int MODE, int COUNT, int JOINED, int TL, int ROWS,
          bool UNIT, bool PADDED, bool FLAT, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(BLOCK_THREADS, 2) unpool_strips(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    for (long long tile = blockIdx.x; tile < g.total; tile += gridDim.x) {
        I rest = (I)tile;
        const I lane = (take(rest, g.lane_tiles) * TL + threadIdx.x % TL) * COUNT;
        rest = rest * (BLOCK_THREADS / TL) + threadIdx.x / TL;
        const I cell_w = take(rest, g.tiles.w), group = take(rest, g.tiles.h);
        const I cell_d = take(rest, g.tiles.d), b = take(rest, g.b), a = rest;
        if (threadIdx.x >= BLOCK_THREADS / TL * TL || lane >= g.lanes || a >= g.a) continue;
        T *target = dx + at_offset(g.dx_stride, a, b, I(0), I(0), I(0), lane);
        const I begin = floor_quotient(g.origin.h + g.before.h, I(SH));
        const I end = floor_quotient(g.origin.h + g.before.h + g.dx.h - 1, I(SH)) + 1;
        const I first = begin + group * ROWS;
        Strip<I, T, MODE, COUNT, JOINED, UNIT, PADDED, FLAT, KD, KH, KW, SD, SH, SW> strip = {
            g, x, y, dy, at_offset(g.x_stride, a, b, I(0), I(0), I(0), lane),
            at_offset(g.y_stride, a, b, I(0), I(0), I(0), lane),
            at_offset(g.dy_stride, a, b, I(0), I(0), I(0), lane),
            floor_quotient(g.origin.d + g.before.d, I(SD)) + cell_d,
            floor_quotient(g.origin.w + g.before.w, I(SW)) + cell_w};
        strip.go(first, least(first + ROWS, end), [&](I d, I h, I w, const auto &results) {
            store_pack(
                target + (d * g.dx_stride.d + h * g.dx_stride.h + w * g.dx_stride.w), results,
                COUNT * JOINED);
        });
    }
}

// A block makes TB planes of dx, which follow each other in memory, or TH rows of strides of one: by way of
// shared memory, so that they are written in packs, whatever their extents. CELLS_W strides lie
// across, and a thread goes down ROWS of them.
template <typename I, typename T, int MODE, int STAGE, int TB, int TH, int CELLS_W, int ROWS, bool UNIT,
          bool PADDED, int KH, int KW, int SH, int SW>
__global__ void __launch_bounds__(BLOCK_THREADS, 4) unpool_planes(
    UnpoolingGeometry<I> g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    constexpr int GROUPS = (TH + ROWS - 1) / ROWS;
    __shared__ __align__(16) T stage[STAGE];
    const I begin = floor_quotient(g.origin.h + g.before.h, I(SH));
    const I end = floor_quotient(g.origin.h + g.before.h + g.dx.h - 1, I(SH)) + 1;
    const I cells = floor_quotient(g.origin.w + g.before.w, I(SW));
    for (long long tile = blockIdx.x; tile < g.total; tile += gridDim.x) {
        I rest = (I)tile;
        const I tile_h = begin + take(rest, g.tiles.h) * TH;
        const I first_b = take(rest, g.b_tiles) * TB, a = rest;
        const int planes = (int)least(g.b - first_b, I(TB));
        // Rows of dx: strides begin before its first one where there is padding.
        const I before = g.before.h + g.origin.h;
        const I first_h = most(tile_h * SH - before, I(0));
        const int rows = (int)(least((tile_h + TH) * SH - before, g.dx.h) - first_h);
        T *target = dx + at_offset(g.dx_stride, a, first_b, I(0), first_h, I(0), I(0));
        T *made = stage + Staging<T>::shift(target);
        for (int i = threadIdx.x; i < TB * GROUPS * CELLS_W; i += BLOCK_THREADS) {
            const int cell_w = i % CELLS_W, group = i / CELLS_W % GROUPS, i_b = i / (CELLS_W * GROUPS);
            const I b = first_b + i_b, first = tile_h + group * ROWS;
            if (i_b >= planes) continue;
            Strip<I, T, MODE, 1, 1, UNIT, PADDED, true, 1, KH, KW, 1, SH, SW> strip = {
                g, x, y, dy, at_offset(g.x_stride, a, b, I(0), I(0), I(0), I(0)),
                at_offset(g.y_stride, a, b, I(0), I(0), I(0), I(0)),
                at_offset(g.dy_stride, a, b, I(0), I(0), I(0), I(0)), g.origin.d,
                cells + cell_w};
            T *plane = made + i_b * rows * (int)g.dx.w;
            strip.go(first, least(least(first + ROWS, tile_h + TH), end),
                     [&](I, I h, I w, const Pack<T, 1> &result) {
                plane[(int)(h - first_h) * (int)g.dx.w + (int)w] = result.element[0];
            });
        }
        __syncthreads();
        Staging<T>::store(target, stage, planes * rows * (int)g.dx.w);
        __syncthreads();  // the next tile overwrites this one
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
__global__ void __launch_bounds__(BLOCK_THREADS) unpool_direct(
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
                        total += incoming * (A(1) / A(divisor<MODE, KD, KH, KW>(g, front, top, left)));
                    }
                }
            }
        }
        dx[at_offset(g.dx_stride, a, b, i_d, i_h, i_w, lane)] = narrow<T>(total);
    }
}
