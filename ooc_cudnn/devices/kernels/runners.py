"""The kernel that runs each operation on the card: all but convolutions, which are cuDNN's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ooc_cudnn.devices.kernels import (
    attention,
    cast_scale,
    channel_argmax,
    channel_reduction,
    dropout,
    elementwise,
    external,
    gradient_sums,
    local_response,
    losses,
    masks,
    normalise,
    pooling_gradient,
    rearrange,
    resampling,
    roll,
    set_statistics,
    softmax,
)
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.launch import Call, Runner
from ooc_cudnn.devices.kernels.pointwise import pointwise
from ooc_cudnn.devices.kernels.relayout import relayout
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.core.activation_modes import MODES
from ooc_cudnn.operations.core.pointwise import Pointwise, Relayout
from ooc_cudnn.operations.elementwise.reshape import Reshape
from ooc_cudnn.tensor import packed_strides


def _tensor(view: DeviceView | None) -> DeviceView | None:
    """A vector as a tensor of one image: the kernels of tensors want the axes n and c."""
    if view is None or len(view.shape) > 1:
        return view
    return DeviceView(view.pointer, view.dtype, (1, *view.shape), (view.shape[0], *view.strides))


def _pointwise(operation: Pointwise, call: Call) -> None:
    value, addend, shift, old = call.inputs
    destination, value = _tensor(call.output), _tensor(value)
    assert destination is not None
    assert value is not None
    pointwise(
        destination,
        value,
        addend=_tensor(addend),
        shift=shift,
        old=_tensor(old),
        alpha=operation.alpha,
        beta=operation.beta,
        mode=operation.mode,
        coef=operation.coef if MODES[operation.mode].coef is not None else None,
        stream=call.stream,
    )


def _relayout(operation: Relayout, call: Call) -> None:
    destination, value = _tensor(call.output), _tensor(call.inputs[0])
    assert destination is not None
    assert value is not None
    relayout(destination, value, call.stream)


def _reshape(operation: Reshape, call: Call) -> None:
    """Copy to packed memory, in which either shape is the other one."""
    value = check("x", call.inputs[0], operation.shape, operation.dtype)
    output = check_packed("y", call.output, operation.output_shape, operation.dtype)
    packed = packed_strides(operation.shape)
    relayout(
        DeviceView(output.pointer, operation.dtype, operation.shape, packed), value, call.stream
    )


RUNNERS: dict[type, Runner] = {
    Pointwise: _pointwise,
    Relayout: _relayout,
    Reshape: _reshape,
    **rearrange.RUNNERS,
    **roll.RUNNERS,
    **attention.RUNNERS,
    **channel_argmax.RUNNERS,
    **dropout.RUNNERS,
    **elementwise.RUNNERS,
    **gradient_sums.RUNNERS,
    **cast_scale.RUNNERS,
    **local_response.RUNNERS,
    **losses.RUNNERS,
    **masks.RUNNERS,
    **normalise.RUNNERS,
    **external.RUNNERS,
    **pooling_gradient.RUNNERS,
    **channel_reduction.RUNNERS,
    **resampling.RUNNERS,
    **set_statistics.RUNNERS,
    **softmax.RUNNERS,
}
#: Scratch bytes of those that need any.
WORKSPACE: dict[type, Callable[[Any], int]] = {
    **attention.WORKSPACE,
    **gradient_sums.WORKSPACE,
    **channel_reduction.WORKSPACE,
    **set_statistics.WORKSPACE,
    **softmax.WORKSPACE,
}
