// Where the maximum of each window is, in one byte: its place in the window, in row-major order,
// padding counted; and the gradient of the pooling from these.
//
//     pooling_indices       index = place of the first maximum of x; NaN is before all numbers
//     pooling_from_indices  dx = sum of dy over the windows whose index says so
//
// A thread has one element of the result. The walk's last three operands, of which nothing is read,
// carry its place along the spatial axes; where there are fewer than three, the first ones are 1.

#include "strided.cuh"

struct Windows {
    long long window[3], stride[3], before[3];
    long long extent[3];  // of x, or backward the number of windows
    long long step[3];    // of x; backward of dy
    long long index_step[3];
    long long origin[3];  // backward: where in x dx begins
};

template <typename I, typename T>
__global__ void __launch_bounds__(256) pooling_indices(
    Walk<I, 5> walk, unsigned char *index, const T *x, Windows w) {
    using A = Arithmetic<T>;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < walk.packs;
         at += stride) {
        const Place<I, 5> place = place_of<1>(walk, at);
        const T *image = x + place.offset[1];
        long long first[3];
#pragma unroll
        for (int axis = 0; axis < 3; ++axis)
            first[axis] = place.offset[2 + axis] * w.stride[axis] - w.before[axis];
        bool known = false;
        A best = 0;
        int found = 0, number = 0;
        for (long long i = first[0]; i < first[0] + w.window[0]; ++i)
            for (long long j = first[1]; j < first[1] + w.window[1]; ++j)
                for (long long k = first[2]; k < first[2] + w.window[2]; ++k, ++number) {
                    if (i < 0 || j < 0 || k < 0 || i >= w.extent[0] || j >= w.extent[1] ||
                        k >= w.extent[2])
                        continue;
                    const A value = widen(image[i * w.step[0] + j * w.step[1] + k * w.step[2]]);
                    const bool better =
                        !known || value > best || (value != value && best == best);
                    if (better) best = value, found = number;
                    known = true;
                }
        index[place.offset[0]] = (unsigned char)found;
    }
}

template <typename I, typename T>
__global__ void __launch_bounds__(256) pooling_from_indices(
    Walk<I, 6> walk, T *dx, const unsigned char *index, const T *dy, Windows w) {
    using A = Arithmetic<T>;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < walk.packs;
         at += stride) {
        const Place<I, 6> place = place_of<1>(walk, at);
        const unsigned char *indices = index + place.offset[1];
        const T *gradients = dy + place.offset[2];
        long long inside[3], low[3], high[3];  // of the windows that reach it
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) {
            inside[axis] = place.offset[3 + axis] + w.origin[axis] + w.before[axis];
            const long long over = inside[axis] - w.window[axis] + 1;
            low[axis] = over > 0 ? (over + w.stride[axis] - 1) / w.stride[axis] : 0;
            high[axis] = inside[axis] < 0 ? 0 : inside[axis] / w.stride[axis] + 1;
            if (high[axis] > w.extent[axis]) high[axis] = w.extent[axis];
        }
        A sum = 0;
        for (long long i = low[0]; i < high[0]; ++i)
            for (long long j = low[1]; j < high[1]; ++j)
                for (long long k = low[2]; k < high[2]; ++k) {
                    const long long tap =
                        ((inside[0] - i * w.stride[0]) * w.window[1] + inside[1] - j * w.stride[1]) *
                            w.window[2] + inside[2] - k * w.stride[2];
                    const long long of_index =
                        i * w.index_step[0] + j * w.index_step[1] + k * w.index_step[2];
                    if (indices[of_index] == tap)
                        sum += widen(gradients[i * w.step[0] + j * w.step[1] + k * w.step[2]]);
                }
        dx[place.offset[0]] = narrow<T>(sum);
    }
}
