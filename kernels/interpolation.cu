// Linear interpolation along up to three axes, and its gradient.
//
// Along each spatial axis output o lies at (o * times + plus) / over in x: between two neighbours,
// each of which counts the less the farther away it is. What lies beside x is at its border.
//
//     interpolate_lanes   channels, or images, lie side by side in both tensors: a thread has packs
//                         of them, each at one site
//     interpolate_rows    any strides; where sites lie side by side a thread has packs of these
//
// GRADIENT: an element of dx gathers what the outputs give it that lie between it and a neighbour.
//
// Memory traffic: the source is read once and the result written once. Neighbours are read several
// times, from the caches.
// It reaches
// float32 14 to 56 %, float16 7 to 49 % of a copy's speed on an H100 (docs/kernels.md).
//
// A place takes one division. The next one along the axis takes none: it is `times` further on. What a
// thread reads is loaded a few elements at a time, before the first of them is waited for.

#include "gather.cuh"

// A tensor as rows (a, b, d, h) of (w, lane), as in gather.cuh. Extents of an axis are those of x.
template <typename I>
struct Interpolation {
    I a, b, lanes;
    Extents<I> made, first, begins;  // the result, where it begins in the whole, where the source does
    Strides<I> result, source;
    GatherAxis<I> axis[3];
    I count[3];  // outputs of the whole
    I rows, row_packs, column_tiles, tiles;
};

// The two elements of x that an output lies between, and what each counts. At the end of x, and along
// an axis that stays as it is, `near` is alone. `inverse` is one over what places are divided by.
template <typename A, typename I>
struct Neighbours {
    I near;
    A of_near, of_far;
    bool is_alone;

    __device__ Neighbours() {}
    __device__ Neighbours(const GatherAxis<I> &axis, const Edge<I> &edge, A inverse) {
        const I left = edge.at < 0 ? I(0) : edge.left;
        near = least(most(edge.at, I(0)), axis.extent - 1);
        is_alone = near == axis.extent - 1 || axis.times == axis.over;
        of_near = is_alone ? A(1) : A(axis.over - left) * inverse;
        of_far = A(left) * inverse;
    }
    __device__ bool has(int far) const { return far == 0 || !is_alone; }
    __device__ A share(int far) const { return far == 0 ? of_near : of_far; }
};

// The outputs that lie between an element of x and its neighbours, one after another.
template <typename A, typename I>
struct Outputs {
    I element, output;
    Edge<I> edge;

    __device__ Outputs(const GatherAxis<I> &axis, I count, I element)
        : element(element), output(first_of(axis, count, element)), edge(axis, output) {}
    // The first one whose place is not before the neighbour on the left. Places before x are moved
    // to its first element, which lies between it and the second one.
    __device__ static I first_of(const GatherAxis<I> &axis, I count, I element) {
        if (axis.times == axis.over) return element;
        if (element < 2) return 0;
        if (axis.times == 0) return count;
        const I number = (element - 1) * axis.over - axis.plus;
        return number <= 0 ? I(0) : least(quotient(number + axis.times - 1, axis.times), count);
    }
    __device__ bool is_there(const GatherAxis<I> &axis, I count) const {
        return output < count && edge.at <= element;
    }
    __device__ void advance(const GatherAxis<I> &axis) { ++output, edge.advance(axis); }
    __device__ A share(const GatherAxis<I> &axis, A inverse) const {
        const Neighbours<A, I> between(axis, edge, inverse);
        return between.share(element != between.near);
    }
};

// Where a row begins: in the result, in the source as if that began at 0, and in the whole.
template <typename I>
struct Line {
    I result, source, d, h;

    __device__ Line(const Interpolation<I> &g, I row) {
        h = take(row, g.made.h), d = take(row, g.made.d);
        const I b = take(row, g.b), a = row;
        result = at_offset(g.result, a, b, d, h, I(0), I(0));
        source = at_offset(g.source, a, b, -g.begins.d, -g.begins.h, -g.begins.w, I(0));
        d += g.first.d, h += g.first.h;
    }
};

// One over what places are divided by, on each axis.
template <typename A, typename I>
struct Scales {
    A inverse[3];

    __device__ Scales(const Interpolation<I> &g) {
#pragma unroll
        for (int i = 0; i < 3; ++i) inverse[i] = A(1) / A(g.axis[i].over);
    }
    __device__ Neighbours<A, I> between(const Interpolation<I> &g, int axis, I place) const {
        return {g.axis[axis], Edge<I>(g.axis[axis], place), inverse[axis]};
    }
};

// Adds a pack of lanes between four corners, of a plane that counts `share`.
template <int COUNT, typename T, typename I, typename Between>
__device__ inline void interpolate(
    const Strides<I> &s, const Between &h, const Between &w, Arithmetic<T> share, const T *plane,
    I available, Arithmetic<T> (&totals)[COUNT]) {
    Pack<T, COUNT> packs[2][2];
    const T *corner = plane + (h.near * s.h + w.near * s.w);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        packs[i / 2][i % 2] = load_pack<COUNT>(
            corner + (i / 2 * s.h + i % 2 * s.w), h.has(i / 2) && w.has(i % 2) ? available : I(0));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Arithmetic<T> own = share * h.share(i / 2) * w.share(i % 2);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) totals[e] += own * widen(packs[i / 2][i % 2].element[e]);
    }
}

// Adds what the outputs of a row of dy give a pack of lanes.
template <int COUNT, typename T, typename I>
__device__ inline void gather(
    const Interpolation<I> &g, Outputs<Arithmetic<T>, I> outputs, Arithmetic<T> inverse,
    Arithmetic<T> share, const T *row, I available, Arithmetic<T> (&totals)[COUNT]) {
    constexpr int AT_ONCE = 4;  // of a map that is doubled an element is seen by so many
    while (outputs.is_there(g.axis[2], g.count[2])) {
        Pack<T, COUNT> packs[AT_ONCE];
        Arithmetic<T> shares[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const bool there = outputs.is_there(g.axis[2], g.count[2]);
            shares[i] = there ? share * outputs.share(g.axis[2], inverse) : Arithmetic<T>(0);
            packs[i] =
                load_pack<COUNT>(row + outputs.output * g.source.w, there ? available : I(0));
            outputs.advance(g.axis[2]);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
            for (int e = 0; e < COUNT; ++e) totals[e] += shares[i] * widen(packs[i].element[e]);
    }
}

// Calls body(share, row) for each row of dy that lies between a line of dx and its neighbours.
template <typename T, typename I, typename Body>
__device__ inline void for_each_row(
    const Interpolation<I> &g, const Scales<Arithmetic<T>, I> &scales, const Line<I> &line,
    const T *source, Body body) {
    using Seeing = Outputs<Arithmetic<T>, I>;
    const Seeing of_h(g.axis[1], g.count[1], line.h);
    for (Seeing d(g.axis[0], g.count[0], line.d); d.is_there(g.axis[0], g.count[0]);
         d.advance(g.axis[0]))
        for (Seeing h = of_h; h.is_there(g.axis[1], g.count[1]); h.advance(g.axis[1]))
            body(
                d.share(g.axis[0], scales.inverse[0]) * h.share(g.axis[1], scales.inverse[1]),
                source + (d.output * g.source.d + h.output * g.source.h));
}

template <typename T, int COUNT>
__device__ inline Pack<T, COUNT> narrowed(const Arithmetic<T> (&totals)[COUNT]) {
    Pack<T, COUNT> made;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) made.element[i] = narrow<T>(totals[i]);
    return made;
}

// A thread has up to PACKS packs of a row, one after the other.
template <typename I, typename T, bool GRADIENT, int COUNT, int PACKS>
__global__ void __launch_bounds__(BLOCK_THREADS) interpolate_lanes(
    Interpolation<I> g, T *__restrict__ result, const T *__restrict__ source) {
    using A = Arithmetic<T>;
    const I lane_packs = quotient(g.lanes + COUNT - 1, I(COUNT));
    const Scales<A, I> scales(g);
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> column(g.column_tiles, tile, PACKS);
        if (column.row >= g.rows) continue;
        const Line<I> line(g, column.row);
        const auto of_d = scales.between(g, 0, line.d), of_h = scales.between(g, 1, line.h);
#pragma unroll 1
        for (int u = 0; u < PACKS; ++u) {
            const I pack = column.pack + u * (int)blockDim.x;
            if (pack >= g.row_packs) break;
            const I w = quotient(pack, lane_packs), lane = (pack - w * lane_packs) * COUNT;
            const I available = g.lanes - lane;
            const T *lanes = source + line.source + lane * g.source.lane;
            A totals[COUNT] = {};
            if constexpr (GRADIENT) {
                const Outputs<A, I> of_w(g.axis[2], g.count[2], g.first.w + w);
                for_each_row(g, scales, line, lanes, [&](A share, const T *row) {
                    gather<COUNT>(g, of_w, scales.inverse[2], share, row, available, totals);
                });
            } else {
                const auto of_w = scales.between(g, 2, g.first.w + w);
                for (int far = 0; far < 2 && of_d.has(far); ++far)
                    interpolate<COUNT>(
                        g.source, of_h, of_w, of_d.share(far),
                        lanes + (of_d.near + far) * g.source.d, available, totals);
            }
            T *target = result + line.result + w * g.result.w + lane * g.result.lane;
            store_pack<COUNT>(target, narrowed<T>(totals), available);
        }
    }
}

// The same of packs of sites, of each lane by itself. Outputs that lie side by side have the same rows
// of x, and their places follow each other.
template <typename I, typename T, bool GRADIENT, int COUNT, int PACKS>
__global__ void __launch_bounds__(BLOCK_THREADS) interpolate_rows(
    Interpolation<I> g, T *__restrict__ result, const T *__restrict__ source) {
    using A = Arithmetic<T>;
    const Scales<A, I> scales(g);
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> column(g.column_tiles, tile, PACKS);
        if (column.row >= g.rows) continue;
        const Line<I> line(g, column.row);
        const T *origin = source + line.source;
        const auto of_d = scales.between(g, 0, line.d), of_h = scales.between(g, 1, line.h);
#pragma unroll 1
        for (int u = 0; u < PACKS; ++u) {
            const I first = (column.pack + u * (int)blockDim.x) * COUNT;
            if (first >= g.made.w) break;
            const I available = g.made.w - first;
            A totals[COUNT] = {};
            if constexpr (GRADIENT) {
                for_each_row(g, scales, line, origin, [&](A share, const T *row) {
#pragma unroll
                    for (int e = 0; e < COUNT; ++e) {
                        if (e >= available) continue;
                        A own[1] = {totals[e]};
                        gather<1>(
                            g, Outputs<A, I>(g.axis[2], g.count[2], g.first.w + first + e),
                            scales.inverse[2], share, row, I(1), own);
                        totals[e] = own[0];
                    }
                });
            } else {
                Edge<I> edge(g.axis[2], g.first.w + first);
                Neighbours<A, I> of_w[COUNT];
#pragma unroll
                for (int e = 0; e < COUNT; ++e) {
                    of_w[e] = {g.axis[2], edge, scales.inverse[2]};
                    edge.advance(g.axis[2]);
                }
                for (int far = 0; far < 2 && of_d.has(far); ++far)
#pragma unroll
                    for (int e = 0; e < COUNT; ++e) {
                        A own[1] = {totals[e]};
                        interpolate<1>(
                            g.source, of_h, of_w[e], of_d.share(far),
                            origin + (of_d.near + far) * g.source.d,
                            e < available ? I(1) : I(0), own);
                        totals[e] = own[0];
                    }
            }
            store_pack<COUNT>(
                result + line.result + first * g.result.w, narrowed<T>(totals), available);
        }
    }
}
