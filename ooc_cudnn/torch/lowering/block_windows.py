"""Blocks of what looks at windows: poolings, padding, unfolding.

A pooling is run with its own padding on all rows that windows see. What it makes where a block ends
and the image does not sees padding that is none, and is cut off: so whatever an operation does at
borders (of a mean, say, by what it divides) it does at the borders of the image alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ooc_cudnn.operations.external.tiles import Span, WholeImagesError
from ooc_cudnn.torch.lowering.block_rules import (
    MadePart,
    Wanted,
    block_rule,
    lead_of,
    made_of,
    only,
    uncut,
)
from ooc_cudnn.torch.tracing.graph import Operation


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """Read sizes as ATen takes them: one for all axes, or one each."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * axes if len(values) == 1 else values


def _axes(operation: Operation) -> int:
    """The number of axes that a name says: 2 of "max_pool2d"."""
    return next(int(letter) for letter in operation.name if letter.isdigit())


@block_rule(*(f"{kind}_pool{axes}d" for kind in ("max", "avg") for axes in (1, 2, 3)))
@block_rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def pooled(operation: Operation, wanted: Wanted) -> MadePart:
    """The largest or mean value of windows."""
    told, axes = operation.arguments, _axes(operation)
    if len(wanted) > 1 and any(each is not None for each in operation.results[1:]):
        raise WholeImagesError("where the largest values are is read")
    spans, x = only(wanted), lead_of(operation).shape
    windows = per_axis(told["kernel_size"], axes)
    strides = per_axis(told["stride"], axes) if told.get("stride") else windows
    paddings, ceil = per_axis(told["padding"], axes), bool(told["ceil_mode"])
    dilations = per_axis(told.get("dilation", 1), axes)
    lead, makes = list(spans), list(spans)
    for dim, (window, stride, padding, dilation) in enumerate(
        zip(windows, strides, paddings, dilations, strict=True), len(x) - axes
    ):
        reach = (window - 1) * dilation + 1
        if spans[dim].cut:
            lead[dim], makes[dim] = _pooled_along(spans[dim], x[dim], reach, stride, padding, ceil)
        else:
            lead[dim] = Span(0, x[dim])
    return made_of(operation, tuple(lead), tuple(makes))


def _pooled_along(
    span: Span, extent: int, reach: int, stride: int, padding: int, ceil: bool
) -> tuple[Span, Span]:
    """The rows that windows see, and the windows that a pooling of these makes.

    >>> _pooled_along(Span(4, 8, True), 32, 3, 2, 1, False)
    (Span(start=6, stop=16, cut=True), Span(start=3, stop=8, cut=True))
    """
    first = max(0, span.start - -(-padding // stride))
    stop = min(extent, (span.stop - 1) * stride - padding + reach)
    rows = stop - first * stride
    count = (rows + 2 * padding - reach + (stride - 1) * ceil) // stride + 1
    if ceil and (count - 1) * stride >= rows + padding:
        count -= 1
    return Span(first * stride, stop, cut=True), Span(first, first + count, cut=True)


@block_rule("unfold")
def unfolded(operation: Operation, wanted: Wanted) -> MadePart:
    """Windows along one axis, each on a new last one."""
    (*spans, inside), x = only(wanted), lead_of(operation).shape
    axis, size = operation.arguments["dimension"] % len(x), operation.arguments["size"]
    step = operation.arguments["step"]
    uncut((inside,), [0], operation)
    start, stop, cut = spans[axis]
    read = Span(start * step, (stop - 1) * step + size, cut) if cut else Span(0, x[axis])
    return made_of(operation, (*spans[:axis], read, *spans[axis + 1 :]), (*spans, inside))


#: How each kind of padding is called, and what tells how much.
_PADS = {
    "pad": "pad",
    "constant_pad_nd": "pad",
    **{f"reflection_pad{axes}d": "padding" for axes in (1, 2, 3)},
    **{f"replication_pad{axes}d": "padding" for axes in (1, 2, 3)},
}


@block_rule(*_PADS)
def padded(operation: Operation, wanted: Wanted) -> MadePart:
    """Padding: a block has the part of it that it meets."""
    spans, x, key = only(wanted), lead_of(operation).shape, _PADS[operation.name]
    pads, mode = list(operation.arguments[key]), _mode(operation)
    lead, makes = list(spans), list(spans)
    for behind, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        axis = len(x) - 1 - behind
        if not spans[axis].cut:
            lead[axis] = Span(0, x[axis])
            continue
        if mode == "circular" and (before or after):
            raise WholeImagesError("circular padding reads the other end of the image")
        lead[axis], makes[axis], pair = _padded_along(spans[axis], x[axis], before, after, mode)
        pads[2 * behind : 2 * behind + 2] = pair
    return made_of(operation, tuple(lead), tuple(makes), **{key: pads})


def _mode(operation: Operation) -> str:
    if operation.name == "pad":
        return str(operation.arguments.get("mode", "constant"))
    kinds = {"reflection": "reflect", "replication": "replicate", "constant": "constant"}
    return kinds[operation.name.partition("_")[0]]


def _padded_along(
    span: Span, extent: int, before: int, after: int, mode: str
) -> tuple[Span, Span, Sequence[int]]:
    """The rows of x, the rows that are made, and how they are padded; at least one row is read.

    >>> _padded_along(Span(0, 4, True), 9, 2, 2, "reflect")
    (Span(start=0, stop=3, cut=True), Span(start=0, stop=5, cut=True), (2, 0))
    >>> _padded_along(Span(3, 5, True), 9, 2, 2, "constant")
    (Span(start=1, stop=3, cut=True), Span(start=3, stop=5, cut=True), (0, 0))
    """
    low, high = span.start - before, span.stop - before  # as rows of x
    ahead, beyond = max(0, -low), max(0, high - extent)
    mirrored = mode == "reflect"
    start = min(max(low, 0), extent - 1)
    stop = max(min(high, extent), 1)
    if ahead:
        stop = max(stop, min(extent, 1 + ahead * mirrored))
    if beyond:
        start = min(start, max(0, extent - 1 - beyond * mirrored))
    result = Span(start + before - ahead, stop + before + beyond, cut=True)
    return Span(start, stop, cut=True), result, (ahead, beyond)
