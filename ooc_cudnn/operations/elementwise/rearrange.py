"""Axes split, permuted and joined again, image by image: a shuffle of channels or of pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from ooc_cudnn.operations.core.call import Operand, Piece, Region
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.elementwise.moves import MoveCall
from ooc_cudnn.operations.elementwise.reshape import IMAGES
from perfmodel import Split, Work
from perfmodel.cached import cached_property


@dataclass(frozen=True)
class Rearrange(OneShape):
    """y from (x,): each axis of x is split into factors, and axes of y are made of these.

    Parameters
    ----------
    factors : tuple of tuple of int
        Of each axis of x, outermost first; their product is its extent. The first are the images:
        they are outermost in y, too, and may have parts of themselves behind them, as windows.
    parts : tuple of tuple of int
        Of each axis of y the factors that it is made of, counted through all axes of x.
    """

    factors: tuple[Shape, ...]
    parts: tuple[tuple[int, ...], ...]
    dtype: str

    name = "rearrange"
    any_strides = True

    @property
    def sizes(self) -> Shape:
        """All factors, in the order of x's axes."""
        return tuple(itertools.chain(*self.factors))

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        """Shape of x."""
        return tuple(math.prod(each) for each in self.factors)

    @property
    def result_factors(self) -> tuple[Shape, ...]:
        """Factors of each axis of y."""
        return tuple(tuple(self.sizes[at] for at in part) for part in self.parts)

    @property
    def output_shape(self) -> Shape:
        return tuple(math.prod(each) for each in self.result_factors)

    @property
    def order(self) -> tuple[int, ...]:
        """The factors in the order of y's axes."""
        return tuple(itertools.chain(*self.parts))

    @property
    def inverse(self) -> Rearrange:
        """x from (y,)."""
        at = {factor: place for place, factor in enumerate(self.order)}
        counted = iter(range(len(self.sizes)))
        parts = tuple(tuple(at[next(counted)] for _ in each) for each in self.factors)
        return Rearrange(self.result_factors, parts, self.dtype)

    def of_images(self, images: int, dtype: str) -> Rearrange:
        """The same of so many images."""
        first = (images, *self.factors[0][1:])
        return Rearrange((first, *self.factors[1:]), self.parts, dtype)

    @property
    def images(self) -> int:
        """Images that it is made one by one of."""
        return self.sizes[0]

    def work(self) -> Work:
        """One read and one write."""
        return self.passes("/relayout", 2, problem=self.name)

    def reference(self, x: Array) -> Array:
        """The same numbers."""
        return x.reshape(self.sizes).transpose(self.order).reshape(self.output_shape)


@dataclass(frozen=True)
class RearrangeCall(MoveCall):
    """y from x: cut along images, which are outermost in both."""

    operation: Rearrange

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            "x": Operand(self.operation.shape, self.dtype, IMAGES),
            "y": Operand(self.operation.output_shape, self.dtype, IMAGES),
        }

    @property
    def extents(self) -> Split:
        return Split(n=self.operation.images, c_y=1, c_x=1, h_y=1)

    def region(self, name: str, piece: Piece) -> Region:
        first, *shape = self.operands[name].shape
        each = first // self.operation.images
        return ((piece.n[0] * each, piece.n[1] * each), *((0, extent) for extent in shape))

    def on_piece(self, piece: Piece, dtype: str) -> Rearrange:
        return self.operation.of_images(piece.n[1] - piece.n[0], dtype)
