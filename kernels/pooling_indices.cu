// Where the maximum of each window is, in one byte: its place in the window, in row-major order,
// padding counted; and the gradient of the pooling from these.
//
//     pooling_indices       index = place of the first maximum of x; NaN is before all numbers.
//                           POSITIVE: 255 for a maximum that is not above 0, as behind a ReLU.
//                           WITH_Y: y = the maxima, too
//     pooling_from_indices  dx = sum of dy over the windows whose index says so
//     ..._rows              the same where a row's elements lie side by side (NCHW)
//
// Memory traffic: forward reads x and writes a byte for each window; backward reads that byte and dy,
// and writes dx. What windows share is read again, from the caches.
// It reaches
// float32 48 to 100 %, float16 27 to 96 % of a copy's speed on an H100 (docs/kernels.md).
// A thread has a pack of the result: along the channels where these lie innermost, or along a row. With
// one element for each thread, gradients in NCHW took up to four times as long. The walk's last
// three operands, of which nothing is read, carry its place along the spatial axes: 0 along those that
// are not there, which have windows, strides and extents of 1. Windows and strides are known when this is compiled: their
// quotients cost little, and the loads of a row of a window do not wait for each other.

#include "pooling.cuh"

template <typename I, int OPERANDS>
struct Windows {
    Walk<I, OPERANDS> walk;
    I before[3];  // padding
    I extent[3];  // of x, or backward the number of windows
    I step[3];    // of x; backward of dy
    I index_step[3];
    I origin[3];  // backward: where in x dx begins
};

template <typename I, typename T, int COUNT, int KD, int KH, int KW, int SD, int SH, int SW,
          bool POSITIVE, bool WITH_Y>
__global__ void __launch_bounds__(BLOCK_THREADS) pooling_indices(
    Windows<I, 6> w, unsigned char *index, const T *x, T *y) {
    using A = Arithmetic<T>;
    constexpr int COLUMNS = KW < 8 ? KW : 8;  // of a window, loaded before they are looked at
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < w.walk.packs;
         at += stride) {
        const Place<I, 6> place = place_of<COUNT>(w.walk, at);
        const T *image = x + place.offset[1];
        const I front = place.offset[3] * SD - w.before[0];
        const I top = place.offset[4] * SH - w.before[1];
        const I left = place.offset[5] * SW - w.before[2];
        bool known = false;
        A best[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) best[e] = negative_infinity<A>();
        Pack<unsigned char, COUNT> found = {};
        for (int i = 0; i < KD; ++i)
#pragma unroll(KH <= 4 ? KH : 1)
            for (int j = 0; j < KH; ++j) {
                const I depth = front + i, row = top + j;
                const bool has = depth >= 0 && depth < w.extent[0] && row >= 0 && row < w.extent[1];
                const T *line = image + depth * w.step[0] + row * w.step[1];
#pragma unroll 1
                for (int begin = 0; begin < KW; begin += COLUMNS) {
                    Pack<T, COUNT> packs[COLUMNS];
                    bool inside[COLUMNS];
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) {
                        const I column = left + begin + k;
                        inside[k] = has && column >= 0 && column < w.extent[2] && begin + k < KW;
                        packs[k] = load_pack<COUNT>(
                            line + column * w.step[2], inside[k] ? place.available : 0);
                    }
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) {
                        if (!inside[k]) continue;
#pragma unroll
                        for (int e = 0; e < COUNT; ++e) {
                            const A value = widen(packs[k].element[e]);
                            const bool better = !known || is_larger(value, best[e]) ||
                                                (value != value && best[e] == best[e]);
                            if (!better) continue;
                            best[e] = value;
                            found.element[e] = (unsigned char)((i * KH + j) * KW + begin + k);
                        }
                        known = true;
                    }
                }
            }
        if constexpr (POSITIVE)
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (!(best[e] > A(0))) found.element[e] = 255;  // no place
        store_pack<COUNT>(index + place.offset[0], found, place.available);
        if constexpr (WITH_Y) {
            Pack<T, COUNT> maxima;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) maxima.element[e] = narrow<T>(best[e]);
            store_pack<COUNT>(y + place.offset[2], maxima, place.available);
        }
    }
}

// A thread has a pack of neighbouring windows in a row (NCHW), and reads each row of x under them once,
// in packs of LOADED where they begin on boundaries.
template <typename I, typename T, int COUNT, int LOADED, int KD, int KH, int KW, int SD, int SH,
          int SW, bool POSITIVE, bool WITH_Y>
__global__ void __launch_bounds__(BLOCK_THREADS) pooling_indices_rows(
    Windows<I, 6> w, unsigned char *index, const T *x, T *y) {
    using A = Arithmetic<T>;
    constexpr int LOADS = ((COUNT - 1) * SW + KW + LOADED - 1) / LOADED;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < w.walk.packs;
         at += stride) {
        const Place<I, 6> place = place_of<COUNT>(w.walk, at);
        const T *image = x + place.offset[1];
        const I front = place.offset[3] * SD - w.before[0];
        const I top = place.offset[4] * SH - w.before[1];
        const I left = place.offset[5] * SW - w.before[2];
        bool known[COUNT] = {};
        A best[COUNT];
#pragma unroll
        for (int e = 0; e < COUNT; ++e) best[e] = negative_infinity<A>();
        Pack<unsigned char, COUNT> found = {};
        for (int i = 0; i < KD; ++i)
#pragma unroll(KH <= 4 ? KH : 1)
            for (int j = 0; j < KH; ++j) {
                const I depth = front + i, row = top + j;
                if (depth < 0 || depth >= w.extent[0] || row < 0 || row >= w.extent[1]) continue;
                const T *line = image + depth * w.step[0] + row * w.step[1];
                Pack<T, LOADED> packs[LOADS];
#pragma unroll
                for (int load = 0; load < LOADS; ++load) {
                    const I column = left + load * LOADED;
                    const bool inside = column >= 0 && column < w.extent[2];
                    packs[load] = load_pack<LOADED>(
                        line + column * w.step[2], inside ? w.extent[2] - column : 0);
                }
#pragma unroll
                for (int e = 0; e < COUNT; ++e)
#pragma unroll
                    for (int k = 0; k < KW; ++k) {
                        const int ahead = e * SW + k;
                        const I column = left + ahead;
                        if (column < 0 || column >= w.extent[2]) continue;
                        const A value = widen(packs[ahead / LOADED].element[ahead % LOADED]);
                        const bool better = !known[e] || is_larger(value, best[e]) ||
                                            (value != value && best[e] == best[e]);
                        known[e] = true;
                        if (!better) continue;
                        best[e] = value;
                        found.element[e] = (unsigned char)((i * KH + j) * KW + k);
                    }
            }
        if constexpr (POSITIVE)
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (!(best[e] > A(0))) found.element[e] = 255;  // no place
        store_pack<COUNT>(index + place.offset[0], found, place.available);
        if constexpr (WITH_Y) {
            Pack<T, COUNT> maxima;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) maxima.element[e] = narrow<T>(best[e]);
            store_pack<COUNT>(y + place.offset[2], maxima, place.available);
        }
    }
}

// The windows that reach an element of dx along one axis: from `last` back, as many as there can be.
template <typename I, int K, int S>
struct Reaching {
    static constexpr int MOST = (K + S - 1) / S;
    I inside, last;

    __device__ Reaching(I place, I origin, I before) {
        inside = place + origin + before;
        last = inside < 0 ? -1 : quotient(inside, I(S));
    }
    // In the order of the windows.
    __device__ I window(int number) const { return last - (MOST - 1) + number; }
    __device__ I tap(I window) const { return inside - window * S; }
    __device__ bool has(I window, I extent) const {
        return window >= 0 && window < extent && tap(window) < K;
    }
};

template <typename I, typename T, int COUNT, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(BLOCK_THREADS) pooling_from_indices(
    Windows<I, 6> w, T *dx, const unsigned char *index, const T *dy) {
    using A = Arithmetic<T>;
    using Depth = Reaching<I, KD, SD>;
    using Row = Reaching<I, KH, SH>;
    using Column = Reaching<I, KW, SW>;
    constexpr int UNROLLED = Row::MOST * Column::MOST <= 16 ? Column::MOST : 1;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < w.walk.packs;
         at += stride) {
        const Place<I, 6> place = place_of<COUNT>(w.walk, at);
        const unsigned char *indices = index + place.offset[1];
        const T *gradients = dy + place.offset[2];
        const Depth d(place.offset[3], w.origin[0], w.before[0]);
        const Row h(place.offset[4], w.origin[1], w.before[1]);
        const Column v(place.offset[5], w.origin[2], w.before[2]);
        A sum[COUNT] = {};
        for (int i = 0; i < Depth::MOST; ++i)
#pragma unroll(UNROLLED > 1 ? Row::MOST : 1)
            for (int j = 0; j < Row::MOST; ++j)
#pragma unroll(UNROLLED)
                for (int k = 0; k < Column::MOST; ++k) {
                    const I depth = d.window(i), row = h.window(j), column = v.window(k);
                    const bool has = d.has(depth, w.extent[0]) && h.has(row, w.extent[1]) &&
                                     v.has(column, w.extent[2]);
                    const I available = has ? place.available : 0;
                    const auto of = load_pack<COUNT>(
                        indices + depth * w.index_step[0] + row * w.index_step[1] +
                            column * w.index_step[2], available);
                    const auto given = load_pack<COUNT>(
                        gradients + depth * w.step[0] + row * w.step[1] + column * w.step[2],
                        available);
                    const int tap =
                        (int)((d.tap(depth) * KH + h.tap(row)) * KW + v.tap(column));
#pragma unroll
                    for (int e = 0; e < COUNT; ++e)
                        if (has && of.element[e] == tap) sum[e] += widen(given.element[e]);
                }
        Pack<T, COUNT> made;
#pragma unroll
        for (int e = 0; e < COUNT; ++e) made.element[e] = narrow<T>(sum[e]);
        store_pack<COUNT>(dx + place.offset[0], made, place.available);
    }
}

// A thread has a pack of neighbours in a row of dx (NCHW). Each window that reaches one of them is
// looked up once: its index says which of them its gradient is of, if any.
template <typename I, typename T, int COUNT, int KD, int KH, int KW, int SD, int SH, int SW>
__global__ void __launch_bounds__(BLOCK_THREADS) pooling_from_indices_rows(
    Windows<I, 6> w, T *dx, const unsigned char *index, const T *dy) {
    using A = Arithmetic<T>;
    using Depth = Reaching<I, KD, SD>;
    using Row = Reaching<I, KH, SH>;
    constexpr int REACHING = (COUNT + KW - 2) / SW + 1;   // windows side by side
    constexpr int COLUMNS = REACHING < 8 ? REACHING : 8;  // loaded before they are looked at
    constexpr int UNROLLED = Row::MOST * REACHING <= 16 ? Row::MOST : 1;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < w.walk.packs;
         at += stride) {
        const Place<I, 6> place = place_of<COUNT>(w.walk, at);
        const unsigned char *indices = index + place.offset[1];
        const T *gradients = dy + place.offset[2];
        const Depth d(place.offset[3], w.origin[0], w.before[0]);
        const Row h(place.offset[4], w.origin[1], w.before[1]);
        const I inside = place.offset[5] + w.origin[2] + w.before[2];
        const I first = floor_quotient(inside - KW, I(SW)) + 1;
        A sum[COUNT] = {};
        for (int i = 0; i < Depth::MOST; ++i)
#pragma unroll(UNROLLED)
            for (int j = 0; j < Row::MOST; ++j) {
                const I depth = d.window(i), row = h.window(j);
                const bool has = d.has(depth, w.extent[0]) && h.has(row, w.extent[1]);
                const unsigned char *said = indices + depth * w.index_step[0] + row * w.index_step[1];
                const T *given = gradients + depth * w.step[0] + row * w.step[1];
                const int before = (int)(d.tap(depth) * KH + h.tap(row)) * KW;
#pragma unroll 1
                for (int begin = 0; begin < REACHING; begin += COLUMNS) {
                    Pack<unsigned char, 1> taps[COLUMNS];
                    Pack<T, 1> values[COLUMNS];
                    bool there[COLUMNS];
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) {
                        const I column = first + begin + k;
                        there[k] = has && column >= 0 && column < w.extent[2];
                        taps[k] = load_pack<1>(said + column * w.index_step[2], there[k]);
                        values[k] = load_pack<1>(given + column * w.step[2], there[k]);
                    }
#pragma unroll
                    for (int k = 0; k < COLUMNS; ++k) {
                        const int tap = taps[k].element[0] - before;  // in its row of the window
                        const bool goes = there[k] && tap >= 0 && tap < KW;
                        const int to = goes ? (int)((first + begin + k) * SW - inside) + tap : -1;
#pragma unroll
                        for (int e = 0; e < COUNT; ++e)
                            if (to == e) sum[e] += widen(values[k].element[0]);
                    }
                }
            }
        Pack<T, COUNT> made;
#pragma unroll
        for (int e = 0; e < COUNT; ++e) made.element[e] = narrow<T>(sum[e]);
        store_pack<COUNT>(dx + place.offset[0], made, place.available);
    }
}
