"""Rules for the part of an operation's inputs that a part of its result needs, by ATen operation.

A rule gets the part of each result that is wanted, and says which parts of what is read make it,
and which part of the result that is: it may be more. An axis is *cut* or not for all blocks alike,
wherever they lie; a rule that needs all of an axis refuses one that is cut. So what is accepted is
the same in the middle of an image as at its borders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ooc_cudnn.operations.external.tiles import Span, Spans, WholeImagesError, whole_spans
from ooc_cudnn.torch.tracing.autocast import AUTOCAST
from ooc_cudnn.torch.tracing.graph import Operation, Value
from ooc_cudnn.torch.tracing.image_axes import ALONG, PER_ELEMENT

Wanted = Sequence[Spans | None]


@dataclass(frozen=True)
class MadePart:
    """Making of a part of an operation's results.

    Attributes
    ----------
    reads : tuple of Spans
        Of each of `Operation.reads`.
    makes : tuple of (Spans or None)
        Of each of `Operation.results`.
    changes : mapping
        Arguments that are others for the part.
    function : callable, optional
        What is run in place of the operation's function, with `changes` alone.
    """

    reads: tuple[Spans, ...]
    makes: tuple[Spans | None, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None


Rule = Callable[[Operation, Wanted], MadePart]
RULES: dict[str, Rule] = {}


def block_rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for ATen operations of these names."""

    def entered(made: Rule) -> Rule:
        for name in names:
            RULES[name] = made
        return made

    return entered


def part_of_operation(operation: Operation, wanted: Wanted) -> MadePart:
    """Return how the wanted parts of its results are made (None: not at all).

    Raises
    ------
    WholeImagesError
        If it needs more than a part of what it reads, or there is no rule for it.
    """
    name = operation.name.removesuffix(AUTOCAST)
    rule = RULES.get(name)
    if rule is None and name in PER_ELEMENT | _pointwise(operation):
        rule = per_element
    if rule is None and name in ALONG:
        rule = along
    if rule is None:
        raise WholeImagesError(f"{operation.said} needs whole images")
    return rule(operation, wanted)


def _pointwise(operation: Operation) -> frozenset[str]:
    tags = getattr(operation.function, "tags", ())
    return frozenset({operation.name}) if torch.Tag.pointwise in tags else frozenset()


# What rules are made of ---------------------------------------------------------------------------


def only(wanted: Wanted) -> Spans:
    """The part of the one result."""
    (found,) = (each for each in wanted if each is not None)
    return found


def uncut(spans: Spans, axes: Collection[int], of: Operation) -> None:
    """Refuse a part that is cut along some axes."""
    if any(spans[axis].cut for axis in axes):
        raise WholeImagesError(f"{of.said} goes along an axis that is cut")


def broadcast(shape: Sequence[int], spans: Spans) -> Spans:
    """Return the part of a broadcast operand that meets one of the result."""
    own = spans[len(spans) - len(shape) :]
    return tuple(
        Span(0, 1) if extent == 1 else span for extent, span in zip(shape, own, strict=True)
    )


def made_of(operation: Operation, lead: Spans, makes: Spans, **changes: Any) -> MadePart:
    """Rule of a result that is made of a part of the first value read, and all of the others."""
    rest = (whole_spans(value.shape) for value in operation.reads[1:])
    made = tuple(None if value is None else makes for value in operation.results)
    return MadePart((lead, *rest), made, changes)


def lead_of(operation: Operation) -> Value:
    """The value that it reads first."""
    return operation.reads[0]


# Families -----------------------------------------------------------------------------------------


def per_element(operation: Operation, wanted: Wanted) -> MadePart:
    """Value by value."""
    spans = next(each for each in wanted if each is not None)
    reads = tuple(broadcast(value.shape, spans) for value in operation.reads)
    return MadePart(reads, tuple(None if value is None else spans for value in operation.results))


@block_rule("prelu", "batch_norm")
def per_channel(operation: Operation, wanted: Wanted) -> MadePart:
    """Value by value, with numbers of each channel."""
    spans = only(wanted)
    if operation.arguments.get("training"):
        raise WholeImagesError("a batch normalization in training")
    uncut(spans, range(1, min(2, len(spans))), operation)
    return made_of(operation, spans, spans)


@block_rule("layer_norm", "rms_norm")
def normalised(operation: Operation, wanted: Wanted) -> MadePart:
    """Along the last axes."""
    spans, count = only(wanted), len(operation.arguments["normalized_shape"])
    uncut(spans, range(len(spans) - count, len(spans)), operation)
    return made_of(operation, spans, spans)


def dims_of(operation: Operation, count: int) -> set[int]:
    """The axes that an operation names, of so many; all where it names none."""
    told = operation.arguments
    named = told.get("dim", told.get("dims"))
    dims = [named] if isinstance(named, int) else list(named or range(count))
    return {each % count for each in dims}


def along(operation: Operation, wanted: Wanted) -> MadePart:
    """Along axes that it names: it sorts, sums or moves there, and elsewhere does the same."""
    if len(operation.reads) != 1 or not lead_of(operation).shape:
        raise WholeImagesError(f"{operation.said} of several values")
    shape = lead_of(operation).shape
    gone = dims_of(operation, len(shape))

    def kept(value: Value) -> list[int]:
        """The axis of what is read for each axis of a result."""
        stays = len(value.shape) == len(shape)
        return [axis for axis in range(len(shape)) if stays or axis not in gone]

    lead: Spans | None = None
    for value, spans in zip(operation.results, wanted, strict=True):
        if value is None or spans is None:
            continue
        axes, read = kept(value), list(whole_spans(shape))
        uncut(spans, [at for at, axis in enumerate(axes) if axis in gone], operation)
        for axis, span in zip(axes, spans, strict=True):
            if axis not in gone:
                read[axis] = span
        lead = tuple(read) if lead is None else joined(lead, tuple(read))
    assert lead is not None
    makes = tuple(
        None
        if value is None
        else tuple(
            Span(0, extent) if axis in gone else lead[axis]
            for axis, extent in zip(kept(value), value.shape, strict=True)
        )
        for value in operation.results
    )
    return MadePart((lead,), makes)


def joined(one: Spans, other: Spans) -> Spans:
    """The least part around two.

    Raises
    ------
    WholeImagesError
        If one is all of an axis that the other is cut along.
    """
    spans = []
    for a, b in zip(one, other, strict=True):
        if a.cut != b.cut:
            raise WholeImagesError("all of what is cut elsewhere is read")
        spans.append(Span(min(a.start, b.start), max(a.stop, b.stop), a.cut))
    return tuple(spans)


@block_rule("linear")
def linear(operation: Operation, wanted: Wanted) -> MadePart:
    """Over the last axis."""
    spans = only(wanted)
    uncut(spans, [len(spans) - 1], operation)
    x = lead_of(operation)
    return made_of(operation, (*spans[:-1], Span(0, x.shape[-1])), spans)


@block_rule("matmul", "bmm")
def product(operation: Operation, wanted: Wanted) -> MadePart:
    """A product of matrices: rows of the left one, columns of the right one."""
    spans = only(wanted)
    left, right = operation.reads
    if min(len(left.shape), len(right.shape)) < 2:
        raise WholeImagesError("a product with a vector")
    *batch, rows, columns = spans
    one = (*broadcast(left.shape[:-2], tuple(batch)), rows, Span(0, left.shape[-1]))
    other = (*broadcast(right.shape[:-2], tuple(batch)), Span(0, right.shape[-2]), columns)
    return MadePart((one, other), (spans,))


@block_rule("einsum")
def summed(operation: Operation, wanted: Wanted) -> MadePart:
    """Einstein's sums: what is cut has a letter, and all that has this letter is cut."""
    spans = only(wanted)
    taken, _, right = str(operation.arguments["equation"]).replace(" ", "").partition("->")
    terms = taken.split(",")
    if "." in taken or not right or any(len(set(each)) < len(each) for each in (*terms, right)):
        raise WholeImagesError(f"{operation.said} of {taken}")
    of = dict(zip(right, spans, strict=True))
    reads = tuple(
        tuple(
            of.get(letter, Span(0, extent))
            for letter, extent in zip(term, value.shape, strict=True)
        )
        for term, value in zip(terms, operation.reads, strict=True)
    )
    return MadePart(reads, (spans,))


@block_rule("channel_shuffle")
def shuffled(operation: Operation, wanted: Wanted) -> MadePart:
    """Channels in another order."""
    spans = only(wanted)
    uncut(spans, [1], operation)
    return made_of(operation, spans, spans)
