"""Softmax over channels on the host: boxes of sites, each with all its channels.

Where one site's channels alone are more than a chunk, they are swept in ranges: once for the
maximum and the sum, once for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ooc_cudnn.devices import host_chunks
from ooc_cudnn.devices.host_chunks import Array, Box, Runner, arithmetic_dtype, chunks
from ooc_cudnn.operations.softmax import Softmax, SoftmaxBackward


def softmax(
    operation: Softmax, inputs: tuple[Array | None, ...], output: Array, workspace: Array
) -> None:
    """y = exp(x - max) / sum, or for "log" x - max - log(sum)."""
    (x,) = inputs
    assert x is not None
    dtype = arithmetic_dtype(operation.dtype)
    for sites in _sites(x):
        boxes = list(_channel_boxes(x, sites))
        maximum = _maximum(x, boxes, dtype)
        total: Any = 0.0
        for box in boxes:
            part = np.exp(x[box].astype(dtype, copy=False) - maximum)
            total = total + part.sum(axis=1, keepdims=True, dtype=np.float64)
        last = np.asarray(np.log(total) if operation.algorithm == "log" else total).astype(dtype)
        for box in boxes:
            if operation.algorithm == "log":
                part = x[box].astype(dtype, copy=False) - maximum
                part -= last
            else:
                if len(boxes) > 1:  # of a single box, `part` holds them still
                    part = np.exp(x[box].astype(dtype, copy=False) - maximum)
                part /= last
            np.copyto(output[box], part, casting="unsafe")


def softmax_backward(
    operation: SoftmaxBackward, inputs: tuple[Array | None, ...], output: Array, workspace: Array
) -> None:
    """dx = y * (dy - sum(y * dy)), or for "log" dy - exp(y) * sum(dy)."""
    y, dy = inputs
    assert y is not None
    assert dy is not None
    dtype = arithmetic_dtype(operation.dtype)
    log = operation.algorithm == "log"
    for sites in _sites(dy):
        boxes = list(_channel_boxes(dy, sites))
        total: Any = 0.0
        for box in boxes:
            part = dy[box].astype(dtype, copy=log)
            if not log:
                part = part * y[box]
            total = total + part.sum(axis=1, keepdims=True, dtype=np.float64)
        total = total.astype(dtype)
        for box in boxes:
            value, part = y[box].astype(dtype), dy[box].astype(dtype)
            if log:
                np.exp(value, out=value)
                value *= total
                part -= value
            else:
                part -= total
                part *= value
            np.copyto(output[box], part, casting="unsafe")


def _maximum(x: Array, boxes: list[Box], dtype: np.dtype[Any]) -> Array:
    """The largest channel of each site; NaN where there is one."""
    found = None
    for box in boxes:
        part = x[box].max(axis=1, keepdims=True).astype(dtype)
        found = part if found is None else np.maximum(found, part)
    assert found is not None
    return found


def _sites(x: Array) -> Iterator[Box]:
    """Boxes of (n, 1, spatial...) whose channels together are a chunk, or of one site."""
    if x.size:
        yield from chunks(x[:, :1], max(1, host_chunks.CHUNK_ELEMENTS // x.shape[1]))


def _channel_boxes(x: Array, sites: Box) -> Iterator[Box]:
    """The box of sites with ranges of channels, each a chunk."""
    channels = x.shape[1]
    step = max(host_chunks.CHUNK_ELEMENTS, 1)
    for start in range(0, channels, step):
        yield (sites[0], slice(start, min(start + step, channels)), *sites[2:])


RUNNERS: dict[type, Runner] = {Softmax: softmax, SoftmaxBackward: softmax_backward}
WORKSPACE: dict[type, Callable[[Any], int]] = {}
