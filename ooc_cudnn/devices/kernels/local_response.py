"""The runners of local_response.cu."""

from __future__ import annotations

import math

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, geometry, real_type
from ooc_cudnn.devices.kernels.checks import check
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.local_response import LocalResponse, LocalResponseBackward


def plan(
    operation: LocalResponse, name: str, result: DeviceView, x: DeviceView, dy: DeviceView
) -> Launch | None:
    """Choose the kernel; None if there is nothing to do."""
    if result.size == 0:
        return None
    (size, own), (_, of_x), (_, of_dy) = (view.flat() for view in (result, x, dy))
    total = math.prod(size)
    numbers = (*size, *own, *of_x, *of_dy, operation.before, operation.behind)
    last = int(size[1] > 1 and own[1] == 1)
    return Launch(
        "local_response.cu",
        f"{name}<{CUDA_TYPES[operation.dtype]}>",
        grid_of(total, BLOCK_THREADS),
        geometry(*numbers, last, total),
    )


def _run(
    operation: LocalResponse, name: str, result: DeviceView, inputs: tuple[DeviceView, ...],
    call: Call,
) -> None:  # fmt: skip
    real = real_type(operation.dtype)
    numbers = (operation.alpha / operation.size, operation.beta, operation.k)
    launch(
        (operation, name),
        (result, *inputs),
        lambda: plan(operation, name, result, inputs[0], inputs[-1]),
        tuple(real(number) for number in numbers),
        call.stream,
    )


def local_response(operation: LocalResponse, call: Call) -> None:
    """Run `LocalResponse` on (x,). The output must not overlap x."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    y = check("y", call.output, operation.shape, operation.dtype)
    _run(operation, "local_response", y, (x,), call)


def local_response_backward(operation: LocalResponseBackward, call: Call) -> None:
    """Run `LocalResponseBackward` on (x, dy). The output must not overlap them."""
    forward = operation.forward
    x = check("x", call.inputs[0], forward.shape, forward.dtype)
    dy = check("dy", call.inputs[1], forward.shape, forward.dtype)
    dx = check("dx", call.output, forward.shape, forward.dtype)
    _run(forward, "local_response_backward", dx, (x, dy), call)


RUNNERS: dict[type, Runner] = {
    LocalResponse: local_response,
    LocalResponseBackward: local_response_backward,
}
