"""Convolution on the host: blocks of rows gathered into columns, and one matrix product each.

The columns of a block (Caffe's im2col) fit the caches; the product is BLAS. All scratch memory is
the workspace that the plan counted, so the arena's limit holds for it too.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.devices.helpers import helpers
from ooc_cudnn.devices.host.chunks import Array, arithmetic_dtype
from ooc_cudnn.devices.host.stable_matmul import product, spare_elements
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.ranges import valid_positions

#: Columns of one block: about a second-level cache.
BLOCK_BYTES = 2097152
SMALLEST_BLOCK_BYTES = 2**18
MOST_WORKERS = 8
#: Work that outweighs handing a share to another thread (some 50 microseconds).
WORTH_A_WORKER_FLOPS = 10_000_000


def _block_sites(operation: Convolution) -> int:
    """Output sites of one block, a multiple of the innermost rows where these are short."""
    item = arithmetic_dtype(operation.dtype).itemsize
    depth = math.prod(operation.w_shape[1:])
    # Scratch no larger than the piece itself: under a tight limit it would crowd the pieces out.
    piece = item * (math.prod(operation.x_shape) + math.prod(operation.output_shape))
    block_bytes = max(SMALLEST_BLOCK_BYTES, min(BLOCK_BYTES, piece // _workers(operation)))
    sites = max(1, block_bytes // (item * (depth + operation.w_shape[0] // operation.groups)))
    return min(sites, max(1, math.prod(operation.output_shape[2:])))


def _workers(operation: Convolution) -> int:
    """Threads that compute blocks side by side: one a core, where there is work for them.

    Of images (or groups) that are small, threads would mostly wait for each other's Python: two
    then take twice as long as one.
    """
    flops = 2 * math.prod(operation.output_shape) * math.prod(operation.w_shape[1:])
    products = max(1, operation.x_shape[0] * operation.groups)
    if flops < products * WORTH_A_WORKER_FLOPS:
        return 1
    return max(1, min(os.cpu_count() or 1, MOST_WORKERS, int(flops // WORTH_A_WORKER_FLOPS)))


def workspace_bytes(operation: Convolution) -> int:
    """Scratch bytes: the filter in the arithmetic type; each worker's columns and product.

    >>> workspace_bytes(Convolution.of((1, 1, 4, 4), (1, 1, 3, 3)))
    196
    """
    item = arithmetic_dtype(operation.dtype).itemsize
    depth, c_y = math.prod(operation.w_shape[1:]), operation.w_shape[0]
    block = _block_sites(operation) * (depth + c_y // operation.groups)
    block += spare_elements(c_y // operation.groups, depth, deterministic=operation.deterministic)
    return item * (math.prod(operation.w_shape) + _workers(operation) * block)


def convolve(
    operation: Convolution,
    x: Array,
    w: Array,
    y: Array,
    workspace: Array,
    *,
    padding_is_zeros: bool = True,
) -> None:
    """Write the convolution of x with w to y; any strides, any of the library's dtypes.

    Parameters
    ----------
    workspace : array of uint8
        At least `workspace_bytes` long.
    padding_is_zeros : bool
        Whether padding is zeros, of which each is multiplied: by an infinite weight that gives NaN.
        Else what lies outside x is no part of the sum.
    """
    if 0 in y.shape:
        return
    dtype = arithmetic_dtype(operation.dtype)
    scratch = workspace[: workspace_bytes(operation)].view(dtype)
    filters = scratch[: w.size].reshape(w.shape)
    np.copyto(filters, w, casting="unsafe")
    by_taps = not padding_is_zeros and not np.isfinite(filters).all()
    workers = _workers(operation)
    blocks = list(_blocks(operation.output_shape[2:], _block_sites(operation), workers))
    boxes = list(itertools.product(range(x.shape[0]), blocks))
    shares = scratch[w.size :].reshape(workers, -1)

    def work(at: int) -> None:
        _convolve_boxes(operation, x, filters, y, boxes[at::workers], shares[at], by_taps=by_taps)

    helpers.share(work, workers)


@np.errstate(all="ignore")  # not inherited by other threads
def _convolve_boxes(
    operation: Convolution,
    x: Array,
    filters: Array,
    y: Array,
    boxes: list[tuple[int, tuple[tuple[int, int], ...]]],
    scratch: Array,
    *,
    by_taps: bool,
) -> None:
    """Compute some boxes of the output, one after the other, in scratch memory of their own."""
    groups, depth = operation.groups, math.prod(operation.w_shape[1:])
    per_group, c_x = operation.w_shape[0] // groups, operation.w_shape[1]
    matrix = filters.reshape(groups, per_group, depth)
    sites = _block_sites(operation)
    columns, results, spare = np.split(scratch, np.cumsum([depth, per_group]) * sites)
    for image, box in boxes:
        interrupts.hear()
        shape = tuple(stop - start for start, stop in box)
        count = math.prod(shape)
        gathered = columns[: depth * count].reshape(depth, count)
        result = results[: per_group * count].reshape(per_group, count)
        window = tuple(slice(start, stop) for start, stop in box)
        for group in range(groups):
            seen = x[image, group * c_x : (group + 1) * c_x]
            if by_taps:
                taps = matrix[group].reshape(per_group, c_x, -1)
                _sum_taps(operation, seen, taps, box, result.reshape(per_group, *shape))
            else:
                _gather(operation, seen, box, gathered.reshape(c_x, -1, *shape))
                product(matrix[group], gathered, result, spare)
            channels = slice(group * per_group, (group + 1) * per_group)
            inside: tuple[Any, ...] = (image, channels, *window)
            np.copyto(y[inside], result.reshape(per_group, *shape), casting="unsafe")


def _blocks(
    extents: tuple[int, ...], sites: int, shares: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cut the output sites into boxes of at most `sites`, a range for each axis.

    The outermost axis that is cut is cut evenly, into a multiple of `shares` where it is long
    enough: no worker waits for another's last box.

    >>> list(_blocks((10, 4), 12, 2))
    [((0, 2), (0, 4)), ((2, 5), (0, 4)), ((5, 7), (0, 4)), ((7, 10), (0, 4))]
    """
    counts, room = [], sites
    for extent in reversed(extents):
        size = max(1, min(extent, room))
        counts.append(-(-extent // size))
        room //= size
    counts.reverse()
    outermost = next((at for at, count in enumerate(counts) if count > 1), 0)
    counts[outermost] = min(extents[outermost], -(-counts[outermost] // shares) * shares)
    axes = [
        [(at * extent // count, (at + 1) * extent // count) for at in range(count)]
        for extent, count in zip(extents, counts, strict=True)
    ]
    yield from itertools.product(*axes)


def _gather(
    operation: Convolution,
    x: Array,
    box: tuple[tuple[int, int], ...],
    columns: Array,
) -> None:
    """Fill columns (cX, window sites, box...) with the inputs that the box's outputs see.

    Where the outer axes see no padding, one copy takes all their taps at once.
    """
    window, shape = operation.w_shape[2:], columns.shape[2:]
    first = [
        start * stride - padding[0]
        for (start, _), stride, padding in zip(
            box, operation.stride, operation.padding, strict=True
        )
    ]
    inside_axis = [
        low >= 0 and low + (count - 1) * stride + (k - 1) * dilation < extent
        for low, count, stride, k, dilation, extent in zip(
            first, shape, operation.stride, window, operation.dilation, x.shape[1:], strict=True
        )
    ]
    grid = columns.reshape(x.shape[0], *window, *shape)
    if all(inside_axis):
        np.copyto(grid, _windows(operation, x, first, grid.shape), casting="unsafe")
        return
    if all(inside_axis[:-1]):
        stride, dilation = operation.stride[-1], operation.dilation[-1]
        for tap in range(window[-1]):
            begin = first[-1] + tap * dilation  # of the first output of the row
            sites, source = valid_positions(begin, stride, x.shape[-1], shape[-1])
            part = np.moveaxis(grid, len(window), 0)[tap][..., None, :]
            part[..., : sites.start] = 0
            part[..., sites.stop :] = 0
            if sites.stop > sites.start:
                begins = [*first[:-1], source.start]
                seen = (x.shape[0], *window[:-1], 1, *shape[:-1], sites.stop - sites.start)
                target = np.moveaxis(part[..., sites], -2, len(window))
                np.copyto(target, _windows(operation, x, begins, seen), casting="unsafe")
        return
    for number, inside, source in _taps(operation, x, box):
        column = columns[:, number]
        target = column[inside]
        if target.size < column.size:
            column[...] = 0
        if target.size:
            np.copyto(target, x[source], casting="unsafe")


def _taps(
    operation: Convolution, x: Array, box: tuple[tuple[int, int], ...]
) -> Iterator[tuple[int, Any, Any]]:
    """Each tap: its number, the sites of a box (all channels) through which it falls on x, where.

    The sites are counted from the box's first.
    """
    for number, taps in enumerate(itertools.product(*(range(k) for k in operation.w_shape[2:]))):
        inside, source = [slice(None)], [slice(None)]
        for axis, (start, stop) in enumerate(box):
            stride = operation.stride[axis]
            offset = taps[axis] * operation.dilation[axis] - operation.padding[axis][0]
            sites, places = valid_positions(
                start * stride + offset, stride, x.shape[axis + 1], stop - start
            )
            inside.append(sites)
            source.append(places)
        yield number, tuple(inside), tuple(source)


def _sum_taps(
    operation: Convolution, x: Array, w: Array, box: tuple[tuple[int, int], ...], result: Array
) -> None:
    """Compute a box tap by tap, of those that fall on x: slow, for weights that are infinite."""
    result[...] = 0
    for number, inside, source in _taps(operation, x, box):
        seen = x[source]
        if seen.size:
            columns = seen.astype(result.dtype).reshape(len(seen), -1)
            part = np.matmul(w[:, :, number], columns)
            result[inside] += part.reshape(len(part), *seen.shape[1:])


def _windows(operation: Convolution, x: Array, begins: list[int], shape: tuple[int, ...]) -> Array:
    """View x as (cX, window..., sites...), from the given place on; every element exists."""
    corner = x[(slice(None), *(slice(begin, None) for begin in begins))]
    steps = x.strides[1:]
    return np.lib.stride_tricks.as_strided(
        corner,
        shape,
        (
            x.strides[0],
            *(step * d for step, d in zip(steps, operation.dilation, strict=True)),
            *(step * d for step, d in zip(steps, operation.stride, strict=True)),
        ),
        writeable=False,
    )
