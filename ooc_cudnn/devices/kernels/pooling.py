"""Runners of pooling.cu and pooling_backward.cu."""

from __future__ import annotations

from ooc_cudnn.devices.kernels.launch import Call, Runner, launch
from ooc_cudnn.devices.kernels.pooling_backward_plans import plan_pooling_backward
from ooc_cudnn.devices.kernels.pooling_plans import plan_pooling
from ooc_cudnn.operations.pooling import Pooling, PoolingBackward


def pooling(operation: Pooling, call: Call) -> None:
    """Run `Pooling` on (x,). The output must not overlap x."""
    (x,), output = call.inputs, call.output
    if x is None:
        raise ValueError("x is absent")
    launch(operation, (output, x), lambda: plan_pooling(operation, x, output), (), call.stream)


def pooling_backward(operation: PoolingBackward, call: Call) -> None:
    """Run `PoolingBackward` on (y, dy, x); y and x are not read in average modes."""
    (y, dy, x), output = call.inputs, call.output
    if not operation.forward.is_max:
        y = x = None
    if dy is None or (operation.forward.is_max and (y is None or x is None)):
        raise ValueError(f"{operation.forward.mode} lacks one of y, dy and x")
    launch(
        operation,
        (output, y, dy, x),
        lambda: plan_pooling_backward(operation, y, dy, x, output),
        (),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {Pooling: pooling, PoolingBackward: pooling_backward}
