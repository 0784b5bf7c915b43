"""Runners of losses.cu: a block of threads for each row of each image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_INTEGERS, CUDA_TYPES, instance
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
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
from ooc_cudnn.tensor import ACCUMULATOR

WARP = 32
#: Of `LossRows` in losses.cu.
AXES = ("n", "c", "row", "outer", "inner")


def five(shape: Sequence[int], numbers: Sequence[int], filler: int) -> tuple[int, ...]:
    """Numbers of the axes n, c, row, outer, inner of what has up to three spatial axes.

    >>> five((2, 3, 5, 7), (105, 35, 7, 1), 0), five((2, 3), (3, 1), 0)
    ((105, 35, 7, 0, 1), (3, 1, 0, 0, 0))
    """
    n, c, *spatial = numbers
    row, rest = spatial[:1] or [filler], spatial[1:]
    return (n, c, *row, *[filler] * (2 - len(rest)), *rest)


def _strides(view: DeviceView | None, *, of_labels: bool = False) -> tuple[int, ...]:
    """Strides of an operand, 0 where it is broadcast; labels have no channels."""
    if view is None:
        return (0,) * 5
    steps = [0 if extent == 1 else s for extent, s in zip(view.shape, view.strides, strict=True)]
    shape = view.shape
    if of_labels:
        shape, steps = (shape[0], 1, *shape[1:]), [steps[0], 0, *steps[1:]]
    return five(shape, steps, 0)


def _rows(
    kernel: str, arguments: Sequence[str | int], shape: Sequence[int], threads: int, strides: Any
) -> Launch | None:
    """A launch over the rows of a tensor, with as many threads each as have something to do."""
    sizes = dict(zip(AXES, five(shape, shape, 1), strict=True))
    if 0 in shape:
        return None
    block = min(BLOCK_THREADS, -(-threads // WARP) * WARP)
    struct = fill_struct("losses.cu", f"LossRows<{len(strides)}>", **sizes, stride=strides)
    expression = instance(kernel, *arguments)
    return Launch("losses.cu", expression, grid_of(sizes["n"] * sizes["row"]), struct, (block, 1))


def _vector(view: DeviceView | None, channels: int, dtype: str) -> DeviceView | None:
    if view is None:
        return None
    return check_packed("the weights", view, (channels,), ACCUMULATOR[dtype])


def label_weights(operation: LabelWeights, call: Call) -> None:
    """Run `LabelWeights` on (labels, weights)."""
    labels = check("labels", call.inputs[0], operation.shape, operation.labels_dtype)
    weights = _vector(call.inputs[1], operation.classes, operation.dtype)
    check_packed("the sums", call.output, operation.output_shape, "float64")

    def plan() -> Launch | None:
        n, *sites = operation.shape
        types = CUDA_INTEGERS[labels.dtype], CUDA_TYPES[ACCUMULATOR[operation.dtype]]
        shape, strides = (n, operation.classes, *sites), [_strides(labels, of_labels=True)]
        return _rows("label_weights", types, shape, math.prod(sites[1:]), strides)

    scalars = (np.int64(operation.ignore_index),)
    launch(operation, (call.output, labels, weights), plan, scalars, call.stream)


def cross_entropy(operation: CrossEntropy | CrossEntropyBackward, call: Call) -> None:
    """Run `CrossEntropy` on (x, labels, weights), or its gradient on (..., divisor, dy)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    shape = operation.labels.shape
    labels = check("labels", call.inputs[1], shape, operation.labels_dtype)
    weights = _vector(call.inputs[2], operation.shape[1], operation.dtype)
    backward = isinstance(operation, CrossEntropyBackward)
    views, results = [call.output, x, labels, weights], []
    scalars: list[Any] = [np.float64(operation.smoothing), np.int64(operation.ignore_index)]
    if isinstance(operation, CrossEntropyBackward):
        results = [check("dx", call.output, operation.shape, operation.dtype)]
        divisor = call.inputs[3] and check_packed("the divisor", call.inputs[3], (1,), "float64")
        views += divisor, check_packed("dy", call.inputs[4], (1,), "float64")
        scalars.append(np.float64(operation.scale))
    else:
        check_packed("the losses", call.output, operation.output_shape, "float64")

    def plan() -> Launch | None:
        sites = math.prod(operation.shape[3:])
        # Where a row has few sites, a warp shares the classes of each.
        lanes = 1 if sites >= WARP else WARP
        arguments = CUDA_TYPES[x.dtype], CUDA_INTEGERS[labels.dtype], lanes
        strides = [_strides(x), _strides(labels, of_labels=True), *map(_strides, results)]
        kernel = "cross_entropy_backward" if backward else "cross_entropy"
        return _rows(kernel, arguments, operation.shape, sites * lanes, strides)

    launch(operation, views, plan, scalars, call.stream)


def element_loss(operation: ElementLoss | ElementLossBackward, call: Call) -> None:
    """Run `ElementLoss` on (x, target, weight, positive), or its gradient, which takes dy, too."""
    shapes = (
        operation.shape,
        operation.shape,
        operation.weight_shape,
        operation.positive_shape,
    )
    operands = [
        check(name, view, shape, operation.dtype) if shape else None
        for name, view, shape in zip(
            ("x", "target", "weight", "positive"), call.inputs[:4], shapes, strict=True
        )
    ]
    results, scalars, vectors = [], [], list[DeviceView]()
    if isinstance(operation, ElementLossBackward):
        results = [check("dx", call.output, operation.shape, operation.dtype)]
        scalars = [np.float64(operation.scale)]
        vectors = [check_packed("dy", call.inputs[4], (1,), "float64")]
    else:
        check_packed("the losses", call.output, operation.output_shape, "float64")

    def plan() -> Launch | None:
        shape = operation.shape
        elements = math.prod(shape[1:2] + shape[3:])
        arguments = CUDA_TYPES[operation.dtype], operation.mode.upper()
        strides = [*map(_strides, operands), *map(_strides, results)]
        kernel = "element_loss_backward" if results else "element_loss"
        return _rows(kernel, arguments, shape, elements, strides)

    launch(operation, (call.output, *operands, *vectors), plan, scalars, call.stream)


def class_sums(operation: ClassSums | ClassSumsBackward, call: Call) -> None:
    """Run `ClassSums` on (x, labels), or its gradient, which takes dy, too."""
    shape = operation.shape
    x = check("x", call.inputs[0], shape, operation.dtype)
    labels = check("labels", call.inputs[1], operation.labels_shape, operation.labels_dtype)
    views, results = [call.output, x, labels], list[DeviceView]()
    if isinstance(operation, ClassSumsBackward):
        results = [check("dx", call.output, shape, operation.dtype)]
        dtype = ACCUMULATOR[operation.dtype]
        views.append(check_packed("dy", call.inputs[2], operation.dy_shape, dtype))
    else:
        check_packed("the sums", call.output, operation.output_shape, "float64")

    def plan() -> Launch | None:
        sites = math.prod(shape[3:])
        types, lanes = (CUDA_TYPES[x.dtype], CUDA_INTEGERS[labels.dtype]), 1
        strides = [*map(_strides, (x, labels, *results))]
        if not results:
            threads = BLOCK_THREADS if sites > 1 else WARP
            return _rows("class_sums", types, shape, threads, strides)
        lanes = 1 if sites >= WARP else WARP
        return _rows("class_sums_backward", (*types, lanes), shape, sites * lanes, strides)

    launch(operation, tuple(views), plan, (), call.stream)


def row_totals(operation: RowTotals, call: Call) -> None:
    """Run `RowTotals` on (values,)."""
    n, rows, columns = operation.shape
    values = check_packed("the values", call.inputs[0], operation.shape, "float64")
    result = check_packed("the totals", call.output, operation.output_shape, operation.dtype)

    def plan() -> Launch | None:
        struct = fill_struct("losses.cu", "RowTotals", images=n, rows=rows, columns=columns)
        kernel = instance("row_totals", CUDA_TYPES[operation.dtype])
        return Launch("losses.cu", kernel, grid_of(n * columns, BLOCK_THREADS), struct)

    launch(operation, (result, values), plan, (), call.stream)


def total(operation: Total, call: Call) -> None:
    """Run `Total` on (values, divisor)."""
    values = check_packed("the values", call.inputs[0], operation.shape, "float64")
    divisor = call.inputs[1] and check_packed("the divisor", call.inputs[1], (1,), "float64")
    result = check_packed("the total", call.output, (1,), "float64")

    def plan() -> Launch | None:
        struct = fill_struct("losses.cu", "Values", count=math.prod(operation.shape))
        return Launch("losses.cu", "loss_total", (1,), struct)

    scalars = (np.float64(operation.scale),)
    launch(operation, (result, values, divisor), plan, scalars, call.stream)


RUNNERS: dict[type, Runner] = {
    LabelWeights: label_weights,
    CrossEntropy: cross_entropy,
    CrossEntropyBackward: cross_entropy,
    ElementLoss: element_loss,
    ElementLossBackward: element_loss,
    ClassSums: class_sums,
    ClassSumsBackward: class_sums,
    RowTotals: row_totals,
    Total: total,
}
