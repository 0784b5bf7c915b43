"""Channels as heads, and back: a copy between linear layers and attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ooc_cudnn.operations.core.call import Piece, Read
from ooc_cudnn.operations.core.launch_builder import Builder
from ooc_cudnn.operations.core.operation import Array, Shape
from ooc_cudnn.operations.elementwise.reshape import Reshape, ReshapeCall


@dataclass(frozen=True)
class Heads(Reshape):
    """y of shape `to` from (x,): (n, heads * depth, sites) as (n, depth, heads, sites), or back.

    Channels are of one head after the other.
    """

    any_strides = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the direction."""
        return "split_heads" if len(self.to) == 4 else "join_heads"

    @property
    def common_shape(self) -> Shape:
        """Shape (n, heads, depth, sites), in which either is a view of the other's elements."""
        n, depth, heads, sites = self.to if len(self.to) == 4 else self.shape
        return (n, heads, depth, sites)

    def reference(self, x: Array) -> Array:
        """The same numbers."""
        y = np.empty(self.to, x.dtype)
        source, target = self.views(x, y)
        target[...] = source
        return y

    def views(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Both, as views of the common shape."""
        common = (
            array.transpose(0, 2, 1, 3) if array.ndim == 4 else array.reshape(self.common_shape)
            for array in (x, y)
        )
        source, target = common
        return source, target


@dataclass(frozen=True)
class HeadsCall(ReshapeCall):
    """y from x, one the heads of the other's channels: cut along n."""

    def build(self, build: Builder) -> None:
        """Copy from and to whatever order they lie in."""
        dtype, order = build.product_dtype("y"), build.buffers["x"].order
        x = build.taken("x", order, dtype)
        images = build.piece.n[1] - build.piece.n[0]
        operation = Heads((images, *self.shape[1:]), (images, *self.to[1:]), dtype)
        build.make(operation, (x,), "y", build.buffers["y"].order, done=(x,))

    def expected(self, piece: Piece, read: Read) -> Mapping[str, tuple[Array, Array]]:
        x = read("x", self.region("x", piece))
        y = Heads(x.shape, (x.shape[0], *self.to[1:]), "float64").reference(x)
        return {"y": (y, np.abs(y))}
