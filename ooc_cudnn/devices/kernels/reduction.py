"""Runners of channel_reduction.cu: sums over everything but the channels, in float64.

Two launches each: blocks leave partial sums in the workspace, and few threads add them up. The
order of the additions follows from shapes and strides alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES, geometry
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.group_walk import (
    COLUMN_PACKS,
    REDUCTION_BLOCKS,
    GroupWalk,
    walk_channels,
)
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.operations.backward_bias import ChannelSum
from ooc_cudnn.operations.batch_normalization import Moments, NormaliseSums
from ooc_cudnn.tensor import ACCUMULATOR

# The numbers are the enumeration `Kind` in channel_reduction.cu.
TOTAL, MOMENTS, PRODUCTS = 0, 1, 2
SUMS = {TOTAL: 1, MOMENTS: 2, PRODUCTS: 2}

#: Channels that neighbouring threads add up the partial sums of, where there are few of those.
TOTALS_ACROSS = 32
MOST_PARTS_ACROSS = 256


def workspace_bytes(shape: tuple[int, ...], sums: int) -> int:
    """Room for the partial sums of a tensor in any order of memory and of any alignment."""
    # A part's sums are those of a block's columns: one a channel, or 256 of many channels at most.
    # Up to eight rows are joined, and rows that alone keep all blocks busy have one part.
    channels = shape[1]
    columns = channels if channels <= COLUMN_PACKS else 256
    most = max(8 * channels, REDUCTION_BLOCKS * columns)
    return 8 * sums * min(most, math.prod(shape) + 8 * channels + 256)


def _plan_totals(
    walk: GroupWalk | None, x: DeviceView, result: DeviceView, kind: int
) -> Launch | None:
    channels = x.shape[1]
    if channels == 0:
        return None
    parts = walk.parts if walk else 0
    repeats = _kept_columns(walk, channels) // channels if walk else 1
    few = parts * repeats <= MOST_PARTS_ACROSS and channels >= TOTALS_ACROSS
    across = TOTALS_ACROSS if few else 1
    types = f"{CUDA_TYPES[x.dtype]}, {CUDA_TYPES[result.dtype]}"
    return Launch(
        "channel_reduction.cu",
        f"channel_totals<{types}, {kind}>",
        (-(-channels // across),),
        geometry(parts, repeats, channels, x.size // channels, x.strides[1]),
        (across, BLOCK_THREADS // across),
    )


def _kept_columns(walk: GroupWalk, channels: int) -> int:
    """Columns of the partial sums: a block that has all columns adds up those that repeat."""
    return channels * walk.repeats if walk.columns and walk.groups > 1 else channels


def _reduce(
    operation: Hashable,
    kind: int,
    x: DeviceView,
    dy: DeviceView | None,
    mean: DeviceView | None,
    call: Call,
) -> None:
    """Launch both halves."""
    channels = x.shape[1]
    walk = walk_channels([x, dy or x], REDUCTION_BLOCKS) if x.size else None
    partial = 0
    if walk is not None:
        numbers = SUMS[kind] * walk.parts * _kept_columns(walk, channels)
        partial = workspace_pointer(call.workspace, 8 * numbers)
        launch(
            (operation, walk),
            (x, dy, mean),
            lambda: walk.launch(
                "channel_reduction.cu", "channel_partials", CUDA_TYPES[x.dtype], kind
            ),
            (partial, channels, x.strides[1]),
            call.stream,
        )
    launch(
        (operation, walk, "totals"),
        (call.output, x),
        lambda: _plan_totals(walk, x, call.output, kind),
        (partial,),
        call.stream,
    )


def channel_sum(operation: ChannelSum, call: Call) -> None:
    """Run `ChannelSum` on (dy,)."""
    dy = check("dy", call.inputs[0], operation.shape, operation.dtype)
    check_packed("db", call.output, operation.output_shape, operation.result_dtype)
    _reduce(operation, TOTAL, dy, None, None, call)


def moments(operation: Moments, call: Call) -> None:
    """Run `Moments` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    check_packed("the moments", call.output, operation.output_shape, "float64")
    _reduce(operation, MOMENTS, x, None, None, call)


def normalise_sums(operation: NormaliseSums, call: Call) -> None:
    """Run `NormaliseSums` on (x, dy, mean)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    mean = check_packed("mean", call.inputs[2], (operation.shape[1],), ACCUMULATOR[operation.dtype])
    check_packed("the sums", call.output, operation.output_shape, "float64")
    _reduce(operation, PRODUCTS, x, dy, mean, call)


RUNNERS: dict[type, Runner] = {
    ChannelSum: channel_sum,
    Moments: moments,
    NormaliseSums: normalise_sums,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    ChannelSum: lambda operation: workspace_bytes(operation.shape, SUMS[TOTAL]),
    Moments: lambda operation: workspace_bytes(operation.shape, SUMS[MOMENTS]),
    NormaliseSums: lambda operation: workspace_bytes(operation.shape, SUMS[PRODUCTS]),
}
