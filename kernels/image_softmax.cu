// Softmax over all elements of each image, in sweeps: what is found of one part of the images
// (`image_peaks`, `image_sums`) is kept as float64 states, merged with that of others, and then
// used on every part (`image_outcomes`). softmax_steps.cuh says what is computed.
//
// Memory traffic: forward reads x twice and writes y; backward reads y and dy twice (of the logarithm
// y once) and writes dx. The second time is another launch, so what is larger than the cache is read
// from memory again.
// It reaches
// float32 88 to 99 %, float16 78 to 97 % of a copy's speed on an H100 (docs/kernels.md).
//
// Groups are images. Each block reduces a part of one image; where an image has several parts,
// `join_image_peaks` and `join_image_sums` join them, in an order that depends on shapes alone.

#include "softmax_steps.cuh"

// (maximum m, sum of exp(x - m)) of each part: [images][parts][2]. NaN in both where there is a NaN
// or +infinity, (-infinity, 0) where there is nothing but -infinity.
template <typename A>
__device__ inline void store_peak(double *destination, const Peak<A> &peak) {
    destination[0] = isnan(peak.sum) ? peak.sum : peak.m;
    destination[1] = peak.sum;
}

// The states of whole images may be NaN; the larger one passes over it, and the sum does not.
__device__ inline Peak<double> load_peak(const double *source) { return {source[0], source[1]}; }

template <typename T, int COUNT, int UNROLL, bool UNROLL_ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS) image_peaks(
    GroupWalk<1> walk, const T *x, double *parts) {
    using A = Arithmetic<T>;
    __shared__ Peak<A> shared[BLOCK_THREADS];
    const int place = threadIdx.y * blockDim.x + threadIdx.x;
    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;
        Peak<A> peak = {minus_infinity<A>(), 0};
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            const GroupTile<1, COUNT, UNROLL, UNROLL_ROWS, false> at(walk, group, tile);
            Pack<T, COUNT> packs[UNROLL];
            at.load(packs, x, 0);
            A values[UNROLL * COUNT];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < COUNT; ++i)
                    values[u * COUNT + i] =
                        at.has(u, i) ? A(widen(packs[u].element[i])) : minus_infinity<A>();
            extend<T>(peak, values);
        }
        peak = join_threads(
            peak, shared, place, 1, blockDim.x * blockDim.y, join_peaks<A>);
        if (place == 0) store_peak(parts + 2 * (group * walk.parts + part), peak);
    }
}

// Sums of y * dy, or for LOG_BACKWARD of dy (y is not read): [images][parts].
template <typename T, int TASK, int COUNT, int UNROLL, bool UNROLL_ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS) image_sums(
    GroupWalk<2> walk, const T *y, const T *dy, double *parts) {
    __shared__ double shared[BLOCK_THREADS];
    const int place = threadIdx.y * blockDim.x + threadIdx.x;
    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;
        double sums[2] = {};
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            const GroupTile<2, COUNT, UNROLL, UNROLL_ROWS, false> at(walk, group, tile);
            Pack<T, COUNT> packs[UNROLL], others[UNROLL];  // 0 where nothing is
            if constexpr (TASK != LOG_BACKWARD) at.load(packs, y, 0);
            at.load(others, dy, 1);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u)
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const double b = widen(others[u].element[i]);
                    double &sum = sums[(u * COUNT + i) % 2];
                    if constexpr (TASK == LOG_BACKWARD) sum += b;
                    else sum = fma((double)widen(packs[u].element[i]), b, sum);
                }
        }
        const double sum = join_threads(
            sums[0] + sums[1], shared, place, 1, blockDim.x * blockDim.y, sum_of_two);
        if (place == 0) parts[group * walk.parts + part] = sum;
    }
}

struct ImageParts {
    long long images, parts;
};

// One block an image. They are templates so that what is not used is not compiled.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) join_image_peaks(
    ImageParts geometry, double *state, const double *parts) {
    const long long count = geometry.parts;
    __shared__ Peak<double> shared[THREADS];
    for (long long image = blockIdx.x; image < geometry.images; image += gridDim.x) {
        Peak<double> peak = {minus_infinity<double>(), 0};
        for (long long part = threadIdx.x; part < count; part += THREADS)
            peak = join_peaks(peak, load_peak(parts + 2 * (image * count + part)));
        peak = join_threads(peak, shared, threadIdx.x, 1, THREADS, join_peaks<double>);
        if (threadIdx.x == 0) store_peak(state + 2 * image, peak);
    }
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) join_image_sums(
    ImageParts geometry, double *state, const double *parts) {
    const long long count = geometry.parts;
    __shared__ double shared[THREADS];
    for (long long image = blockIdx.x; image < geometry.images; image += gridDim.x) {
        double sum = 0;
        for (long long part = threadIdx.x; part < count; part += THREADS)
            sum += parts[image * count + part];
        sum = join_threads(sum, shared, threadIdx.x, 1, THREADS, sum_of_two);
        if (threadIdx.x == 0) state[image] = sum;
    }
}

// The second sweep. `state` is (maximum, sum) of each image, or backward the sum.
template <typename T, int TASK, int COUNT, int UNROLL, bool UNROLL_ROWS>
__global__ void __launch_bounds__(BLOCK_THREADS) image_outcomes(
    GroupWalk<3> walk, T *result, const T *first, const T *second, const double *state) {
    using A = Arithmetic<T>;
    constexpr bool BACKWARD = !FORWARD<TASK>;
    for (long long item = blockIdx.x; item < walk.groups * walk.parts; item += gridDim.x) {
        const long long part = divided(item, walk.groups), group = item - part * walk.groups;
        const A m = BACKWARD ? A(0) : A(state[2 * group]);
        const A total = A(prepared<TASK>(BACKWARD ? state[group] : state[2 * group + 1]));
        for (long long tile = part; tile < walk.tiles; tile += walk.parts) {
            const GroupTile<3, COUNT, UNROLL, UNROLL_ROWS, false> at(walk, group, tile);
            Pack<T, COUNT> packs[UNROLL], others[BACKWARD ? UNROLL : 1];
            at.load(packs, first, 1);
            if constexpr (BACKWARD) at.load(others, second, 2);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
                    const A a = widen(packs[u].element[i]);
                    const A b = BACKWARD ? widen(others[BACKWARD ? u : 0].element[i]) : A(0);
                    const A term = TASK == ACCURATE ? exponential_for<T>(a - m) : A(0);
                    packs[u].element[i] = narrow<T>(outcome<T, TASK>(a, b, term, m, total));
                }
                if (at.available[u] > 0)
                    store_pack<COUNT>(result + at.offset[0][u], packs[u], at.available[u]);
            }
        }
    }
}
