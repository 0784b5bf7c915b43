// What the kernels share whose results are made of elements as they are: crops, padding, strided
// parts and nearest neighbours, and the gradients of all these. Their axes are those of pooling.cuh.
//
// Along each spatial axis, place k of the result has a run of places in the source,
//
//     from edge(k) to edge(k + 1)    a gradient: the outputs that see element k; it is their sum
//     edge(k) alone                  TAKES_ONE: copied bit for bit
//
// where edge(k) is floor((k * times + plus) / over), clipped to what there is of the source. Where
// the run of any axis is empty, the result is a constant. So what lies outside of it is never read.
#pragma once

#include "pooling.cuh"

template <typename I>
struct GatherAxis {
    I times, plus, over;
    I whole, rest;  // times / over, and what is left of it
    I extent;       // of the source
};

// A tensor as rows (a, b, d, h) of (w, lane). A block has tiles of `column_tiles` to a row.
template <typename I>
struct Gather {
    I a, b, lanes;
    Extents<I> made;
    Strides<I> result, source;
    GatherAxis<I> axis[3];
    I rows, row_packs, column_tiles, tiles;
};

// One edge after another.
template <typename I>
struct Edge {
    I at, left;

    __device__ Edge(const GatherAxis<I> &axis, I k) {
        const I number = k * axis.times + axis.plus, over = axis.over;
        if (over == 1) at = number;
        else at = number >= 0 ? quotient(number, over) : -quotient(-number + over - 1, over);
        left = number - at * over;
    }
    __device__ void advance(const GatherAxis<I> &axis) {
        at += axis.whole;
        left += axis.rest;
        if (left >= axis.over) left -= axis.over, ++at;
    }
};

template <bool TAKES_ONE, typename I>
struct GatherRange {
    I begin, end;

    // The run at an edge, which is the next one then.
    __device__ GatherRange(const GatherAxis<I> &axis, Edge<I> &edge) {
        begin = most(edge.at, I(0));
        end = edge.at + 1;
        edge.advance(axis);
        if (!TAKES_ONE) end = edge.at;
        end = least(end, axis.extent);
    }
    __device__ static GatherRange of(const GatherAxis<I> &axis, I k) {
        Edge<I> edge(axis, k);
        return GatherRange(axis, edge);
    }
    __device__ bool is_there() const { return begin < end; }
};

// Where a row begins in the result, and its images, channels, planes and rows of the source.
template <bool TAKES_ONE, typename I>
struct GatherRow {
    I result, source;
    GatherRange<TAKES_ONE, I> d, h;

    __device__ static GatherRow of(const Gather<I> &g, I row) {
        const I h = take(row, g.made.h), d = take(row, g.made.d), b = take(row, g.b), a = row;
        const auto of_d = GatherRange<TAKES_ONE, I>::of(g.axis[0], d);
        const auto of_h = GatherRange<TAKES_ONE, I>::of(g.axis[1], h);
        return {
            at_offset(g.result, a, b, d, h, I(0), I(0)),
            at_offset(g.source, a, b, I(0), I(0), I(0), I(0)), of_d, of_h};
    }
    __device__ bool is_there() const { return d.is_there() && h.is_there(); }
};

// The place of a thread's first pack: its row, and which pack of it. The next one is blockDim.x on.
template <typename I>
struct Column {
    I row, pack;

    __device__ Column(I column_tiles, long long tile, int packs_a_thread) {
        const I down = quotient((I)tile, column_tiles), across = (I)tile - down * column_tiles;
        row = down * (int)blockDim.y + (int)threadIdx.y;
        pack = across * ((int)blockDim.x * packs_a_thread) + (int)threadIdx.x;
    }
};
