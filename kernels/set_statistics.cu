// Statistics of sets, and what is normalised by them. A set is what is summed up in one go: the
// sites of one channel of one image, or the channels of one site of one image.
//
// A set is summed in units of so many members. 32 lanes share a unit, each with every 32nd of its
// members, and are joined in a tree, whichever threads have them; units are added one after the other. So a sum depends on the
// members and their number alone: not on the order of memory, nor on what is summed beside it.
//
// Two launches: `set_partials` leaves the sums of units in the workspace, `set_totals` adds these
// up after what is in the state already. Small launches then merge sets: of all images in their
// order (`fold_images`), of the channels of a group in theirs (`merge_groups`, `group_sums`).
//
// Memory traffic: `set_partials` reads x, and dy backward, once; `normalise_sets` reads them once more and
// writes the result. The sums between are two numbers a unit. `normalise_sites_backward` does both of a
// site whose channels lie side by side: it reads x and dy once, and writes dx.
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

// The sums of a warp, in the order of `join_threads`; each lane has them, for addition commutes.
__device__ inline TwoSums join_warp(TwoSums mine) {
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        mine = both_sums(
            mine, {__shfl_xor_sync(0xffffffffu, mine.first, half),
                   __shfl_xor_sync(0xffffffffu, mine.second, half)});
    return mine;
}

// What a thread adds up: the members of LANES / ROWS of a set's lanes, which it joins itself.
template <int OWN>
struct LaneSums {
    double first[OWN] = {}, second[OWN] = {};

    // The steps of the tree in which a thread has both sides, widest first.
    __device__ TwoSums joined() const {
        TwoSums sums[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) sums[i] = {first[i], second[i]};
#pragma unroll
        for (int half = OWN / 2; half > 0; half /= 2)
#pragma unroll
            for (int i = 0; i < half; ++i) sums[i] = both_sums(sums[i], sums[i + half]);
        return sums[0];
    }
};

// Calls `load(place in the batch, a member, how far behind it)` for the members of a unit whose lanes
// a thread has, a batch at a time, and then `add(place, lane of the thread)` for each. Only the last batch is looked
// through for its end: instructions decide.
template <int LANES, int OWN, int BATCH, typename Load, typename Add>
__device__ inline void for_each_member(
    long long start, long long stop, int row, Load load, Add add) {
    constexpr int APART = LANES / OWN;
    long long first = start + row;
    for (; first + (BATCH - 1) * APART < stop; first += BATCH * APART) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) load(i, first, i * APART);
#pragma unroll
        for (int i = 0; i < BATCH; ++i) add(i, i % OWN);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
        if (first + i * APART < stop) load(i, first, i * APART);
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
        if (first + i * APART < stop) add(i, i % OWN);
}

// The element of a member so many behind another; neighbours are a stride apart.
template <typename T>
__device__ inline T member(const T *of, long long first, int behind, long long stride) {
    return (of + first * stride)[behind * stride];
}

// MOMENTS: of x - K, K the first member of the unit, as `channel_reduction.cu` has it; a unit
// leaves its mean and sum of squared deviations. PRODUCTS: of scale * dy, and of
// scale * dy * (x - mean) * inverse; scale and inverse are 1 where they are null. With a MODE dy is
// that of an activation of what was normalised with `factor` and `bias`; sets are channels then.
//
// Neighbouring threads read neighbouring elements, whichever axis these lie along. ALONG: members
// do. A set has a warp, a lane each, which exchange sums without a barrier. Else sets do: a warp has
// 32 of them side by side, and a thread several lanes of one set.
template <typename T, bool PRODUCTS, int MODE, bool ALONG, typename D = T>
__global__ void __launch_bounds__(BLOCK_THREADS) set_partials(
    Sets geometry, const T *x, const D *dy, const Arithmetic<T> *mean,
    const Arithmetic<T> *inverse, const Arithmetic<T> *scale, const Arithmetic<T> *factor,
    const Arithmetic<T> *bias, double *partial, Arithmetic<T> coef) {
    using A = Arithmetic<T>;
    constexpr int LANES = 32, ROWS = ALONG ? LANES : BLOCK_THREADS / 32;
    constexpr int ACROSS = BLOCK_THREADS / ROWS, OWN = LANES / ROWS;
    constexpr int BATCH = ALONG ? 4 : 8;  // loads of a thread begun before the first is waited for
    __shared__ TwoSums shared[ALONG ? 1 : BLOCK_THREADS];
    const int row = ALONG ? threadIdx.x % ROWS : threadIdx.x / ACROSS;
    const int across = ALONG ? threadIdx.x / ROWS : threadIdx.x % ACROSS;
    const long long tiles = (geometry.sets + ACROSS - 1) / ACROSS;

    for (long long item = blockIdx.x; item < geometry.images * geometry.units * tiles;
         item += gridDim.x) {
        const long long part = divided(item, tiles);  // a unit of an image
        const long long set = (item - part * tiles) * ACROSS + across;
        const long long image = divided(part, geometry.units);
        const long long unit = part - image * geometry.units;
        const bool inside = set < geometry.sets;
        const long long start = unit * geometry.unit;
        const long long stop = min(start + geometry.unit, geometry.members);

        double center = 0;
        LaneSums<OWN> sums;
        if (inside) {
            const T *values = x + set_offset(geometry.x, image, set);
            if constexpr (PRODUCTS) {
                const D *gradients = dy + set_offset(geometry.dy, image, set);
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
                T of_x[BATCH];
                D of_dy[BATCH];
                A centers[BATCH], spreads[BATCH], factors[BATCH];
                const auto load = [&](int i, long long first, int behind) {
                    of_x[i] = member(values, first, behind, geometry.x.inner);
                    of_dy[i] = member(gradients, first, behind, geometry.dy.inner);
                    if (!is_one) centers[i] = member(mean + means, first, behind, geometry.mean.inner);
                    if (!is_one && inverse)
                        spreads[i] =
                            member(inverse + inverses, first, behind, geometry.inverse.inner);
                    if (scale)
                        factors[i] = member(scale + scales, first, behind, geometry.scale.inner);
                };
                for_each_member<LANES, OWN, BATCH>(start, stop, row, load, [&](int i, int lane) {
                    double weight = widen(of_dy[i]);
                    if constexpr (MODE != IDENTITY) {
                        const A above = A(widen(of_x[i])) - mean[means];
                        weight = gradient_before<T, MODE>(above * slope + shift, A(weight), coef);
                    }
                    if (!is_one) {
                        center_of_x = centers[i];
                        if (inverse) spread = spreads[i];
                    }
                    const double other = ((double)widen(of_x[i]) - center_of_x) * spread;
                    if (scale) weight *= (double)factors[i];
                    sums.first[lane] += weight;
                    sums.second[lane] = fma(weight, other, sums.second[lane]);
                });
            } else {
                // 0 where it is no number, so that one infinite x leaves the mean infinite.
                center = widen(values[start * geometry.x.inner]);
                if (!isfinite(center)) center = 0;
                T of_x[BATCH];
                const auto load = [&](int i, long long first, int behind) {
                    of_x[i] = member(values, first, behind, geometry.x.inner);
                };
                for_each_member<LANES, OWN, BATCH>(start, stop, row, load, [&](int i, int lane) {
                    const double other = (double)widen(of_x[i]) - center;
                    sums.first[lane] += other;
                    sums.second[lane] = fma(other, other, sums.second[lane]);
                });
            }
        }
        const TwoSums mine = sums.joined();
        TwoSums joined;
        if constexpr (ALONG)
            joined = join_warp(mine);
        else
            joined = join_threads(mine, shared, row * ACROSS + across, ACROSS, ROWS, both_sums);
        if (row > 0 || !inside) continue;
        double first = joined.first, second = joined.second;
        if constexpr (!PRODUCTS) {
            const double above = first / (double)(stop - start);
            const double squares = second - first * above;
            first = center + above;
            second = squares < 0 ? 0.0 : squares;  // rounding may take it below 0; NaN stays
        }
        partial[2 * part * geometry.sets + set] = first;
        partial[(2 * part + 1) * geometry.sets + set] = second;
    }
}

// PRODUCTS of channels that lie side by side, of which each site has a mean and an inverse: layer
// normalisation's, to the same bits as `set_partials`. A thread has COUNT channels of every 32nd
// member; a warp has members 8 apart, whose sums it exchanges. The last four operands are not read.
template <typename T, typename D, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) site_products(
    Sets geometry, const T *x, const D *dy, const Arithmetic<T> *mean,
    const Arithmetic<T> *inverse, const Arithmetic<T> *, const Arithmetic<T> *,
    const Arithmetic<T> *, double *partial, Arithmetic<T>) {
    using A = Arithmetic<T>;
    constexpr int LANES = 32, SETS = 32, ACROSS = SETS / COUNT, WARPS = BLOCK_THREADS / 32;
    constexpr int BATCH = 4;
    static_assert(ACROSS * LANES == BLOCK_THREADS, "a lane of the tree is a thread's");
    __shared__ TwoSums shared[WARPS][SETS];
    const int warp = threadIdx.x / 32, across = threadIdx.x % ACROSS;
    const int row = threadIdx.x % 32 / ACROSS * WARPS + warp;
    const long long tiles = (geometry.sets + SETS - 1) / SETS;

    for (long long item = blockIdx.x; item < geometry.images * geometry.units * tiles;
         item += gridDim.x) {
        const long long part = divided(item, tiles);  // a unit of an image
        const long long first_set = (item - part * tiles) * SETS;
        const long long set = first_set + across * COUNT;
        const long long image = divided(part, geometry.units);
        const long long start = (part - image * geometry.units) * geometry.unit;
        const long long stop = min(start + geometry.unit, geometry.members);

        double firsts[COUNT] = {}, seconds[COUNT] = {};
        if (set < geometry.sets) {
            const T *values = x + image * geometry.x.outer + set;
            const D *gradients = dy + image * geometry.dy.outer + set;
            const A *centers_of = mean + image * geometry.mean.outer;
            const A *spreads_of = inverse + image * geometry.inverse.outer;
            Pack<T, COUNT> of_x[BATCH];
            Pack<D, COUNT> of_dy[BATCH];
            A centers[BATCH], spreads[BATCH];
            const auto load = [&](int i, long long first, int behind) {
                const long long at = first + behind;
                of_x[i] = load_pack<COUNT>(values + at * geometry.x.inner, COUNT);
                of_dy[i] = load_pack<COUNT>(gradients + at * geometry.dy.inner, COUNT);
                centers[i] = centers_of[at * geometry.mean.inner];
                spreads[i] = spreads_of[at * geometry.inverse.inner];
            };
            for_each_member<LANES, 1, BATCH>(start, stop, row, load, [&](int i, int) {
                const double center = centers[i], spread = spreads[i];
#pragma unroll
                for (int c = 0; c < COUNT; ++c) {
                    const double weight = widen(of_dy[i].element[c]);
                    const double other = ((double)widen(of_x[i].element[c]) - center) * spread;
                    firsts[c] += weight;
                    seconds[c] = fma(weight, other, seconds[c]);
                }
            });
        }
        // members 16 apart, and 8: the widest steps of the tree
#pragma unroll
        for (int apart = 16; apart >= ACROSS; apart /= 2)
#pragma unroll
            for (int c = 0; c < COUNT; ++c) {
                firsts[c] += __shfl_xor_sync(0xffffffffu, firsts[c], apart);
                seconds[c] += __shfl_xor_sync(0xffffffffu, seconds[c], apart);
            }
        if (threadIdx.x % 32 < ACROSS)
#pragma unroll
            for (int c = 0; c < COUNT; ++c)
                shared[warp][across * COUNT + c] = {firsts[c], seconds[c]};
        __syncthreads();
        if (threadIdx.x < SETS && first_set + threadIdx.x < geometry.sets) {
            TwoSums sums[WARPS];
#pragma unroll
            for (int i = 0; i < WARPS; ++i) sums[i] = shared[i][threadIdx.x];
#pragma unroll
            for (int half = WARPS / 2; half > 0; half /= 2)
#pragma unroll
                for (int i = 0; i < half; ++i) sums[i] = both_sums(sums[i], sums[i + half]);
            const long long at = 2 * part * geometry.sets + first_set + threadIdx.x;
            partial[at] = sums[0].first;
            partial[at + geometry.sets] = sums[0].second;
        }
        __syncthreads();  // the next item overwrites what is shared
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
// memory as x or dy, if it is of their type: R is the result's, D that of dy.
template <typename T, int MODE, bool BACKWARD, int COUNT, typename R = T, typename D = T>
__global__ void __launch_bounds__(BLOCK_THREADS) normalise_sets(
    Elements geometry, R *result, const T *x, const D *dy, const Arithmetic<T> *scale,
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
        Pack<T, COUNT> values = load_pack<COUNT>(x + offset(geometry.x), left);
        Pack<D, COUNT> gradients = {};
        Pack<R, COUNT> results = {};
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
                results.element[i] = narrow<R>(spread * rest);
            } else {
                const A normal = above * (scale[c] * spread) + bias[c];
                results.element[i] = narrow<R>(activation<MODE, R>(normal, coef));
            }
        }
        store_pack<COUNT>(result + offset(geometry.result), results, left);
    }
}

// Sites whose channels lie side by side: sizes, and strides (image, site, channel) in elements.
struct Sites {
    long long images, sites, members;
    Axes dx, x, dy;
};

// dx of layer normalisation, as `normalise_sets` makes it from the sums of sites, in one pass: a warp
// sums up a site as `set_partials` does, to the same bits, and has its elements in registers: KEPT of
// x, dy and scale a lane; of more channels none, which are read again. The result may be the same
// memory as x, or as dy if D, the type of that, is T.
template <typename T, int KEPT, typename D = T>
__global__ void __launch_bounds__(BLOCK_THREADS) normalise_sites_backward(
    Sites geometry, T *dx, const T *x, const D *dy, const Arithmetic<T> *scale,
    const Arithmetic<T> *mean, const Arithmetic<T> *inverse, double share) {
    using A = Arithmetic<T>;
    constexpr int LANES = 32, ACROSS = BLOCK_THREADS / LANES, HELD = KEPT > 0 ? KEPT : 1;
    const int lane = threadIdx.x % LANES;
    const long long members = geometry.members;
    A scales[HELD];
    if constexpr (KEPT > 0) {
#pragma unroll
        for (int i = 0; i < KEPT; ++i)
            scales[i] = lane + i * LANES < members ? scale[lane + i * LANES] : A(0);
    }
    for (long long site = (long long)blockIdx.x * ACROSS + threadIdx.x / LANES;
         site < geometry.images * geometry.sites; site += (long long)gridDim.x * ACROSS) {
        const long long image = divided(site, geometry.sites);
        const long long middle = site - image * geometry.sites;
        const T *values = x + set_offset(geometry.x, image, middle);
        const D *gradients = dy + set_offset(geometry.dy, image, middle);
        T *results = dx + set_offset(geometry.dx, image, middle);
        const A center = mean[site], spread = inverse[site];
        T held_x[HELD];
        D held_dy[HELD];
        double first = 0, second = 0;
        const auto add = [&](T value, D gradient, A factor) {
            const double weight = (double)widen(gradient) * (double)factor;
            first += weight;
            second = fma(weight, ((double)widen(value) - (double)center) * (double)spread, second);
        };
        if constexpr (KEPT > 0) {
#pragma unroll
            for (int i = 0; i < KEPT; ++i) {
                const bool is_there = lane + i * LANES < members;
                held_x[i] = is_there ? values[lane + i * LANES] : narrow<T>(A(0));
                held_dy[i] = is_there ? gradients[lane + i * LANES] : narrow<D>(A(0));
            }
#pragma unroll
            for (int i = 0; i < KEPT; ++i)
                if (lane + i * LANES < members) add(held_x[i], held_dy[i], scales[i]);
        } else {
#pragma unroll 4
            for (long long at = lane; at < members; at += LANES)
                add(values[at], gradients[at], scale[at]);
        }
        const TwoSums sums = join_warp({first, second});
        const A level = A(sums.first * share), slope = A(sums.second * share);
        const auto result = [&](T value, D gradient, A factor) {
            const A above = A(widen(value)) - center;
            const A rest = factor * A(widen(gradient)) - level - above * (slope * spread);
            return narrow<T>(spread * rest);
        };
        if constexpr (KEPT > 0) {
#pragma unroll
            for (int i = 0; i < KEPT; ++i)
                if (lane + i * LANES < members)
                    results[lane + i * LANES] = result(held_x[i], held_dy[i], scales[i]);
        } else {
#pragma unroll 4
            for (long long at = lane; at < members; at += LANES)
                results[at] = result(values[at], gradients[at], scale[at]);
        }
    }
}
