// Local response normalization and its gradient (local_response.cuh) where sites lie side by side:
// a thread has a pack of sites and walks along their channels, with the last few in registers.
//
// Memory traffic: forward reads x and writes y; backward reads x and dy and writes dx; each once.
// Where there are too few sites for the card the channels are cut into segments. A segment reads
// the channels beside it, too, which the cache has: its neighbour is the next block.
// It reaches
// float32 62 to 80 %, float16 38 to 72 % of a copy's speed on an H100 (docs/kernels.md).
//
// Backward, dx may lie where dy does if there is one segment: a thread has read a channel of dy, and
// all before it, when it writes one.

#include "local_response.cuh"

// outer are the images, middle the channels, inner the sites.
template <typename I, int OPERANDS>
struct Columns {
    Rows<I, OPERANDS> rows;
    I packs;             // of all images
    I segments, length;  // of channels
    I blocks;            // of threads: for all packs, times segments
};

// What a thread has: a pack of sites, and outputs from channel `begin` to before `end`.
template <typename I, int OPERANDS>
struct Walker {
    I offset[OPERANDS];  // of the pack's channel 0
    I available, begin, end;

    template <int COUNT>
    __device__ static Walker of(const Columns<I, OPERANDS> &g, long long block) {
        Walker walker = {};
        const I group = quotient((I)block, g.segments);
        const long long pack = (long long)group * blockDim.x + threadIdx.x;
        if (pack >= g.packs) return walker;
        const Three<I> &size = g.rows.size;
        const I index = (I)pack, outer = quotient(index, g.rows.row_packs);
        const I inner = (index - outer * g.rows.row_packs) * COUNT;
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) {
            const Three<I> &stride = g.rows.stride[o];
            walker.offset[o] = outer * stride.outer + inner * stride.inner;
        }
        walker.available = size.inner - inner;
        walker.begin = ((I)block - group * g.segments) * g.length;
        walker.end = size.middle - walker.begin > g.length ? walker.begin + g.length : size.middle;
        return walker;
    }
};

// The pack of a channel; 0 where the channel is not there.
template <int COUNT, typename I, typename T>
__device__ inline Pack<T, COUNT> load_channel(
    const T *of_pack, I channel, I channels, I step, I available) {
    Pack<T, COUNT> pack = {};
    if (channel >= 0 && channel < channels)
        pack = load_pack<COUNT>(of_pack + channel * step, available);
    return pack;
}

// The last WINDOW packs of something, a slot each; `newest` is the slot of the last one.
template <typename A, int WINDOW, int COUNT>
struct Ring {
    A slot[WINDOW][COUNT];

    // So many steps before the newest, which may be WINDOW - 1.
    __device__ A &ago(int newest, int steps, int e) {
        return slot[(newest + WINDOW - steps) % WINDOW][e];
    }
};

// Loops over slots are unrolled, so that rings are in registers.
template <typename I, typename T, int BEFORE, int BEHIND, Beta BETA, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_walk(
    Columns<I, 2> g, T *__restrict__ y, const T *__restrict__ x, Arithmetic<T> share,
    Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    constexpr int WINDOW = BEFORE + 1 + BEHIND;
    const Response<A> r = {share, beta, k};
    const I channels = g.rows.size.middle;
    for (long long block = blockIdx.x; block < g.blocks; block += gridDim.x) {
        const auto at = Walker<I, 2>::template of<COUNT>(g, block);
        if (at.available <= 0) continue;
        const T *of_x = x + at.offset[1];
        T *of_y = y + at.offset[0];
        const I stop = channels - at.end > BEHIND ? at.end + BEHIND : channels;
        Ring<A, WINDOW, COUNT> values = {};
        // with the newest channel c the one that is made is c - BEHIND
        for (I first = at.begin - BEFORE; first < at.end + BEHIND; first += WINDOW) {
            Pack<T, COUNT> next[WINDOW];
#pragma unroll
            for (int u = 0; u < WINDOW; ++u)
                next[u] = load_channel<COUNT>(
                    of_x, I(first + u), stop, g.rows.stride[1].middle, at.available);
#pragma unroll
            for (int u = 0; u < WINDOW; ++u) {
                const I channel = first + u - BEHIND;
                Pack<T, COUNT> made;
#pragma unroll
                for (int e = 0; e < COUNT; ++e) {
                    values.ago(u, 0, e) = widen(next[u].element[e]);
                    A squares = 0;
#pragma unroll
                    for (int ago = WINDOW - 1; ago >= 0; --ago)
                        squares = add_square(values.ago(u, ago, e), squares);
                    const Scale<BETA, A> scale(r, squares);
                    made.element[e] = narrow<T>(values.ago(u, BEHIND, e) * scale.inverse);
                }
                if (channel >= at.begin && channel < at.end)
                    store_pack<COUNT>(
                        of_y + channel * g.rows.stride[0].middle, made, at.available);
            }
        }
    }
}

template <typename I, typename T, int BEFORE, int BEHIND, Beta BETA, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_walk_backward(
    Columns<I, 3> g, T *dx, const T *__restrict__ x, const T *dy,
    Arithmetic<T> share, Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    constexpr int WINDOW = BEFORE + 1 + BEHIND;
    const Response<A> r = {share, beta, k};
    const I channels = g.rows.size.middle;
    for (long long block = blockIdx.x; block < g.blocks; block += gridDim.x) {
        const auto at = Walker<I, 3>::template of<COUNT>(g, block);
        if (at.available <= 0) continue;
        const T *of_x = x + at.offset[1], *of_dy = dy + at.offset[2];
        T *of_dx = dx + at.offset[0];
        const I stop = channels - at.end > WINDOW - 1 ? at.end + WINDOW - 1 : channels;
        const I dy_stop = channels - at.end > BEFORE ? at.end + BEFORE : channels;
        // with the newest channel c of x the newest term is of c - BEHIND, and the channel that is
        // made c - BEHIND - BEFORE: the oldest value, and the sum of all terms
        Ring<A, WINDOW, COUNT> values = {}, own = {}, terms = {};
        for (I first = at.begin - (WINDOW - 1); first < at.end + (WINDOW - 1); first += WINDOW) {
            Pack<T, COUNT> next[WINDOW], gradients[WINDOW];
#pragma unroll
            for (int u = 0; u < WINDOW; ++u) {
                next[u] = load_channel<COUNT>(
                    of_x, I(first + u), stop, g.rows.stride[1].middle, at.available);
                gradients[u] = load_channel<COUNT>(
                    of_dy, I(first + u - BEHIND), dy_stop, g.rows.stride[2].middle, at.available);
            }
#pragma unroll
            for (int u = 0; u < WINDOW; ++u) {
                const I term_channel = first + u - BEHIND, channel = term_channel - BEFORE;
                const bool there = term_channel >= 0 && term_channel < channels;
                Pack<T, COUNT> made;
#pragma unroll
                for (int e = 0; e < COUNT; ++e) {
                    values.ago(u, 0, e) = widen(next[u].element[e]);
                    A squares = 0, others = 0;
#pragma unroll
                    for (int ago = WINDOW - 1; ago >= 0; --ago)
                        squares = add_square(values.ago(u, ago, e), squares);
                    const Scale<BETA, A> scale(r, squares);
                    const A gradient = widen(gradients[u].element[e]);
                    own.ago(u, 0, e) = gradient * scale.inverse;
                    const A term =
                        scale.over_s(gradient * values.ago(u, BEHIND, e) * scale.inverse);
                    terms.ago(u, 0, e) = there ? term : A(0);
#pragma unroll
                    for (int ago = WINDOW - 1; ago >= 0; --ago) others += terms.ago(u, ago, e);
                    const A x_of_it = values.ago(u, WINDOW - 1, e);
                    made.element[e] =
                        narrow<T>(gradient_of(r, own.ago(u, BEFORE, e), x_of_it, others));
                }
                if (channel >= at.begin && channel < at.end)
                    store_pack<COUNT>(
                        of_dx + channel * g.rows.stride[0].middle, made, at.available);
            }
        }
    }
}
