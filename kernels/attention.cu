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

#include "softmax_steps.cuh"

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
__device__ inline A widen_bias(B bias) {
    return A(widen(bias));
}
template <typename A>
__device__ inline A widen_bias(unsigned char seen) {
    return seen ? A(0) : minus_infinity<A>();
}

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

// A thread has an element of the bias, and adds up in the order of images, heads and queries. Where
// rows come in several parts (one launch each) `sums` holds what the earlier ones gave.
template <typename T, typename O>
__global__ void __launch_bounds__(BLOCK_THREADS) attention_bias_sums(
    BiasSums geometry, O *dbias, Arithmetic<T> *sums, const T *dscores, int first, int last) {
    const ScoreRows &rows = geometry.rows;
    const long long elements = geometry.images * geometry.heads * geometry.queries * geometry.keys;
    const long long matrices = rows.rows / rows.of_matrix;
    for (long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x; element < elements;
         element += (long long)gridDim.x * blockDim.x) {
        long long rest = element / geometry.keys;
        const long long key = element - rest * geometry.keys;
        const long long query = rest % geometry.queries;
        rest /= geometry.queries;
        const long long head = rest % geometry.heads, image = rest / geometry.heads;
        const bool one_query = geometry.queries > 1, one_key = geometry.keys > 1;
        Arithmetic<T> sum = first ? Arithmetic<T>(0) : sums[element];
        for (long long matrix = 0; matrix < matrices; ++matrix) {
            const long long number = rows.first_matrix + matrix;
            const long long of_image = number / rows.key_heads;
            if (geometry.images > 1 && of_image != image) continue;
            const long long first_head = (number - of_image * rows.key_heads) * rows.group;
            for (long long in_group = 0; in_group < rows.group; ++in_group) {
                if (geometry.heads > 1 && first_head + in_group != head) continue;
                for (long long q = one_query ? query : 0; q < (one_query ? query + 1 : rows.queries);
                     ++q) {
                    const long long row = in_group * rows.queries + q - rows.first_row;
                    if (row < 0 || row >= rows.of_matrix) continue;
                    const T *of_row = dscores + (matrix * rows.of_matrix + row) * rows.step;
                    if (one_key) sum += widen(of_row[key]);
                    else
                        for (long long k = 0; k < rows.keys; ++k) sum += widen(of_row[k]);
                }
            }
        }
        sums[element] = sum;
        if (last) dbias[element] = narrow<O>(Arithmetic<O>(sum));
    }
}
