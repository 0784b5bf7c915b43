"""Pooling on the host, box by box; its gradient is in `pooling_gradient.py`.

A window's maximum or sum is taken along one axis after the other, and along each by taps or by
windows, whichever are fewer: a window of a million elements costs no million steps.
"""

from __future__ import annotations

import itertools
import math
from operator import add
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner, arithmetic_dtype, chunks
from ooc_cudnn.devices.host.pooling_geometry import divisors, filled_like, seen_range
from ooc_cudnn.devices.host.pooling_gradient import pooling_backward
from ooc_cudnn.operations.core.ranges import Range, valid_indices, valid_positions
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward
from ooc_cudnn.operations.pooling.indices import NOWHERE, PoolingIndices


def pooling(operation: Pooling, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Write y; each box of it reads the part of x that its windows see."""
    (x,) = inputs
    if output.size == 0:
        return
    dtype = arithmetic_dtype(operation.dtype)
    # The longest windows first: what is left of x then is no longer large.
    order = sorted(range(len(operation.window)), key=lambda axis: -operation.window[axis])
    for box in chunks(output, _box_elements(operation)):
        part = x[box[:2]]
        starts = [0] * len(order)  # where `part` begins, along each axis of x
        for axis in range(len(order)):
            low, high = seen_range(operation, axis, (box[2 + axis].start, box[2 + axis].stop))
            part = part[(slice(None),) * (2 + axis) + (slice(low, high),)]
            starts[axis] = low
        for axis in order:
            outputs = (box[2 + axis].start, box[2 + axis].stop)
            part = _pool_axis(operation, part, axis, starts[axis], outputs, dtype)
        if not operation.is_max:
            part /= divisors(operation, box, dtype)
        np.copyto(output[box], part, casting="unsafe")


def _box_elements(operation: Pooling) -> int:
    """Elements of y of one box, so that what its windows see of x is about a chunk."""
    ratio = math.prod(operation.x_shape) / max(1, math.prod(operation.output_shape))
    return max(1, int(host_chunks.CHUNK_ELEMENTS / max(1.0, ratio)))


def _pool_axis(
    operation: Pooling, part: Array, axis: int, start: int, outputs: Range, dtype: np.dtype[Any]
) -> Array:
    """Take the windows' maximum or sum along one axis; `part` begins at `start` of x."""
    ufunc, empty = (np.maximum, -np.inf) if operation.is_max else (np.add, 0.0)
    stride, k = operation.stride[axis], operation.window[axis]
    extent, count = part.shape[2 + axis], outputs[1] - outputs[0]
    first = outputs[0] * stride - operation.padding[axis][0] - start  # of the first window
    shape = list(part.shape)
    shape[2 + axis] = count
    result = filled_like(part, shape, empty, dtype)
    lead: tuple[Any, ...] = (slice(None),) * (2 + axis)
    if count < k:
        for window in range(count):
            low, high = max(0, first + window * stride), min(extent, first + window * stride + k)
            if high > low:
                into = result[(*lead, window)]
                if ufunc is np.add:
                    np.add.reduce(part[(*lead, slice(low, high))], axis=2 + axis, out=into,
                                  dtype=dtype)  # fmt: skip
                else:
                    into[...] = np.maximum.reduce(part[(*lead, slice(low, high))], axis=2 + axis)
        return result
    for tap in range(k):
        targets, sources = valid_positions(first + tap, stride, extent, count)
        into = result[(*lead, targets)]
        if into.size:
            ufunc(into, part[(*lead, sources)], out=into)
    return result


def pooling_indices(
    operation: PoolingIndices, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write where each window's maximum is, tap by tap, and the maximum."""
    (x, y), forward = inputs, operation.forward
    axes = range(len(forward.window))
    for box in chunks(output, _box_elements(forward)):
        ranges = [
            seen_range(forward, axis, (box[2 + axis].start, box[2 + axis].stop)) for axis in axes
        ]
        part = x[(*box[:2], *(slice(*range_) for range_ in ranges))]
        firsts = [
            box[2 + a].start * forward.stride[a] - forward.padding[a][0] - ranges[a][0]
            for a in axes
        ]
        shape = [b.stop - b.start for b in box]
        best = filled_like(output, shape, -np.inf, arithmetic_dtype(operation.dtype))
        known = np.zeros_like(best, dtype=bool)
        indices = np.zeros_like(best, dtype=np.uint8)
        for number, taps in enumerate(itertools.product(*(range(k) for k in forward.window))):
            outputs, places = valid_indices(
                map(add, firsts, taps), forward.stride, part.shape[2:], shape[2:]
            )
            value, old = part[places], best[outputs]
            better = ~known[outputs] | (value > old) | (np.isnan(value) & ~np.isnan(old))
            np.copyto(old, value, where=better, casting="unsafe")
            np.copyto(indices[outputs], np.uint8(number), where=better)
            known[outputs] = True
        if operation.positive:
            np.copyto(indices, np.uint8(NOWHERE), where=~(best > 0))
        output[box] = indices
        if y is not None:
            np.copyto(y[box], best, casting="unsafe")


RUNNERS: dict[type, Runner] = {
    Pooling: pooling,
    PoolingBackward: pooling_backward,
    PoolingIndices: pooling_indices,
}
