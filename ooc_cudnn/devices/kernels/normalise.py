"""Runners of normalise.cu, and of the states between the sweeps in welford_merge.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, real_type
from ooc_cudnn.devices.kernels.checks import check, check_packed
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.group_walk import ELEMENTWISE_BLOCKS, walk_channels
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS, grid_of
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.normalization.batch_launches import (
    AddStates,
    MergeMoments,
    MomentsResult,
    Normalise,
    NormaliseBackward,
    ScaleRow,
    StateRow,
)
from ooc_cudnn.operations.softmax.channels import MergeImageMaximum
from ooc_cudnn.tensor import ACCUMULATOR


def _plan(kernel: str, views: Sequence[DeviceView], *arguments: str | int) -> Launch | None:
    if views[0].size == 0:
        return None
    return walk_channels(views, ELEMENTWISE_BLOCKS).launch("normalise.cu", kernel, *arguments)


def normalise(operation: Normalise, call: Call) -> None:
    """Run `Normalise` on (x, scale, bias, mean, spread) or, with an addend, (..., z)."""
    (x, *vectors), output = call.inputs, call.output
    x = check("x", x, operation.shape, operation.dtype)
    z = None
    if operation.has_addend:
        z = check("z", vectors.pop(), operation.shape, operation.dtype)
    check("y", output, operation.shape, operation.dtype)
    vector = (operation.shape[1],), ACCUMULATOR[operation.dtype]
    names = ("scale", "bias", "mean", "spread")
    vectors = [check_packed(name, view, *vector) for name, view in zip(names, vectors, strict=True)]
    is_variance = operation.epsilon is not None
    flags = is_variance, operation.has_addend
    arguments = CUDA_TYPES[x.dtype], operation.mode.upper(), *flags
    real = real_type(operation.dtype)
    launch(
        operation,
        (output, x, z, *vectors),
        lambda: _plan("normalise", [output, x, z or x], *arguments),
        (operation.shape[1], real(operation.epsilon or 0.0), real(operation.coef)),
        call.stream,
    )


def normalise_backward(operation: NormaliseBackward, call: Call) -> None:
    """Run `NormaliseBackward` on (x, dy, scale, mean, inverse deviation, sums), and the bias."""
    (x, dy, *vectors), output = call.inputs, call.output
    bias = vectors.pop() if operation.mode != "identity" else None
    sums = vectors.pop()
    x = check("x", x, operation.shape, operation.dtype)
    dy = check("dy", dy, operation.shape, operation.dtype)
    check("dx", output, operation.shape, operation.dtype)
    channels = operation.shape[1]
    vector = (channels,), ACCUMULATOR[operation.dtype]
    names = ("scale", "mean", "the inverse deviation")
    vectors = [check_packed(name, view, *vector) for name, view in zip(names, vectors, strict=True)]
    sums = check_packed("sums", sums, (2, channels), "float64")
    if operation.mode != "identity":
        bias = check_packed("bias", bias, *vector)
    arguments = CUDA_TYPES[x.dtype], operation.mode.upper()
    real = real_type(operation.dtype)
    launch(
        operation,
        (output, x, dy, *vectors, sums, bias),
        lambda: _plan("normalise_backward", [output, x, dy], *arguments),
        (channels, np.float64(operation.count), real(operation.coef)),
        call.stream,
    )


# States ---------------------------------------------------------------------------------------


def _launch_small(
    operation: Any,
    call: Call,
    expression: str,
    *inputs: tuple[str, tuple[int, ...], str] | None,
    result_dtype: str = "float64",
    scalars: Sequence[Any] = (),
) -> None:
    """Run a kernel of welford_merge.cu; each input as (name, shape, type), or None."""
    views = [
        check_packed(each[0], view, *each[1:]) if each else None
        for each, view in zip(inputs, call.inputs, strict=True)
    ]
    check_packed("the result", call.output, operation.output_shape, result_dtype)

    def plan() -> Launch | None:
        count = _count(operation)
        if count == 0:
            return None
        struct = fill_struct("welford_merge.cu", "Extent", count=count)
        return Launch("welford_merge.cu", expression, grid_of(count, BLOCK_THREADS), struct)

    launch(operation, (call.output, *views), plan, scalars, call.stream)


def _count(operation: Any) -> int:
    """Threads of a kernel of welford_merge.cu: one for each element, image or channel."""
    if isinstance(operation, AddStates | MomentsResult | StateRow):
        return math.prod(operation.shape)
    return int(operation.images if isinstance(operation, MergeImageMaximum) else operation.channels)


def _state_shape(operation: MomentsResult | StateRow, call: Call, rows: int) -> tuple[int, ...]:
    """The shape of the state, which has so many rows of the result's elements, or more."""
    state, columns = call.inputs[0], math.prod(operation.shape)
    if state is None or state.shape[0] < rows or math.prod(state.shape[1:]) != columns:
        raise ValueError(f"the state {state} has not {rows} rows of {columns} elements")
    return state.shape


def merge(operation: AddStates | MergeImageMaximum | MergeMoments, call: Call) -> None:
    """Run an operation on (state, part) of one shape, by the kernel of its name."""
    state, part = ((name, operation.output_shape, "float64") for name in ("state", "part"))
    _launch_small(operation, call, operation.name, state, part)


def moments_result(operation: MomentsResult, call: Call) -> None:
    """Run `MomentsResult` on (state, old)."""
    running = operation.what.startswith("running")
    _launch_small(
        operation,
        call,
        f"moments_result<{CUDA_TYPES[operation.dtype]}, {operation.what.upper()}>",
        ("state", _state_shape(operation, call, 3), "float64"),
        ("old", operation.output_shape, operation.dtype) if running else None,
        result_dtype=operation.dtype,
        scalars=(np.float64(operation.epsilon), np.float64(operation.factor)),
    )


def state_row(operation: StateRow, call: Call) -> None:
    """Run `StateRow` on (state,)."""
    _launch_small(
        operation,
        call,
        f"state_row<{CUDA_TYPES[operation.dtype]}>",
        ("state", _state_shape(operation, call, operation.row + 1), "float64"),
        result_dtype=operation.dtype,
        scalars=(operation.row,),
    )


def scale_row(operation: ScaleRow, call: Call) -> None:
    """Run `ScaleRow` on (state, factor)."""
    _launch_small(
        operation,
        call,
        f"scale_row<{CUDA_TYPES[operation.dtype]}>",
        ("state", operation.output_shape, "float64"),
        ("factor", (operation.channels,), operation.dtype),
        scalars=(operation.row,),
    )


RUNNERS: dict[type, Runner] = {
    Normalise: normalise,
    NormaliseBackward: normalise_backward,
    MergeMoments: merge,
    MergeImageMaximum: merge,
    AddStates: merge,
    MomentsResult: moments_result,
    ScaleRow: scale_row,
    StateRow: state_row,
}
