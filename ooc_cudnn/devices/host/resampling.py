"""Resampling and its gradient on the host, box by box and axis by axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner, arithmetic_dtype, chunks
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.resampling.axis_windows import (
    AxisWindows,
    outputs_reaching,
    runs,
    seen_range,
    shift_range,
)
from ooc_cudnn.operations.resampling.forward import Resampling, ResamplingBackward, scatter_maxima


def resampling(operation: Resampling, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y from x: the sums, or the largest, of runs."""
    (x,) = inputs
    dtype = arithmetic_dtype(operation.dtype)
    for box in chunks(output, _most(x, output)):
        part, empty = x[box[:2]], np.zeros((), bool)
        for axis, (windows, target, read) in enumerate(
            zip(operation.windows, operation.makes, operation.reads, strict=True)
        ):
            places = shift_range((box[2 + axis].start, box[2 + axis].stop), target[0])
            starts, stops = windows.bounds(np.arange(*places))
            empty = empty[..., None] | (stops <= starts)
            part = _along(windows, part, axis, places, read[0], dtype, is_max=operation.is_max)
        if empty.any():
            part = np.where(empty, operation.value, part)
        np.copyto(output[box], part, casting="unsafe")


def resampling_backward(
    operation: ResamplingBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx from dy, or of maxima from (y, dy, x)."""
    forward, dtype = operation.forward, arithmetic_dtype(operation.dtype)
    if forward.is_max:
        y, dy, x = inputs
        whole = scatter_maxima(forward, y, dy, x, dtype)
        np.copyto(output, operation.gathered(whole), casting="unsafe")
        return
    (dy,) = inputs
    for box in chunks(output, _most(dy, output)):
        part = dy[box[:2]]
        for axis, (windows, target, read) in enumerate(
            zip(forward.windows, operation.makes, forward.makes, strict=True)
        ):
            places = shift_range((box[2 + axis].start, box[2 + axis].stop), target[0])
            part = _along(windows, part, axis, places, read[0], dtype, gradient=True)
        np.copyto(output[box], part, casting="unsafe")


def _most(source: Array, output: Array) -> int:
    """Elements of a box, so that what is read for it is about a chunk."""
    return max(1, int(host_chunks.CHUNK_ELEMENTS / max(1.0, source.size / max(1, output.size))))


def _along(
    windows: AxisWindows,
    part: Array,
    axis: int,
    target: Range,
    first: int,
    dtype: np.dtype[Any],
    *,
    gradient: bool = False,
    is_max: bool = False,
) -> Array:
    """Take the runs of the `target` range along one axis; `part` begins at `first`."""
    low, high = (outputs_reaching if gradient else seen_range)(windows, target)
    part = part[(slice(None),) * (2 + axis) + (slice(low - first, high - first),)]
    taps = runs(windows, target, gradient=gradient)
    taken = part.take(taps.elements - low, axis=2 + axis).astype(dtype, copy=False)
    if not is_max:
        taken *= taps.weights.astype(dtype).reshape(-1, *[1] * (part.ndim - 3 - axis))
    fill, lengths = -np.inf if is_max else 0.0, taps.stops - taps.starts
    present = lengths > 0
    shape = list(part.shape)
    shape[2 + axis] = len(lengths)
    if math.prod(shape) == 0 or not present.any():
        return np.full(shape, fill, dtype)
    begins = (np.cumsum(lengths) - lengths)[present]
    reduced = (np.maximum if is_max else np.add).reduceat(taken, begins, axis=2 + axis)
    if present.all():
        return reduced
    result = np.full(shape, fill, dtype)
    result[(slice(None),) * (2 + axis) + (present,)] = reduced
    return result


RUNNERS: dict[type, Runner] = {
    Resampling: resampling,
    ResamplingBackward: resampling_backward,
}
