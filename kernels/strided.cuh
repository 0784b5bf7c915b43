// How elementwise kernels walk tensors with strides of their own: packs along the innermost axis.
//
// The host merges the axes that follow each other in every operand, so that packed tensors are one
// long row. Up to four outer axes are left; those of size 1 come first and cost nothing.
#pragma once

#include "element.cuh"

constexpr int OUTER_AXES = 4;

// In 32 bits where the number allows it, which is several times faster. Neither is negative.
__device__ inline long long quotient(long long a, long long b) {
    if (((a | b) >> 32) == 0) return (unsigned)a / (unsigned)b;
    return (unsigned long long)a / (unsigned long long)b;
}

__device__ inline int quotient(int a, int b) { return (unsigned)a / (unsigned)b; }

// I, the type of indices, is int where all elements lie within 2**31 of the first, else long long:
// that is half the instructions.
template <typename I, int OPERANDS>
struct Walk {
    I size[OUTER_AXES], inner;  // inner: elements of a row
    I stride[OPERANDS][OUTER_AXES], inner_stride[OPERANDS];
    I first;      // the first outer axis whose size is not 1
    I row_packs;  // packs in a row
    I packs;      // in all rows
};

// Where pack `index` begins in each operand, and how many elements of its row are left there: none
// past the end of the tensor.
template <typename I, int OPERANDS>
struct Place {
    I offset[OPERANDS], available;
};

template <int COUNT, typename I, int OPERANDS>
__device__ inline Place<I, OPERANDS> place_of(const Walk<I, OPERANDS> &walk, long long pack) {
    Place<I, OPERANDS> place = {};
    if (pack >= walk.packs) return place;
    const I index = (I)pack;
    I row = walk.row_packs == walk.packs ? 0 : quotient(index, walk.row_packs);
    const I column = (index - row * walk.row_packs) * COUNT;
    place.available = walk.inner - column;
#pragma unroll
    for (int o = 0; o < OPERANDS; ++o) place.offset[o] = column * walk.inner_stride[o];
#pragma unroll
    for (int axis = OUTER_AXES - 1; axis >= 0; --axis) {
        if (axis < walk.first) continue;
        const I outside = axis == walk.first ? 0 : quotient(row, walk.size[axis]);
        const I at = row - outside * walk.size[axis];
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) place.offset[o] += at * walk.stride[o][axis];
        row = outside;
    }
    return place;
}
