"""A tensor of a network: a name, a shape, a dtype, a kind; and what it is a view of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.pipeline.program import inside
from ooc_cudnn.tensor import DTYPES, ITEM_BYTES

#: input: given in each step. parameter: lives between steps, the user updates it. running: lives
#: between steps, a step updates it in place (running statistics). map: what forward makes.
#: statistics: small, what forward saves for backward. gradient: what backward makes, or is given.
KINDS = ("input", "parameter", "running", "map", "statistics", "gradient")
#: Kinds of tensors that are handed in, and those of them that a step changes.
GIVEN = ("input", "parameter", "running")


class Origin(NamedTuple):
    """Provenance: which tensor a pass made one of, and which part or copy of it this is.

    Names tell it to people; code reads it here.

    Attributes
    ----------
    of : str
        The tensor as it was before any pass; empty for a tensor that no pass made of another.
    gradient_of : str
        The tensor of which a gradient is the gradient, or adds to it.
    copy : str
        "rematerialized", or "rows" where a row tile has its own copy of rows of a whole tensor.
    batch_slice, row_tile, micro_batch : int, optional
        The number of the part that it holds.
    """

    of: str = ""
    gradient_of: str = ""
    copy: str = ""
    batch_slice: int | None = None
    row_tile: int | None = None
    micro_batch: int | None = None


#: Of a tensor that no pass made.
NO_ORIGIN = Origin()


@dataclass(frozen=True)
class Tensor:
    """A tensor of a network: builders return it, and phases bind operands to it.

    Parameters
    ----------
    name : str
        Unique in its network. The result of a node has the node's name.
    shape : tuple of int
    dtype : str
        One of the library's, or for inputs an integer one.
    kind : str
        One of `KINDS`.
    of, region : str, ((start, stop), ...)
        Of a view: the tensor whose region it is. The region has the view's extents, but for axes of
        extent 1, of which either may have more.
    origin : Origin
    """

    name: str
    shape: Shape
    dtype: str
    kind: str = "map"
    of: str = ""
    region: Region = ()
    origin: Origin = NO_ORIGIN

    @property
    def source(self) -> str:
        """Name of the tensor, before any pass, that it is a part or a copy of; else its own."""
        return self.origin.of or self.name

    def derived(self, name: str, origin: Mapping[str, Any], **changes: Any) -> Tensor:
        """Return a tensor that a pass makes of this one, with what is new of its origin.

        >>> h = Tensor("h", (4, 8), "float32")
        >>> part = h.derived("h [1]", {"micro_batch": 1}, shape=(2, 8))
        >>> part.source, part.origin.micro_batch, part.shape
        ('h', 1, (2, 8))
        """
        made = self.origin._replace(of=self.source, **origin)
        return replace(self, name=name, origin=made, **changes)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_floating(self) -> bool:
        """True if it may have a gradient."""
        return self.dtype in DTYPES


class Place(NamedTuple):
    """Place of a tensor: the one, no view, in which it lies, and its region of that."""

    base: str
    region: Region


def whole_region(shape: Shape) -> Region:
    """The region that is all of a tensor.

    >>> whole_region((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, extent) for extent in shape)


def channels_of(shape: Shape, channels: Range) -> Region:
    """The region that is some channels of a tensor.

    >>> channels_of((2, 5, 4), (1, 3))
    ((0, 2), (1, 3), (0, 4))
    """
    images, _, *spatial = whole_region(shape)
    return (images, channels, *spatial)


def extents(region: Region) -> Shape:
    """Shape of a region.

    >>> extents(((0, 2), (4, 7)))
    (2, 3)
    """
    return tuple(stop - start for start, stop in region)


def same_but_for_ones(one: Shape, other: Shape) -> bool:
    """True if two shapes differ in axes of extent 1 alone.

    >>> same_but_for_ones((2, 3), (2, 3, 1, 1)), same_but_for_ones((2, 3), (3, 2))
    (True, False)
    """
    return [e for e in one if e != 1] == [e for e in other if e != 1]


def meet(one: Region, other: Region) -> bool:
    """True if two regions of one tensor share an element.

    >>> meet(((0, 2), (0, 3)), ((0, 2), (3, 5))), meet(((0, 2), (0, 3)), ((1, 2), (2, 5)))
    (False, True)
    """
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(one, other, strict=True))


def hull(one: Region, other: Region) -> Region:
    """The least region around two.

    >>> hull(((0, 2), (1, 3)), ((1, 2), (0, 2)))
    ((0, 2), (0, 3))
    """
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def common(one: Region, other: Region) -> Region:
    """The region that two share.

    >>> common(((0, 2), (1, 3)), ((1, 2), (0, 2)))
    ((1, 2), (1, 2))
    """
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def relative_region(region: Region, other: Region) -> Region:
    """A region of a tensor as one of a part of it: counted from where the part begins.

    >>> relative_region(((2, 4), (1, 3)), ((1, 9), (1, 9)))
    ((1, 3), (0, 2))
    """
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(region, other, strict=True))


def place_of(name: str, tensors: Mapping[str, Tensor]) -> Place:
    """Resolve a tensor's place through all views of views."""
    tensor = tensors[name]
    region = whole_region(tensor.shape)
    while tensor.of:
        region = inside(tensor.region, region, tensor.shape)
        tensor = tensors[tensor.of]
    return Place(tensor.name, region)
