"""Blocks of what somebody else computes: some images, and some sites, where the function says how.

A function of arrays that knows which elements of its inputs a part of its result is made of is one
for blocks, too. All others need whole images.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

from ooc_cudnn.operations.core.block_calls import TileCall
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.external.calls import Computation, ExternalCall, ExternalInput


class WholeImagesError(ValueError):
    """A block of sites cannot be made of a part of what a call reads."""


class Span(NamedTuple):
    """A range of an axis.

    Attributes
    ----------
    start, stop : int
    cut : bool
        Whether the axis is cut at all: what holds of one block must hold of every other.
    """

    start: int
    stop: int
    cut: bool = False


Spans = tuple[Span, ...]


def whole_spans(shape: Shape) -> Spans:
    """All of an array.

    >>> whole_spans((2, 3))
    (Span(start=0, stop=2, cut=False), Span(start=0, stop=3, cut=False))
    """
    return tuple(Span(0, extent) for extent in shape)


class PartOfComputation(NamedTuple):
    """A function that makes a part of another one's result, and which parts of inputs it takes.

    Attributes
    ----------
    computation : Computation
    inputs : tuple of Spans
    """

    computation: Computation
    inputs: tuple[Spans, ...]


@runtime_checkable
class InParts(Protocol):
    """A computation that may say of what a part of its result is made."""

    def part(self, result: Spans, lasting: Collection[int]) -> PartOfComputation:
        """Return what makes a part of its result, of all images.

        Parameters
        ----------
        result : Spans
            Of the result's axes.
        lasting : collection of int
            The inputs that are whole in every block.

        Raises
        ------
        WholeImagesError
            If it cannot be made of parts.
        """


def tile_of_external(
    call: ExternalCall, images: Range, sites: Sequence[Span], lasting: Collection[str]
) -> TileCall:
    """The call that makes some sites of some images.

    Parameters
    ----------
    images : (int, int)
    sites : sequence of Span
        Of the axes of y behind images and channels.
    lasting : collection of str
        The operands that are whole in every block.

    Raises
    ------
    WholeImagesError
        If the function needs whole images, draws random numbers, or has several results.
    """
    computation = call.computation
    if call.draws or call.others or not isinstance(computation, InParts):
        raise WholeImagesError(f"{computation.name} is of whole images")
    lead = whole_spans(call.y_shape[: len(call.y_shape) - len(sites)])
    numbers = [at for at in range(len(call.inputs)) if f"x{at}" in lasting]
    part = computation.part((*lead, *sites), numbers)
    regions, taken = {}, []
    for index, (operand, spans) in enumerate(zip(call.inputs, part.inputs, strict=True)):
        if operand.of_images and _reads_all_sites(spans):
            raise WholeImagesError(f"{computation.name} reads all positions in every block")
        region = tuple((span.start, span.stop) for span in spans)
        if operand.of_images:
            region = _of_images(region, call.images, images)
        regions[f"x{index}"] = region
        taken.append(ExternalInput(_extents(region), operand.dtype, operand.of_images))
    of_y = tuple((span.start, span.stop) for span in (*lead, *sites))
    regions["y"] = _of_images(of_y, call.images, images)
    count = images[1] - images[0]
    block = replace(
        call,
        computation=part.computation,
        inputs=tuple(taken),
        y_shape=_extents(regions["y"]),
        images=count,
        at_once=min(call.at_once, count),
    )
    return TileCall(block, regions)


def _reads_all_sites(spans: Spans) -> bool:
    sites = spans[2:]
    many = any(span.stop - span.start > 1 for span in sites)
    return many and not any(span.cut for span in spans)


def _of_images(region: Region, count: int, images: Range) -> Region:
    each = region[0][1] // count
    return ((images[0] * each, images[1] * each), *region[1:])


def _extents(region: Region) -> Shape:
    return tuple(stop - start for start, stop in region)
