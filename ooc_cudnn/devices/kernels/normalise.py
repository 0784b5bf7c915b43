"""Runners of normalise.cu, and of the states between the sweeps in states.cu."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, MODES, boolean, geometry, real_type
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.group_walk import ELEMENTWISE_BLOCKS, walk_channels
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.batch_normalization import (
    AddStates,
    MergeMoments,
    MomentsResult,
    Normalise,
    NormaliseBackward,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.softmax import MergeImageMaximum
from ooc_cudnn.tensor import ACCUMULATOR

# The numbers are the enumeration `What` in states.cu.
WHAT = {"mean": 0, "inverse_deviation": 1, "running_mean": 2, "running_variance": 3}


def _plan(kernel: str, views: Sequence[DeviceView], *arguments: object) -> Launch | None:
    if views[0].size == 0:
        return None
    return walk_channels(views, ELEMENTWISE_BLOCKS).launch("normalise.cu", kernel, *arguments)


def normalise(operation: Normalise, call: Call) -> None:
    """Run `Normalise` on (x, scale, bias, mean, spread)."""
    (x, *vectors), output = call.inputs, call.output
    x = check("x", x, operation.shape, operation.dtype)
    check("y", output, operation.shape, operation.dtype)
    vector = (operation.shape[1],), ACCUMULATOR[operation.dtype]
    names = ("scale", "bias", "mean", "spread")
    vectors = [check_packed(name, view, *vector) for name, view in zip(names, vectors, strict=True)]
    is_variance = operation.epsilon is not None
    arguments = CUDA_TYPES[x.dtype], MODES[operation.mode], boolean(is_variance)
    real = real_type(operation.dtype)
    launch(
        operation,
        (output, x, *vectors),
        lambda: _plan("normalise", [output, x], *arguments),
        (operation.shape[1], real(operation.epsilon or 0.0), real(operation.coef)),
        call.stream,
    )


def normalise_backward(operation: NormaliseBackward, call: Call) -> None:
    """Run `NormaliseBackward` on (x, dy, scale, mean, inverse deviation, sums)."""
    (x, dy, *vectors, sums), output = call.inputs, call.output
    x = check("x", x, operation.shape, operation.dtype)
    dy = check("dy", dy, operation.shape, operation.dtype)
    check("dx", output, operation.shape, operation.dtype)
    channels = operation.shape[1]
    vector = (channels,), ACCUMULATOR[operation.dtype]
    names = ("scale", "mean", "the inverse deviation")
    vectors = [check_packed(name, view, *vector) for name, view in zip(names, vectors, strict=True)]
    sums = check_packed("sums", sums, (2, channels), "float64")
    launch(
        operation,
        (output, x, dy, *vectors, sums),
        lambda: _plan("normalise_backward", [output, x, dy], CUDA_TYPES[x.dtype]),
        (channels, np.float64(operation.count)),
        call.stream,
    )


# States ---------------------------------------------------------------------------------------


def _launch_small(
    operation: Hashable,
    expression: str,
    count: int,
    views: Sequence[DeviceView | None],
    scalars: Sequence[Any],
    stream: Any,
) -> None:
    """Run a kernel of states.cu, a thread for each of `count`."""

    def plan() -> Launch | None:
        if count == 0:
            return None
        return Launch("states.cu", expression, grid_of(count, BLOCK_THREADS), geometry(count))

    launch(operation, views, plan, scalars, stream)


def _merge(kernel: str, count: Callable[[Any], int]) -> Runner:
    """Return the runner of an operation on (state, part) of one shape."""

    def run(operation: Any, call: Call) -> None:
        shape = operation.output_shape
        state = check_packed("state", call.inputs[0], shape, "float64")
        part = check_packed("part", call.inputs[1], shape, "float64")
        check_packed("the result", call.output, shape, "float64")
        _launch_small(
            operation, kernel, count(operation), (call.output, state, part), (), call.stream
        )

    return run


def moments_result(operation: MomentsResult, call: Call) -> None:
    """Run `MomentsResult` on (state, old)."""
    state = check_packed("state", call.inputs[0], (3, operation.channels), "float64")
    check_packed("the result", call.output, operation.output_shape, operation.dtype)
    old = None
    if operation.what.startswith("running"):
        old = check_packed("old", call.inputs[1], operation.output_shape, operation.dtype)
    _launch_small(
        operation,
        f"moments_result<{CUDA_TYPES[operation.dtype]}, {WHAT[operation.what]}>",
        operation.channels,
        (call.output, state, old),
        (np.float64(operation.epsilon), np.float64(operation.factor)),
        call.stream,
    )


def state_row(operation: StateRow, call: Call) -> None:
    """Run `StateRow` on (state,)."""
    state = check_packed("state", call.inputs[0], (operation.rows, operation.channels), "float64")
    check_packed("the result", call.output, operation.output_shape, operation.dtype)
    _launch_small(
        operation,
        f"state_row<{CUDA_TYPES[operation.dtype]}>",
        operation.channels,
        (call.output, state),
        (operation.row,),
        call.stream,
    )


def scale_row(operation: ScaleRow, call: Call) -> None:
    """Run `ScaleRow` on (state, factor)."""
    shape = operation.output_shape
    state = check_packed("state", call.inputs[0], shape, "float64")
    factor = check_packed("factor", call.inputs[1], (operation.channels,), operation.dtype)
    check_packed("the result", call.output, shape, "float64")
    _launch_small(
        operation,
        f"scale_row<{CUDA_TYPES[operation.dtype]}>",
        operation.channels,
        (call.output, state, factor),
        (operation.row,),
        call.stream,
    )


RUNNERS: dict[type, Runner] = {
    Normalise: normalise,
    NormaliseBackward: normalise_backward,
    MergeMoments: _merge("merge_moments", lambda operation: operation.channels),
    MergeImageMaximum: _merge("merge_image_maximum", lambda operation: operation.images),
    AddStates: _merge("add_states", lambda operation: math.prod(operation.shape)),
    MomentsResult: moments_result,
    ScaleRow: scale_row,
    StateRow: state_row,
}
