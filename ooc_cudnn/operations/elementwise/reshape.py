"""Another shape for the same elements, image by image: what flattens maps for a linear layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import Operand, Piece, Read, Region, Rounding, random_range
from ooc_cudnn.operations.core.elementwise import OneShape
from ooc_cudnn.operations.core.launch_builder import Builder, BuiltCall
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from perfmodel import Split, Work
from perfmodel.cached import cached_property

IMAGES = frozenset({"n"})


@dataclass(frozen=True)
class Reshape(OneShape):
    """y of shape `to` from (x,): the elements in the order of channels-first memory."""

    shape: Shape
    to: Shape
    dtype: str

    name = "reshape"

    @property
    def output_shape(self) -> Shape:
        return self.to

    def work(self) -> Work:
        """One read and one write."""
        return self.passes("/relayout", 2)

    def reference(self, x: Array) -> Array:
        """The same numbers."""
        return x.reshape(self.output_shape)


@dataclass(frozen=True)
class ReshapeCall(BuiltCall):
    """y of shape `to` from x: cut along n, which both shapes begin with."""

    shape: Shape
    to: Shape
    dtype: str

    reduced = ()

    @cached_property
    def operands(self) -> Mapping[str, Operand]:
        return {
            "x": Operand(self.shape, self.dtype, IMAGES),
            "y": Operand(self.to, self.dtype, IMAGES),
        }

    @property
    def extents(self) -> Split:
        return Split(n=self.shape[0], c_y=1, c_x=1, h_y=1)

    @property
    def row_axes(self) -> tuple[int, ...]:
        return (ROW_AXIS,)

    def region(self, name: str, piece: Piece) -> Region:
        return (piece.n, *((0, extent) for extent in self.operands[name].shape[1:]))

    def build(self, build: Builder) -> None:
        """Copy, from and to channels-first memory."""
        dtype = build.product_dtype("y")
        x = build.taken("x", "channels_first", dtype)
        images = build.piece.n[1] - build.piece.n[0]
        operation = Reshape((images, *self.shape[1:]), (images, *self.to[1:]), dtype)
        build.make(operation, (x,), "y", "channels_first", done=(x,))

    def patch(self, random: np.random.Generator) -> Piece:
        return self.whole_piece()._replace(n=random_range(random, self.shape[0], 1))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        y = read("x", self.region("x", piece)).reshape(-1, *self.to[1:])
        return {"y": (y, np.abs(y))}

    def rounding(self) -> Rounding:
        return Rounding(1, self.dtype)


def flatten(shape: Shape) -> Shape:
    """All elements of an image on one axis.

    >>> flatten((2, 3, 4, 5))
    (2, 60)
    """
    return shape[0], math.prod(shape[1:])
