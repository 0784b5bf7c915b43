"""Blocks of what moves elements: views, permutations, slices, joins, shuffles of pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ooc_cudnn.operations.external.tiles import Span, Spans, WholeImagesError, whole_spans
from ooc_cudnn.torch.lowering.block_rules import (
    MadePart,
    Wanted,
    block_rule,
    broadcast,
    joined,
    lead_of,
    made_of,
    only,
    uncut,
)
from ooc_cudnn.torch.tracing.graph import Operation, Value
from ooc_cudnn.torch.tracing.image_axes import RESHAPES
from ooc_cudnn.torch.tracing.permutations import PERMUTES, permutation


def _result(operation: Operation) -> Value:
    return next(value for value in operation.results if value is not None)


@block_rule(*RESHAPES)
def reshaped(operation: Operation, wanted: Wanted) -> MadePart:
    """The same elements in another shape: an axis stays, is a part of one, or holds some."""
    spans, y, x = only(wanted), _result(operation).shape, lead_of(operation).shape
    if operation.arguments.get("dtype") is not None:
        raise WholeImagesError("a view in another dtype")
    reads, makes = list(whole_spans(x)), list(whole_spans(y))
    begins = {math.prod(x[:axis]): axis for axis, extent in enumerate(x) if extent > 1}
    for axis, (start, stop, cut) in enumerate(spans):
        if not cut:
            continue
        extent, dim = y[axis], begins.get(math.prod(y[:axis]), -1)
        size = x[dim] if dim >= 0 else 0
        if size == extent:
            reads[dim] = makes[axis] = spans[axis]
        elif size > extent and (behind := _behind(y, axis, size)):  # what it holds comes behind
            uncut(spans, behind, operation)
            ratio = size // extent
            reads[dim], makes[axis] = Span(start * ratio, stop * ratio, cut), spans[axis]
        elif 0 < size < extent and _behind(x, dim, extent):
            ratio = extent // size
            first, last = start // ratio, -(-stop // ratio)
            reads[dim], makes[axis] = Span(first, last, cut), Span(first * ratio, last * ratio, cut)
        else:
            raise WholeImagesError(f"a reshape from {x} to {y}")
    return made_of(operation, tuple(reads), tuple(makes))


def _behind(shape: Sequence[int], axis: int, elements: int) -> range:
    """The axes behind one that are so many elements together with it; none if there are not."""
    reached = shape[axis]
    for last in range(axis + 1, len(shape)):
        reached *= shape[last]
        if reached == elements:
            return range(axis + 1, last + 1)
    return range(0)


@block_rule(*PERMUTES)
def permuted(operation: Operation, wanted: Wanted) -> MadePart:
    """Axes in another order."""
    spans, count = only(wanted), len(lead_of(operation).shape)
    order = permutation(operation, count)
    return made_of(operation, tuple(spans[order.index(axis)] for axis in range(count)), spans)


@block_rule("unsqueeze")
def with_an_axis(operation: Operation, wanted: Wanted) -> MadePart:
    """An axis more."""
    spans = only(wanted)
    at = operation.arguments["dim"] % len(spans)
    return made_of(operation, (*spans[:at], *spans[at + 1 :]), spans)


@block_rule("squeeze")
def without_ones(operation: Operation, wanted: Wanted) -> MadePart:
    """Drop axes of extent 1; a block of a longer one may have that, and stays."""
    spans, x = only(wanted), lead_of(operation).shape
    dims = operation.arguments.get("dim")
    named = range(len(x)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {each % len(x) for each in named if x[each] == 1}
    rest = iter(spans)
    lead = tuple(Span(0, 1) if axis in gone else next(rest) for axis in range(len(x)))
    uncut(lead, {each % len(x) for each in named}, operation)
    return made_of(operation, lead, spans)


@block_rule("select", "unbind")
def taken(operation: Operation, wanted: Wanted) -> MadePart:
    """One of an axis, or each of them apart."""
    x = lead_of(operation).shape
    at = operation.arguments.get("dim", 0) % len(x)
    return _of_parts(operation, wanted, at, gone=True)


@block_rule("chunk", "split", "split_with_sizes", "tensor_split")
def parted(operation: Operation, wanted: Wanted) -> MadePart:
    """Parts of an axis."""
    return _of_parts(operation, wanted, operation.arguments.get("dim", 0), gone=False)


def _of_parts(operation: Operation, wanted: Wanted, dim: int, *, gone: bool) -> MadePart:
    """All of one axis, whichever results are wanted."""
    x = lead_of(operation).shape
    axis, lead = dim % len(x), None
    for spans in wanted:
        if spans is None:
            continue
        if not gone:
            uncut(spans, [axis], operation)
        behind = spans[axis + (not gone) :]
        read = (*spans[:axis], Span(0, x[axis]), *behind)
        lead = read if lead is None else joined(lead, read)
    assert lead is not None
    makes = tuple(
        None
        if value is None
        else (*lead[:axis], *([] if gone else [Span(0, value.shape[axis])]), *lead[axis + 1 :])
        for value in operation.results
    )
    return MadePart((lead,), makes)


@block_rule("slice", "narrow")
def sliced(operation: Operation, wanted: Wanted) -> MadePart:
    """Every so manieth of a range of an axis."""
    spans, told, x = only(wanted), operation.arguments, lead_of(operation).shape
    axis = told.get("dim", 0) % len(x)
    start, stop, cut = spans[axis]
    if not cut:
        return made_of(operation, (*spans[:axis], Span(0, x[axis]), *spans[axis + 1 :]), spans)
    first, step = told.get("start") or 0, told.get("step", 1)
    if not isinstance(first, int):
        raise WholeImagesError(f"{operation.said} from where a value says")
    first = min(max(first + x[axis] * (first < 0), 0), x[axis])
    read = Span(first + start * step, first + (stop - 1) * step + 1, cut)
    end = {"slice": "end", "narrow": "length"}[operation.name]
    changes = {"start": 0, end: read.stop - read.start}
    return made_of(operation, (*spans[:axis], read, *spans[axis + 1 :]), spans, **changes)


@block_rule("expand")
def expanded(operation: Operation, wanted: Wanted) -> MadePart:
    """Broadcast."""
    spans = only(wanted)
    reads = tuple(broadcast(value.shape, spans) for value in operation.reads)
    return MadePart(reads, (spans,))


@block_rule("repeat")
def repeated(operation: Operation, wanted: Wanted) -> MadePart:
    """Again and again along some axes."""
    spans, x, times = only(wanted), lead_of(operation).shape, operation.arguments["repeats"]
    uncut(spans, [axis for axis, count in enumerate(times) if count != 1], operation)
    kept = spans[len(spans) - len(x) :]
    pairs = zip(kept, x, strict=True)
    return made_of(
        operation, tuple(span if span.cut else Span(0, extent) for span, extent in pairs), spans
    )


@block_rule("cat", "concat", "stack")
def joined_along(operation: Operation, wanted: Wanted) -> MadePart:
    """Several along one axis."""
    spans = only(wanted)
    axis = operation.arguments.get("dim", 0) % len(spans)
    uncut(spans, [axis], operation)

    def spans_of(value: Value) -> Spans:
        if operation.name == "stack":
            return (*spans[:axis], *spans[axis + 1 :])
        if len(value.shape) != len(spans):
            raise WholeImagesError("what has no elements is joined")
        return (*spans[:axis], Span(0, value.shape[axis]), *spans[axis + 1 :])

    return MadePart(tuple(spans_of(value) for value in operation.reads), (spans,))


@block_rule("index_select", "repeat_interleave")
def selected(operation: Operation, wanted: Wanted) -> MadePart:
    """Some of an axis, by their numbers."""
    spans, x = only(wanted), lead_of(operation).shape
    dim = operation.arguments.get("dim")
    if dim is None:
        raise WholeImagesError(f"{operation.said} of all elements")
    axis = dim % len(x)
    uncut(spans, [axis], operation)
    lead, makes = list(spans), list(spans)
    lead[axis], makes[axis] = Span(0, x[axis]), Span(0, _result(operation).shape[axis])
    return made_of(operation, tuple(lead), tuple(makes))


@block_rule("flip")
def flipped(operation: Operation, wanted: Wanted) -> MadePart:
    """Block rule of a flip: a block is read from the other end."""
    spans, x = only(wanted), lead_of(operation).shape
    gone = {each % len(x) for each in operation.arguments["dims"]}
    lead = tuple(
        Span(extent - span.stop, extent - span.start, span.cut) if axis in gone else span
        for axis, (span, extent) in enumerate(zip(spans, x, strict=True))
    )
    return made_of(operation, lead, spans)


@block_rule("pixel_shuffle")
def pixels_shuffled(operation: Operation, wanted: Wanted) -> MadePart:
    """Channels to sites: sites r times as far on are of the same site of x."""
    (*lead, rows, columns), r = only(wanted), operation.arguments["upscale_factor"]
    uncut(tuple(lead), [len(lead) - 1], operation)
    channels = lead_of(operation).shape[len(lead) - 1]
    read = [Span(each.start // r, -(-each.stop // r), each.cut) for each in (rows, columns)]
    makes = [Span(each.start * r, each.stop * r, each.cut) for each in read]
    return made_of(operation, (*lead[:-1], Span(0, channels), *read), (*lead, *makes))


@block_rule("pixel_unshuffle")
def pixels_unshuffled(operation: Operation, wanted: Wanted) -> MadePart:
    """Sites to channels."""
    (*lead, rows, columns), r = only(wanted), operation.arguments["downscale_factor"]
    uncut(tuple(lead), [len(lead) - 1], operation)
    channels = lead_of(operation).shape[len(lead) - 1]
    read = [Span(each.start * r, each.stop * r, each.cut) for each in (rows, columns)]
    return made_of(operation, (*lead[:-1], Span(0, channels), *read), (*lead, rows, columns))
