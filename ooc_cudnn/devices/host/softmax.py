"""Softmax over channels on the host: boxes of sites, each with all its channels.

Where one site's channels alone are more than a chunk, they are swept in ranges: once for the
maximum and the sum, once for the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import Array, Box, Inputs, Runner, arithmetic_dtype, chunks
from ooc_cudnn.operations.softmax.channels import Softmax, SoftmaxBackward


def softmax(operation: Softmax, inputs: Inputs, output: Array, workspace: Array) -> None:
    """y = exp(x - max) / sum, or for "log" x - max - log(sum)."""
    (x,) = inputs
    dtype = arithmetic_dtype(operation.dtype)
    log = operation.algorithm == "log"
    for sites in boxes_of_sites(x):
        boxes = list(_channel_boxes(x, sites))
        # A site's channels fit one box but for extreme numbers of them: converted once, then.
        kept = x[boxes[0]].astype(dtype, copy=False) if len(boxes) == 1 else None
        parts = [x[box] for box in boxes] if kept is None else [kept]
        maximum = _maximum(parts, dtype)
        total: Any = 0.0
        for part in parts:
            part = part.astype(dtype, copy=False) - maximum
            power = np.exp(part, out=None if log else part)
            total = total + power.sum(axis=1, keepdims=True, dtype=np.float64)
        last = np.asarray(np.log(total) if log else total).astype(dtype)
        for box in boxes:
            if kept is None:
                part = x[box].astype(dtype, copy=False) - maximum
                if not log:
                    np.exp(part, out=part)
            if log:
                part -= last
            else:
                part /= last
            np.copyto(output[box], part, casting="unsafe")


def softmax_backward(
    operation: SoftmaxBackward, inputs: Inputs, output: Array, workspace: Array
) -> None:
    """dx = y * (dy - sum(y * dy)), or for "log" dy - exp(y) * sum(dy)."""
    y, dy = inputs
    dtype = arithmetic_dtype(operation.dtype)
    log = operation.algorithm == "log"
    for sites in boxes_of_sites(dy):
        boxes = list(_channel_boxes(dy, sites))
        total: Any = 0.0
        for box in boxes:
            value, gradient = y[box].astype(dtype), dy[box].astype(dtype)
            part = gradient if log else value * gradient
            total = total + part.sum(axis=1, keepdims=True, dtype=np.float64)
        total = total.astype(dtype)
        for box in boxes:
            if len(boxes) > 1:  # of a single box, both are at hand
                value, gradient = y[box].astype(dtype), dy[box].astype(dtype)
            if log:
                np.exp(value, out=value)
                value *= total
                gradient -= value
            else:
                gradient -= total
                gradient *= value
            np.copyto(output[box], gradient, casting="unsafe")


def _maximum(parts: list[Array], dtype: np.dtype[Any]) -> Array:
    """The largest channel of each site; NaN where there is one."""
    return reduce(np.maximum, (part.max(axis=1, keepdims=True).astype(dtype) for part in parts))


def boxes_of_sites(x: Array) -> Iterator[Box]:
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
