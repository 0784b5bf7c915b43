// Local response normalization and its gradient (local_response.cuh) where channels lie side by
// side: a lane has a pack of them, and its neighbours have those around it.
//
// Memory traffic: forward reads x and writes y; backward reads x and dy and writes dx; each once.
// A lane reads the channels around its pack, too, which the cache has. Backward, each lane computes
// the terms of its own channels, and gets those around them from the lanes beside it. So the outer
// lanes of a warp only make terms, and the warps overlap by them.
// It reaches
// float32 96 to 100 %, float16 83 to 93 % of a copy's speed on an H100 (docs/kernels.md).
//
// Backward, dx may lie where dy does. Then a block has whole rows, all channels of some sites, and
// reads all that it needs of dy before it writes.

#include "local_response.cuh"

template <int ELEMENTS, int COUNT>
constexpr int PACKS_OF = (ELEMENTS + COUNT - 1) / COUNT;

// inner are the channels.
template <typename I, int OPERANDS>
struct Lanes {
    Rows<I, OPERANDS> rows;
    I packs;
    I of_block, in_place;  // backward: packs that a block has, and whether dx lies where dy does
};

// Where a pack begins in each operand, its first channel, and how many are left from there; none
// outside the tensor.
template <typename I, int OPERANDS>
struct Spot {
    I offset[OPERANDS], channel, available;

    template <int COUNT>
    __device__ static Spot of(const Lanes<I, OPERANDS> &g, long long pack) {
        Spot spot = {};
        if (pack < 0 || pack >= g.packs) return spot;
        const Three<I> &size = g.rows.size;
        const I index = (I)pack, row = quotient(index, g.rows.row_packs);
        spot.channel = (index - row * g.rows.row_packs) * COUNT;
        spot.available = size.inner - spot.channel;
        const I outer = size.outer == 1 ? 0 : quotient(row, size.middle);
        const I middle = row - outer * size.middle;
#pragma unroll
        for (int o = 0; o < OPERANDS; ++o) {
            const Three<I> &stride = g.rows.stride[o];
            spot.offset[o] =
                outer * stride.outer + middle * stride.middle + spot.channel * stride.inner;
        }
        return spot;
    }
};

// A pack of x with the channels around it; 0 where there are none.
template <typename T, int BEFORE, int BEHIND, int COUNT>
struct Around {
    static constexpr int LEFT = PACKS_OF<BEFORE, COUNT>, RIGHT = PACKS_OF<BEHIND, COUNT>;
    Pack<T, COUNT> packs[LEFT + 1 + RIGHT];

    // `own` is where the pack begins, `step` its stride.
    template <typename I, int OPERANDS>
    __device__ void load(const T *own, const Spot<I, OPERANDS> &spot, I step) {
#pragma unroll
        for (int p = -LEFT; p <= RIGHT; ++p) {
            const I left = spot.available - p * COUNT;
            const bool there = spot.available > 0 && left > 0 && spot.channel + p * COUNT >= 0;
            packs[LEFT + p] = {};
            if (there) packs[LEFT + p] = load_pack<COUNT>(own + p * COUNT * step, left);
        }
    }
    // Of element `e`, counted from the first of the pack.
    __device__ Arithmetic<T> value(int e) const {
        return widen(packs[(LEFT * COUNT + e) / COUNT].element[(LEFT * COUNT + e) % COUNT]);
    }
    __device__ Arithmetic<T> squares(int e) const {
        Arithmetic<T> total = 0;
#pragma unroll
        for (int d = -BEFORE; d <= BEHIND; ++d) total = add_square(value(e + d), total);
        return total;
    }
};

// A thread has UNROLL packs, all loaded before the first is used.
template <typename I, typename T, int BEFORE, int BEHIND, Beta BETA, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_lanes(
    Lanes<I, 2> g, T *__restrict__ y, const T *__restrict__ x, Arithmetic<T> share,
    Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    const Response<A> r = {share, beta, k};
    const long long step = (long long)gridDim.x * blockDim.x * UNROLL;
    for (long long i = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x; i < g.packs;
         i += step) {
        Spot<I, 2> spot[UNROLL];
        Around<T, BEFORE, BEHIND, COUNT> around[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            spot[u] = Spot<I, 2>::template of<COUNT>(g, i + u * (int)blockDim.x);
            around[u].load(x + spot[u].offset[1], spot[u], g.rows.stride[1].inner);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            Pack<T, COUNT> made;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                const Scale<BETA, A> scale(r, around[u].squares(e));
                made.element[e] = narrow<T>(around[u].value(e) * scale.inverse);
            }
            store_pack<COUNT>(y + spot[u].offset[0], made, spot[u].available);
        }
    }
}

template <typename I, typename T, int BEFORE, int BEHIND, Beta BETA, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) local_response_lanes_backward(
    Lanes<I, 3> g, T *dx, const T *__restrict__ x, const T *dy,
    Arithmetic<T> share, Arithmetic<T> beta, Arithmetic<T> k) {
    using A = Arithmetic<T>;
    constexpr int LANES = 32;
    // Lanes at the ends of a warp, whose packs are those of other warps; what is left in between.
    constexpr int LEFT = PACKS_OF<BEHIND, COUNT>, RIGHT = PACKS_OF<BEFORE, COUNT>;
    constexpr int OWN = LANES - LEFT - RIGHT;
    static_assert(OWN > 0, "the window is wider than a warp");
    const Response<A> r = {share, beta, k};
    const int lane = threadIdx.x % LANES;
    const int of_warp = threadIdx.x / LANES * OWN, pack = of_warp + lane - LEFT;
    const bool writes = lane >= LEFT && lane < LEFT + OWN && pack < g.of_block;
    const long long step = (long long)gridDim.x * g.of_block;
    for (long long first = (long long)blockIdx.x * g.of_block; first < g.packs; first += step) {
        const auto spot = Spot<I, 3>::template of<COUNT>(g, first + pack);
        Around<T, BEFORE, BEHIND, COUNT> around;
        around.load(x + spot.offset[1], spot, g.rows.stride[1].inner);
        const auto gradients = load_pack<COUNT>(dy + spot.offset[2], spot.available);

        A own[COUNT], terms[LEFT + 1 + RIGHT][COUNT];  // terms of the lanes around, too
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            const Scale<BETA, A> scale(r, around.squares(e));
            const A gradient = widen(gradients.element[e]);
            own[e] = gradient * scale.inverse;
            const A term = scale.over_s(gradient * around.value(e) * scale.inverse);
            terms[LEFT][e] = e < spot.available ? term : A(0);
        }
#pragma unroll
        for (int p = -LEFT; p <= RIGHT; ++p) {
            if (p == 0) continue;
            const bool there = spot.channel + p * COUNT >= 0 && spot.available > p * COUNT;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                const int at = p * COUNT + e;  // from the first of the own pack
                if (at < -BEHIND || at > COUNT - 1 + BEFORE) continue;
                const A term = __shfl_sync(~0u, terms[LEFT][e], lane + p);
                terms[LEFT + p][e] = there ? term : A(0);
            }
        }

        Pack<T, COUNT> made;
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            A others = 0;
#pragma unroll
            for (int d = -BEHIND; d <= BEFORE; ++d) {
                const int at = LEFT * COUNT + e + d;
                others += terms[at / COUNT][at % COUNT];
            }
            made.element[e] = narrow<T>(gradient_of(r, own[e], around.value(e), others));
        }
        // what a lane has read of another block's rows is in none of its sums
        if (g.in_place) __syncthreads();
        if (writes) store_pack<COUNT>(dx + spot.offset[0], made, spot.available);
    }
}
