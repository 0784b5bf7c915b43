"""Runners of channel_reduction.cu: sums over all but the channels, or the images, in float64.

Two launches each: blocks leave partial sums in the workspace, and few threads add them up. The
order of the additions follows from shapes and strides alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ooc_cudnn.devices.kernels.arguments import CUDA_TYPES
from ooc_cudnn.devices.kernels.checks import check, check_packed, workspace_pointer
from ooc_cudnn.devices.kernels.cuda_structs import fill_struct
from ooc_cudnn.devices.kernels.group_walk import (
    COLUMN_PACKS,
    REDUCTION_BLOCKS,
    GroupWalk,
    walk_channels,
)
from ooc_cudnn.devices.kernels.launch import Call, Launch, Runner, launch
from ooc_cudnn.devices.kernels.launch_geometry import BLOCK_THREADS
from ooc_cudnn.devices.view import DeviceView
from ooc_cudnn.memory.alignment import align
from ooc_cudnn.operations.core.row_axis import cut_axes
from ooc_cudnn.operations.elementwise.broadcast_reduction import BroadcastSum
from ooc_cudnn.operations.normalization.batch_launches import Moments, NormaliseSums
from ooc_cudnn.tensor import ACCUMULATOR

#: Sums of a channel, of each `Kind` in channel_reduction.cu.
SUMS = {"TOTAL": 1, "MOMENTS": 2, "PRODUCTS": 2, "WEIGHTED": 1, "NEGATIVE": 1}
KINDS = {"": "TOTAL", "x": "WEIGHTED", "negative_x": "NEGATIVE"}

#: Channels that neighbouring threads add up the partial sums of, where there are few of those.
TOTALS_ACROSS = 32
MOST_PARTS_ACROSS = 256


def workspace_bytes(shape: tuple[int, ...], sums: int, images: int = 1) -> int:
    """Room for the partial sums of so many tensors in any order of memory and of any alignment."""
    # A part's sums are those of a block's columns: one a channel, or 256 of many channels at most.
    # Up to eight rows are joined, and rows that alone keep all blocks busy have one part.
    channels = shape[1]
    columns = channels if channels <= COLUMN_PACKS else 256
    most = max(8 * channels, _blocks(images) * columns)
    return 8 * sums * images * min(most, math.prod(shape) + 8 * channels + 256)


def _blocks(images: int) -> int:
    """Blocks that share one of so many images."""
    return max(1, REDUCTION_BLOCKS // max(images, 1))


def plan_totals(
    walk: GroupWalk | None, x: DeviceView, result: DeviceView, kind: str, images: int
) -> Launch | None:
    """The launch that adds up the partial sums of each channel."""
    channels = x.shape[1]
    if channels == 0 or images == 0:
        return None
    parts = walk.parts if walk else 0
    repeats = kept_columns(walk, channels) // channels if walk else 1
    few = parts * repeats <= MOST_PARTS_ACROSS and channels >= TOTALS_ACROSS
    across = TOTALS_ACROSS if few else 1
    types = f"{CUDA_TYPES[x.dtype]}, {CUDA_TYPES[result.dtype]}"
    return Launch(
        "channel_reduction.cu",
        f"channel_totals<{types}, {kind}>",
        (-(-channels // across), images),
        fill_struct(
            *("channel_reduction.cu", "ChannelTotals"),
            parts=parts,
            repeats=repeats,
            channels=channels,
            count=x.size // channels,
            channel_stride=x.strides[1],
        ),
        (across, BLOCK_THREADS // across),
    )


def kept_columns(walk: GroupWalk, channels: int) -> int:
    """Columns of the partial sums: a block that has all columns adds up those that repeat."""
    return channels * walk.repeats if walk.columns and walk.groups > 1 else channels


@functools.lru_cache(maxsize=4096)
def image_steps(x: int, dy: int, partial: int, result: int) -> np.ndarray:
    """Return the struct `Images`: elements from one image to the next, in each operand."""
    source = "channel_reduction.cu"
    return fill_struct(source, "Images", x=x, dy=dy, partial=partial, result=result)


def _reduce(
    operation: Hashable,
    kind: str,
    x: DeviceView,
    dy: DeviceView | None,
    mean: DeviceView | None,
    call: Call,
    images: int = 1,
) -> None:
    """Launch both halves; of several images, x and dy are the first, the others lie behind it."""
    channels = x.shape[1]
    walk = walk_channels(_aligned_as_all([x, dy or x], images), _blocks(images)) if x.size else None
    partial = numbers = 0
    if walk is not None:
        numbers = SUMS[kind] * walk.parts * kept_columns(walk, channels)
        partial = workspace_pointer(call.workspace, 8 * numbers * images)
    steps = image_steps(x.strides[0], (dy or x).strides[0], numbers, channels)

    def partials() -> Launch:
        assert walk is not None
        made = walk.launch("channel_reduction.cu", "channel_partials", CUDA_TYPES[x.dtype], kind)
        return made._replace(grid=(*made.grid, images))

    if walk is not None:
        launch(
            (operation, walk, images),
            (x, dy, mean),
            partials,
            (partial, channels, x.strides[1], steps),
            call.stream,
        )
    launch(
        (operation, walk, images, "totals"),
        (call.output, x),
        lambda: plan_totals(walk, x, call.output, kind, images),
        (partial, steps),
        call.stream,
    )


def _aligned_as_all(views: Sequence[DeviceView], images: int) -> Sequence[DeviceView]:
    """Views that promise no more alignment than the worst of the images has."""
    if images == 1:
        return views
    return [
        replace(view, pointer=math.gcd(view.pointer, view.strides[0] * view.item_bytes))
        for view in views
    ]


def _regrouped(
    views: Sequence[DeviceView], *, channels: bool, sites: bool = False
) -> tuple[list[DeviceView], int]:
    """The same tensors with what is summed apart as channels, and images that are apart besides.

    Apart are the images, or with `channels` the channels of each image, or with `sites` its sites.
    """
    flats = [view.flat() for view in views]
    if sites:
        flats = [
            ((n, s, c), (step_n, step_s, step_c)) for (n, c, s), (step_n, step_c, step_s) in flats
        ]
    (n, c, s), (_, step_c, step_s) = flats[0]
    images = 1

    def regrouped(step_n: int, step_c: int, step_s: int) -> tuple[tuple[int, ...], ...]:
        if not channels:
            if channel_inside:
                return (s, n, c), (step_s, step_n, step_c)
            return (c, n, s), (step_c, step_n, step_s)
        return ((1, c, s) if images > 1 else (1, n * c, s)), (step_n, step_c, step_s)

    channel_inside = step_c < step_s
    if channels and not all(n == 1 or steps[0] == c * steps[1] for _, steps in flats):
        images = n
    tensors = [
        DeviceView(view.pointer, view.dtype, *regrouped(*steps))
        for view, (_, steps) in zip(views, flats, strict=True)
    ]
    return tensors, images


def broadcast_sum(operation: BroadcastSum, call: Call) -> None:
    """Run `BroadcastSum` on (dy,) or (dy, x)."""
    views = [
        check(name, view, operation.shape, operation.dtype)
        for name, view in zip(("dy", "x"), call.inputs, strict=False)
    ]
    check_packed("db", call.output, operation.b_shape, operation.result_dtype)
    per_image, per_channel = _kept(operation)
    images, sites = 1, operation.is_by_site
    if per_image or sites:
        views, images = _regrouped(views, channels=per_channel or sites, sites=sites)
    dy, x = views[0], (views[1] if operation.factor else None)
    kind = KINDS[operation.factor]
    if per_image or per_channel or sites:
        _reduce(operation, kind, dy, x, None, call, images)
        return
    # One sum in all: of the sums of the channels.
    channels, (pointer, available) = operation.shape[1], call.workspace
    room = align(8 * channels)
    row = DeviceView(pointer, "float64", (channels,), (1,))
    rest = (pointer + room, max(available - room, 0))
    _reduce(operation, kind, dy, x, None, call._replace(output=row, workspace=rest))
    row = DeviceView(pointer, "float64", (1, 1, channels), (channels, channels, 1))
    _reduce((operation, "row"), "TOTAL", row, None, None, call._replace(workspace=rest))


def _kept(operation: BroadcastSum) -> tuple[bool, bool]:
    """Return whether images have sums of their own, and channels; an extent of 1 has not."""
    kept = cut_axes(operation.b_shape)
    return "n" in kept, "c_y" in kept


def _sum_bytes(operation: BroadcastSum) -> int:
    """Scratch of `broadcast_sum`."""
    (n, c), s = operation.shape[:2], math.prod(operation.shape[2:])
    per_image, per_channel = _kept(operation)
    sites = operation.is_by_site
    if sites:
        c, s = s, c
    if sites or (per_image and per_channel):
        return max(workspace_bytes((1, n * c, s), 1), workspace_bytes((1, c, s), 1, images=n))
    if per_image:
        return workspace_bytes((c, n, s), 1)
    nbytes = workspace_bytes((n, c, s), 1)
    if per_channel:
        return nbytes
    return align(8 * c) + max(nbytes, workspace_bytes((1, 1, c), 1))


def moments(operation: Moments, call: Call) -> None:
    """Run `Moments` on (x,)."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    check_packed("the moments", call.output, operation.output_shape, "float64")
    _reduce(operation, "MOMENTS", x, None, None, call)


def normalise_sums(operation: NormaliseSums, call: Call) -> None:
    """Run `NormaliseSums` on (x, dy, mean); without an activation."""
    x = check("x", call.inputs[0], operation.shape, operation.dtype)
    dy = check("dy", call.inputs[1], operation.shape, operation.dtype)
    mean = check_packed("mean", call.inputs[2], (operation.shape[1],), ACCUMULATOR[operation.dtype])
    check_packed("the sums", call.output, operation.output_shape, "float64")
    _reduce(operation, "PRODUCTS", x, dy, mean, call)


RUNNERS: dict[type, Runner] = {
    BroadcastSum: broadcast_sum,
    Moments: moments,
}
WORKSPACE: dict[type, Callable[[Any], int]] = {
    BroadcastSum: _sum_bytes,
    Moments: lambda operation: workspace_bytes(operation.shape, SUMS["MOMENTS"]),
    NormaliseSums: lambda operation: workspace_bytes(operation.shape, SUMS["PRODUCTS"]),
}
