// What attention does to rows of scores between its products of matrices, which cuBLAS makes:
//
//     attention_weights    s = scale * q . k + bias, weights = exp(s - lse) where lse = log(sum(exp(s)))
//     attention_gradient   the weights again, and dscores = weights * (dweights - sum(dy * y))
//     attention_bias_sums  dscores summed over what the bias is broadcast along
//
// A row is of a query: its keys follow each other. A query that sees no key has lse = -infinity and
// weights of 0; one NaN among its scores makes all of its weights NaN. Types: T of the data, B of the
// bias, unsigned char of a mask. LANES threads share a row: a warp, or a block.
//
// Memory traffic: `attention_weights` reads the scores three times, last from the cache, and writes
// the weights; the gradient reads scores and dweights once and writes weights and dscores. Where these
// have the type of the scores they are written in their place: a thread reads what it writes alone.

#include "attention_bias.cuh"

struct ScoreRows {
    long long rows, of_matrix;                              // of all matrices here, of each of them
    long long first_matrix, first_row;                      // among all there are
    long long key_heads, group, queries, keys, step;        // step from a row of scores to the next
    long long first, causal;                                // the first query's number; whether it counts
    long long bias_image, bias_head, bias_query, bias_key;  // strides, 0 where it is broadcast
    long long depth;                                        // of values
};

struct ScoreRow {
    long long at, of_all, seen, bias;  // offsets of scores, of lse, and of the bias

    __device__ ScoreRow(const ScoreRows &rows, long long index) {
        const long long matrix = index / rows.of_matrix;
        const long long number = rows.first_matrix + matrix;
        const long long row = rows.first_row + index - matrix * rows.of_matrix;
        const long long in_group = row / rows.queries, query = row - in_group * rows.queries;
        const long long image = number / rows.key_heads;
        const long long head = (number - image * rows.key_heads) * rows.group + in_group;
        at = index * rows.step;
        of_all = number * rows.group * rows.queries + row;
        seen = rows.keys;
        if (rows.causal && rows.first + query + 1 < seen) seen = rows.first + query + 1;
        bias = image * rows.bias_image + head * rows.bias_head + query * rows.bias_query;
    }
};

template <typename A, typename B>
__device__ inline A score_at(
    const ScoreRows &rows, const ScoreRow &row, const A *scores, const B *bias, A scale, long long key) {
    const A score = scale * scores[row.at + key];
    return bias ? score + widen_bias<A>(bias[row.bias + key * rows.bias_key]) : score;
}

template <typename A>
__device__ inline A larger_of_two(A a, A b) {
    return larger(a, b);
}
template <typename A>
__device__ inline A sum_of_lanes(A a, A b) {
    return a + b;
}

template <typename T, typename B, int LANES>
__global__ void __launch_bounds__(BLOCK_THREADS) attention_weights(
    ScoreRows rows, T *weights, const Arithmetic<T> *scores, const B *bias, Arithmetic<T> *lse,
    Arithmetic<T> scale) {
    using A = Arithmetic<T>;
    constexpr int ROWS = BLOCK_THREADS / LANES;
    const int lane = threadIdx.x % LANES;
    for (long long index = (long long)blockIdx.x * ROWS + threadIdx.x / LANES; index < rows.rows;
         index += (long long)gridDim.x * ROWS) {
        const ScoreRow row(rows, index);
        A m = minus_infinity<A>();
        for (long long key = lane; key < row.seen; key += LANES)
            m = larger(m, score_at(rows, row, scores, bias, scale, key));
        m = join_lanes<LANES>(m, larger_of_two<A>);
        const A base = m == minus_infinity<A>() ? A(0) : m;
        A total = 0;
        for (long long key = lane; key < row.seen; key += LANES)
            total += exponential_for<T>(score_at(rows, row, scores, bias, scale, key) - base);
        total = join_lanes<LANES>(total, sum_of_lanes<A>);
        const A factor = total == A(0) ? A(0) : A(1) / total;
        for (long long key = lane; key < rows.keys; key += LANES) {
            A weight = 0;
            if (key < row.seen)
                weight =
                    exponential_for<T>(score_at(rows, row, scores, bias, scale, key) - base) * factor;
            weights[row.at + key] = narrow<T>(weight);
        }
        if (lane == 0)
            lse[row.of_all] = total == A(0) ? minus_infinity<A>() : base + logarithm(total);
    }
}

template <typename T, typename B, int LANES>
__global__ void __launch_bounds__(BLOCK_THREADS) attention_gradient(
    ScoreRows rows, T *weights, T *dscores, const Arithmetic<T> *scores,
    const Arithmetic<T> *dweights, const B *bias, const Arithmetic<T> *lse, const T *y, const T *dy,
    Arithmetic<T> scale) {
    using A = Arithmetic<T>;
    constexpr int ROWS = BLOCK_THREADS / LANES;
    const int lane = threadIdx.x % LANES;
    for (long long index = (long long)blockIdx.x * ROWS + threadIdx.x / LANES; index < rows.rows;
         index += (long long)gridDim.x * ROWS) {
        const ScoreRow row(rows, index);
        A total = 0;
        for (long long at = lane; at < rows.depth; at += LANES) {
            const long long place = row.of_all * rows.depth + at;
            total += A(widen(y[place])) * A(widen(dy[place]));
        }
        total = join_lanes<LANES>(total, sum_of_lanes<A>);
        const A logarithm_of_sum = lse[row.of_all];
        const bool nothing = logarithm_of_sum == minus_infinity<A>();
        for (long long key = lane; key < rows.keys; key += LANES) {
            A weight = 0, dscore = 0;
            if (key < row.seen && !nothing) {
                const A score = score_at(rows, row, scores, bias, scale, key);
                weight = exponential_for<T>(score - logarithm_of_sum);
                dscore = weight * (dweights[row.at + key] - total);
            }
            weights[row.at + key] = narrow<T>(weight);
            dscores[row.at + key] = narrow<T>(dscore);
        }
    }
}

struct BiasSums {
    ScoreRows rows;
    long long images, heads, queries, keys;  // of the bias: 1 where it is broadcast
};

constexpr int ELEMENTS = 32, SLICES = BLOCK_THREADS / ELEMENTS;

// A column of a block's threads has an element of the bias: each adds up every eighth image, in the
// order of images, heads and queries, and then one of them what these have. Where rows come in several
// parts (one launch each) `sums` holds what the earlier ones gave.
template <typename T, typename O>
__global__ void __launch_bounds__(BLOCK_THREADS) attention_bias_sums(
    BiasSums geometry, O *dbias, Arithmetic<T> *sums, const T *dscores, int first, int last) {
    using A = Arithmetic<T>;
    __shared__ A of_slices[SLICES][ELEMENTS];
    const ScoreRows &rows = geometry.rows;
    const long long elements = geometry.images * geometry.heads * geometry.queries * geometry.keys;
    const long long matrices = rows.rows / rows.of_matrix;
    const bool one_head = geometry.heads > 1, one_query = geometry.queries > 1;
    for (long long block = blockIdx.x; block * ELEMENTS < elements; block += gridDim.x) {
        const long long element = block * ELEMENTS + threadIdx.x;
        A sum = 0;
        if (element < elements) {
            long long rest = element / geometry.keys;
            const long long key = element - rest * geometry.keys;
            const long long query = rest % geometry.queries;
            rest /= geometry.queries;
            const long long head = rest % geometry.heads, of_image = rest / geometry.heads;
            // the matrices that share it, and of these the heads, queries and keys
            const long long key_head = one_head ? head / rows.group : 0;
            const long long key_heads = one_head ? 1 : rows.key_heads;
            const long long head_of_group = one_head ? head - key_head * rows.group : 0;
            const long long heads = one_head ? 1 : rows.group;
            const long long first_query = one_query ? query : 0;
            const long long queries = one_query ? 1 : rows.queries;
            const long long first_key = geometry.keys > 1 ? key : 0;
            const long long keys = geometry.keys > 1 ? 1 : rows.keys;
            const long long end = (rows.first_matrix + matrices - 1) / rows.key_heads + 1;
            const long long start = geometry.images > 1 ? of_image : rows.first_matrix / rows.key_heads;
            const long long stop = geometry.images > 1 ? min(of_image + 1, end) : end;
            for (long long image = start + threadIdx.y; image < stop; image += SLICES) {
                for (long long k = key_head; k < key_head + key_heads; ++k) {
                    const long long matrix = image * rows.key_heads + k - rows.first_matrix;
                    if (matrix < 0 || matrix >= matrices) continue;
                    for (long long h = head_of_group; h < head_of_group + heads; ++h) {
                        for (long long q = first_query; q < first_query + queries; ++q) {
                            const long long row = h * rows.queries + q - rows.first_row;
                            if (row < 0 || row >= rows.of_matrix) continue;
                            const T *of_row = dscores + (matrix * rows.of_matrix + row) * rows.step;
                            for (long long at = first_key; at < first_key + keys; ++at)
                                sum += widen(of_row[at]);
                        }
                    }
                }
            }
        }
        of_slices[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && element < elements) {
            A total = first ? A(0) : sums[element];
            for (int slice = 0; slice < SLICES; ++slice) total += of_slices[slice][threadIdx.x];
            sums[element] = total;
            if (last) dbias[element] = narrow<O>(Arithmetic<O>(total));
        }
        __syncthreads();
    }
}
