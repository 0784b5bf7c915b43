// Local response normalization and its gradient (local_response.cuh) for windows of many channels,
// in any layout.
//
// Memory traffic: forward reads x and writes y; backward reads x and dy and writes dx. A thread
// makes one element, and reads all the channels of its window, backward those of their windows,
// too. Its neighbours along channels do so as well, so the cache has them; computing takes longer
// than the memory.
// It reaches
// float32 2 to 22 %, float16 1 to 11 % of a copy's speed on an H100 (docs/kernels.md).

#include "local_response.cuh"

// A tensor as (n, channels, sites), whichever of the last two is contiguous.
struct Sites {
    long long n, channel, site;
};

struct LocalResponse {
    Sites size;
    Sites result, x, dy;  // strides in elements
    long long before, behind;
    long long channels_last;  // 1 where neighbouring threads make neighbouring channels
    long long total;
};

// The scale of a channel, of which the site's memory is `x`.
template <Beta BETA, typename T, typename A>
__device__ inline Scale<BETA, A> scale_of(
    const LocalResponse &g, const Response<A> &r, const T *x, long long channel) {
    const long long first = channel > g.before ? channel - g.before : 0;
    const long long last =
        channel + g.behind < g.size.channel ? channel + g.behind : g.size.channel - 1;
    A squares = 0;
    for (long long c = first; c <= last; ++c) {
        const A value = widen(x[c * g.x.channel]);
        squares = add_square(value, squares);
    }
    return Scale<BETA, A>(r, squares);
}

struct Element {
    long long n, channel, site;

    __device__ Element(const LocalResponse &g, long long i) {
        const long long inner = g.channels_last ? g.size.channel : g.size.site;
        const long long middle = g.channels_last ? g.size.site : g.size.channel;
        const long long rows = quotient(i, inner), last = i - rows * inner;
        n = quotient(rows, middle);
        const long long first = rows - n * middle;
        channel = g.channels_last ? last : first;
        site = g.channels_last ? first : last;
    }
    __device__ long long of_site(const Sites &stride) const {
        return n * stride.n + site * stride.site;
    }
};

template <typename T, Beta BETA>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_wide(
    LocalResponse g, T *__restrict__ y, const T *__restrict__ x, Arithmetic<T> share,
    Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    const Response<A> r = {share, beta, k};
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        const Element at(g, i);
        const T *of_x = x + at.of_site(g.x);
        const A own = widen(of_x[at.channel * g.x.channel]);
        const A made = own * scale_of<BETA>(g, r, of_x, at.channel).inverse;
        y[at.of_site(g.result) + at.channel * g.result.channel] = narrow<T>(made);
    }
}

template <typename T, Beta BETA>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_wide_backward(
    LocalResponse g, T *__restrict__ dx, const T *__restrict__ x, const T *__restrict__ dy,
    Arithmetic<T> share, Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    const Response<A> r = {share, beta, k};
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        const Element at(g, i);
        const T *of_x = x + at.of_site(g.x), *of_dy = dy + at.of_site(g.dy);
        const long long first = at.channel > g.behind ? at.channel - g.behind : 0;
        const long long last =
            at.channel + g.before < g.size.channel ? at.channel + g.before : g.size.channel - 1;
        A own = 0, others = 0;
        for (long long c = first; c <= last; ++c) {
            const Scale<BETA, A> scale = scale_of<BETA>(g, r, of_x, c);
            const A gradient = widen(of_dy[c * g.dy.channel]);
            if (c == at.channel) own = gradient * scale.inverse;
            const A value = widen(of_x[c * g.x.channel]);
            others += scale.over_s(gradient * value * scale.inverse);
        }
        const A x_of_it = widen(of_x[at.channel * g.x.channel]);
        dx[at.of_site(g.result) + at.channel * g.result.channel] =
            narrow<T>(gradient_of(r, own, x_of_it, others));
    }
}
