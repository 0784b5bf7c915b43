// Columns that a window sees, as channels: what a convolution of few channels reads instead of its
// image. Tensor cores take channels by eights, and few of these are zeros then.
// x is channels-last, so of one row the taps of a site are one run of elements: y[row][site] is
// x[row][site * step - before, ...], `taps` of them, zeros where that is outside of the row, and
// zeros up to a multiple of a pack.
//
// Memory traffic: y is written once, x read once from memory (neighbours overlap in the caches).

#include "strided.cuh"

struct Columns {
    long long packs;           // of y
    int row_packs, site_packs; // of a row of y, and of one of its sites
    int width;                 // elements of a row of x
    int step, before;          // from site to site, and of zeros before a row, in elements
    int taps;                  // elements that a site sees
};

template <typename Word, int COUNT>
__global__ void __launch_bounds__(BLOCK_THREADS) unfold_columns(
    Columns columns, Word *y, const Word *x) {
    const long long stride = (long long)gridDim.x * blockDim.x;
    long long pack = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; pack < columns.packs; pack += stride) {
        const long long row = (unsigned long long)pack / columns.row_packs;
        const int in_row = (int)(pack - row * columns.row_packs);
        const int site = in_row / columns.site_packs;
        const int tap = (in_row - site * columns.site_packs) * COUNT;
        const int first = site * columns.step - columns.before + tap;
        const Word *source = x + row * columns.width;
        Pack<Word, COUNT> seen = {};
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (tap + i < columns.taps && (unsigned)(first + i) < (unsigned)columns.width)
                seen.element[i] = source[first + i];
        store_pack<COUNT>(y + pack * COUNT, seen, COUNT);
    }
}
