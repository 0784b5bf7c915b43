"""Which kernel runs which operation on the card: all but convolutions, which are cuDNN's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ooc_cudnn.devices.kernels import elementwise as kernels_elementwise
from ooc_cudnn.devices.kernels import launchers as kernels
from ooc_cudnn.devices.kernels import normalise as kernels_normalise
from ooc_cudnn.devices.kernels import pooling as kernels_pooling
from ooc_cudnn.devices.kernels import reduction as kernels_reduction
from ooc_cudnn.devices.kernels import softmax as kernels_softmax
from ooc_cudnn.devices.kernels.launch import Runner
from ooc_cudnn.devices.kernels.plans import MODES_WITH_COEFFICIENT
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.pointwise import Pointwise, Relayout

Inputs = tuple[DeviceView | None, ...]


def _tensor(view: DeviceView | None) -> DeviceView | None:
    """A vector as a tensor of one image: the kernels of tensors want the axes n and c."""
    if view is None or len(view.shape) > 1:
        return view
    return DeviceView(view.pointer, view.dtype, (1, *view.shape), (view.shape[0], *view.strides))


def _pointwise(
    operation: Pointwise,
    inputs: Inputs,
    output: DeviceView,
    workspace: tuple[int, int],
    stream: Any,
) -> None:
    value, addend, shift, old = inputs
    destination, value = _tensor(output), _tensor(value)
    assert destination is not None
    assert value is not None
    kernels.pointwise(
        destination,
        value,
        addend=_tensor(addend),
        shift=shift,
        old=_tensor(old),
        alpha=operation.alpha,
        beta=operation.beta,
        mode=operation.mode,
        coef=operation.coef if operation.mode in MODES_WITH_COEFFICIENT else None,
        stream=stream,
    )


def _relayout(
    operation: Relayout, inputs: Inputs, output: DeviceView, _: tuple[int, int], stream: Any
) -> None:
    destination, value = _tensor(output), _tensor(inputs[0])
    assert destination is not None
    assert value is not None
    kernels.relayout(destination, value, stream)


RUNNERS: dict[type, Runner] = {
    Pointwise: _pointwise,
    Relayout: _relayout,
    **kernels_elementwise.RUNNERS,
    **kernels_normalise.RUNNERS,
    **kernels_pooling.RUNNERS,
    **kernels_reduction.RUNNERS,
    **kernels_softmax.RUNNERS,
}
#: Scratch bytes of those that need any.
WORKSPACE: dict[type, Callable[[Any], int]] = {
    **kernels_elementwise.WORKSPACE,
    **kernels_normalise.WORKSPACE,
    **kernels_pooling.WORKSPACE,
    **kernels_reduction.WORKSPACE,
    **kernels_softmax.WORKSPACE,
}
