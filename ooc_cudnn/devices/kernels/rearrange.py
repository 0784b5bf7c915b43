"""Runner of `Rearrange`, by relayout.cu: copies between views whose axes are split."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.launch import Call, Runner
from ooc_cudnn.devices.kernels.relayout import MOST_AXES, NO_AXIS, axes_of_copy, relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.elementwise.rearrange import Rearrange


def split_strides(view: DeviceView, factors: Sequence[Shape]) -> list[int]:
    """Strides of a view whose axes are split into factors.

    >>> split_strides(DeviceView(0, "float32", (2, 6), (6, 1)), [(2,), (2, 3)])
    [6, 3, 1]
    """
    pairs = zip(view.strides, factors, strict=True)
    return [step * math.prod(sizes[at + 1 :]) for step, sizes in pairs for at in range(len(sizes))]


def rearrange(operation: Rearrange, call: Call) -> None:
    """Copy as many axes as one launch has, and the shortest of what is left place after place."""
    value = check("x", call.inputs[0], operation.shape, operation.dtype)
    output = check("y", call.output, operation.output_shape, operation.dtype)
    if output.size == 0:
        return
    sources = split_strides(value, operation.factors)
    source = replace(
        value,
        shape=tuple(operation.sizes[at] for at in operation.order),
        strides=tuple(sources[at] for at in operation.order),
    )
    to = split_strides(output, operation.result_factors)
    axes = axes_of_copy(replace(output, shape=source.shape, strides=tuple(to)), source)
    looped = sorted(axes[:-1])[: max(0, len(axes) - MOST_AXES)]
    kept = [axis for axis in axes if axis not in looped]
    shape, *strides = zip(*[NO_AXIS] * (2 - len(kept)), *kept, strict=True)

    def place(view: DeviceView, begin: int, steps: Shape) -> DeviceView:
        return replace(
            view, pointer=view.pointer + begin * view.item_bytes, shape=shape, strides=steps
        )

    for places in itertools.product(*(range(axis.extent) for axis in looped)):
        begins = (
            sum(at * axis[operand] for at, axis in zip(places, looped, strict=True))
            for operand in (1, 2)
        )
        destination, part = map(place, (output, value), begins, strides)
        relayout(destination, part, call.stream)


RUNNERS: dict[type, Runner] = {Rearrange: rearrange}
