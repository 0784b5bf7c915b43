// The gradient of pooling with respect to x (cudnnPoolingBackward), gathered: each element of dx
// sums what the windows over it give it, so nothing depends on the order of threads.
//
//     unpool_tile     a block makes a box of dx. First, once per window that touches the box: which
//                     element its gradient goes to (max), or dy over the divisor (averages), into
//                     shared memory. Then every element of dx looks its windows up there.
//     unpool_direct   a thread makes an element of dx from global memory: for windows of which too
//                     many overlap to fit in shared memory
//
// A maximum's gradient goes to the first element of the window that equals y, in row-major order.
// NaN equals NaN (CUDNN_PROPAGATE_NAN). Elements that no window touches get 0. dx is `rows` rows of
// x: `origin` is where it begins in x.

#include "pooling.cuh"

struct UnpoolingGeometry {
    long long a, b, lanes;       // lanes: in elements
    Extents dx, origin, x, y;    // dx: its spatial sizes; origin: its first element, in x
    Extents before;              // padding; negative where the first window begins inside x
    Strides dx_stride, y_stride, dy_stride, x_stride;
    Extents tiles;
    long long b_tiles, lane_tiles;
    long long total;  // tiles, or elements for unpool_direct
};

__device__ inline long long at_offset(
    const Strides &stride, long long a, long long b, long long d, long long h, long long w,
    long long lane) {
    return a * stride.a + b * stride.b + d * stride.d + h * stride.h + w * stride.w +
           lane * stride.lane;
}

template <int MODE, int KD, int KH, int KW>
__device__ inline long long divisor(
    const UnpoolingGeometry &g, long long front, long long top, long long left) {
    if (MODE == AVERAGE_INCLUDE_PADDING) return (long long)KD * KH * KW;
    return Clipped(front, KD, g.x.d).count() * Clipped(top, KH, g.x.h).count() *
           Clipped(left, KW, g.x.w).count();
}

// One axis of a tile of SIZE elements: the windows of K elements every S that touch it. Window
// `low + i` begins `i * S - shift` elements after the tile's first.
template <int SIZE, int K, int S>
struct Touching {
    static constexpr int WINDOWS = (SIZE + K - 2) / S + 1;
    static constexpr int COVERING = (K + S - 1) / S;  // windows over one element, at the most
    long long low;
    int shift;

    // `begin`: the tile's first element, in padded x
    __device__ Touching(long long begin) {
        low = floor_quotient(begin - K, S) + 1;
        shift = (int)(begin - low * S);
    }
    // The last window that begins at or before element `at` of the tile; -1 if none does.
    __device__ int last(int at) const { return at + shift < 0 ? -1 : (at + shift) / S; }
    // Where the element lies in that window.
    __device__ int tap(int at, int window) const { return at + shift - window * S; }
};

// The first element of each window that equals its maximum, one per lane; -1 if none.
template <int COUNT, int KD, int KH, int KW, typename T>
__device__ inline void first_equal(
    int (&found)[COUNT], const UnpoolingGeometry &g, const T *x, const Pack<T, COUNT> &y,
    long long front, long long top, long long left, long long available) {
    const Clipped d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
    if constexpr (KD == 1 && KH * KW <= 16) {
        Pack<T, COUNT> packs[KH * KW];
        bool present[KH * KW];
#pragma unroll
        for (int k = 0; k < KH * KW; ++k) {
            const long long row = top + k / KW, column = left + k % KW;
            present[k] = d.low < d.high && row >= h.low && row < h.high && column >= w.low &&
                         column < w.high;
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
        for (long long depth = d.low; depth < d.high; ++depth)
            for (long long row = h.low; row < h.high; ++row) {
                const T *line = x + depth * g.x_stride.d + row * g.x_stride.h;
                const int before = ((int)(depth - front) * KH + (int)(row - top)) * KW;
                bool all = true;
#pragma unroll 4
                for (long long column = w.low; column < w.high; ++column) {
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
template <int COUNT, int KD, int KH, int KW, typename T>
__device__ inline void first_equal_by_warp(
    int (&found)[COUNT], const UnpoolingGeometry &g, const T *x, const Pack<T, COUNT> &y,
    long long front, long long top, long long left, long long available) {
    const Clipped d(front, KD, g.x.d), h(top, KH, g.x.h), w(left, KW, g.x.w);
    const unsigned sites = (unsigned)(d.count() * h.count() * w.count());
    const unsigned across = (unsigned)w.count(), down = (unsigned)h.count();
#pragma unroll
    for (int e = 0; e < COUNT; ++e) found[e] = -1;
    for (unsigned begin = 0; begin < sites; begin += 32) {
        const unsigned k = begin + threadIdx.x % 32;
        const unsigned line = k / across, plane = line / down;
        const long long column = w.low + (k - line * across);
        const long long row = h.low + (line - plane * down), depth = d.low + plane;
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

// The box is TB x TD x TH x TW elements of TL packs of COUNT lanes.
template <typename T, int MODE, bool BY_WARP, int COUNT, int TB, int TD, int TH, int TW, int TL,
          int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(256) unpool_tile(
    UnpoolingGeometry g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    using D = Touching<TD, KD, SD>;
    using H = Touching<TH, KH, SH>;
    using W = Touching<TW, KW, SW>;
    constexpr int WINDOWS = TB * D::WINDOWS * H::WINDOWS * W::WINDOWS * TL;
    constexpr int ELEMENTS = TB * TD * TH * TW * TL;
    __shared__ Pack<A, COUNT> gradients[WINDOWS];
    __shared__ Pack<int, COUNT> targets[MODE == MAX ? WINDOWS : 1];

    for (long long tile = blockIdx.x; tile < g.total; tile += gridDim.x) {
        long long rest = tile;
        const long long first_lane = take(rest, g.lane_tiles) * (TL * COUNT);
        const long long first_w = take(rest, g.tiles.w) * TW;
        const long long first_h = take(rest, g.tiles.h) * TH;
        const long long first_d = take(rest, g.tiles.d) * TD;
        const long long first_b = take(rest, g.b_tiles) * TB, a = rest;
        const D d(first_d + g.origin.d + g.before.d);
        const H h(first_h + g.origin.h + g.before.h);
        const W w(first_w + g.origin.w + g.before.w);

        constexpr int THREADS = BY_WARP ? 32 : 1;  // of a window
        for (int i = threadIdx.x / THREADS; i < WINDOWS; i += 256 / THREADS) {
            const int lane = i % TL, i_w = i / TL % W::WINDOWS;
            const int i_h = i / (TL * W::WINDOWS) % H::WINDOWS;
            const int i_d = i / (TL * W::WINDOWS * H::WINDOWS) % D::WINDOWS;
            const int i_b = i / (TL * W::WINDOWS * H::WINDOWS * D::WINDOWS);
            const long long at_lane = first_lane + lane * COUNT, b = first_b + i_b;
            const long long at_w = w.low + i_w, at_h = h.low + i_h, at_d = d.low + i_d;
            const bool exists = at_lane < g.lanes && b < g.b && at_w >= 0 && at_w < g.y.w &&
                                at_h >= 0 && at_h < g.y.h && at_d >= 0 && at_d < g.y.d;
            const long long available = exists ? g.lanes - at_lane : 0;
            const long long front = at_d * SD - g.before.d, top = at_h * SH - g.before.h;
            const long long left = at_w * SW - g.before.w;
            const auto incoming = load_pack<COUNT>(
                dy + at_offset(g.dy_stride, a, b, at_d, at_h, at_w, at_lane), available);
            Pack<A, COUNT> gradient;
            if constexpr (MODE == MAX) {
                const auto most = load_pack<COUNT>(
                    y + at_offset(g.y_stride, a, b, at_d, at_h, at_w, at_lane), available);
                Pack<int, COUNT> target;
#pragma unroll
                for (int e = 0; e < COUNT; ++e) target.element[e] = -1;
                const T *source = x + a * g.x_stride.a + b * g.x_stride.b + at_lane * g.x_stride.lane;
                if (exists) {
                    if constexpr (BY_WARP)
                        first_equal_by_warp<COUNT, KD, KH, KW>(
                            target.element, g, source, most, front, top, left, available);
                    else
                        first_equal<COUNT, KD, KH, KW>(
                            target.element, g, source, most, front, top, left, available);
                }
                targets[i] = target;
            }
            const A share = MODE == MAX || !exists ? A(1)
                                                   : A(divisor<MODE, KD, KH, KW>(g, front, top, left));
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                gradient.element[e] = widen(incoming.element[e]);
                if constexpr (MODE != MAX) gradient.element[e] /= share;
            }
            gradients[i] = gradient;
        }
        __syncthreads();

        for (int i = threadIdx.x; i < ELEMENTS; i += 256) {
            const int lane = i % TL, i_w = i / TL % TW, i_h = i / (TL * TW) % TH;
            const int i_d = i / (TL * TW * TH) % TD, i_b = i / (TL * TW * TH * TD);
            const long long at_lane = first_lane + lane * COUNT, b = first_b + i_b;
            if (at_lane >= g.lanes || b >= g.b || first_w + i_w >= g.dx.w ||
                first_h + i_h >= g.dx.h || first_d + i_d >= g.dx.d)
                continue;
            Pack<A, COUNT> total = {};
            for (int j_d = 0; j_d < D::COVERING; ++j_d) {
                const int w_d = d.last(i_d) - j_d, tap_d = d.tap(i_d, w_d);
                if (w_d < 0 || tap_d >= KD) break;
                for (int j_h = 0; j_h < H::COVERING; ++j_h) {
                    const int w_h = h.last(i_h) - j_h, tap_h = h.tap(i_h, w_h);
                    if (w_h < 0 || tap_h >= KH) break;
                    const int line = ((i_b * D::WINDOWS + w_d) * H::WINDOWS + w_h) * W::WINDOWS;
                    for (int j_w = 0; j_w < W::COVERING; ++j_w) {
                        const int w_w = w.last(i_w) - j_w, tap_w = w.tap(i_w, w_w);
                        if (w_w < 0 || tap_w >= KW) break;
                        const int window = (line + w_w) * TL + lane;
                        const Pack<A, COUNT> gradient = gradients[window];
                        if constexpr (MODE == MAX) {
                            const Pack<int, COUNT> target = targets[window];
                            const int tap = (tap_d * KH + tap_h) * KW + tap_w;
#pragma unroll
                            for (int e = 0; e < COUNT; ++e)
                                if (target.element[e] == tap) total.element[e] += gradient.element[e];
                        } else {
#pragma unroll
                            for (int e = 0; e < COUNT; ++e) total.element[e] += gradient.element[e];
                        }
                    }
                }
            }
            Pack<T, COUNT> results;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) results.element[e] = narrow<T>(total.element[e]);
            store_pack<COUNT>(
                dx + at_offset(
                         g.dx_stride, a, b, first_d + i_d, first_h + i_h, first_w + i_w, at_lane),
                results, g.lanes - at_lane);
        }
        __syncthreads();
    }
}

// Whether element (depth, row, column) of x is the first of its window that equals y.
template <int KH, int KW, typename T>
__device__ inline bool is_first_equal(
    const UnpoolingGeometry &g, const T *x, T y, long long front, long long top, long long left,
    long long depth, long long row, long long column) {
    auto same = [&](long long d, long long h, long long w) {
        const T value = x[d * g.x_stride.d + h * g.x_stride.h + w * g.x_stride.w];
        return same_value(widen(value), widen(y));
    };
    if (!same(depth, row, column)) return false;
    const Clipped h(top, KH, g.x.h), w(left, KW, g.x.w);
    for (long long d = larger(front, 0ll); d <= depth; ++d)
        for (long long i = h.low; i < (d < depth ? h.high : row + 1); ++i)
            for (long long j = w.low; j < (d < depth || i < row ? w.high : column); ++j)
                if (same(d, i, j)) return false;
    return true;
}

template <typename T, int MODE, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(256) unpool_direct(
    UnpoolingGeometry g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        long long rest = i;
        const long long lane = take(rest, g.lanes), i_w = take(rest, g.dx.w);
        const long long i_h = take(rest, g.dx.h), i_d = take(rest, g.dx.d);
        const long long b = take(rest, g.b), a = rest;
        const long long depth = i_d + g.origin.d, row = i_h + g.origin.h, column = i_w + g.origin.w;
        // The windows over an element: [first, last] along each axis, descending as in unpool_tile.
        const long long last_d = smaller(floor_quotient(depth + g.before.d, SD), g.y.d - 1);
        const long long last_h = smaller(floor_quotient(row + g.before.h, SH), g.y.h - 1);
        const long long last_w = smaller(floor_quotient(column + g.before.w, SW), g.y.w - 1);
        const T *source = x + a * g.x_stride.a + b * g.x_stride.b + lane * g.x_stride.lane;
        A total = 0;
        for (long long d = last_d; d >= 0; --d) {
            const long long front = d * SD - g.before.d;
            if (front + KD <= depth) break;
            for (long long h = last_h; h >= 0; --h) {
                const long long top = h * SH - g.before.h;
                if (top + KH <= row) break;
                for (long long w = last_w; w >= 0; --w) {
                    const long long left = w * SW - g.before.w;
                    if (left + KW <= column) break;
                    const A incoming = widen(dy[at_offset(g.dy_stride, a, b, d, h, w, lane)]);
                    if constexpr (MODE == MAX) {
                        const T most = y[at_offset(g.y_stride, a, b, d, h, w, lane)];
                        if (is_first_equal<KH, KW>(
                                g, source, most, front, top, left, depth, row, column))
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
