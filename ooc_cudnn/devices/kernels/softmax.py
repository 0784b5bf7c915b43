"""Runners of the softmax kernels: over the channels of each site, and over whole images."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from ooc_cudnn.devices.kernels import image_softmax as kernels_image_softmax
from ooc_cudnn.devices.kernels.checks import check, workspace_pointer
from ooc_cudnn.devices.kernels.image_softmax import image_outcomes, image_state, parts_bytes
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.softmax_plans import (
    FORWARD,
    LONG_ROW,
    plan_columns,
    plan_rows,
    sites_by_channels,
)
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.softmax.channels import Softmax, SoftmaxBackward


def _over_channels(
    operation: Softmax | SoftmaxBackward,
    task: str,
    first: DeviceView,
    second: DeviceView | None,
    call: Call,
) -> None:
    output = call.output
    views = [output, first, second or first]
    if output.size == 0:
        return
    sites = sites_by_channels(views)
    if sites.is_rows and sites.channels > LONG_ROW and sites.images == 1:
        row_views = [
            DeviceView(view.pointer, view.dtype, (sites.sites, sites.channels), (strides[2], 1))
            for view, strides in zip(views, sites.strides, strict=True)
        ]
        _over_long_rows(operation, task, row_views, call)
        return

    def plan() -> Launch:
        return (plan_rows if sites.is_rows else plan_columns)(task, views, sites)

    launch(operation, (output, first, second), plan, (), call.stream)


def _over_long_rows(operation: Hashable, task: str, views: list[DeviceView], call: Call) -> None:
    """Rows as if they were images, with the state between the sweeps in the workspace."""
    output, first, second = views
    rows, forward = output.shape[0], task in FORWARD
    columns = 2 if forward else 1
    nbytes = 8 * rows * columns
    pointer = workspace_pointer(call.workspace, nbytes)
    state = DeviceView(pointer, "float64", (rows, columns), (columns, 1))
    what = "peaks" if forward else "sums"
    operands = (first,) if forward else (None if task == "LOG_BACKWARD" else first, second)
    rest = call._replace(output=state, workspace=(pointer + nbytes, call.workspace[1] - nbytes))
    image_state((operation, what), what, task, operands, rest)
    sources = (output, first, None if forward else second)
    image_outcomes((operation, "rows"), task, sources, state, call.stream)


def softmax(operation: Softmax, call: Call) -> None:
    """Run `Softmax` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    check("y", call.output, operation.shape, operation.dtype)
    task = operation.algorithm.upper()
    _over_channels(operation, task, x, None, call)


def softmax_backward(operation: SoftmaxBackward, call: Call) -> None:
    """Run `SoftmaxBackward` on (y, dy)."""
    y = check("y", call.inputs[0], operation.shape, operation.dtype)
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    check("dx", call.output, operation.shape, operation.dtype)
    task = f"{operation.algorithm.upper()}_BACKWARD"
    _over_channels(operation, task, y, dy, call)


def _channels_workspace(operation: Softmax | SoftmaxBackward) -> int:
    channels = operation.shape[1]
    if channels <= LONG_ROW:
        return 0
    rows = math.prod(operation.shape) // channels
    return 16 * rows + parts_bytes(rows)


RUNNERS: dict[type, Runner] = {
    Softmax: softmax,
    SoftmaxBackward: softmax_backward,
    **kernels_image_softmax.RUNNERS,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    Softmax: _channels_workspace,
    SoftmaxBackward: _channels_workspace,
    **kernels_image_softmax.WORKSPACE,
}
