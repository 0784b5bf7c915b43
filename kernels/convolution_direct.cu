// A direct convolution (cross-correlation, as in cuDNN), the fallback for what cuDNN refuses:
//
//     y[n,k,o] = sum over c, r of  x[n, g*C+c, o*stride - padding + r*dilation] * w[k, c, r]
//
// for up to three spatial axes o (unused ones have size 1), any strides of every axis, any batch,
// any number of groups (g = k / K, with C input and K output channels a group). x outside its
// extent is zero and is never read; it is multiplied all the same, so that padding times an infinite
// weight is NaN. x may have no rows at all. `padding` is what lies before the first row, and what
// lies after the last follows from the extent of y. Sums in the arithmetic type, in one fixed
// order, so results repeat bit for bit. It is slow, tens of times slower than cuDNN at its best:
// no tensor cores, no shared memory. Use it where the alternative is no answer.
//
// A thread computes TILE output channels at one position, so that a value of x is read once for all
// of them. Memory traffic counts for little: x is read again for each tap and each TILE of output
// channels, mostly from the caches; y is written once. Neighbouring threads lie along the innermost axis of y; w comes through the read-only
// cache. The host passes TILE = 1 where a group has few output channels (depthwise).

#include "element.cuh"

struct ConvolutionGeometry {
    long long groups, channels_in, channels_out;  // channels are those of one group
    long long x_size[3], w_size[3], y_size[3];
    long long x_stride[5], w_stride[5], y_stride[5];  // elements: n, c (w: k, c), three spatial
    long long padding[3], stride[3], dilation[3];
    long long channel_tiles;       // of one group: ceil(channels_out / TILE)
    long long count;               // batch * positions * groups * channel_tiles
    long long channels_innermost;  // of y: channels-last
};

// Takes the last digit, in base `size`, off a mixed-radix number.
__device__ inline long long take_digit(long long &number, long long size) {
    const long long quotient = (unsigned long long)number / (unsigned long long)size;
    const long long digit = number - quotient * size;
    number = quotient;
    return digit;
}

template <typename T, typename D, int TILE>
__global__ void __launch_bounds__(BLOCK_THREADS) convolution_direct(
    ConvolutionGeometry geometry, const T *__restrict__ x, const T *__restrict__ w,
    D *__restrict__ y) {
    using A = Arithmetic<T>;
    const ConvolutionGeometry &g = geometry;

    for (long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x; thread < g.count;
         thread += (long long)gridDim.x * blockDim.x) {
        long long rest = thread, channel_thread = 0, position[3];
        if (g.channels_innermost) channel_thread = take_digit(rest, g.groups * g.channel_tiles);
        for (int axis = 2; axis >= 0; --axis) position[axis] = take_digit(rest, g.y_size[axis]);
        if (!g.channels_innermost) channel_thread = take_digit(rest, g.groups * g.channel_tiles);
        const long long n = rest;
        const long long tile = take_digit(channel_thread, g.channel_tiles);
        const long long group = channel_thread;

        // The TILE channels of a thread: neighbours where threads run along a spatial axis, and
        // channel_tiles apart where they run along the channels, so that stores coalesce.
        const long long first_channel = g.channels_innermost ? tile : tile * TILE;
        const long long channel_step = g.channels_innermost ? g.channel_tiles : 1;
        const T *filter[TILE];
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            long long channel = first_channel + j * channel_step;
            if (channel >= g.channels_out) channel = first_channel;  // computed, never stored
            filter[j] = w + (group * g.channels_out + channel) * g.w_stride[0];
        }

        // The taps [low, high) that fall on x, so that the loops below need no test.
        long long origin[3], low[3], high[3];
        for (int axis = 0; axis < 3; ++axis) {
            origin[axis] = position[axis] * g.stride[axis] - g.padding[axis];
            const long long step = g.dilation[axis], before = -origin[axis];
            const long long inside = g.x_size[axis] - origin[axis];
            low[axis] = before > 0 ? (before + step - 1) / step : 0;
            high[axis] = inside > 0 ? (inside + step - 1) / step : 0;
            if (high[axis] > g.w_size[axis]) high[axis] = g.w_size[axis];
        }

        A sum[TILE] = {};
        const T *image = x + n * g.x_stride[0] + group * g.channels_in * g.x_stride[1];
        for (long long c = 0; c < g.channels_in; ++c) {
            for (long long r0 = low[0]; r0 < high[0]; ++r0) {
                for (long long r1 = low[1]; r1 < high[1]; ++r1) {
                    const T *row = image + c * g.x_stride[1] +
                                   (origin[0] + r0 * g.dilation[0]) * g.x_stride[2] +
                                   (origin[1] + r1 * g.dilation[1]) * g.x_stride[3] +
                                   origin[2] * g.x_stride[4];
                    const long long taps =
                        c * g.w_stride[1] + r0 * g.w_stride[2] + r1 * g.w_stride[3];
#pragma unroll 1
                    for (long long r2 = low[2]; r2 < high[2]; ++r2) {
                        const A pixel = widen(row[r2 * g.dilation[2] * g.x_stride[4]]);
                        const long long tap = taps + r2 * g.w_stride[4];
#pragma unroll
                        for (int j = 0; j < TILE; ++j) sum[j] += pixel * widen(filter[j][tap]);
                    }
                }
            }
        }

        bool clipped = false;
        for (int axis = 0; axis < 3; ++axis)
            clipped = clipped || low[axis] > 0 || high[axis] < g.w_size[axis];
        if (clipped) {  // the other taps: zeros of padding, which matter where a weight is no number
            for (long long c = 0; c < g.channels_in; ++c) {
                for (long long r0 = 0; r0 < g.w_size[0]; ++r0) {
                    for (long long r1 = 0; r1 < g.w_size[1]; ++r1) {
                        const bool on_row =
                            r0 >= low[0] && r0 < high[0] && r1 >= low[1] && r1 < high[1];
                        const long long taps =
                            c * g.w_stride[1] + r0 * g.w_stride[2] + r1 * g.w_stride[3];
                        for (long long r2 = 0; r2 < g.w_size[2]; ++r2) {
                            if (on_row && r2 >= low[2] && r2 < high[2]) continue;
#pragma unroll
                            for (int j = 0; j < TILE; ++j)
                                sum[j] += A(0) * A(widen(filter[j][taps + r2 * g.w_stride[4]]));
                        }
                    }
                }
            }
        }

        D *out = y + n * g.y_stride[0] + position[0] * g.y_stride[2] +
                 position[1] * g.y_stride[3] + position[2] * g.y_stride[4];
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const long long channel = first_channel + j * channel_step;
            if (channel < g.channels_out)
                out[(group * g.channels_out + channel) * g.y_stride[1]] = narrow<D>(sum[j]);
        }
    }
}
