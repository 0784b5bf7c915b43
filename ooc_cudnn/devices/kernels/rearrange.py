"""Runner of `Rearrange`, by relayout.cu: copies between views whose axes are split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.launch import Call, Runner
from ooc_cudnn.devices.kernels.relayout import relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.axes import merged_axes
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.elementwise.rearrange import Rearrange

#: Axes that one copy has.
AXES = 3


def split_strides(view: DeviceView, factors: Sequence[Shape]) -> list[int]:
    """Strides of a view whose axes are split into factors.

    >>> split_strides(DeviceView(0, "float32", (2, 6), (6, 1)), [(2,), (2, 3)])
    [6, 3, 1]
    """
    pairs = zip(view.strides, factors, strict=True)
    return [step * math.prod(sizes[at + 1 :]) for step, sizes in pairs for at in range(len(sizes))]


def rearrange(operation: Rearrange, call: Call) -> None:
    """Copy `AXES` axes in one launch, and the shortest of what is left place after place."""
    value = check("x", call.inputs[0], operation.shape, operation.dtype)
    output = check("y", call.output, operation.output_shape, operation.dtype)
    if output.size == 0:
        return
    sources = split_strides(value, operation.factors)
    to = split_strides(output, operation.result_factors)
    sizes = [operation.sizes[at] for at in operation.order]
    merged = merged_axes(sizes, [to, [sources[at] for at in operation.order]])
    outer = list(zip(merged.sizes, *merged.strides, strict=True))
    looped = sorted(outer)[: max(0, len(outer) + 1 - AXES)]
    kept = [axis for axis in outer if axis not in looped]
    kept = [(1, 0, 0)] * (AXES - 1 - len(kept)) + kept
    kept.append((merged.inner, *merged.inner_strides))
    shape, of_output, of_value = zip(*kept, strict=True)
    for places in itertools.product(*(range(size) for size, *_ in looped)):
        steps = [
            sum(place * axis[operand] for place, axis in zip(places, looped, strict=True))
            for operand in (1, 2)
        ]
        destination, source = (
            replace(
                view, pointer=view.pointer + step * view.item_bytes, shape=shape, strides=strides
            )
            for view, step, strides in zip(
                (output, value), steps, (of_output, of_value), strict=True
            )
        )
        relayout(destination, source, call.stream)


RUNNERS: dict[type, Runner] = {Rearrange: rearrange}
