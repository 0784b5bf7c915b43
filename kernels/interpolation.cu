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
//
// A place takes one division. The next one along the axis takes none: it is `times` further on.

#include "taking.cuh"

// A tensor as rows (a, b, d, h) of (w, lane), as in taking.cuh. Extents of an axis are those of x.
template <typename I>
struct Interpolation {
    I a, b, lanes;
    Extents<I> made, first, begins;  // the result, where it begins in the whole, where the source does
    Strides<I> result, source;
    TakenAxis<I> axis[3];
    I count[3];  // outputs of the whole
    I rows, row_packs, column_tiles, tiles;
};

// The two elements of x that an output lies between, and what each counts; at the end of x `near` is
// alone.
template <typename A, typename I>
struct Neighbours {
    I near;
    A of_near, of_far;
    bool is_alone;

    __device__ Neighbours() {}
    __device__ Neighbours(const TakenAxis<I> &axis, const Edge<I> &edge) {
        const I left = edge.at < 0 ? I(0) : edge.left;
        near = least(most(edge.at, I(0)), axis.extent - 1);
        is_alone = near == axis.extent - 1;
        const A inverse = A(1) / A(axis.over);
        of_near = is_alone ? A(1) : A(axis.over - left) * inverse;
        of_far = A(left) * inverse;
    }
    __device__ I number() const { return is_alone ? 1 : 2; }
    __device__ A share(I i) const { return i == near ? of_near : of_far; }
};

// The outputs that lie between an element of x and its neighbours, one after another.
template <typename A, typename I>
struct Outputs {
    I element, output;
    Edge<I> edge;

    __device__ Outputs(const TakenAxis<I> &axis, I count, I element)
        : element(element), output(first_of(axis, count, element)), edge(axis, output) {}
    // The first one whose place is not before the neighbour on the left.
    __device__ static I first_of(const TakenAxis<I> &axis, I count, I element) {
        if (element < 2) return 0;
        if (axis.times == 0) return count;
        const I number = (element - 1) * axis.over - axis.plus;
        return number <= 0 ? I(0) : least(quotient(number + axis.times - 1, axis.times), count);
    }
    __device__ bool is_there(const TakenAxis<I> &axis, I count) const {
        return output < count && least(edge.at, axis.extent - 1) <= element;
    }
    __device__ void advance(const TakenAxis<I> &axis) { ++output, edge.advance(axis); }
    __device__ A share(const TakenAxis<I> &axis) const {
        return Neighbours<A, I>(axis, edge).share(element);
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

// A pack of lanes at output w.
template <int COUNT, typename T, typename I>
__device__ inline void interpolated(
    const Interpolation<I> &g, const Line<I> &line, I w, const T *source, I available,
    Arithmetic<T> (&totals)[COUNT]) {
    using Between = Neighbours<Arithmetic<T>, I>;
    const Between of_d(g.axis[0], Edge<I>(g.axis[0], line.d));
    const Between of_h(g.axis[1], Edge<I>(g.axis[1], line.h));
    const Between of_w(g.axis[2], Edge<I>(g.axis[2], w));
    for (I d = of_d.near; d < of_d.near + of_d.number(); ++d)
        for (I h = of_h.near; h < of_h.near + of_h.number(); ++h) {
            const Arithmetic<T> share = of_d.share(d) * of_h.share(h);
            for (I at = of_w.near; at < of_w.near + of_w.number(); ++at) {
                const Arithmetic<T> own = share * of_w.share(at);
                const auto pack = load_pack<COUNT>(
                    source + (d * g.source.d + h * g.source.h + at * g.source.w), available);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) totals[i] += own * widen(pack.element[i]);
            }
        }
}

// A pack of lanes of dx at w.
template <int COUNT, typename T, typename I>
__device__ inline void gathered(
    const Interpolation<I> &g, const Line<I> &line, I w, const T *source, I available,
    Arithmetic<T> (&totals)[COUNT]) {
    using Seeing = Outputs<Arithmetic<T>, I>;
    const Seeing of_h(g.axis[1], g.count[1], line.h), of_w(g.axis[2], g.count[2], w);
    for (Seeing d(g.axis[0], g.count[0], line.d); d.is_there(g.axis[0], g.count[0]);
         d.advance(g.axis[0]))
        for (Seeing h = of_h; h.is_there(g.axis[1], g.count[1]); h.advance(g.axis[1])) {
            const Arithmetic<T> share = d.share(g.axis[0]) * h.share(g.axis[1]);
            const T *row = source + (d.output * g.source.d + h.output * g.source.h);
            for (Seeing at = of_w; at.is_there(g.axis[2], g.count[2]); at.advance(g.axis[2])) {
                const Arithmetic<T> own = share * at.share(g.axis[2]);
                const auto pack = load_pack<COUNT>(row + at.output * g.source.w, available);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) totals[i] += own * widen(pack.element[i]);
            }
        }
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
__global__ void __launch_bounds__(256) interpolate_lanes(
    Interpolation<I> g, T *__restrict__ result, const T *__restrict__ source) {
    const I lane_packs = quotient(g.lanes + COUNT - 1, I(COUNT));
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> column(g.column_tiles, tile, PACKS);
        if (column.row >= g.rows) continue;
        const Line<I> line(g, column.row);
#pragma unroll 1
        for (int u = 0; u < PACKS; ++u) {
            const I pack = column.pack + u * (int)blockDim.x;
            if (pack >= g.row_packs) break;
            const I w = quotient(pack, lane_packs), lane = (pack - w * lane_packs) * COUNT;
            const I available = g.lanes - lane;
            const T *lanes = source + line.source + lane * g.source.lane;
            Arithmetic<T> totals[COUNT] = {};
            if (GRADIENT) gathered<COUNT>(g, line, g.first.w + w, lanes, available, totals);
            else interpolated<COUNT>(g, line, g.first.w + w, lanes, available, totals);
            T *target = result + line.result + w * g.result.w + lane * g.result.lane;
            store_pack<COUNT>(target, narrowed<T>(totals), available);
        }
    }
}

// The same of packs of sites, of each lane by itself. Outputs that lie side by side share their row
// of x, and their places follow each other.
template <typename I, typename T, bool GRADIENT, int COUNT, int PACKS>
__global__ void __launch_bounds__(256) interpolate_rows(
    Interpolation<I> g, T *__restrict__ result, const T *__restrict__ source) {
    using A = Arithmetic<T>;
    using Between = Neighbours<A, I>;
    for (long long tile = blockIdx.x; tile < g.tiles; tile += gridDim.x) {
        const Column<I> column(g.column_tiles, tile, PACKS);
        if (column.row >= g.rows) continue;
        const Line<I> line(g, column.row);
        const T *origin = source + line.source;
#pragma unroll 1
        for (int u = 0; u < PACKS; ++u) {
            const I first = (column.pack + u * (int)blockDim.x) * COUNT;
            if (first >= g.made.w) break;
            const I available = g.made.w - first;
            A totals[COUNT] = {};
            if (GRADIENT) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    A own[1] = {};
                    if (i < available)
                        gathered<1>(g, line, g.first.w + first + i, origin, I(1), own);
                    totals[i] = own[0];
                }
            } else {
                const Between of_d(g.axis[0], Edge<I>(g.axis[0], line.d));
                const Between of_h(g.axis[1], Edge<I>(g.axis[1], line.h));
                Between of_w[COUNT];
                Edge<I> edge(g.axis[2], g.first.w + first);
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    of_w[i] = Between(g.axis[2], edge);
                    edge.advance(g.axis[2]);
                }
                for (I d = of_d.near; d < of_d.near + of_d.number(); ++d)
                    for (I h = of_h.near; h < of_h.near + of_h.number(); ++h) {
                        const A share = of_d.share(d) * of_h.share(h);
                        const T *row = origin + (d * g.source.d + h * g.source.h);
#pragma unroll
                        for (int i = 0; i < COUNT; ++i) {
                            if (i >= available) continue;
                            const T *at = row + of_w[i].near * g.source.w;
                            totals[i] += share * of_w[i].of_near * widen(at[0]);
                            if (!of_w[i].is_alone)
                                totals[i] += share * of_w[i].of_far * widen(at[g.source.w]);
                        }
                    }
            }
            store_pack<COUNT>(
                result + line.result + first * g.result.w, narrowed<T>(totals), available);
        }
    }
}
