"""Losses on the host: rows of images, a chunk at a time, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.devices.host import chunks as host_chunks
from ooc_cudnn.devices.host.chunks import Array, Inputs, Runner
from ooc_cudnn.memory.blocks import boxes
from ooc_cudnn.operations.losses.launches import (
    ClassSums,
    ClassSumsBackward,
    CrossEntropy,
    CrossEntropyBackward,
    ElementLoss,
    ElementLossBackward,
    LabelWeights,
    RowTotals,
    Total,
)

#: The axis along which the rows of the result and of each operand lie; None of vectors. What has no
#: such axis has images alone.
ROW_AXES: dict[type, tuple[int | None, ...]] = {
    LabelWeights: (1, 1, None),
    CrossEntropy: (1, 2, 1, None),
    CrossEntropyBackward: (2, 2, 1, None, None, None),
    ElementLoss: (1, 2, 2, 2, 2),
    ElementLossBackward: (2, 2, 2, 2, 2, None),
    ClassSums: (1, 2, 2),
    ClassSumsBackward: (2, 2, 2, 2),
}


def by_rows(operation: Any, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Run a launch by its reference: rows are each for themselves."""
    of_result, *axes = ROW_AXES[type(operation)]
    lead, axis = inputs[0], axes[0] or 0
    n, rows = lead.shape[0], lead.shape[axis] if lead.ndim > axis else 1
    for images, part in _boxes(n, rows, lead.size):
        operands = [_part(*each, images, part) for each in zip(inputs, axes, strict=True)]
        result = _part(output, of_result, images, part)
        piece = replace(operation, shape=operands[0].shape)
        np.copyto(result, piece.reference(*operands), casting="unsafe")


def _boxes(n: int, rows: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Images and rows that together are a chunk, or one row."""
    if not size:
        return
    for images, *part in boxes((n, rows), max(1, host_chunks.CHUNK_ELEMENTS * n * rows // size)):
        yield images, part[0] if part else slice(0, rows)


def _part(array: Any, axis: int | None, images: slice, rows: slice) -> Any:
    """The images and rows of an operand; all where it is broadcast, or has none."""
    if array is None or axis is None:
        return array
    slices = [slice(None)] * array.ndim
    for dimension, part in ((0, images), (axis, rows)):
        if dimension < array.ndim and array.shape[dimension] > 1:
            slices[dimension] = part
    return array[tuple(slices)]


def total(operation: Total | RowTotals, inputs: Inputs, output: Array, workspace: Array) -> None:
    """Add up values, in order."""
    output[...] = operation.reference(*inputs)


RUNNERS: dict[type, Runner] = {
    **dict.fromkeys(ROW_AXES, by_rows), Total: total, RowTotals: total,
}  # fmt: skip
