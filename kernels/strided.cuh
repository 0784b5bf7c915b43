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

template <int OPERANDS>
struct Walk {
    long long size[OUTER_AXES], inner;  // inner: elements of a row
    long long stride[OPERANDS][OUTER_AXES], inner_stride[OPERANDS];
    long long first;      // the first outer axis whose size is not 1
    long long row_packs;  // packs in a row
    long long packs;      // in all rows
};

// Where pack `index` begins in each operand, and how many elements of its row are left there: none
// past the end of the tensor.
template <int OPERANDS>
struct Place {
    long long offset[OPERANDS], available;
};

template <int COUNT, int OPERANDS>
__device__ inline Place<OPERANDS> place_of(const Walk<OPERANDS> &walk, long long index) {
    Place<OPERANDS> place = {};
    if (index >= walk.packs) return place;
    long long row = walk.row_packs == walk.packs ? 0 : quotient(index, walk.row_packs);
    const long long column = (index - row * walk.row_packs) * COUNT;
    place.available = walk.inner - column;
#pragma unroll
    for (int o = 0; o < OPERANDS; ++o) place.offset[o] = column * walk.inner_stride[o];
#pragma unroll
    for (int axis = OUTER_AXES - 1; axis >= 0; --axis) {
        if (axis < walk.first) continue;
        const long long outside = axis == walk.first ? 0 : quotient(row, walk.size[axis]);
        const long long at = row - outside * walk.size[axis];
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) place.offset[o] += at * walk.stride[o][axis];
        row = outside;
    }
    return place;
}
