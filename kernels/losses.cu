// Losses: one number for each row of each image, and gradients. A block has a row, so what is made of
// it depends on nothing else: a loss has the same bits however the batch is cut.
//
// Softmax cross entropy, of a site with the label y, the weights w and l = log(sum(exp(x))) - x:
//
//     loss = (1 - smoothing) * w[y] * l[y] + smoothing / classes * sum(w * l)
//     dx   = factor * (softmax(x) * total - share),  share: what each class counts above, total: the sum
//
// Elements of x and a target t, with the weights w and, of what is positive, p:
//
//     SQUARED  loss = (x - t)^2
//     SIGMOID  loss = w * ((1 - t) * x + (1 + (p - 1) * t) * log(1 + exp(-x)))
//
// Memory traffic: x of a cross entropy is read twice, for the maximum and for the sums, and backward
// a third time; after the first time mostly from the caches. Other operands are read once, and dx is written once.
// It reaches
// float32 11 to 63 %, float16 7 to 49 % of a copy's speed on an H100 (docs/kernels.md).
//
// Sums of softmax(x) = p and of t, 1 for the class of the label of a site: for each class of a row
//
//     sum(p * t), sum(p), sum(t);  dx = p * (g - sum of the classes(p * g)),  g = a * t + b
//
// Rows are (n, c, row, outer, inner); what an operand lacks, or is broadcast along, has stride 0.
// NaN rule: NaN or +infinity among the x of a site, nothing but -infinity, and a label that is no
// class, make its loss and its gradient NaN; of class sums, those of p. A label that is ignored makes
// both 0.

#include "softmax_steps.cuh"

template <int OPERANDS>
struct LossRows {
    long long n, c, row, outer, inner;
    long long stride[OPERANDS][5];

    __device__ long long items() const { return n * row; }
    __device__ long long sites() const { return outer * inner; }

    // Where element (channel, site) of a row begins in an operand.
    __device__ long long at(int operand, long long item, long long channel, long long site) const {
        const long long image = divided(item, row), line = divided(site, inner);
        const long long *step = stride[operand];
        return image * step[0] + channel * step[1] + (item - image * row) * step[2] +
               line * step[3] + (site - line * inner) * step[4];
    }
};

// What the softmax of one site needs; LANES neighbouring threads share its classes.
template <typename A>
struct SiteSums {
    A m;
    double total, weights, weighted;  // sums of exp(x - m), of w and of w * (x - m)
};

template <int LANES, typename T, typename A = Arithmetic<T>>
__device__ inline SiteSums<A> sums_of_site(
    const T *x, long long step, int classes, const A *weights, bool smoothed) {
    const int lane = threadIdx.x % LANES;
    SiteSums<A> found = {minus_infinity<A>(), 0, 0, 0};
    for (int c = lane; c < classes; c += LANES) found.m = larger(found.m, A(widen(x[c * step])));
    found.m = join_lanes<LANES>(found.m, [](A a, A b) { return larger(a, b); });
    for (int c = lane; c < classes; c += LANES) {
        const A shifted = widen(x[c * step]) - found.m;
        found.total += exponential(shifted);
        if (!smoothed) continue;
        const double weight = weights ? weights[c] : A(1);
        found.weights += weight;
        found.weighted += weight * shifted;
    }
    found.total = join_lanes<LANES>(found.total, sum_of_two);
    if (smoothed) {
        found.weights = join_lanes<LANES>(found.weights, sum_of_two);
        found.weighted = join_lanes<LANES>(found.weighted, sum_of_two);
    }
    return found;
}

// The weight of a label; NaN of one that is no class.
template <typename A>
__device__ inline double weight_of(long long label, long long classes, const A *weights) {
    if (label < 0 || label >= classes) return __longlong_as_double(0x7ff8000000000000ll);
    return weights ? (double)weights[label] : 1.0;
}

template <typename T, typename L, int LANES>
__global__ void __launch_bounds__(BLOCK_THREADS) cross_entropy(
    LossRows<2> rows, double *losses, const T *x, const L *labels, const Arithmetic<T> *weights,
    double smoothing, long long ignored) {
    __shared__ double shared[BLOCK_THREADS];
    const int classes = (int)rows.c, places = blockDim.x / LANES;
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        double sum = 0;
        for (long long first = 0; first < rows.sites(); first += places) {
            const long long site = first + threadIdx.x / LANES;
            const bool there = site < rows.sites();
            // Lanes without a site take part in the exchange, with the last one's.
            const long long place = there ? site : rows.sites() - 1;
            const long long label = labels[rows.at(1, item, 0, place)];
            const T *values = x + rows.at(0, item, 0, place);
            const auto found = sums_of_site<LANES>(
                values, rows.stride[0][1], classes, weights, smoothing != 0);
            if (!there || threadIdx.x % LANES != 0 || label == ignored) continue;
            const double weight = weight_of(label, classes, weights), log_total = log(found.total);
            const long long known = label < 0 || label >= classes ? 0 : label;
            const double own = (double)widen(values[known * rows.stride[0][1]]) - found.m;
            double loss = (1 - smoothing) * weight * (log_total - own);
            if (smoothing != 0)
                loss += smoothing / classes * (found.weights * log_total - found.weighted);
            sum += loss;
        }
        sum = join_threads(sum, shared, threadIdx.x, 1, blockDim.x, sum_of_two);
        if (threadIdx.x == 0) losses[item] = sum;
    }
}

// `divisor` may be absent. Rows of x, of the labels and of dx.
template <typename T, typename L, int LANES>
__global__ void __launch_bounds__(BLOCK_THREADS) cross_entropy_backward(
    LossRows<3> rows, T *dx, const T *x, const L *labels, const Arithmetic<T> *weights,
    const double *divisor, const double *dy, double smoothing, long long ignored, double scale) {
    using A = Arithmetic<T>;
    const int classes = (int)rows.c, places = blockDim.x / LANES;
    const double factor = scale * dy[0] / (divisor ? divisor[0] : 1.0);
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        for (long long first = 0; first < rows.sites(); first += places) {
            const long long site = first + threadIdx.x / LANES;
            const bool there = site < rows.sites();
            const long long place = there ? site : rows.sites() - 1;
            const long long label = labels[rows.at(1, item, 0, place)];
            const T *values = x + rows.at(0, item, 0, place);
            const auto found = sums_of_site<LANES>(
                values, rows.stride[0][1], classes, weights, smoothing != 0);
            if (!there) continue;
            T *results = dx + rows.at(2, item, 0, place);
            const double weight = (1 - smoothing) * weight_of(label, classes, weights);
            const double even = smoothing / classes;
            const A share = A(factor * (weight + even * found.weights) / found.total);
            for (int c = threadIdx.x % LANES; c < classes; c += LANES) {
                A value = share * exponential(widen(values[c * rows.stride[0][1]]) - found.m);
                if (smoothing != 0) value -= A(factor * even) * (weights ? weights[c] : A(1));
                if (c == label) value -= A(factor * weight);
                results[c * rows.stride[2][1]] = narrow<T>(label == ignored ? A(0) : value);
            }
        }
    }
}

// The sum of the weights of each row's labels.
template <typename L, typename A>
__global__ void __launch_bounds__(BLOCK_THREADS) label_weights(
    LossRows<1> rows, double *result, const L *labels, const A *weights, long long ignored) {
    __shared__ double shared[BLOCK_THREADS];
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        double sum = 0;
        for (long long site = threadIdx.x; site < rows.sites(); site += blockDim.x) {
            const long long label = labels[rows.at(0, item, 0, site)];
            if (label != ignored) sum += weight_of(label, rows.c, weights);
        }
        sum = join_threads(sum, shared, threadIdx.x, 1, blockDim.x, sum_of_two);
        if (threadIdx.x == 0) result[item] = sum;
    }
}

// Sites of a row that a block looks at in turn: a thread makes what their softmax needs of one site
// after the other, and a warp the sums of one class after the other. A class has the same warp each
// time, which adds to what it wrote: the order of a row's sums is the same wherever it lies.
const int TURN_SITES = 4 * BLOCK_THREADS;

template <typename T, typename L>
__global__ void __launch_bounds__(BLOCK_THREADS) class_sums(
    LossRows<2> rows, double *result, const T *x, const L *labels) {
    using A = Arithmetic<T>;
    __shared__ A shift[TURN_SITES], factor[TURN_SITES];
    __shared__ int known[TURN_SITES];
    const int classes = (int)rows.c, lane = threadIdx.x % 32;
    const long long step = rows.stride[0][1];
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        double *sums = result + item * 3 * classes;
        for (long long first = 0; first < rows.sites(); first += TURN_SITES) {
            const long long left = rows.sites() - first;
            const int count = left < TURN_SITES ? (int)left : TURN_SITES;
            for (int at = threadIdx.x; at < count; at += blockDim.x) {
                const T *values = x + rows.at(0, item, 0, first + at);
                const long long label = labels[rows.at(1, item, 0, first + at)];
                const auto found = sums_of_site<1>(values, step, classes, (const A *)0, false);
                shift[at] = found.m;
                factor[at] = A(weight_of(label, classes, (const A *)0) / found.total);
                known[at] = (int)label;
            }
            __syncthreads();
            for (int c = threadIdx.x / 32; c < classes; c += blockDim.x / 32) {
                double both = 0, all = 0, there = 0;
                for (int at = lane; at < count; at += 32) {
                    const T *values = x + rows.at(0, item, 0, first + at);
                    const A p = exponential(widen(values[c * step]) - shift[at]) * factor[at];
                    all += p;
                    if (known[at] != c) continue;
                    both += p;
                    there += 1;
                }
                both = join_lanes<32>(both, sum_of_two);
                all = join_lanes<32>(all, sum_of_two);
                there = join_lanes<32>(there, sum_of_two);
                if (lane != 0) continue;
                sums[c] = first == 0 ? both : sums[c] + both;
                sums[classes + c] = first == 0 ? all : sums[classes + c] + all;
                sums[2 * classes + c] = first == 0 ? there : sums[2 * classes + c] + there;
            }
            __syncthreads();
        }
    }
}

// dy has 3 * classes numbers for each image.
template <typename T, typename L, int LANES>
__global__ void __launch_bounds__(BLOCK_THREADS) class_sums_backward(
    LossRows<3> rows, T *dx, const T *x, const L *labels, const Arithmetic<T> *dy) {
    using A = Arithmetic<T>;
    const int classes = (int)rows.c, places = blockDim.x / LANES;
    const long long step = rows.stride[0][1];
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        const A *of_both = dy + divided(item, rows.row) * 3 * classes, *of_all = of_both + classes;
        for (long long first = 0; first < rows.sites(); first += places) {
            const long long site = first + threadIdx.x / LANES;
            const bool there = site < rows.sites();
            const long long place = there ? site : rows.sites() - 1;
            const long long label = labels[rows.at(1, item, 0, place)];
            const T *values = x + rows.at(0, item, 0, place);
            const auto found = sums_of_site<LANES>(values, step, classes, (const A *)0, false);
            const A factor = A(weight_of(label, classes, (const A *)0) / found.total);
            double mean = 0;  // of g, by p
            for (int c = threadIdx.x % LANES; c < classes; c += LANES) {
                const A p = exponential(widen(values[c * step]) - found.m) * factor;
                mean += p * (of_all[c] + (c == label ? of_both[c] : A(0)));
            }
            mean = join_lanes<LANES>(mean, sum_of_two);
            if (!there) continue;
            T *results = dx + rows.at(2, item, 0, place);
            for (int c = threadIdx.x % LANES; c < classes; c += LANES) {
                const A p = exponential(widen(values[c * step]) - found.m) * factor;
                const A g = of_all[c] + (c == label ? of_both[c] : A(0));
                results[c * rows.stride[2][1]] = narrow<T>(p * A(g - mean));
            }
        }
    }
}

enum LossMode { SQUARED = 0, SIGMOID = 1 };

__device__ inline float logarithm_of_1_and(float x) { return log1pf(x); }
__device__ inline double logarithm_of_1_and(double x) { return log1p(x); }

// Elements of a row: all its channels and sites. Rows of x, of the target and of both weights, which
// may be absent.
template <typename T, int MODE>
__global__ void __launch_bounds__(BLOCK_THREADS) element_loss(
    LossRows<4> rows, double *losses, const T *x, const T *target, const T *weight,
    const T *positive) {
    using A = Arithmetic<T>;
    __shared__ double shared[BLOCK_THREADS];
    const long long elements = rows.c * rows.sites();
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x) {
        double sum = 0;
        for (long long element = threadIdx.x; element < elements; element += blockDim.x) {
            const long long c = divided(element, rows.sites()), site = element - c * rows.sites();
            const A a = widen(x[rows.at(0, item, c, site)]);
            const A t = widen(target[rows.at(1, item, c, site)]);
            A loss = (a - t) * (a - t);
            if constexpr (MODE == SIGMOID) {
                const A logs = logarithm_of_1_and(exponential(a < 0 ? a : -a)) + (a < 0 ? -a : A(0));
                const A p = positive ? A(widen(positive[rows.at(3, item, c, site)])) : A(1);
                loss = (1 - t) * a + (1 + (p - 1) * t) * logs;
                if (weight) loss *= widen(weight[rows.at(2, item, c, site)]);
            }
            sum += loss;
        }
        sum = join_threads(sum, shared, threadIdx.x, 1, blockDim.x, sum_of_two);
        if (threadIdx.x == 0) losses[item] = sum;
    }
}

template <typename T, int MODE>
__global__ void __launch_bounds__(BLOCK_THREADS) element_loss_backward(
    LossRows<5> rows, T *dx, const T *x, const T *target, const T *weight, const T *positive,
    const double *dy, double scale) {
    using A = Arithmetic<T>;
    const A factor = A(scale * dy[0]);
    const long long elements = rows.c * rows.sites();
    for (long long item = blockIdx.x; item < rows.items(); item += gridDim.x)
        for (long long element = threadIdx.x; element < elements; element += blockDim.x) {
            const long long c = divided(element, rows.sites()), site = element - c * rows.sites();
            const A a = widen(x[rows.at(0, item, c, site)]);
            const A t = widen(target[rows.at(1, item, c, site)]);
            A slope = 2 * (a - t);
            if constexpr (MODE == SIGMOID) {
                const A p = positive ? A(widen(positive[rows.at(3, item, c, site)])) : A(1);
                slope = (1 + (p - 1) * t) / (1 + exponential(-a)) - p * t;
                if (weight) slope *= widen(weight[rows.at(2, item, c, site)]);
            }
            dx[rows.at(4, item, c, site)] = narrow<T>(factor * slope);
        }
}

struct Values {
    long long count;
};

// scale times the sum of all values, in one order, by a divisor that may be absent. One block.
__global__ void __launch_bounds__(BLOCK_THREADS) loss_total(
    Values extent, double *result, const double *values, const double *divisor, double scale) {
    __shared__ double shared[BLOCK_THREADS];
    double sum = 0;
    for (long long i = threadIdx.x; i < extent.count; i += blockDim.x) sum += values[i];
    sum = join_threads(sum, shared, threadIdx.x, 1, blockDim.x, sum_of_two);
    if (threadIdx.x == 0) result[0] = scale * sum / (divisor ? divisor[0] : 1.0);
}

struct RowTotals {
    long long images, rows, columns;
};

// The sums over the rows of each image, in their order: a thread for each of its columns.
template <typename A>
__global__ void __launch_bounds__(BLOCK_THREADS) row_totals(
    RowTotals extent, A *result, const double *values) {
    const long long threads = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < extent.images * extent.columns; i += threads) {
        const long long image = divided(i, extent.columns), column = i - image * extent.columns;
        const double *own = values + image * extent.rows * extent.columns + column;
        double sum = 0;
        for (long long row = 0; row < extent.rows; row++) sum += own[row * extent.columns];
        result[i] = A(sum);
    }
}
