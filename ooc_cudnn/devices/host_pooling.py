"""Pooling and its gradient on the host, box by box.

A window's maximum or sum is taken along one axis after the other, and along each by taps or by
windows, whichever are fewer: a window of a million elements costs no million steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_cudnn.devices import host_chunks
from ooc_cudnn.devices.host_chunks import Array, Box, Runner, arithmetic_dtype, chunks, met
from ooc_cudnn.operations.pooling import Pooling, PoolingBackward
from ooc_cudnn.operations.window import Range

Inputs = tuple[Array | None, ...]


def pooling(operation: Pooling, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Write y; each box of it reads the part of x that its windows see."""
    (x,) = inputs
    assert x is not None
    if output.size == 0:
        return
    dtype = arithmetic_dtype(operation.dtype)
    # The longest windows first: what is left of x then is no longer large.
    order = sorted(range(len(operation.window)), key=lambda axis: -operation.window[axis])
    for box in chunks(output, _box_elements(operation)):
        part = x[box[:2]]
        starts = [0] * len(order)  # where `part` begins, along each axis of x
        for axis in range(len(order)):
            low, high = _seen(operation, axis, (box[2 + axis].start, box[2 + axis].stop))
            part = part[(slice(None),) * (2 + axis) + (slice(low, high),)]
            starts[axis] = low
        for axis in order:
            outputs = (box[2 + axis].start, box[2 + axis].stop)
            part = _pool_axis(operation, part, axis, starts[axis], outputs, dtype)
        if not operation.is_max:
            part /= _divisors(operation, box, dtype)
        np.copyto(output[box], part, casting="unsafe")


def _box_elements(operation: Pooling) -> int:
    """Elements of y of one box, so that what its windows see of x is about a chunk."""
    ratio = math.prod(operation.x_shape) / max(1, math.prod(operation.output_shape))
    return max(1, int(host_chunks.CHUNK_ELEMENTS / max(1.0, ratio)))


def _seen(operation: Pooling, axis: int, outputs: Range) -> Range:
    """The range of x, clipped, that windows `outputs` see along a spatial axis."""
    low = outputs[0] * operation.stride[axis] - operation.padding[axis][0]
    high = (outputs[1] - 1) * operation.stride[axis] - operation.padding[axis][0]
    extent = operation.x_shape[2 + axis]
    low = min(max(low, 0), extent)
    return low, min(max(high + operation.window[axis], low), extent)


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
    result = _filled_like(part, shape, empty, dtype)
    lead: tuple[Any, ...] = (slice(None),) * (2 + axis)
    if count < k:
        for at in range(count):
            low, high = max(0, first + at * stride), min(extent, first + at * stride + k)
            if high > low:
                into = result[(*lead, at)]
                if ufunc is np.add:
                    np.add.reduce(part[(*lead, slice(low, high))], axis=2 + axis, out=into,
                                  dtype=dtype)  # fmt: skip
                else:
                    into[...] = np.maximum.reduce(part[(*lead, slice(low, high))], axis=2 + axis)
        return result
    for tap in range(k):
        targets, sources = met(first + tap, stride, extent, count)
        into = result[(*lead, targets)]
        if into.size:
            ufunc(into, part[(*lead, sources)], out=into)
    return result


def _filled_like(model: Array, shape: list[int], value: float, dtype: np.dtype[Any]) -> Array:
    """A new array that lies in memory as `model` does."""
    result = np.empty_like(model, dtype=dtype, order="K", shape=shape, subok=False)
    result.fill(value)
    return result


def _divisors(operation: Pooling, box: Box, dtype: np.dtype[Any]) -> Any:
    """What the sums of a box's windows are divided by."""
    if operation.mode == "average_include_padding":
        return dtype.type(math.prod(operation.window))
    counts: Any = np.ones((), dtype)
    for axis, k in enumerate(operation.window):
        first = np.arange(box[2 + axis].start, box[2 + axis].stop) * operation.stride[axis]
        first -= operation.padding[axis][0]
        inside = np.minimum(first + k, operation.x_shape[2 + axis]) - np.maximum(first, 0)
        counts = counts[..., None] * np.maximum(inside, 0).astype(dtype)
    return counts


def pooling_backward(
    operation: PoolingBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """Write dx; each box of it reads the windows that reach it."""
    forward = operation.forward
    y, dy, x = (None, inputs[0], None) if len(inputs) == 1 else inputs
    assert dy is not None
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(output):
        rows = slice(box[2].start + operation.rows[0], box[2].stop + operation.rows[0])
        place = (*box[:2], rows, *box[3:])  # of the box in the piece of x
        windows = (*box[:2], *(_reaching(forward, axis, place) for axis in range(len(place) - 2)))
        part = _filled_like(output, [b.stop - b.start for b in box], 0.0, dtype)
        if 0 not in dy[windows].shape:
            if forward.is_max:
                assert y is not None
                assert x is not None
                _scatter_maxima(forward, y[windows], dy[windows], x, windows, place, part)
            else:
                gradient = dy[windows].astype(dtype)
                gradient /= _divisors(forward, windows, dtype)
                _scatter_means(forward, gradient, windows, place, part)
        np.copyto(output[box], part, casting="unsafe")


def _reaching(forward: Pooling, axis: int, place: Box) -> slice:
    """Return the windows that reach a range of x along a spatial axis."""
    stride, before = forward.stride[axis], forward.padding[axis][0]
    count = forward.output_shape[2 + axis]
    low = -((forward.window[axis] - 1 - before - place[2 + axis].start) // stride)
    high = (place[2 + axis].stop - 1 + before) // stride + 1
    low = min(max(low, 0), count)
    return slice(low, min(max(high, low), count))


def _scatter_means(
    forward: Pooling, gradient: Array, windows: Box, place: Box, part: Array
) -> None:
    """Add each window's share to every element of the box that it sees, axis after axis."""
    for axis, k in enumerate(forward.window):
        count, extent = gradient.shape[2 + axis], part.shape[2 + axis]
        first = _first(forward, axis, windows, place[2 + axis].start)
        shape = list(gradient.shape)
        shape[2 + axis] = extent
        spread = _filled_like(gradient, shape, 0.0, gradient.dtype)
        lead: tuple[Any, ...] = (slice(None),) * (2 + axis)
        if count < k:
            for at in range(count):
                begin = first + at * forward.stride[axis]
                spread[(*lead, slice(max(begin, 0), max(begin + k, 0)))] += gradient[
                    (*lead, slice(at, at + 1))
                ]
        else:
            for tap in range(k):
                sources, targets = met(first + tap, forward.stride[axis], extent, count)
                spread[(*lead, targets)] += gradient[(*lead, sources)]
        gradient = spread
    part[...] = gradient


def _first(forward: Pooling, axis: int, windows: Box, start: int) -> int:
    """Where the first of the windows begins along an axis, counted from `start`."""
    return windows[2 + axis].start * forward.stride[axis] - forward.padding[axis][0] - start


def _scatter_maxima(
    forward: Pooling, y: Array, dy: Array, x: Array, windows: Box, place: Box, part: Array
) -> None:
    """Add dy to the first element of each window that equals y, where it lies in the box."""
    axes = range(len(forward.window))
    seen = [
        _seen(forward, axis, (windows[2 + axis].start, windows[2 + axis].stop)) for axis in axes
    ]
    x = x[(*windows[:2], *(slice(*range_) for range_ in seen))].astype(part.dtype, copy=False)
    y, dy = y.astype(part.dtype, copy=False), dy.astype(part.dtype, copy=False)
    in_x = [_first(forward, axis, windows, seen[axis][0]) for axis in axes]
    in_part = [_first(forward, axis, windows, place[2 + axis].start) for axis in axes]
    taken = np.zeros_like(y, dtype=bool)
    holds_nan = bool(np.isnan(y).any())
    for taps in itertools.product(*(range(k) for k in forward.window)):
        pairs = [
            met(in_x[a] + taps[a], forward.stride[a], x.shape[2 + a], y.shape[2 + a]) for a in axes
        ]
        outputs, inputs = _indices(pairs)
        value, largest = x[inputs], y[outputs]
        fresh = np.zeros_like(taken)
        same = value == largest
        if holds_nan:
            same |= np.isnan(value) & np.isnan(largest)
        fresh[outputs] = same
        fresh &= ~taken
        taken |= fresh
        pairs = [
            met(in_part[a] + taps[a], forward.stride[a], part.shape[2 + a], y.shape[2 + a])
            for a in axes
        ]
        outputs, inputs = _indices(pairs)
        into = part[inputs]
        np.add(into, dy[outputs], out=into, where=fresh[outputs])


def _indices(pairs: list[tuple[slice, slice]]) -> tuple[Any, Any]:
    """Indices of windows, and of what a tap of them meets, from those of each axis."""
    return (..., *(pair[0] for pair in pairs)), (..., *(pair[1] for pair in pairs))


RUNNERS: dict[type, Runner] = {Pooling: pooling, PoolingBackward: pooling_backward}
WORKSPACE: dict[type, Callable[[Any], int]] = {}
