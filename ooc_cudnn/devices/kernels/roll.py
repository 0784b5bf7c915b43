"""Runner of `Roll`, by relayout.cu: a copy for each box that moves as a whole."""

from __future__ import annotations

from dataclasses import replace

from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.launch import Call, Runner
from ooc_cudnn.devices.kernels.relayout import relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.elementwise.roll import Roll


def roll(operation: Roll, call: Call) -> None:
    """Copy box by box."""
    value = check("x", call.inputs[0], operation.shape, operation.dtype)
    output = check("y", call.output, operation.shape, operation.dtype)

    def box(view: DeviceView, region: Region) -> DeviceView:
        begin = sum(step * start for step, (start, _) in zip(view.strides, region, strict=True))
        shape = tuple(stop - start for start, stop in region)
        return replace(view, pointer=view.pointer + begin * view.item_bytes, shape=shape)

    for source, target in operation.boxes():
        relayout(box(output, target), box(value, source), call.stream)


RUNNERS: dict[type, Runner] = {Roll: roll}
