"""Elements moved along axes, those that leave at the end put in at the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Region
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.elementwise.moves import MoveCall
from perfmodel import Split, Work
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class Roll(OneShape):
    """y from (x,): the elements of x, so many places further along each axis.

    Parameters
    ----------
    shape : tuple of int
        Of x and y.
    shifts : tuple of int
        Of each axis, from 0 to less than its extent; that of images is 0.
    dtype : str
    """

    shape: Shape
    shifts: tuple[int, ...]
    dtype: str

    name = "roll"
    any_strides = True

    @property
    def inverse(self) -> Roll:
        """x from (y,)."""
        pairs = zip(self.shape, self.shifts, strict=True)
        return replace(self, shifts=tuple(extent - by if by else 0 for extent, by in pairs))

    def boxes(self) -> Iterator[tuple[Region, Region]]:
        """Regions of x, and where they are in y: each axis before its end, and behind it."""
        pairs = [
            [((0, e - by), (by, e)), ((e - by, e), (0, by))] if by else [((0, e), (0, e))]
            for e, by in zip(self.shape, self.shifts, strict=True)
        ]
        for box in itertools.product(*pairs):
            yield tuple(source for source, _ in box), tuple(target for _, target in box)

    def work(self) -> Work:
        """One read and one write."""
        return self.passes("/relayout", 2, problem=self.name)

    def reference(self, x: Array) -> Array:
        """The same numbers."""
        return np.roll(x, self.shifts, tuple(range(x.ndim)))


@dataclass(frozen=True)
class RollCall(MoveCall):
    """y from x: cut along images, and along channels where these stay."""

    operation: Roll

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        axes = frozenset({"n"} if self.operation.shifts[1] else {"n", "c_y"})
        return dict.fromkeys(("x", "y"), Operand(self.operation.shape, self.dtype, axes))

    @property
    def extents(self) -> Split:
        n, channels, *_ = self.operation.shape
        return Split(n=n, c_y=1 if self.operation.shifts[1] else channels, c_x=1, h_y=1)

    def region(self, name: str, piece: Piece) -> Region:
        _, channels, *sites = self.operation.shape
        part = (0, channels) if self.operation.shifts[1] else piece.c_y
        return (piece.n, part, *((0, extent) for extent in sites))

    def on_piece(self, piece: Piece, dtype: str) -> Roll:
        shape = tuple(stop - start for start, stop in self.region("x", piece))
        return Roll(shape, self.operation.shifts, dtype)
