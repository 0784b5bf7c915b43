// What is made of runs of neighbours that vary: adaptive pooling, and nearest neighbours at places
// that are rounded to float32.
//
//     resample               y from x: the weighted sum, or the largest, of a run along every axis
//     resample_gradient      dx of a sum from dy: gathered over the outputs that see an element
//     resample_max_gradient  dx of a maximum from y, dy and x, gathered in the same way
//
// Where each output is one element of x, as it is, gather_*.cu are faster; interpolation.cu has what
// lies between two.
//
// Memory traffic: each result is written once. An operand is read once for each element that needs it:
// what neighbours share, from the caches.
// It reaches
// float32 2 to 77 %, float16 1 to 56 % of a copy's speed on an H100 (docs/kernels.md).
//
// A thread makes one element. Places are 64-bit integers, computed as operations/resampling/axis_windows.py has
// them: the host chose by the same arithmetic which part of x is at hand.

#include "pooling.cuh"

enum Kind { NEAREST = 0, WINDOWS = 1 };

// One axis of the whole tensors: `extent` of x, `count` of y. Axes that are not there have 1 and 1.
struct Axis {
    long long extent, count;
    long long step, per, reach, before, after;
    double scale;                               // of NEAREST
};

struct Resampling {
    long long a, b, lanes;
    Extents<long long> made, first;  // spatial sizes of what is made, and where it begins
    Extents<long long> begins[3];    // where each operand begins
    Strides<long long> result, operand[3];
    Axis axis[3];
    long long total;
};

// The elements of x in output o, and what their weights are made of.
struct Run {
    long long start, stop;
    long long divisor;  // WINDOWS
};

// As floor_quotient, and in 32 bits where the numbers allow it.
__device__ inline long long rounded_down(long long a, long long b) {
    return a >= 0 ? quotient(a, b) : -quotient(-a + b - 1, b);
}

template <int KIND>
__device__ inline Run run_of(const Axis &axis, long long o) {
    Run run;
    run.divisor = 1;
    if constexpr (KIND == NEAREST) {
        const long long at = (long long)floorf(__fmul_rn((float)o, (float)axis.scale));
        run.start = least(at, axis.extent - 1);
        run.stop = run.start + 1;
    } else {
        const long long at = o * axis.step;
        const long long start = rounded_down(at, axis.per) - axis.before;
        const long long stop = -rounded_down(-(at + axis.reach), axis.per) - axis.before;
        run.divisor = least(stop, axis.extent + axis.after) - start;
        run.start = least(most(start, 0LL), axis.extent);
        run.stop = most(run.start, least(most(stop, 0LL), axis.extent));
    }
    return run;
}

// What element i of a run counts in its output.
template <int KIND, typename A>
__device__ inline A weight(const Run &run, long long i) {
    if constexpr (KIND == NEAREST) return A(1);
    return A(1) / A(run.divisor);
}

// The outputs [first, end) that see element i of x. A guess, put right step by step: where runs begin
// and end never decreases from one output to the next.
struct Outputs {
    long long first, end;
};

template <int KIND>
__device__ inline Outputs outputs_of(const Axis &axis, long long i) {
    double guess = 0;
    if constexpr (KIND == NEAREST) guess = axis.scale > 0 ? i / axis.scale : 0;
    else if (axis.step > 0)
        guess = ((double)(i + axis.before) * axis.per - axis.reach) / axis.step;
    Outputs found;
    found.first = guess > 0 ? least((long long)guess, axis.count) : 0;
    while (found.first > 0 && run_of<KIND>(axis, found.first - 1).stop > i) --found.first;
    while (found.first < axis.count && run_of<KIND>(axis, found.first).stop <= i) ++found.first;
    found.end = found.first;
    while (found.end < axis.count && run_of<KIND>(axis, found.end).start <= i) ++found.end;
    return found;
}

// Where a thread's element is: its place in what is made (from `first` on), and in memory.
struct Element {
    long long a, b, lane, d, h, w, offset;

    __device__ Element(const Resampling &g, long long i) {
        lane = take(i, g.lanes);
        w = take(i, g.made.w), h = take(i, g.made.h), d = take(i, g.made.d);
        b = take(i, g.b), a = i;
        offset = at_offset(g.result, a, b, d, h, w, lane);
        d += g.first.d, h += g.first.h, w += g.first.w;
    }
};

// An operand's memory for this element's image and channel, such that places count from 0.
template <typename T>
__device__ inline const T *plane(
    const Resampling &g, const Element &at, int operand, const T *memory) {
    const Strides<long long> &s = g.operand[operand];
    const Extents<long long> &begins = g.begins[operand];
    return memory + at_offset(s, at.a, at.b, -begins.d, -begins.h, -begins.w, at.lane);
}

template <typename T>
__device__ inline Arithmetic<T> value_at(
    const Strides<long long> &s, const T *plane, long long d, long long h, long long w) {
    return widen(plane[d * s.d + h * s.h + w * s.w]);
}

template <typename T, int KIND, bool IS_MAX>
__global__ void __launch_bounds__(BLOCK_THREADS) resample(
    Resampling g, T *__restrict__ y, const T *__restrict__ x, Arithmetic<T> empty) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        const Element at(g, i);
        const Run d = run_of<KIND>(g.axis[0], at.d);
        const Run h = run_of<KIND>(g.axis[1], at.h);
        const Run w = run_of<KIND>(g.axis[2], at.w);
        const T *source = plane(g, at, 0, x);
        A total = IS_MAX ? negative_infinity<A>() : A(0);
        for (long long id = d.start; id < d.stop; ++id)
            for (long long ih = h.start; ih < h.stop; ++ih) {
                const A share = weight<KIND, A>(d, id) * weight<KIND, A>(h, ih);
                for (long long iw = w.start; iw < w.stop; ++iw) {
                    const A value = value_at(g.operand[0], source, id, ih, iw);
                    if constexpr (IS_MAX) total = larger(total, value);
                    else total += share * weight<KIND, A>(w, iw) * value;
                }
            }
        const bool is_empty = d.start >= d.stop || h.start >= h.stop || w.start >= w.stop;
        y[at.offset] = narrow<T>(is_empty ? empty : total);
    }
}

template <typename T, int KIND>
__global__ void __launch_bounds__(BLOCK_THREADS) resample_gradient(
    Resampling g, T *__restrict__ dx, const T *__restrict__ dy) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        const Element at(g, i);
        const Outputs d = outputs_of<KIND>(g.axis[0], at.d);
        const Outputs h = outputs_of<KIND>(g.axis[1], at.h);
        const Outputs w = outputs_of<KIND>(g.axis[2], at.w);
        const T *source = plane(g, at, 0, dy);
        A total = 0;
        for (long long od = d.first; od < d.end; ++od) {
            const A of_d = weight<KIND, A>(run_of<KIND>(g.axis[0], od), at.d);
            for (long long oh = h.first; oh < h.end; ++oh) {
                const A share = of_d * weight<KIND, A>(run_of<KIND>(g.axis[1], oh), at.h);
                for (long long ow = w.first; ow < w.end; ++ow)
                    total += share * weight<KIND, A>(run_of<KIND>(g.axis[2], ow), at.w) *
                             value_at(g.operand[0], source, od, oh, ow);
            }
        }
        dx[at.offset] = narrow<T>(total);
    }
}

// Whether an element before (id, ih, iw), in row-major order, is the largest of its window, too.
template <typename T>
__device__ inline bool is_later(
    const Resampling &g, const T *x, Arithmetic<T> largest, const Run &d, const Run &h,
    const Run &w, const Element &at) {
    for (long long id = d.start; id <= at.d; ++id)
        for (long long ih = h.start; ih < (id < at.d ? h.stop : at.h + 1); ++ih)
            for (long long iw = w.start; iw < (id < at.d || ih < at.h ? w.stop : at.w); ++iw)
                if (same_value(value_at(g.operand[2], x, id, ih, iw), largest)) return true;
    return false;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK_THREADS) resample_max_gradient(
    Resampling g, T *__restrict__ dx, const T *__restrict__ y, const T *__restrict__ dy,
    const T *__restrict__ x) {
    using A = Arithmetic<T>;
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < g.total; i += step) {
        const Element at(g, i);
        const Outputs d = outputs_of<WINDOWS>(g.axis[0], at.d);
        const Outputs h = outputs_of<WINDOWS>(g.axis[1], at.h);
        const Outputs w = outputs_of<WINDOWS>(g.axis[2], at.w);
        const T *of_y = plane(g, at, 0, y), *of_dy = plane(g, at, 1, dy), *of_x = plane(g, at, 2, x);
        const A own = value_at(g.operand[2], of_x, at.d, at.h, at.w);
        A total = 0;
        for (long long od = d.first; od < d.end; ++od)
            for (long long oh = h.first; oh < h.end; ++oh)
                for (long long ow = w.first; ow < w.end; ++ow) {
                    const A largest = value_at(g.operand[0], of_y, od, oh, ow);
                    if (same_value(own, largest) &&
                        !is_later(
                            g, of_x, largest, run_of<WINDOWS>(g.axis[0], od),
                            run_of<WINDOWS>(g.axis[1], oh), run_of<WINDOWS>(g.axis[2], ow), at))
                        total += value_at(g.operand[1], of_dy, od, oh, ow);
                }
        dx[at.offset] = narrow<T>(total);
    }
}
