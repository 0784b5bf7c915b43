"""The gradient of a pooling on the host, box by box of dx.

Of a box, the windows that reach it are looked at tap by tap, all windows at once. Where windows are
huge and few, a maximum is searched for window by window instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from operator import add
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import (
    Array,
    Box,
    Inputs,
    arithmetic_dtype,
    chunks,
    kept_where,
)
from ooc_cudnn.devices.host.pooling_geometry import divisors, filled_like, seen_range
from ooc_cudnn.operations.core.ranges import Range, valid_indices, valid_positions
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.gradient import PoolingBackward


def pooling_backward(
    operation: PoolingBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dx; each box of it reads the windows that reach it."""
    forward = operation.forward
    index = inputs[0] if operation.indexed else None
    y: Any
    x: Any
    y, dy, x = inputs if len(inputs) == 3 else (None, inputs[-1], None)
    dtype = arithmetic_dtype(operation.dtype)
    if index is None and forward.is_max and _windows_are_few(forward) and output.size and dy.size:
        _search_windows(operation, y, dy, x, output)
        return
    for box in chunks(output):
        spatial = zip(box[2:], operation.origin, strict=True)
        inside = (slice(part.start + first, part.stop + first) for part, first in spatial)
        place = (*box[:2], *inside)  # of the box in the piece of x
        reached = (
            forward.window_rows(axis).reaching((part.start, part.stop), forward.output_shape[axis])
            for axis, part in enumerate(place[2:], ROW_AXIS)
        )
        windows = (*box[:2], *(slice(*range_) for range_ in reached))
        part = filled_like(output, [b.stop - b.start for b in box], 0.0, dtype)
        if 0 not in dy[windows].shape:
            if index is not None:
                _scatter_indexed(forward, index[windows], dy[windows], windows, place, part)
            elif forward.is_max:
                _scatter_maxima(forward, y[windows], dy[windows], x, windows, place, part)
            else:
                gradient = dy[windows].astype(dtype)
                gradient /= divisors(forward, windows, dtype)
                _scatter_means(forward, gradient, windows, place, part)
        np.copyto(output[box], part, casting="unsafe")


def _scatter_means(
    forward: Pooling, gradient: Array, windows: Box, place: Box, part: Array
) -> None:
    """Add each window's share to every element of the box that it sees, axis after axis."""
    for axis, k in enumerate(forward.window):
        count, extent = gradient.shape[2 + axis], part.shape[2 + axis]
        first = _first(forward, axis, windows, place[2 + axis].start)
        shape = list(gradient.shape)
        shape[2 + axis] = extent
        spread = filled_like(gradient, shape, 0.0, gradient.dtype)
        lead: tuple[Any, ...] = (slice(None),) * (2 + axis)
        if count < k:
            for window in range(count):
                begin = first + window * forward.stride[axis]
                spread[(*lead, slice(max(begin, 0), max(begin + k, 0)))] += gradient[
                    (*lead, slice(window, window + 1))
                ]
        else:
            for tap in reversed(range(k)):  # window by window, as above
                sources, targets = valid_positions(first + tap, forward.stride[axis], extent, count)
                spread[(*lead, targets)] += gradient[(*lead, sources)]
        gradient = spread
    part[...] = gradient


def _first(forward: Pooling, axis: int, windows: Box, start: int) -> int:
    """Begin of the first of the windows along an axis, counted from `start`."""
    return windows[2 + axis].start * forward.stride[axis] - forward.padding[axis][0] - start


def _scatter_maxima(
    forward: Pooling, y: Array, dy: Array, x: Array, windows: Box, place: Box, part: Array
) -> None:
    """Add dy to the first element of each window that equals y, where it lies in the box."""
    axes = range(len(forward.window))
    ranges = [seen_range(forward, a, (windows[2 + a].start, windows[2 + a].stop)) for a in axes]
    x = x[(*windows[:2], *(slice(*range_) for range_ in ranges))].astype(part.dtype, copy=False)
    y, dy = y.astype(part.dtype, copy=False), dy.astype(part.dtype, copy=False)
    in_x = [_first(forward, axis, windows, ranges[axis][0]) for axis in axes]
    in_part = [_first(forward, axis, windows, place[2 + axis].start) for axis in axes]
    taken = np.zeros_like(y, dtype=bool)
    holds_nan = bool(np.isnan(y).any())
    for taps in itertools.product(*(range(k) for k in forward.window)):
        offsets = map(add, in_x, taps)
        outputs, inputs = valid_indices(offsets, forward.stride, x.shape[2:], y.shape[2:])
        value, largest = x[inputs], y[outputs]
        fresh = np.zeros_like(taken)
        same = value == largest
        if holds_nan:
            same |= np.isnan(value) & np.isnan(largest)
        fresh[outputs] = same
        fresh &= ~taken
        taken |= fresh
        offsets = map(add, in_part, taps)
        outputs, inputs = valid_indices(offsets, forward.stride, part.shape[2:], y.shape[2:])
        into = part[inputs]
        into += kept_where(fresh[outputs], dy[outputs])


def _scatter_indexed(
    forward: Pooling, index: Array, dy: Array, windows: Box, place: Box, part: Array
) -> None:
    """Add dy where each window's index says, where that lies in the box."""
    dy = dy.astype(part.dtype, copy=False)
    axes = range(len(forward.window))
    in_part = [_first(forward, axis, windows, place[2 + axis].start) for axis in axes]
    for number, taps in enumerate(itertools.product(*(range(k) for k in forward.window))):
        offsets = map(add, in_part, taps)
        outputs, inputs = valid_indices(offsets, forward.stride, part.shape[2:], dy.shape[2:])
        into = part[inputs]
        into += kept_where(index[outputs] == number, dy[outputs])


# Huge windows ------------------------------------------------------------------------------------


def _windows_are_few(forward: Pooling) -> bool:
    """True if searching each window takes fewer steps than all windows' taps do."""
    n, c = forward.x_shape[:2]
    taps, chunk = math.prod(forward.window), host_chunks.CHUNK_ELEMENTS
    by_taps = taps * -(-math.prod(forward.x_shape) // chunk)
    return n * math.prod(forward.output_shape[2:]) * -(-c * taps // chunk) < by_taps


def _search_windows(operation: PoolingBackward, y: Array, dy: Array, x: Array, dx: Array) -> None:
    """Find each window's maximum, and write the sum of dy where windows share one."""
    forward = operation.forward
    dtype = arithmetic_dtype(operation.dtype)
    step = max(1, host_chunks.CHUNK_ELEMENTS // math.prod(forward.window))
    dx[...] = 0
    for image, start in itertools.product(range(x.shape[0]), range(0, x.shape[1], step)):
        channels = slice(start, min(start + step, x.shape[1]))
        places = [
            _first_equal(forward, x[image, channels], y[(image, channels, *site)], site)
            for site in np.ndindex(*forward.output_shape[2:])
        ]
        place = np.stack(places, axis=1)  # (channels, windows): a place of x, or -1
        sites = np.unravel_index(np.maximum(place, 0), forward.x_shape[2:])
        rows, (low, high) = sites[operation.row_axis - ROW_AXIS], operation.rows
        wanted = (place >= 0) & (rows >= low) & (rows < high)
        channel, window = np.nonzero(wanted)
        gradient = dy[image, channels].reshape(place.shape).astype(dtype)[channel, window]
        key = channel * math.prod(forward.x_shape[2:]) + place[channel, window]
        unique, which = np.unique(key, return_inverse=True)
        sums = np.zeros(len(unique), dtype)
        np.add.at(sums, which[::-1], gradient[::-1])  # tap by tap, as `_scatter_maxima`
        channel, *point = np.unravel_index(unique, (channels.stop - start, *forward.x_shape[2:]))
        inside = (at - first for at, first in zip(point, operation.origin, strict=True))
        target: tuple[Any, ...] = (image, channel + start, *inside)
        dx[target] = sums.astype(dx.dtype)


def _first_equal(forward: Pooling, x: Array, largest: Array, site: tuple[int, ...]) -> Array:
    """Place in x (channels, spatial...) where the window at `site` first is `largest`, or -1."""
    box = [seen_range(forward, axis, (at, at + 1)) for axis, at in enumerate(site)]
    indices = np.full(len(x), -1)
    largest = largest.reshape(-1, *[1] * len(box))
    for rows in _row_ranges(box, len(x)):
        ranges = [rows, *box[1:]]
        part = x[(slice(None), *(slice(*range_) for range_ in ranges))]
        same = part == largest
        same |= (part != part) & (largest != largest)
        flat = same.reshape(len(x), -1)
        first = flat.argmax(axis=1)
        places = np.unravel_index(first, part.shape[1:])
        inside = [at + low for at, (low, _) in zip(places, ranges, strict=True)]
        place = np.ravel_multi_index(inside, forward.x_shape[2:])
        fresh = (indices < 0) & flat[np.arange(len(x)), first]
        indices[fresh] = place[fresh]
        if (indices >= 0).all():
            break
    return indices


def _row_ranges(box: list[Range], channels: int) -> Iterator[Range]:
    """The rows of a window in ranges of about a chunk."""
    (low, high), *rest = box
    row = channels * math.prod(stop - start for start, stop in rest)
    if row == 0:  # the window sees padding alone
        return
    step = max(1, host_chunks.CHUNK_ELEMENTS // row)
    for start in range(low, high, step):
        yield start, min(start + step, high)
