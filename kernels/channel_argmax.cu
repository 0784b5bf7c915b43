// Which channel is the largest at each site: y = the first of the largest channels of x, of type V.
// NaN is larger than all numbers, and the first NaN counts.
//
// Memory traffic: x is read once, and a label written for each site. A thread has a pack of sites
// that lie side by side, and goes through their channels; where channels are innermost it has one
// site, and what its neighbours read of the same lines the cache has.
// It reaches
// float32 32 to 95 %, float16 17 to 78 % of a copy's speed on an H100 (docs/kernels.md).

#include "strided.cuh"

template <typename I>
struct Sites {
    Walk<I, 2> walk;  // of x's first channel, and of y
    I channels, step;
};

template <typename I, typename T, typename V, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) channel_argmax(Sites<I> sites, const T *x, V *y) {
    using A = Arithmetic<T>;
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < sites.walk.packs;
         at += stride) {
        const Place<I, 2> place = place_of<COUNT>(sites.walk, at);
        const T *channel = x + place.offset[0];
        Pack<V, COUNT> labels = {};
        A best[COUNT];
        const Pack<T, COUNT> first = load_pack<COUNT>(channel, place.available);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) best[e] = widen(first.element[e]);
#pragma unroll 4
        for (I c = 1; c < sites.channels; ++c) {
            const Pack<T, COUNT> pack = load_pack<COUNT>(channel + c * sites.step, place.available);
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                const A value = widen(pack.element[e]);
                const bool better = value > best[e] || (value != value && best[e] == best[e]);
                if (!better) continue;
                best[e] = value;
                labels.element[e] = (V)c;
            }
        }
        store_pack<COUNT>(y + place.offset[1], labels, place.available);
    }
}
