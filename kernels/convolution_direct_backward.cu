// The gradients of a direct convolution, the fallback for what cuDNN refuses. With the forward
//
//     y[n,k,o] = sum over c, r of  x[n, g*C+c, o*stride - padding + r*dilation] * w[k, c, r]
//
// (g = k / K: C input and K output channels a group; three spatial axes, unused ones of size 1):
//
//     dx[n, g*C+c, i] = sum over r, k of    dy[n, k, o] * w[k, c, r]    where i is what (o, r) sees
//     dw[k, c, r]     = sum over n, o of    dy[n, k, o] * x[n, g*C+c, o*stride - padding + r*dilation]
//
// Any strides of every axis, any padding, stride and dilation: an i that no window sees gets zero.
// dw multiplies the zeros of padding, so that an infinite dy there gives NaN; x may have no rows at
// all. dx sums the products that there are, and no others. Every sum has one fixed order, so results
// repeat bit for bit; there are no atomics and no second pass. Slow, as convolution_direct.cu is.
// Memory traffic counts for as little: operands are read again for each tap, mostly from the caches.

#include "element.cuh"

struct ConvolutionGradient {
    long long groups, channels_in, channels_out;  // channels are those of one group
    long long batch;
    long long x_size[3], w_size[3], y_size[3];
    long long x_stride[5], w_stride[5], y_stride[5];  // elements: n, c (w: k, c), three spatial
    long long padding[3], stride[3], dilation[3];     // padding: what lies before the first row
    long long channel_tiles;       // data: of C, filter: of K; of one group, rounded up
    long long count;               // data: threads; filter: blocks
    long long channels_innermost;  // of x: channels-last
};

// Takes the last digit, in base `size`, off a mixed-radix number.
__device__ inline long long take_digit(long long &number, long long size) {
    const long long quotient = (unsigned long long)number / (unsigned long long)size;
    const long long digit = number - quotient * size;
    number = quotient;
    return digit;
}

// The output position that sees input position `i` through `tap` along one axis, or -1.
__device__ inline long long seen_from(
    const ConvolutionGradient &g, int axis, long long i, long long tap) {
    const long long reach = i + g.padding[axis] - tap * g.dilation[axis];
    if (reach < 0) return -1;
    const long long o = (unsigned long long)reach / (unsigned long long)g.stride[axis];
    return o * g.stride[axis] == reach && o < g.y_size[axis] ? o : -1;
}

// A thread computes TILE input channels at one position of x, so that a value of dy is read once for
// all of them. Neighbouring threads lie along the innermost axis of dx.
template <typename T, typename D, int TILE>
__global__ void __launch_bounds__(BLOCK_THREADS) convolution_direct_data(
    ConvolutionGradient geometry, const T *__restrict__ w, const T *__restrict__ dy,
    D *__restrict__ dx) {
    using A = Arithmetic<T>;
    const ConvolutionGradient &g = geometry;

    for (long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x; thread < g.count;
         thread += (long long)gridDim.x * blockDim.x) {
        long long rest = thread, channel_thread = 0, i[3];
        if (g.channels_innermost) channel_thread = take_digit(rest, g.groups * g.channel_tiles);
        for (int axis = 2; axis >= 0; --axis) i[axis] = take_digit(rest, g.x_size[axis]);
        if (!g.channels_innermost) channel_thread = take_digit(rest, g.groups * g.channel_tiles);
        const long long n = rest;
        const long long tile = take_digit(channel_thread, g.channel_tiles);
        const long long group = channel_thread;

        // The channels of a thread are channel_tiles apart: where threads run along the channels,
        // their stores then coalesce.
        const T *filter[TILE];
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            long long channel = tile + j * g.channel_tiles;
            if (channel >= g.channels_in) channel = tile;  // computed, never stored
            filter[j] = w + group * g.channels_out * g.w_stride[0] + channel * g.w_stride[1];
        }

        A sum[TILE] = {};
        const T *image = dy + n * g.y_stride[0] + group * g.channels_out * g.y_stride[1];
        for (long long r0 = 0; r0 < g.w_size[0]; ++r0) {
            const long long o0 = seen_from(g, 0, i[0], r0);
            if (o0 < 0) continue;
            for (long long r1 = 0; r1 < g.w_size[1]; ++r1) {
                const long long o1 = seen_from(g, 1, i[1], r1);
                if (o1 < 0) continue;
                for (long long r2 = 0; r2 < g.w_size[2]; ++r2) {
                    const long long o2 = seen_from(g, 2, i[2], r2);
                    if (o2 < 0) continue;
                    const T *pixel =
                        image + o0 * g.y_stride[2] + o1 * g.y_stride[3] + o2 * g.y_stride[4];
                    const long long tap =
                        r0 * g.w_stride[2] + r1 * g.w_stride[3] + r2 * g.w_stride[4];
#pragma unroll 1
                    for (long long k = 0; k < g.channels_out; ++k) {
                        const A value = widen(pixel[k * g.y_stride[1]]);
                        const long long at = tap + k * g.w_stride[0];
#pragma unroll
                        for (int j = 0; j < TILE; ++j) sum[j] += value * widen(filter[j][at]);
                    }
                }
            }
        }

        D *out = dx + n * g.x_stride[0] + i[0] * g.x_stride[2] + i[1] * g.x_stride[3] +
                 i[2] * g.x_stride[4];
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const long long channel = tile + j * g.channel_tiles;
            if (channel < g.channels_in)
                out[(group * g.channels_in + channel) * g.x_stride[1]] = narrow<D>(sum[j]);
        }
    }
}

constexpr int LANES = 32, WARPS = 8;

// A block computes one tap of one input channel for TILE output channels, so that a value of x is
// read once for all of them. Its warps take the rows of dy in turn and its lanes a row's positions;
// their sums are then added in a fixed tree.
template <typename T, typename D, int TILE>
__global__ void __launch_bounds__(LANES *WARPS) convolution_direct_filter(
    ConvolutionGradient geometry, const T *__restrict__ x, const T *__restrict__ dy,
    D *__restrict__ dw) {
    using A = Arithmetic<T>;
    const ConvolutionGradient &g = geometry;
    __shared__ A partial[TILE][LANES * WARPS];

    for (long long block = blockIdx.x; block < g.count; block += gridDim.x) {
        long long rest = block, r[3];
        for (int axis = 2; axis >= 0; --axis) r[axis] = take_digit(rest, g.w_size[axis]);
        const long long c = take_digit(rest, g.channels_in);
        const long long first_k = take_digit(rest, g.channel_tiles) * TILE;
        const long long group = rest;

        const T *gradient[TILE];
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const long long k = first_k + j < g.channels_out ? first_k + j : first_k;
            gradient[j] = dy + (group * g.channels_out + k) * g.y_stride[1];
        }
        const T *image = x + (group * g.channels_in + c) * g.x_stride[1];

        // Along the last axis the tap falls on x for the positions [low, high).
        const long long offset = r[2] * g.dilation[2] - g.padding[2];
        const long long inside = g.x_size[2] - offset;
        const long long low = offset < 0 ? (-offset + g.stride[2] - 1) / g.stride[2] : 0;
        long long high = inside > 0 ? (inside + g.stride[2] - 1) / g.stride[2] : 0;
        if (high > g.y_size[2]) high = g.y_size[2];

        A sum[TILE] = {};
        const long long rows = g.batch * g.y_size[0] * g.y_size[1];
        for (long long row = threadIdx.x / LANES; row < rows; row += WARPS) {
            long long number = row;
            const long long o1 = take_digit(number, g.y_size[1]);
            const long long o0 = take_digit(number, g.y_size[0]);
            const long long i0 = o0 * g.stride[0] - g.padding[0] + r[0] * g.dilation[0];
            const long long i1 = o1 * g.stride[1] - g.padding[1] + r[1] * g.dilation[1];
            const bool on_row = i0 >= 0 && i0 < g.x_size[0] && i1 >= 0 && i1 < g.x_size[1];
            const T *seen = image + number * g.x_stride[0] + i0 * g.x_stride[2] +
                            i1 * g.x_stride[3] + offset * g.x_stride[4];
            const long long here =
                number * g.y_stride[0] + o0 * g.y_stride[2] + o1 * g.y_stride[3];
            for (long long o2 = threadIdx.x % LANES; o2 < g.y_size[2]; o2 += LANES) {
                const bool on_x = on_row && o2 >= low && o2 < high;
                const A value = on_x ? A(widen(seen[o2 * g.stride[2] * g.x_stride[4]])) : A(0);
#pragma unroll
                for (int j = 0; j < TILE; ++j)
                    sum[j] += value * widen(gradient[j][here + o2 * g.y_stride[4]]);
            }
        }

#pragma unroll
        for (int j = 0; j < TILE; ++j) partial[j][threadIdx.x] = sum[j];
        for (int half = LANES * WARPS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half)
#pragma unroll
                for (int j = 0; j < TILE; ++j)
                    partial[j][threadIdx.x] += partial[j][threadIdx.x + half];
        }
        __syncthreads();
        if (threadIdx.x < TILE && first_k + threadIdx.x < g.channels_out) {
            const long long k = group * g.channels_out + first_k + threadIdx.x;
            dw[k * g.w_stride[0] + c * g.w_stride[1] + r[0] * g.w_stride[2] +
               r[1] * g.w_stride[3] + r[2] * g.w_stride[4]] = narrow<D>(partial[threadIdx.x][0]);
        }
        __syncthreads();  // before the next block's sums overwrite `partial`
    }
}
