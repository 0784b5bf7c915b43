// Attention of at most 64 queries and 64 keys (windows), and its gradients, on tensor cores: a block
// has a matrix of queries at a time, in shared memory and registers, each of its four warps 16 rows.
//
//     small_attention           weights = softmax(scale * q . k + bias), y = weights . v, and lse
//     small_attention_gradient  the weights again by lse, dscores = weights * (dy . v - its mean),
//                               dq = scale * dscores . k, dk = scale * dscores^T . q, dv = weights^T . dy
//     small_bias_sums           what blocks have added up of dscores
//
// A block's matrices share a bias, which it reads once, and whose gradient it adds up on the way. A
// query that sees no key has lse = -infinity and weights of 0. Types: T of the data, B of the bias,
// unsigned char of a mask, O of the bias's gradient. DEPTH: that of heads, rounded up to 16.
//
// Memory traffic: each operand is read once, each result written once; the gradients read no y. Of a
// bias's gradient a block writes one sum. Scores stay on the chip.

#include "attention_bias.cuh"
#include "tensor_cores.cuh"

constexpr int SIDE = 64;            // most queries, and keys
constexpr int SMALL_THREADS = 128;  // a warp for 16 of them
constexpr int TILES = SIDE / 8;     // of keys, along a row of scores

struct SmallAttention {
    long long members, slices;            // matrices that share a bias, and blocks that have these
    long long bias_images, bias_heads;    // of the bias: 1 where it is broadcast
    long long heads;                      // of an image
    long long bias_image, bias_head, bias_query, bias_key;  // strides, 0 where it is broadcast
    long long queries, keys, depth;
    long long first, causal;              // the first query's number; whether it counts
    long long aligned;                    // whether operands begin at 16 bytes
    long long wide, wide_keys;            // whether results are float: y or dq; dk and dv
};

// What the blocks of a bias share.
struct Members {
    long long image, head, first, members, heads;

    __device__ Members(const SmallAttention &g) {
        const long long kind = blockIdx.x / g.slices;
        image = kind / g.bias_heads;
        head = kind - image * g.bias_heads;
        first = blockIdx.x - kind * g.slices;
        heads = g.bias_heads > 1 ? 1 : g.heads;
    }

    __device__ long long matrix(const SmallAttention &g, long long member) const {
        const long long of_image = g.bias_images > 1 ? image : member / heads;
        const long long of_head = g.bias_heads > 1 ? head : member % heads;
        return of_image * g.heads + of_head;
    }
};

// Rows of a matrix to shared memory, with zeros beside and below them.
template <int DEPTH, typename T>
__device__ inline void load(Bits *to, const T *from, int rows, const SmallAttention &g) {
    constexpr int STEP = DEPTH + 8, PACKS = DEPTH / 8;
    const int depth = (int)g.depth;
    for (int at = threadIdx.x; at < SIDE * PACKS; at += SMALL_THREADS) {
        const int row = at / PACKS, column = at % PACKS * 8;
        uint4 pack = {0, 0, 0, 0};
        if (row < rows && column < depth) {
            const T *place = from + row * depth + column;
            if (g.aligned) pack = *(const uint4 *)place;
            else
                for (int i = 0; i < 8; ++i) ((Bits *)&pack)[i] = ((const Bits *)place)[i];
        }
        *(uint4 *)(to + row * STEP + column) = pack;
    }
}

template <typename T>
__device__ inline void store_pair(
    void *to, long long at, float first, float second, bool wide, bool aligned) {
    if (wide) {
        ((float *)to)[at] = first;
        ((float *)to)[at + 1] = second;
    } else if (aligned) {
        *(unsigned *)((T *)to + at) = pair_of<T>(first, second);
    } else {
        ((T *)to)[at] = narrow<T>(first);
        ((T *)to)[at + 1] = narrow<T>(second);
    }
}

// Rows 16 * warp + g and 8 below of a result, DEPTH wide.
template <int DEPTH, typename T>
__device__ inline void store(
    void *to, long long matrix, const float (&sums)[DEPTH / 8][4], int rows, float factor, bool wide,
    const SmallAttention &g) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, depth = (int)g.depth;
#pragma unroll
    for (int tile = 0; tile < DEPTH / 8; ++tile) {
        const int column = tile * 8 + lane % 4 * 2;
        if (column >= depth) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (row + half * 8 >= rows) continue;
            const long long at = (matrix * rows + row + half * 8) * depth + column;
            store_pair<T>(
                to, at, factor * sums[tile][half * 2], factor * sums[tile][half * 2 + 1], wide, g.aligned);
        }
    }
}

// A thread's part of the bias, and a bit for each of its scores: whether its key is seen.
template <typename B>
struct Added {
    float of[TILES][4];
    unsigned seen;

    __device__ Added(const SmallAttention &g, const Members &members, const B *bias) : seen(0) {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
        const long long start = members.image * g.bias_image + members.head * g.bias_head;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int query = row + i / 2 * 8, key = tile * 8 + lane % 4 * 2 + i % 2;
                const bool sees =
                    query < g.queries && key < g.keys && (!g.causal || key <= g.first + query);
                seen |= (unsigned)sees << (tile * 4 + i);
                of[tile][i] = 0;
                if (bias && sees)
                    of[tile][i] = widen_bias<float>(bias[start + query * g.bias_query + key * g.bias_key]);
            }
        }
    }

    __device__ bool sees(int tile, int i) const { return seen >> (tile * 4 + i) & 1; }
};

// left . right^T: a warp's 16 rows of the left one, all 64 of the right one.
template <typename T, int DEPTH>
__device__ inline void multiply_rows(float (&sums)[TILES][4], const Bits *left, const Bits *right) {
    constexpr int STEP = DEPTH + 8;
    const Bits *rows = left + threadIdx.x / 32 * 16 * STEP;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        const Left of_left = left_of_rows<STEP>(rows + k);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            multiply<T>(sums[tile], of_left, right_of_columns<STEP>(right + tile * 8 * STEP + k));
    }
}

// A warp's 16 rows of (16 x 64) . right (64 x DEPTH); `left` says what it has of every 16 columns.
template <typename T, int DEPTH, typename OfLeft>
__device__ inline void multiply_columns(float (&sums)[DEPTH / 8][4], const Bits *right, OfLeft left) {
    constexpr int STEP = DEPTH + 8;
#pragma unroll
    for (int tile = 0; tile < DEPTH / 8; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][i] = 0;
#pragma unroll
    for (int part = 0; part < SIDE / 16; ++part) {
        const Left of_left = left(part);
#pragma unroll
        for (int tile = 0; tile < DEPTH / 8; ++tile)
            multiply<T>(sums[tile], of_left, right_of_rows<STEP>(right + part * 16 * STEP + tile * 8));
    }
}

__device__ inline float joined(float x, bool is_largest) {
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
        const float other = __shfl_xor_sync(~0u, x, apart);
        x = is_largest ? larger(x, other) : x + other;
    }
    return x;
}

template <typename T, typename B, int DEPTH>
__global__ void __launch_bounds__(SMALL_THREADS) small_attention(
    SmallAttention g, void *y, const T *q, const T *k, const T *v, const B *bias, float *lse, float scale) {
    constexpr int STEP = DEPTH + 8;
    __shared__ __align__(16) Bits of_q[SIDE * STEP], of_k[SIDE * STEP], of_v[SIDE * STEP];
    const Members members(g);
    const Added<B> added(g, members, bias);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const int queries = (int)g.queries, keys = (int)g.keys;
    for (long long member = members.first; member < g.members; member += g.slices) {
        const long long matrix = members.matrix(g, member);
        __syncthreads();
        load<DEPTH>(of_q, q + matrix * queries * g.depth, queries, g);
        load<DEPTH>(of_k, k + matrix * keys * g.depth, keys, g);
        load<DEPTH>(of_v, v + matrix * keys * g.depth, keys, g);
        __syncthreads();
        if (row - lane / 4 >= queries) continue;  // a whole warp
        float scores[TILES][4];
        multiply_rows<T, DEPTH>(scores, of_q, of_k);
        float largest[2] = {minus_infinity<float>(), minus_infinity<float>()}, totals[2] = {0, 0};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[tile][i] =
                    added.sees(tile, i) ? scale * scores[tile][i] + added.of[tile][i] : minus_infinity<float>();
                largest[i / 2] = larger(largest[i / 2], scores[tile][i]);
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            largest[half] = joined(largest[half], true);
            if (largest[half] == minus_infinity<float>()) largest[half] = 0;
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[tile][i] = exponential_for<T>(scores[tile][i] - largest[i / 2]);
                totals[i / 2] += scores[tile][i];
            }
        float factors[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            totals[half] = joined(totals[half], false);
            factors[half] = totals[half] == 0 ? 0 : 1 / totals[half];
            if (lane % 4 == 0 && row + half * 8 < queries)
                lse[matrix * queries + row + half * 8] =
                    totals[half] == 0 ? minus_infinity<float>() : largest[half] + logarithm(totals[half]);
        }
        float sums[DEPTH / 8][4];
        multiply_columns<T, DEPTH>(sums, of_v, [&](int part) {
            Left left;
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                const float *pair = &scores[part * 2 + at / 2][at % 2 * 2];
                left.pairs[at] = pair_of<T>(pair[0] * factors[at % 2], pair[1] * factors[at % 2]);
            }
            return left;
        });
        store<DEPTH, T>(y, matrix, sums, queries, 1, g.wide, g);
    }
}

template <typename T, typename B, int DEPTH, bool OF_BIAS>
__global__ void __launch_bounds__(SMALL_THREADS) small_attention_gradient(
    SmallAttention g, void *dq, void *dk, void *dv, float *parts, const T *q, const T *k, const T *v,
    const B *bias, const float *lse, const T *dy, float scale) {
    constexpr int STEP = DEPTH + 8, OF_SCORES = SIDE + 8;
    __shared__ __align__(16) Bits of_q[SIDE * STEP], of_k[SIDE * STEP], of_v[SIDE * STEP];
    __shared__ __align__(16) Bits of_dy[SIDE * STEP], of_scores[SIDE * OF_SCORES];
    const Members members(g);
    const Added<B> added(g, members, bias);
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    const int queries = (int)g.queries, keys = (int)g.keys;
    float of_bias[TILES][4];
    if (OF_BIAS) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) of_bias[tile][i] = 0;
    }
    // the transpose of what all warps have written of weights or dscores: 16 keys of a warp
    const auto transposed = [&](int part) {
        return left_of_columns<OF_SCORES>(of_scores + part * 16 * OF_SCORES + (row - lane / 4));
    };
    for (long long member = members.first; member < g.members; member += g.slices) {
        const long long matrix = members.matrix(g, member);
        float logarithms[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            logarithms[half] =
                row + half * 8 < queries ? lse[matrix * queries + row + half * 8] : minus_infinity<float>();
        __syncthreads();
        load<DEPTH>(of_q, q + matrix * queries * g.depth, queries, g);
        load<DEPTH>(of_k, k + matrix * keys * g.depth, keys, g);
        load<DEPTH>(of_v, v + matrix * keys * g.depth, keys, g);
        load<DEPTH>(of_dy, dy + matrix * queries * g.depth, queries, g);
        __syncthreads();
        float weights[TILES][4], dscores[TILES][4], totals[2] = {0, 0}, sums[DEPTH / 8][4];
        multiply_rows<T, DEPTH>(weights, of_q, of_k);
        multiply_rows<T, DEPTH>(dscores, of_dy, of_v);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool counts = added.sees(tile, i) && logarithms[i / 2] != minus_infinity<float>();
                const float score = scale * weights[tile][i] + added.of[tile][i];
                weights[tile][i] = counts ? exponential_for<T>(score - logarithms[i / 2]) : 0;
                if (counts) totals[i / 2] += weights[tile][i] * dscores[tile][i];
            }
        totals[0] = joined(totals[0], false);
        totals[1] = joined(totals[1], false);
        unsigned pairs[TILES][2];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Bits *at = of_scores + (row + half * 8) * OF_SCORES + tile * 8 + lane % 4 * 2;
                float *of_weights = &weights[tile][half * 2], *found = &dscores[tile][half * 2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const bool counts = added.sees(tile, half * 2 + i) &&
                                        logarithms[half] != minus_infinity<float>();
                    found[i] = counts ? of_weights[i] * (found[i] - totals[half]) : 0;
                    if (OF_BIAS) of_bias[tile][half * 2 + i] += found[i];
                }
                *(unsigned *)at = pair_of<T>(of_weights[0], of_weights[1]);
                pairs[tile][half] = pair_of<T>(found[0], found[1]);
            }
        multiply_columns<T, DEPTH>(sums, of_k, [&](int part) {
            return Left{{pairs[part * 2][0], pairs[part * 2][1], pairs[part * 2 + 1][0],
                         pairs[part * 2 + 1][1]}};
        });
        store<DEPTH, T>(dq, matrix, sums, queries, scale, g.wide, g);
        __syncthreads();
        multiply_columns<T, DEPTH>(sums, of_dy, transposed);
        store<DEPTH, T>(dv, matrix, sums, keys, 1, g.wide_keys, g);
        __syncthreads();
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *(unsigned *)(of_scores + (row + half * 8) * OF_SCORES + tile * 8 + lane % 4 * 2) =
                    pairs[tile][half];
        __syncthreads();
        multiply_columns<T, DEPTH>(sums, of_q, transposed);
        store<DEPTH, T>(dk, matrix, sums, keys, scale, g.wide_keys, g);
    }
    if (OF_BIAS) {
        float *part = parts + blockIdx.x * g.queries * g.keys;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int query = row + i / 2 * 8, key = tile * 8 + lane % 4 * 2 + i % 2;
                if (query < queries && key < keys) part[query * keys + key] = of_bias[tile][i];
            }
    }
}

// The parts of a bias's gradient, added up in their order.
template <typename O>
__global__ void __launch_bounds__(BLOCK_THREADS) small_bias_sums(
    SmallAttention g, O *dbias, const float *parts) {
    const long long elements = g.queries * g.keys;
    const long long all = g.bias_images * g.bias_heads * elements;
    for (long long at = (long long)blockIdx.x * BLOCK_THREADS + threadIdx.x; at < all;
         at += (long long)gridDim.x * BLOCK_THREADS) {
        const long long kind = at / elements;
        const float *part = parts + kind * g.slices * elements + (at - kind * elements);
        float sum = 0;
        for (long long slice = 0; slice < g.slices; ++slice) sum += part[slice * elements];
        dbias[at] = narrow<O>(Arithmetic<O>(sum));
    }
}
