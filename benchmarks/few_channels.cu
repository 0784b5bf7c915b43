// A direct convolution of few input channels, a trial: y[n,k,h,w] = sum over c, r, s of
// x[n, c, h*STRIDE - pad + r, w*STRIDE - pad + s] * w[k, c, r, s], in any layout.
//
// Traffic: x is read once for every KERNELS output channels (mostly from the cache), y is written
// once. With 1 or 3 channels y is by far the larger one.
//
// Threads lie along the innermost axis of y that is no channel: images in CHWN, columns in NCHW and
// NHWC. Each computes KERNELS output channels at SITES places, BLOCK apart. Filters are in shared
// memory, in the arithmetic type, and are read by all threads of a warp at once. What lies outside
// of x is zero, and is multiplied. Sums in the arithmetic type, in one order.

#include "element.cuh"

struct FewChannels {
    long long images, channels_in, channels_out, x_size[2], y_size[2], padding[2];
    long long x_stride[4], y_stride[4];  // elements: n, c, h, w; filters are packed (k, c, r, s)
    long long sites, images_innermost;
};

constexpr int BLOCK = 128;

template <typename T, int CHANNELS, int WINDOW, int STRIDE, int KERNELS, int SITES, int PACK>
__global__ void __launch_bounds__(BLOCK) few_channels(
    FewChannels g, const T *__restrict__ x, const T *__restrict__ w, T *__restrict__ y) {
    using A = Arithmetic<T>;
    constexpr int TAPS = CHANNELS * WINDOW * WINDOW;
    __shared__ A filters[TAPS][KERNELS];
    const int first = blockIdx.y * KERNELS;
    for (int i = threadIdx.x; i < TAPS * KERNELS; i += BLOCK) {
        const int k = i / TAPS, tap = i % TAPS;  // as w lies
        const long long at = (long long)(first + k) * TAPS + tap;
        filters[tap][k] = first + k < g.channels_out ? widen(w[at]) : A(0);
    }
    __syncthreads();

    const int height = (int)g.x_size[0], width = (int)g.x_size[1];
    for (long long tile = blockIdx.x; tile * BLOCK * SITES < g.sites; tile += gridDim.x) {
        const T *image[SITES];
        T *out[SITES];
        int top[SITES], left[SITES];
#pragma unroll
        for (int j = 0; j < SITES; ++j) {
            const long long site = (tile * SITES + j) * BLOCK + threadIdx.x;
            const bool is_one = site < g.sites;  // else the first is computed, and not stored
            const unsigned n_in = g.images_innermost ? (unsigned)g.images : 1;
            unsigned rest = is_one ? (unsigned)site : 0, n = rest % n_in;  // fewer than 2**32
            rest /= n_in;
            const int column = (int)(rest % (unsigned)g.y_size[1]);
            rest /= (unsigned)g.y_size[1];
            const int row = (int)(rest % (unsigned)g.y_size[0]);
            if (!g.images_innermost) n = rest / (unsigned)g.y_size[0];
            top[j] = row * STRIDE - (int)g.padding[0];
            left[j] = column * STRIDE - (int)g.padding[1];
            image[j] = x + n * g.x_stride[0] + top[j] * g.x_stride[2] + left[j] * g.x_stride[3];
            out[j] = !is_one ? nullptr
                             : y + n * g.y_stride[0] + first * g.y_stride[1] +
                                   row * g.y_stride[2] + column * g.y_stride[3];
        }

        A sum[SITES][KERNELS] = {};
#pragma unroll 1
        for (int c = 0; c < CHANNELS; ++c) {
#pragma unroll 1
            for (int r = 0; r < WINDOW; ++r) {
                const long long line = c * g.x_stride[1] + r * g.x_stride[2];
#pragma unroll
                for (int s = 0; s < WINDOW; ++s) {
                    A value[SITES];
#pragma unroll
                    for (int j = 0; j < SITES; ++j) {
                        const bool inside = (unsigned)(top[j] + r) < (unsigned)height &&
                                            (unsigned)(left[j] + s) < (unsigned)width;
                        value[j] = inside ? widen(image[j][line + s * g.x_stride[3]]) : A(0);
                    }
                    const A *filter = filters[(c * WINDOW + r) * WINDOW + s];
#pragma unroll
                    for (int k = 0; k < KERNELS; ++k)
#pragma unroll
                        for (int j = 0; j < SITES; ++j) sum[j][k] += value[j] * filter[k];
                }
            }
        }

#pragma unroll
        for (int j = 0; j < SITES; ++j) {
            if (!out[j]) continue;
#pragma unroll
            for (int k = 0; k < KERNELS; k += PACK) {
                if (first + k >= g.channels_out) break;
                Pack<T, PACK> pack;
#pragma unroll
                for (int i = 0; i < PACK; ++i) pack.element[i] = narrow<T>(sum[j][k + i]);
                store_pack<PACK>(out[j] + k * g.y_stride[1], pack, (long long)PACK);
            }
        }
    }
}
