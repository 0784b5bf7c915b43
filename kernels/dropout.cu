// Dropout: y = x / (1 - p) where an element is kept, else x * 0. Backward is the same, dx of dy.
//
// Random numbers are Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011): the key is the seed, the
// counter (index / 4, offset), and an element has the word index % 4. The index is the element's in
// the whole tensor (or its channel's, counted through all images): the walk carries it as a third
// operand, of which nothing is read. NaN stays NaN, kept or not.
//
// Memory traffic: x is read once and y written once. No mask is stored: backward draws it again.
// It reaches
// float32 51 to 102 %, float16 31 to 69 % of a copy's speed on an H100 (docs/kernels.md).

#include "strided.cuh"

struct Words {
    unsigned a, b, c, d;
};

__device__ inline Words philox(unsigned long long block, unsigned long long offset,
                               unsigned long long seed) {
    Words w = {(unsigned)block, (unsigned)(block >> 32), (unsigned)offset, (unsigned)(offset >> 32)};
    unsigned first = (unsigned)seed, second = (unsigned)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned long long one = 0xD2511F53ull * w.a, two = 0xCD9E8D57ull * w.c;
        w = {(unsigned)(two >> 32) ^ w.b ^ first, (unsigned)two,
             (unsigned)(one >> 32) ^ w.d ^ second, (unsigned)one};
        first += 0x9E3779B9u;
        second += 0xBB67AE85u;
    }
    return w;
}

// `first` is the index of the first element, `state` (seed, offset); words from `threshold` on keep.
template <typename I, typename T, int COUNT, int UNROLL>
__global__ void __launch_bounds__(BLOCK_THREADS) dropout(
    Walk<I, 3> walk, T *y, const T *x, const long long *state, long long first,
    long long threshold, Arithmetic<T> scale) {
    using A = Arithmetic<T>;
    const unsigned long long seed = state[0], offset = state[1];
    const long long step = (long long)gridDim.x * blockDim.x * UNROLL;
    long long begin = (long long)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    for (; begin < walk.packs; begin += step) {
        Place<I, 3> place[UNROLL];
        Pack<T, COUNT> packs[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            place[u] = place_of<COUNT>(walk, begin + u * (int)blockDim.x);
            packs[u] = load_pack<COUNT>(x + place[u].offset[1], place[u].available);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (place[u].available <= 0) continue;
            long long known = -1;  // neighbours often share four words
            Words words = {};
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const long long index =
                    first + place[u].offset[2] + (long long)i * walk.inner_stride[2];
                if (index >> 2 != known) {
                    known = index >> 2;
                    words = philox(known, offset, seed);
                }
                const int at = index & 3;
                const unsigned word =
                    at == 0 ? words.a : at == 1 ? words.b : at == 2 ? words.c : words.d;
                const A factor = (long long)word >= threshold ? scale : A(0);
                packs[u].element[i] = narrow<T>(A(widen(packs[u].element[i])) * factor);
            }
            store_pack<COUNT>(y + place[u].offset[0], packs[u], place[u].available);
        }
    }
}

struct Steps {
    long long count;
};

// (seed, offset) becomes (seed, offset + count). A template, so that it is not compiled unused.
template <int THREADS>
__global__ void advance(Steps steps, long long *result, const long long *state) {
    const long long seed = state[0], offset = state[1];
    result[0] = seed;
    result[1] = offset + steps.count;
}
