"""Geometry of pooling windows, for the host's boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ooc_cudnn.devices.host.chunks import Array, Box
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.pooling.forward import Pooling


def seen_range(operation: Pooling, axis: int, outputs: Range) -> Range:
    """The range of x, clipped, that windows `outputs` see along a spatial axis."""
    low = outputs[0] * operation.stride[axis] - operation.padding[axis][0]
    high = (outputs[1] - 1) * operation.stride[axis] - operation.padding[axis][0]
    extent = operation.x_shape[2 + axis]
    low = min(max(low, 0), extent)
    return low, min(max(high + operation.window[axis], low), extent)


def divisors(operation: Pooling, box: Box, dtype: np.dtype[Any]) -> Any:
    """Return the divisors of the sums of a box's windows."""
    if operation.mode == "average_include_padding":
        return dtype.type(math.prod(operation.window))
    counts: Any = np.ones((), dtype)
    for axis, k in enumerate(operation.window):
        first = np.arange(box[2 + axis].start, box[2 + axis].stop) * operation.stride[axis]
        first -= operation.padding[axis][0]
        inside = np.minimum(first + k, operation.x_shape[2 + axis]) - np.maximum(first, 0)
        counts = counts[..., None] * np.maximum(inside, 0).astype(dtype)
    return counts


def filled_like(model: Array, shape: list[int], value: float, dtype: np.dtype[Any]) -> Array:
    """A new array that lies in memory as `model` does."""
    result = np.empty_like(model, dtype=dtype, order="K", shape=shape, subok=False)
    result.fill(value)
    return result
