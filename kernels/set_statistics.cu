// Statistics of sets, and what is normalised by them. A set is what is summed up in one go: the
// sites of one channel of one image, or the channels of one site of one image.
//
// A set is summed in units of so many members. 32 lanes share a unit, each with every 32nd of its
// members, and are joined in a tree; units are added one after the other. So a sum depends on the
// members and their number alone: not on the order of memory, nor on what is summed beside it.
//
// Two launches: `set_partials` leaves the sums of units in the workspace, `set_totals` adds these
// up after what is in the state already. Small launches then merge sets: of all images in their
// order (`fold_images`), of the channels of a group in theirs (`merge_groups`, `group_sums`).
//
// Memory traffic: `set_partials` reads x, and dy backward, once; `normalise_sets` reads them once more and
// writes the result. The sums between are two numbers a unit.
// It reaches
// float32 23 to 92 %, float16 13 to 81 % of a copy's speed on an H100 (docs/kernels.md).
//
// NaN in a set gives NaN in its sums.

#include "activation_gradient.cuh"
#include "group_walk.cuh"
#include "moments.cuh"

struct Sets {
    long long images, sets, members;       // an image has so many sets of so many members
    long long unit, units;                 // members of a unit, units of a set
    Axes x, dy, mean, inverse, scale;      // strides (image, set, member) in elements; 0: broadcast
};

// Offset of a set in what has such strides.
__device__ inline long long set_offset(const Axes &stride, long long image, long long set) {
    return image * stride.outer + set * stride.middle;
}

struct TwoSums {
    double first, second;
};

__device__ inline TwoSums both_sums(const TwoSums &a, const TwoSums &b) {
    return {a.first + b.first, a.second + b.second};
}

// The sums of a warp in its first lane, in the order of `join_threads`.
__device__ inline TwoSums join_warp(TwoSums mine) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        mine = both_sums(
            mine, {__shfl_xor_sync(0xffffffffu, mine.first, half),
                   __shfl_xor_sync(0xffffffffu, mine.second, half)});
    return mine;
}

// MOMENTS: of x - K, K the first member of the unit, as `channel_reduction.cu` has it; a unit
// leaves its mean and sum of squared deviations. PRODUCTS: of scale * dy, and of
// scale * dy * (x - mean) * inverse; scale and inverse are 1 where they are null. With a MODE dy is
// that of an activation of what was normalised with `factor` and `bias`; sets are channels then.
template <typename T, bool PRODUCTS, int MODE>
__global__ void __launch_bounds__(BLOCK_THREADS) set_partials(
    Sets geometry, const T *x, const T *dy, const Arithmetic<T> *mean,
    const Arithmetic<T> *inverse, const Arithmetic<T> *scale, const Arithmetic<T> *factor,
    const Arithmetic<T> *bias, double *partial, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    constexpr int LANES = 32, ACROSS = BLOCK_THREADS / LANES;  // members side by side; sets of a block
    __shared__ TwoSums shared[BLOCK_THREADS];
    // Neighbouring threads read neighbouring elements, whichever axis these lie along. Where members
    // do, a set has a warp, whose lanes exchange sums without a barrier.
    const int thread = threadIdx.x;
    const bool along = geometry.x.inner == 1;
    const int lane = along ? thread % LANES : thread / ACROSS;
    const int across = along ? thread / LANES : thread % ACROSS;
    const int place = lane * ACROSS + across;
    const long long tiles = (geometry.sets + ACROSS - 1) / ACROSS;

    for (long long item = blockIdx.x; item < geometry.images * geometry.units * tiles;
         item += gridDim.x) {
        const long long row = divided(item, tiles);  // a unit of an image
        const long long set = (item - row * tiles) * ACROSS + across;
        const long long image = divided(row, geometry.units), unit = row - image * geometry.units;
        const bool inside = set < geometry.sets;
        const long long start = unit * geometry.unit;
        const long long stop = min(start + geometry.unit, geometry.members);

        double center = 0, first = 0, second = 0;
        if (inside) {
            const T *values = x + set_offset(geometry.x, image, set);
            if constexpr (PRODUCTS) {
                const T *gradients = dy + set_offset(geometry.dy, image, set);
                const long long means = set_offset(geometry.mean, image, set);
                const long long inverses = set_offset(geometry.inverse, image, set);
                const long long scales = set_offset(geometry.scale, image, set);
                // One of the set, or one of each member. (Read for each member of a site's channels
                // they take as long as x and dy.)
                const bool is_one = geometry.mean.inner == 0 && geometry.inverse.inner == 0;
                double center_of_x = mean[means], spread = inverse ? (double)inverse[inverses] : 1.0;
                A slope = 0, shift = 0;
                if constexpr (MODE != IDENTITY) {
                    slope = factor[set] * inverse[inverses];
                    shift = bias[set];
                }
#pragma unroll 4
                for (long long at = start + lane; at < stop; at += LANES) {
                    double weight = widen(gradients[at * geometry.dy.inner]);
                    if constexpr (MODE != IDENTITY) {
                        const A above = A(widen(values[at * geometry.x.inner])) - mean[means];
                        weight = gradient_before<T, MODE>(above * slope + shift, A(weight), coef);
                    }
                    if (!is_one) {
                        center_of_x = mean[means + at * geometry.mean.inner];
                        if (inverse) spread = inverse[inverses + at * geometry.inverse.inner];
                    }
                    const double other =
                        ((double)widen(values[at * geometry.x.inner]) - center_of_x) * spread;
                    if (scale) weight *= (double)scale[scales + at * geometry.scale.inner];
                    first += weight;
                    second = fma(weight, other, second);
                }
            } else {
                // 0 where it is no number, so that one infinite x leaves the mean infinite.
                center = widen(values[start * geometry.x.inner]);
                if (!isfinite(center)) center = 0;
#pragma unroll 4
                for (long long at = start + lane; at < stop; at += LANES) {
                    const double other = (double)widen(values[at * geometry.x.inner]) - center;
                    first += other;
                    second = fma(other, other, second);
                }
            }
        }
        const TwoSums joined =
            along ? join_warp({first, second})
                  : join_threads(
                        TwoSums{first, second}, shared, place, ACROSS, LANES, both_sums);
        if (lane > 0 || !inside) continue;
        first = joined.first, second = joined.second;
        if constexpr (!PRODUCTS) {
            const double above = first / (double)(stop - start);
            const double squares = second - first * above;
            first = center + above;
            second = squares < 0 ? 0.0 : squares;  // rounding may take it below 0; NaN stays
        }
        partial[2 * row * geometry.sets + set] = first;
        partial[(2 * row + 1) * geometry.sets + set] = second;
    }
}

// One thread a set. `state` is null where nothing was summed up before, and may be the result.
template <bool PRODUCTS>
__global__ void __launch_bounds__(BLOCK_THREADS) set_totals(
    Sets geometry, double *result, const double *state, const double *partial) {
    const long long columns = geometry.images * geometry.sets;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x; at < columns;
         at += step) {
        const long long image = divided(at, geometry.sets), set = at - image * geometry.sets;
        const double *units = partial + 2 * image * geometry.units * geometry.sets + set;
        Moments total = {0, 0, 0};
        double first = 0, second = 0;
        if (state && PRODUCTS) {
            first = state[at];
            second = state[columns + at];
        } else if (state) {
            total = load_moments(state, at, columns);
        }
        for (long long unit = 0; unit < geometry.units; ++unit) {
            const double a = units[2 * unit * geometry.sets];
            const double b = units[(2 * unit + 1) * geometry.sets];
            if (PRODUCTS) {
                first += a;
                second += b;
            } else {
                const long long start = unit * geometry.unit;
                const long long count = min(geometry.unit, geometry.members - start);
                total = merged_moments(total, {(double)count, a, b});
            }
        }
        if (PRODUCTS) {
            result[at] = first;
            result[columns + at] = second;
        } else {
            store_moments(result, at, columns, total);
        }
    }
}

struct ImageStates {
    long long images, sets, groups;
};

constexpr int AHEAD = 32;

// States [ROWS][images][sets], of three rows moments, to those of all images: one thread a set, which
// adds in the order of images, and reads AHEAD of that: there are few threads.
template <int ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS) fold_images(
    ImageStates geometry, double *result, const double *states, const double *before) {
    const long long sets = geometry.sets, columns = geometry.images * sets;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long set = (long long)blockIdx.x * blockDim.x + threadIdx.x; set < sets;
         set += step) {
        if constexpr (ROWS == 3) {
            Moments total = before ? load_moments(before, set, sets) : Moments{0, 0, 0};
#pragma unroll 4
            for (long long image = 0; image < geometry.images; ++image)
                total = merged_moments(total, load_moments(states, image * sets + set, columns));
            store_moments(result, set, sets, total);
        } else {
            for (int row = 0; row < ROWS; ++row) {
                double total = before ? before[row * sets + set] : 0.0;
                const double *of_set = states + row * columns + set;
                for (long long first = 0; first < geometry.images; first += AHEAD) {
                    double next[AHEAD];
#pragma unroll
                    for (int i = 0; i < AHEAD; ++i)
                        next[i] = first + i < geometry.images ? of_set[(first + i) * sets] : 0.0;
#pragma unroll
                    for (int i = 0; i < AHEAD; ++i)
                        if (first + i < geometry.images) total += next[i];
                }
                result[row * sets + set] = total;
            }
        }
    }
}

// One thread a group of one image: groups of neighbouring channels, one channel after the other.
template <typename Body>
__device__ inline void for_each_group(const ImageStates &geometry, Body body) {
    const long long channels = geometry.sets / geometry.groups;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
         at < geometry.images * geometry.groups; at += step) {
        const long long image = divided(at, geometry.groups);
        const long long first = (at - image * geometry.groups) * channels;
        body(image * geometry.sets + first, first, channels);
    }
}

// Moments of channels to those of their groups, for each channel; `result` may be the state. It is
// a template so that what is not used is not compiled.
template <int ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS) merge_groups(
    ImageStates geometry, double *result, const double *state) {
    const long long columns = geometry.images * geometry.sets;
    for_each_group(geometry, [&](long long start, long long, long long channels) {
        Moments total = {0, 0, 0};
        for (long long c = 0; c < channels; ++c)
            total = merged_moments(total, load_moments(state, start + c, columns));
        for (long long c = 0; c < channels; ++c) store_moments(result, start + c, columns, total);
    });
}

// Sums of channels times scale to those of their groups, for each channel.
template <typename A>
__global__ void __launch_bounds__(BLOCK_THREADS) group_sums(
    ImageStates geometry, double *result, const double *sums, const A *scale) {
    const long long columns = geometry.images * geometry.sets;
    for_each_group(geometry, [&](long long start, long long channel, long long channels) {
        for (int row = 0; row < 2; ++row) {
            double total = 0;
            for (long long c = 0; c < channels; ++c)
                total += sums[row * columns + start + c] * (double)scale[channel + c];
            for (long long c = 0; c < channels; ++c) result[row * columns + start + c] = total;
        }
    });
}

// Elements as rows of packs, and where each finds its statistics and its channel.
struct Elements {
    Axes size, result, x, dy;  // sizes, and strides in elements
    Axes statistic, channel;   // strides of mean, inverse and sums, and of scale and bias
    long long packs, sets;     // packs of a row; statistics of all images
};

// forward   y  = f(scale * (x - mean) * inverse + bias), f the activation MODE
// BACKWARD  dx = inverse * (scale * dy - sums[0] * share - (x - mean) * inverse * sums[1] * share)
//           with the dy of what f was applied to, that of y times the slope of f
//
// `share` is one over the number of elements that have a mean in common. The result may be the same
// memory as x or dy.
template <typename T, int MODE, bool BACKWARD, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) normalise_sets(
    Elements geometry, T *result, const T *x, const T *dy, const Arithmetic<T> *scale,
    const Arithmetic<T> *bias, const Arithmetic<T> *mean, const Arithmetic<T> *inverse,
    const double *sums, double share, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    const long long rows = geometry.size.outer * geometry.size.middle;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
         at < rows * geometry.packs; at += step) {
        const long long row = divided(at, geometry.packs);
        const long long column = (at - row * geometry.packs) * COUNT;
        const long long outer = divided(row, geometry.size.middle);
        const long long middle = row - outer * geometry.size.middle;
        const long long left = geometry.size.inner - column;
        auto offset = [&](const Axes &stride) {
            return outer * stride.outer + middle * stride.middle + column * stride.inner;
        };
        Pack<T, COUNT> values = load_pack<COUNT>(x + offset(geometry.x), left), gradients = {};
        if constexpr (BACKWARD) gradients = load_pack<COUNT>(dy + offset(geometry.dy), left);
        const long long statistic = offset(geometry.statistic), channel = offset(geometry.channel);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i >= left) break;
            const long long s = statistic + i * geometry.statistic.inner;
            const long long c = channel + i * geometry.channel.inner;
            const A above = A(widen(values.element[i])) - mean[s], spread = inverse[s];
            if constexpr (BACKWARD) {
                const A level = A(sums[s] * share), slope = A(sums[geometry.sets + s] * share);
                A incoming = A(widen(gradients.element[i]));
                if constexpr (MODE != IDENTITY)
                    incoming = gradient_before<T, MODE>(
                        above * (scale[c] * spread) + bias[c], incoming, coef);
                const A scaled = scale[c] * incoming;
                const A rest = scaled - level - above * (slope * spread);
                values.element[i] = narrow<T>(spread * rest);
            } else {
                const A normal = above * (scale[c] * spread) + bias[c];
                values.element[i] = narrow<T>(activation<MODE>(normal, coef));
            }
        }
        store_pack<COUNT>(result + offset(geometry.result), values, left);
    }
}
